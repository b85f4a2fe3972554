"""Back-pressure: a client that sends more than it reads is paused, and the daemon does not grow."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest
from arrays import LongRun, Vectors, run_params
from support import proc, raw
from support.daemon import Daemon, sanitized


def send_until_paused(connection: raw.Connection, data: bytes, most: int) -> int:
    """Sends `data` again and again, at most so many times, and reads nothing. Stops when the socket stays full; returns
    how many were sent."""
    connection.socket.setblocking(False)
    sent, left = 0, b""
    try:
        while sent < most:
            left = left or data
            try:
                left = left[connection.socket.send(left) :]
                sent += not left
            except BlockingIOError:
                # Full. Only a daemon that reads on makes room again.
                if not select.select([], [connection.socket], [], 1)[1]:
                    return sent
        return sent
    finally:
        connection.socket.setblocking(True)
        connection.socket.settimeout(raw.PATIENCE)


def test_flood_of_pings(connect: Callable[..., raw.Connection], daemon: Daemon) -> None:
    """A million echoes that nobody reads: the daemon stops reading long before, and serves others."""
    flooder, other = connect(), connect()
    assert other.alive()
    before = proc.status(daemon.pid, "VmRSS")
    data = b"".join(raw.pack_request(i, "ping", {"x": bytes(900)}) for i in range(100))
    sent = send_until_paused(flooder, data, 10000)
    assert sent < 10000, "a thousand megabytes of unread replies were taken in"
    grown = proc.status(daemon.pid, "VmRSS") - before
    assert grown < (32 << 10 if not sanitized() else 256 << 10), f"the daemon grew by {grown} kB"
    assert other.alive()


def test_flooder_that_reads_again_is_served(connection: raw.Connection) -> None:
    """Paused, not broken: once it reads, every request is answered, each once and in full."""
    msgid = 0
    connection.socket.setblocking(False)
    pending = b""
    while msgid < 200000:
        if not pending:
            pending = raw.pack_request(msgid, "ping", {"n": msgid, "x": bytes(500)})
            msgid += 1
        try:
            pending = pending[connection.socket.send(pending) :]
        except BlockingIOError:
            break
    connection.socket.setblocking(True)
    connection.socket.settimeout(raw.PATIENCE)
    assert pending, "the socket never filled up"
    seen = 0
    while pending or seen < msgid:
        readable, writable, _ = select.select(
            [connection.socket], [connection.socket] if pending else [], [], raw.PATIENCE
        )
        assert readable or writable
        if writable and pending:
            connection.socket.setblocking(False)
            try:
                pending = pending[connection.socket.send(pending) :]
            except BlockingIOError:
                pass
            connection.socket.setblocking(True)
            connection.socket.settimeout(raw.PATIENCE)
        if readable:
            connection.read_some()
            for answered in list(connection.replies):
                assert connection.replies.pop(answered).result["n"] == answered
                seen += 1
    assert seen == msgid


def test_inflight_limit(connect: Callable[..., raw.Connection], limits: dict[str, int]) -> None:
    """With its credit used up a connection is not read: what it sends waits in the socket, and others are served."""
    busy, other = connect(), connect()
    vectors = Vectors(busy, 2, 10)
    work = LongRun(busy)
    params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
    for _ in range(limits["inflight"] - 1):
        busy.request("run", params)
    ping = busy.request("ping", {})
    assert other.alive()
    # The daemon looked at both sockets since the ping was sent (it answered the other), and again for this.
    assert other.alive()
    assert not busy.readable(0), "read beyond its credit"
    del work, ping


def test_inflight_credit_comes_back(connection: raw.Connection, limits: dict[str, int]) -> None:
    vectors = Vectors(connection, 2, 10)
    vectors[0][:] = 3
    params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
    ids = []
    for _ in range(5 * limits["inflight"]):
        ids.append(connection.request("run", params))
        if len(ids) >= limits["inflight"]:
            connection.reply(ids.pop(0)).get()
    for msgid in ids:
        connection.reply(msgid).get()


@pytest.mark.parametrize("method", ["ping", "no_such_method"])
def test_flood_of_notifications(method: str, connection: raw.Connection, daemon: Daemon) -> None:
    """They are never answered, so they never fill anything."""
    before = proc.status(daemon.pid, "VmRSS")
    data = raw.pack([2, method, [{"x": bytes(900)}]]) * 100
    for _ in range(100):
        connection.send(data)
    assert connection.alive()
    assert proc.status(daemon.pid, "VmRSS") - before < 32 << 10


def test_notifications_of_long_runs_are_bounded(connection: raw.Connection, daemon: Daemon) -> None:
    """A run as a notification takes credit like any other."""
    work = LongRun(connection)
    tensor = work.vectors.tensor
    data = raw.pack([2, "run", [run_params("square", [tensor(0)], tensor(1), repeat=10000)]]) * 10
    # RssAnon: the shared pages that the run touches meanwhile are the client's.
    before = proc.status(daemon.pid, "RssAnon")
    sent = send_until_paused(connection, data, 20000)
    assert sent < 20000, "every one of 200000 queued runs was taken in"
    assert proc.status(daemon.pid, "RssAnon") - before < (32 << 10 if not sanitized() else 256 << 10)
