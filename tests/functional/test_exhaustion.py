"""Out of descriptors: newcomers are told and turned away, whoever is there is served, and it passes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

import numpy as np
import pytest
from arrays import Vectors
from support import memfd, proc, raw
from support.daemon import Daemon
from support.ring import Ring

LIMIT = 160


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon("--set", "quota.fds=0") as made:
        yield made


def limit_descriptors(daemon: Daemon, n: int) -> None:
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (n, resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[1]))


def first_unused(pid: int) -> int:
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return next(n for n in range(1 << 20) if n not in used)


def refusal(connection: raw.Connection) -> dict[str, object] | None:
    """What a newcomer is told before it is closed; None when it is served."""
    try:
        connection.alive()
    except (raw.Closed, ConnectionError):
        return connection.wait_closed() or connection.notification
    return None


def works(connection: raw.Connection) -> None:
    """Registers memory, which takes descriptors, and runs something in it."""
    vectors = Vectors(connection, 2, 100)
    vectors[0][:] = np.arange(100)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert np.array_equal(vectors[1], np.arange(100, dtype=np.float32) ** 2)
    connection.call("release", {"buffer": vectors.buffer})


def fill(daemon: Daemon) -> tuple[list[raw.Connection], dict[str, object]]:
    """Connects until somebody is turned away: those who are there, and what that one was told."""
    there: list[raw.Connection] = []
    while len(there) < LIMIT:
        there.append(daemon.connect())
        told = refusal(there[-1])
        if told:
            there.pop().close()
            return there, told
    raise AssertionError("nobody was turned away")


def test_newcomers_are_turned_away(daemon: Daemon) -> None:
    """Before the last descriptor is gone: who is there can still register memory, open a ring, and be served."""
    limit_descriptors(daemon, LIMIT)
    with daemon.connect() as first:
        assert first.alive()
        before = daemon.holdings()
        works(first)
        there, told = fill(daemon)
        assert told["code"] == "quota_exceeded" and "descriptors" in str(told["message"]), told
        detail = told["detail"]
        assert isinstance(detail, dict) and detail.pop("quota") == "descriptors"
        # The one before took two: its socket, and what tells that its process has ended.
        assert detail["current"] in (detail["limit"], detail["limit"] + 1)
        assert (detail["limit"], detail["connections"]) == (LIMIT - LIMIT // 8, len(there) + 1)
        assert len(there) > LIMIT // 4
        works(first)
        works(there[-1])
        ring = Ring(there[0])
        assert ring.call("ping", {"x": 1}) == {"x": 1}
        ring.close()
        for connection in there[: len(there) // 2]:
            connection.close()
        again = daemon.connect()
        proc.eventually(lambda: (daemon.connect().close() or refusal(again) is None), "there is room again")
        works(again)
        for connection in (*there, again):
            connection.close()
        daemon.wait_holdings(before)


def test_not_one_descriptor_left(daemon: Daemon) -> None:
    """A newcomer is told even then, over the one that is kept; nobody else notices, and the log is not flooded."""
    with daemon.connect() as first, daemon.connect() as second:
        assert first.alive() and second.alive()
        memfds = proc.fds(daemon.pid)["memfd"]
        vectors = Vectors(first, 2, 100)
        vectors[0][:] = 3
        proc.eventually(lambda: proc.fds(daemon.pid)["memfd"] == memfds, "the mapped memory's descriptor is closed")
        before, log = daemon.holdings(), len(daemon.log())
        began = time.monotonic()
        limit = first_unused(daemon.pid)
        limit_descriptors(daemon, limit)
        for _ in range(200):
            with daemon.connect() as newcomer:
                told = refusal(newcomer)
                assert told is not None and told["code"] == "quota_exceeded", told
                detail = told["detail"]
                assert isinstance(detail, dict) and detail["current"] == limit > detail["limit"] > 0
            first.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
            assert (vectors[1] == 9).all()
        lines = daemon.log()[log:].count("event=refuse")
        assert 1 <= lines <= time.monotonic() - began + 2
        assert "held_back=" in daemon.log()
        assert second.alive()
        limit_descriptors(daemon, 4096)
        with daemon.connect() as newcomer:
            works(newcomer)
        daemon.wait_holdings(before)


def test_descriptors_that_cannot_be_taken(daemon: Daemon) -> None:
    """Descriptors of a message are lost where there is no room for them. Its connection ends, and is told why; no other
    does."""
    with daemon.connect() as first, daemon.connect() as second:
        assert first.alive() and second.alive()
        before = daemon.holdings()
        limit = first_unused(daemon.pid)
        full = {"quota": "descriptors", "current": limit, "limit": limit}
        limit_descriptors(daemon, limit)
        shared = memfd.Shared(4096)
        first.request("register", {"kind": "memfd", "size": 4096, "fd": 0, "access": "rw"}, [shared.fd])
        told = first.wait_closed()
        assert told is not None and (told["code"], told["detail"]) == ("quota_exceeded", full), told
        assert second.alive()
        # Where the first one's were there is room for some of these, but not for all.
        for method, params in (("hello", {"shm": True}), ("alloc", {"size": 4096})):
            limit_descriptors(daemon, first_unused(daemon.pid))
            error = second.error(method, params)
            assert (error.code, error.detail["quota"]) == ("quota_exceeded", "descriptors")
            assert error.detail["current"] == error.detail["limit"] <= limit
        assert second.alive()
        limit_descriptors(daemon, 4096)
        with daemon.connect() as newcomer:
            works(newcomer)
    assert sum(daemon.holdings().values()) < sum(before.values()) + 5
