"""kopsctl clients and drain, with a daemon that answers what the test says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Ctl
from fake import FakeDaemon, Refused, client, clients, user

FULL = client(
    123, uid=0, comm="worker", client="kops-python 1", requests=5, errors=2, inflight=3, queued=1, mapped_bytes=3 << 29,
    allocated_bytes=1000, paused=True, shm=True, device_us=1.5, here=77,
)  # fmt: skip


def test_table(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["clients"] = clients(FULL, client(7))
    titles, first, second = ctl("clients").stdout.splitlines()
    assert titles.split()[:3] == ["pid", "user", "process"] and titles.endswith("calls itself")
    for text in ("123", "root", "worker", "77", "1.50 GiB", "0.98 KiB", "11.0", "13.0", "paused", "kops-python 1"):
        assert text in first, text
    assert second.split()[0] == "7" and "idle" in second
    assert titles.index("p99 us") == first.index("  13.0") + len("  13.0") - len("p99 us"), "numbers end where titles do"


def test_json_has_everything(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["clients"] = answer = clients(FULL, users=[user(5, limits={"connections": 9})])
    assert json.loads(ctl("clients", "--json").stdout) == answer


def test_users_and_their_limits(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["clients"] = clients(FULL)
    assert "descriptors" not in ctl("clients").stdout
    lines = ctl("clients", "--users").stdout.splitlines()
    assert lines[-2].startswith("user") and lines[-1].startswith("root")
    assert "1 of 1024" in lines[-1] and "3 B of 1.00 GiB" in lines[-1] and "9.000" in lines[-1]


def test_the_executor_of_a_client(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["clients"] = answer = clients(client(1, isolation="user", executor=502), client(2, isolation="user"))
    titles, first, second = ctl("clients").stdout.splitlines()
    end = titles.index("executor") + len("executor")
    assert first[:end].endswith(" 502") and second[:end].endswith(" -")
    assert json.loads(ctl("clients", "--json").stdout) == answer


def test_nobody_and_draining(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["clients"] = clients(state="draining")
    lines = ctl("clients").stdout.splitlines()
    assert len(lines) == 2 and lines[1] == "the daemon is draining"


def test_names_cannot_command_the_terminal(fake: FakeDaemon, ctl: Ctl) -> None:
    """A client chooses what it calls itself."""
    fake.answers["clients"] = clients(client(1, client="\x1b]0;owned\x07\x9b2J\n", comm="a\tb"))
    out = ctl("clients").stdout
    assert all(c == "\n" or c.isascii() and c.isprintable() for c in out), out
    assert "?]0;owned?" in out and len(out.splitlines()) == 2
    assert json.loads(ctl("clients", "--json").stdout)["clients"][0]["client"] == "\x1b]0;owned\x07\x9b2J\n"


def test_names_that_are_no_text(fake: FakeDaemon, ctl: Ctl) -> None:
    """A process's name may be any bytes: JSON stays JSON."""
    wrong = ["a\udcff", "\udcc0\udc80", "\udced\udca0\udc80", "\udcf4\udc90\udc80\udc80", "\udce2\udc82", "€\udc80", "ü\x7f𝄞"]
    fake.answers["clients"] = clients(*(client(i, comm=name) for i, name in enumerate(wrong)))
    read = [c["comm"] for c in json.loads(ctl("clients", "--json").stdout)["clients"]]
    assert read == ["a\ufffd", "\ufffd" * 2, "\ufffd" * 3, "\ufffd" * 4, "\ufffd" * 2, "€\ufffd", "ü\x7f𝄞"]
    assert ctl("clients").stdout.isascii()


def test_drained(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["drain"] = {"drained": True, "jobs": 0, "connections": 1}
    assert ctl("drain").stdout == "drained\n"
    assert "the daemon ends" in ctl("drain", "--stop").stdout
    assert json.loads(ctl("drain", "--json").stdout) == {"drained": True, "jobs": 0, "connections": 1}
    assert [params for method, params in fake.requests if method == "drain"] == [{}, {"stop": True}, {}]


def test_not_drained_in_time(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["drain"] = {"drained": False, "jobs": 3, "connections": 2}
    assert "3 jobs" in ctl("drain", "--timeout", "0.25", status=4).stdout
    assert fake.requests[-1] == ("drain", {"timeout_ms": 250})
    assert "nevertheless" in ctl("--timeout", "2", "drain", "--stop", status=4).stdout
    assert fake.requests[-1] == ("drain", {"timeout_ms": 2000, "stop": True})


def test_resume(fake: FakeDaemon, ctl: Ctl) -> None:
    """Work that is in flight then is no failure."""
    fake.answers["drain"] = {"drained": False, "jobs": 3, "connections": 2}
    assert "again" in ctl("drain", "--resume").stdout
    assert fake.requests[-1] == ("drain", {"resume": True})


def test_drain_refused(fake: FakeDaemon, ctl: Ctl) -> None:
    def refuse(_: Any) -> Any:
        raise Refused("permission_denied", "draining is for administrators")

    fake.answers["drain"] = refuse
    ended = ctl("drain", status=1)
    assert "for administrators" in ended.stderr and "permission_denied" in ended.stderr


@pytest.mark.parametrize("args", [["clients"], ["drain"], ["metrics"], ["top", "--batch", "-n", "1"]])
def test_an_older_daemon(ctl: Ctl, args: list[str]) -> None:
    ended = ctl(*args, status=1)
    assert "older than the method" in ended.stderr and "install a newer one" in ended.stderr


@pytest.mark.parametrize("args", [["clients"], ["drain"], ["metrics"], ["top", "--batch"]])
def test_no_daemon(fake: FakeDaemon, ctl: Ctl, args: list[str]) -> None:
    fake.close()
    assert "no daemon answers" in ctl(*args, status=3).stderr
