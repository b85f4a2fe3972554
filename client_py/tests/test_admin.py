"""clients, metrics and drain of both clients."""

from __future__ import annotations

from typing import Any

import kops
import pytest
from fake_daemon import FakeDaemon, refuser
from kops._clients.base import drain_patience
from which import compiled_only

ONE = {"count": 3, "p50": 1.0, "p90": 2.0, "p99": 3.0, "p999": 3.5, "max": 4.0}
CLIENTS = {
    "clients": [
        {"pid": 7, "uid": 1000, "gid": 100, "client": "x 1.0", "comm": "x", "connected_s": 2.5, "requests": 4, "queued": 1,
         "paused": True, "device_us": 12.5, "isolation": "user", "executor": 9,
         "latency": {"queue": {"count": 0}, "device": {"count": 0}, "total": ONE},
         "of_a_later_version": 1},
    ],
    "users": [{"uid": 1000, "connections": 1, "refused": 2, "limits": {"connections": 1024}}],
    "devices": [{"index": 0, "name": "host", "uuid": "host", "busy_us": 9.0, "running": 1}],
    "state": "draining",
    "uptime_s": 10.5,
}  # fmt: skip
ANSWERS = {
    "clients": CLIENTS,
    "metrics": {"text": "kopsd_up 1\n"},
    "drain": {"drained": False, "jobs": 3, "connections": 2},
}


@pytest.fixture(autouse=True)
def scripted(daemon: FakeDaemon) -> None:
    for method, answer in ANSWERS.items():
        daemon.script[method] = lambda peer, params, fds, answer=answer: answer


def check(found: kops.Clients, text: str, drained: kops.Drained) -> None:
    (client,) = found.clients
    assert (client.pid, client.uid, client.client, client.connected_s, client.paused) == (7, 1000, "x 1.0", 2.5, True)
    assert client.requests == 4 and client.errors == 0 and client.device_us == 12.5
    assert (client.isolation, client.executor) == ("user", 9)
    assert client.latency.total == kops.Quantiles(**ONE) and client.latency.queue == kops.Quantiles(0)
    assert found.users[0].refused == 2 and found.users[0].limits == {"connections": 1024}
    assert found.devices[0].busy_us == 9.0 and found.devices[0].memory_total is None
    assert found.state == "draining" and found.uptime_s == 10.5
    assert text == "kopsd_up 1\n"
    assert drained == kops.Drained(False, 3, 2)


def test_admin(k: kops.Client, daemon: FakeDaemon) -> None:
    check(k.clients(), k.metrics(), k.drain(stop=True, wait=0.25))
    assert daemon.requests[-1] == ("drain", {"stop": True, "timeout_ms": 250})
    k.drain(resume=True)
    assert daemon.requests[-1] == ("drain", {"resume": True})


async def test_admin_aio(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path) as k:
        check(await k.clients(), await k.metrics(), await k.drain())
        assert daemon.requests[-1] == ("drain", {})


def test_drain_waits_longer_than_other_calls() -> None:
    """The client's timeout comes on top of the time that the daemon was given."""
    assert drain_patience(3600, 20) == 3620
    assert drain_patience(None, 20) is None and drain_patience(3600, None) is None


@pytest.mark.parametrize("method", ANSWERS)
def test_who_is_refused(k: kops.Client, daemon: FakeDaemon, method: str) -> None:
    daemon.script[method] = refuser("unknown_method", "no such method")
    with pytest.raises(kops.Unsupported, match=f"older than the method `{method}`"):
        getattr(k, method)()
    daemon.script[method] = refuser("permission_denied", "for administrators")
    with pytest.raises(kops.PermissionDenied, match="administrators"):
        getattr(k, method)()


@pytest.mark.parametrize("wrong", [{"stop": True, "resume": True}, {"wait": 0}, {"wait": -1}, {"wait": 1e9}])
def test_drain_refuses(k: kops.Client, daemon: FakeDaemon, wrong: Any) -> None:
    with pytest.raises(kops.BadArgument):
        k.drain(**wrong)
    assert not daemon.count("drain")


@compiled_only
def test_drain_is_not_repeated(k: kops.Client, daemon: FakeDaemon) -> None:
    """The daemon that follows is not the one that was to end; what can be asked twice is asked again."""

    def lose(peer: Any, *_: Any) -> Any:
        return peer.hang_up() if daemon.count(daemon.requests[-1][0]) == 1 else CLIENTS

    daemon.script["drain"] = daemon.script["clients"] = lose
    with pytest.raises(kops.ConnectionLost, match="not the one that was to drain"):
        k.drain(stop=True)
    assert daemon.count("drain") == 1
    assert k.clients().state == "draining" and daemon.count("clients") == 2
