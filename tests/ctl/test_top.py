"""kopsctl top: what is counted from two looks, in batch and on a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ENV, Ctl
from fake import EXECUTORS, HELLO, ONE, FakeDaemon, client, clients, executor, stats
from terminal import Terminal

Start = Callable[..., subprocess.Popen[str]]
SPREAD = {"min": 1.0, "mean": 2.0, "p50": 3.0, "p90": 4.0, "p99": 5.0, "max": 6.0}


def row(op: str, count: int, n: int = 8, **more: Any) -> dict[str, Any]:
    return {"op": op, "device": "host", "variant": "v", "dtype": "f32", "shapes": [[n, 3], [n]], "count": count, "errors": 0,
            "exec_us": SPREAD, "total_us": SPREAD, **more}  # fmt: skip


class Work:
    """A daemon whose numbers grow by the same with each look, a second of its time apart."""

    def __init__(self, fake: FakeDaemon) -> None:
        self.looks = 0
        self.seen = threading.Condition()
        fake.answers["clients"] = self.clients
        fake.answers["stats"] = self.stats

    def clients(self, _: Any) -> Any:
        with self.seen:
            self.looks += 1
            self.seen.notify_all()
        t = self.looks
        fast = client(11, comm="fast", connected_s=5.0 + t, requests=1000 * t, here=70 * t, device_us=2.5e5 * t, inflight=2, queued=1,
                      mapped_bytes=1 << 20)  # fmt: skip
        slow = client(22, comm="slow", connected_s=3.0 + t, requests=10 * t, errors=t, device_us=5e5 * t, mapped_bytes=1 << 30,
                      latency={"queue": {"count": 0}, "device": {"count": 0}, "total": {**ONE, "p99": 5000.0}})  # fmt: skip
        device = {"index": 0, "name": "fake GPU", "uuid": "host", "busy_us": 7.5e5 * t, "running": 2,
                  "memory_total": 8 << 30, "memory_free": 2 << 30}  # fmt: skip
        return clients(fast, slow, uptime_s=100.0 + t, devices=[device])

    def stats(self, _: Any) -> Any:
        t = self.looks
        rows = [row("idle", 7), row("add", 900 * t), row("add", 50 * t, 16), row("gemm", 60 * t)]
        return stats(100.0 + t, rows, requests=1010 * t, errors=t, jobs=1000 * t)

    def wait(self, looks: int) -> None:
        with self.seen:
            assert self.seen.wait_for(lambda: self.looks >= looks, 60)


@pytest.fixture
def work(fake: FakeDaemon) -> Work:
    return Work(fake)


def top_json(ctl: Ctl, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ctl("top", "--batch", "--json", "-d", "0.1", *args).stdout.splitlines()]


def test_rates(ctl: Ctl, work: Work) -> None:
    looks = top_json(ctl, "-n", "2")
    assert len(looks) == 2 and work.looks == 3
    for look in looks:
        assert look["interval_s"] == 1.0
        assert (look["requests_s"], look["errors_s"], look["runs_s"]) == (1010, 1, 1000)
        assert (look["inflight"], look["queued"], look["state"]) == (2, 1, "serving")
        assert look["devices"][0]["busy_share"] == 0.75 and look["devices"][0]["memory_free"] == 2 << 30
        fast, slow = look["clients"]
        assert (fast["pid"], fast["requests_s"], fast["errors_s"], fast["device_share"]) == (11, 1000, 0, 0.25)
        assert (fast["here_s"], slow["here_s"]) == (70, 0)
        assert (slow["pid"], slow["requests_s"], slow["errors_s"], slow["device_share"]) == (22, 10, 1, 0.5)
        assert [(op["op"], op["shapes"], op["runs_s"]) for op in look["ops"]] == [
            ("add", [[8, 3], [8]], 900),
            ("gemm", [[8, 3], [8]], 60),
            ("add", [[16, 3], [16]], 50),
        ], "the busiest first; what did not run is not there"
    assert looks[1]["uptime_s"] == looks[0]["uptime_s"] + 1


@pytest.mark.parametrize(
    ("by", "first"), [("rate", 11), ("device", 22), ("memory", 22), ("p99", 22), ("inflight", 11), ("pid", 11)]
)
def test_order(ctl: Ctl, work: Work, by: str, first: int) -> None:
    (look,) = top_json(ctl, "-n", "1", "--sort", by)
    assert look["clients"][0]["pid"] == first


def test_who_came_and_what_started_anew(fake: FakeDaemon, ctl: Ctl, work: Work) -> None:
    """A client that is new has done all of its requests in between; a pid that was used again is another client; counters
    that were reset count from nothing."""

    def newcomers(params: Any) -> Any:
        answer = work.clients(params)
        if work.looks == 2:
            answer["clients"] = [client(33, connected_s=0.5, requests=40), client(11, connected_s=0.25, requests=8)]
        return answer

    fake.answers["clients"] = newcomers
    fake.answers["stats"] = lambda params: stats(0.0, [row("add", 5)], requests=30 if work.looks == 2 else 1000)
    (look,) = top_json(ctl, "-n", "1")
    assert [(c["pid"], c["requests_s"]) for c in look["clients"]] == [(33, 40), (11, 8)]
    assert look["requests_s"] == 30


def test_connections_of_one_process_are_told_apart(fake: FakeDaemon, ctl: Ctl, work: Work) -> None:
    def two(params: Any) -> Any:
        t = work.clients(params)["uptime_s"] - 100
        return clients(
            *(client(5, connected_s=age + t, requests=int(n * t)) for age, n in ((9, 20), (2, 300))), uptime_s=100 + t
        )

    fake.answers["clients"] = two
    (look,) = top_json(ctl, "-n", "1")
    assert sorted(c["requests_s"] for c in look["clients"]) == [20, 300]


def test_a_daemon_that_was_started_anew(fake: FakeDaemon, ctl: Ctl, work: Work) -> None:
    """Nothing to compare with: no rates, rather than wrong ones."""

    def younger(params: Any) -> Any:
        return {**work.clients(params), "uptime_s": 50.0 if work.looks == 2 else 100.0 + work.looks}

    fake.answers["clients"] = younger
    first, second = top_json(ctl, "-n", "2")
    assert "requests_s" not in first and "requests_s" not in first["clients"][0] and "busy_share" not in first["devices"][0]
    assert second["interval_s"] == 53.0


def test_text(ctl: Ctl, work: Work) -> None:
    lines = ctl("top", "--batch", "-n", "1", "-d", "0.1").stdout.splitlines()
    assert "kopsd 9.9 (fake), pid 4242, up 1 min 42 s: serving, 2 clients" in lines[0]
    assert lines[1] == "1.0k requests/s, 1.0k runs/s, 1.0 errors/s; 2 in flight, 1 queued"
    assert lines[2] == "device 0, fake GPU: 75 % busy, 2 running, 2.00 GiB of 8.00 GiB free"
    assert lines[3] == "" and lines[4].split()[0] == "pid"
    assert lines[5].split()[:6] == ["11", "root", "fast", "1.0k", "70", "0"] and "25 %" in lines[5] and "busy" in lines[5]
    assert "8x3,8" in lines[9] and "900" in lines[9]


def test_batch_goes_on_until_nobody_reads(start: Start, work: Work) -> None:
    process = start("top", "--batch", "-d", "0.1")
    assert process.stdout is not None
    titles = 0
    while titles < 3:
        titles += process.stdout.readline().startswith("pid")
    process.stdout.close()
    assert process.wait(60) == -signal.SIGPIPE


def test_batch_says_why_it_ends(start: Start, fake: FakeDaemon, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENV, "KOPS_RECONNECT_TIMEOUT", "0")
    process = start("top", "--batch", "--json", "-d", "0.1")
    work.wait(2)
    fake.close()
    _, errors = process.communicate()
    assert process.returncode == 1 and json.loads(errors)["error"]["what"] == "top"


def test_a_full_disk_is_noticed(ctl: Ctl, work: Work) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*ctl.command, "top", "--batch", "-d", "0.1"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=ENV
        )
    assert ended.returncode == 1 and "No space left" in ended.stderr


# On a terminal


LIVE = "built without ncurses"


@pytest.fixture
def open_top(ctl: Ctl, work: Work) -> Iterator[Callable[..., Terminal]]:
    if LIVE in ctl.start("top").communicate()[1]:
        pytest.skip("this kopsctl has no live view")
    opened = []

    def run(*args: str, **size: int) -> Terminal:
        opened.append(Terminal([*ctl.command, "top", *args], ENV, **size))
        return opened[-1]

    yield run
    for terminal in opened:
        terminal.close()


def first_client(screen: str) -> str:
    lines = screen.splitlines()
    (titles,) = [i for i, line in enumerate(lines) if line.lstrip().startswith("pid ")]
    return lines[titles + 1].split()[0] if lines[titles + 1].strip() else ""


def test_live(open_top: Callable[..., Terminal], fake: FakeDaemon, work: Work) -> None:
    """Many executors leave room for the clients and ops."""
    many = [executor(900 + i, domain="user", uid=i) for i in range(40)]
    fake.answers["stats"] = lambda params: {**work.stats(params), **EXECUTORS, "executors": many}
    top = open_top("-d", "0.1")
    # What did not run since the last look is gone; what comes in parts is waited for.
    screen = top.until(
        lambda s: "75 % busy" in s and "user root" in s and not re.search("^idle ", s, re.M) and "gemm" in s, "rates are shown"
    )
    lines = screen.splitlines()
    assert "kopsd 9.9 (fake)" in lines[0] and "75 % busy" in lines[2] and first_client(screen) == "11"
    assert "900" in screen and "939" not in screen
    assert lines[-1].startswith("q quit  p pause") and "(rate)" in lines[-1]
    top.press("q")
    assert top.wait() == 0


def test_live_keys(open_top: Callable[..., Terminal], work: Work) -> None:
    top = open_top("-d", "0.1")
    top.until(lambda s: "75 % busy" in s and "every" in s, "rates are shown")
    for key, name, first in (("d", "device", "22"), ("r", "rate", "11"), ("l", "p99", "22"), ("n", "pid", "11"), ("m", "memory", "22")):
        top.press(key)
        top.until(lambda s, name=name, first=first: f"({name})" in s and first_client(s) == first, f"sorted by {name}")
    top.press("\x1bOB")  # down
    top.until(lambda s: first_client(s) == "11", "the second of them is the first shown")
    top.press("\x1bOA")
    top.until(lambda s: first_client(s) == "22", "back")
    top.press("+")
    top.until(lambda s: "every 0.2 s" in s, "looks less often")
    top.press("-")
    top.until(lambda s: "every 0.1 s" in s, "looks more often")
    top.press("p")
    top.until(lambda s: "p go on" in s, "paused")
    looks = work.looks
    top.press("r")
    top.until(lambda s: "(rate)" in s and first_client(s) == "11", "sorts while paused")
    assert work.looks == looks, "no look while paused"
    top.press(" ")
    top.until(lambda s: "p pause" in s, "goes on")
    work.wait(looks + 2)
    top.press("q")
    assert top.wait() == 0


def test_live_resizes(open_top: Callable[..., Terminal]) -> None:
    top = open_top("-d", "0.1", rows=30, columns=150)
    top.until(lambda s: "calls itself" in s and "gemm" in s, "drawn")
    top.resize(12, 40)
    top.clear()
    screen = top.until(lambda s: "q quit" in s.splitlines()[-1] and "pid" in s, "drawn anew")
    assert len(screen.splitlines()) == 12 and all(len(line) <= 40 for line in screen.splitlines())
    for rows, columns in ((1, 1), (2, 10), (3, 200), (100, 200)):
        top.resize(rows, columns)
        top.clear()
    top.until(lambda s: "q quit" in s.splitlines()[-1] and "calls itself" in s, "drawn on a large one")
    top.press("q")
    assert top.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_live_leaves_the_terminal_as_it_was(open_top: Callable[..., Terminal], ctl: Ctl, number: int) -> None:
    """Its modes, and a status that says that all is well: who ends it wants it so."""
    open_top().press("q")
    script = 'stty -g; "$@"; echo "status $?"; stty -g'
    shell = Terminal(["/bin/sh", "-c", script, "sh", *ctl.command, "top", "-d", "60"], ENV)
    shell.until(lambda s: "q quit" in s, "drawn")
    (top,) = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
    os.kill(int(top), number)
    assert shell.wait() == 0
    lines = shell.transcript.splitlines()
    assert lines[-2].endswith("status 0") and lines[-1] == lines[0] and ":" in lines[0]
    shell.close()


def test_live_goes_on_through_a_restart(open_top: Callable[..., Terminal], fake: FakeDaemon) -> None:
    top = open_top("-d", "0.1")
    top.until(lambda s: "75 % busy" in s and "every" in s, "rates are shown")
    fake.close()
    screen = top.until(lambda s: "trying again" in s, "it says that the daemon is away")
    assert "1.0k requests/s" in screen, "what was seen last stays"
    again = fake.revive()
    again.answers["hello"] = {**HELLO, "pid": 4343}
    top.until(lambda s: "pid 4343" in s and "q quit" in s, "the next daemon is there")
    top.press("q")
    assert top.wait() == 0
    again.close()


def test_live_needs_a_terminal(open_top: Callable[..., Terminal], ctl: Ctl) -> None:
    assert "--batch" in ctl("top", status=1).stderr
    strange = Terminal(["/usr/bin/env", "TERM=no-such-terminal", *ctl.command, "top"], ENV)
    text = ""
    while strange.read():
        text = strange.screen
    assert strange.wait() == 1 and "TERM" in text
    strange.close()


def test_live_of_an_older_daemon(open_top: Callable[..., Terminal], fake: FakeDaemon) -> None:
    del fake.answers["clients"]
    top = open_top()
    top.until(lambda s: "older than the method" in s, "it says why it ends")
    assert top.wait() == 1
