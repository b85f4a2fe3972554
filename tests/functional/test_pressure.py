"""Back-pressure: a client that sends more than it reads is paused, and the daemon does not grow. Out of descriptors newcomers are told
and turned away, whoever is there is served, and it passes."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from arrays import LongRun, Vectors, run_params
from support import memfd, proc, raw
from support.daemon import Daemon, sanitized
from support.ring import REPLY, TAIL, Ring

PINGS = b"".join(raw.pack_request(i, "ping", {"x": bytes(900)}) for i in range(100))


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
    sent = send_until_paused(flooder, PINGS, 10000)
    assert sent < 10000, "a thousand megabytes of unread replies were taken in"
    grown = proc.status(daemon.pid, "VmRSS") - before
    assert grown < (32 << 10 if not sanitized() else 256 << 10), f"the daemon grew by {grown} kB"
    assert other.alive()


def exhaust(connection: raw.Connection, limits: dict[str, int]) -> tuple[LongRun, list[int]]:
    """As many requests in flight as there may be: one that lasts and others behind it."""
    vectors = Vectors(connection, 2, 10)
    work = LongRun(connection)
    params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
    return work, [connection.request("run", params) for _ in range(limits["inflight"] - 1)]


@pytest.mark.parametrize("path", ["socket", "ring"])
def test_cancel_without_credit(path: str, connect: Callable[..., raw.Connection], limits: dict[str, int]) -> None:
    """Who has as much in flight as may be can still ask whether the daemon is there, and take some of it back."""
    busy, watcher = connect(), connect()
    ring = Ring(busy) if path == "ring" else None
    busy.call("hello", {"client": "busy"})
    work, others = exhaust(busy, limits)

    def in_flight() -> int:
        return next(c["inflight"] for c in watcher.call("clients")["clients"] if c["client"] == "busy")

    # What goes through the ring may be read before what was sent by the socket.
    proc.eventually(lambda: in_flight() == limits["inflight"], "all of them have been read")
    call = ring.call if ring else busy.call
    assert busy.replies == {}
    assert busy.call("ping", {"still": "there"}) == {"still": "there"}  # all before it are taken: a ring may overtake
    assert call("ping", {"still": "there"}) == {"still": "there"}
    assert call("cancel", {"msgid": others[-1]}) == {"cancelled": True}
    assert busy.reply_error(others[-1]).code == "cancelled"
    # There is credit for one again.
    hello = busy.request("hello", {})
    assert busy.reply(hello).get()["protocol"] == 1
    assert call("cancel", {"msgid": work.msgid}) == {"cancelled": True}
    assert busy.reply_error(work.msgid).code == "cancelled"
    for msgid in others[:-1]:
        busy.reply(msgid).get()
    if ring:
        ring.close()


def test_stuck_reader_is_dropped() -> None:
    """A client that is paused because it takes no reply is dropped after limits.peer_timeout_s, with what it holds;
    one that takes some now and then is not."""
    with Daemon("--set", "limits.peer_timeout_s=4") as daemon, daemon.connect() as other:
        assert other.alive()
        before = daemon.holdings()
        with daemon.connect() as stuck, daemon.connect() as slow:
            for flooder in (stuck, slow):
                assert send_until_paused(flooder, PINGS, 10000) < 10000

            def dropped() -> bool:
                slow.socket.recv(200)
                return "event=drop" in daemon.log()

            proc.eventually(dropped, "the stuck reader is dropped")
            assert "it does not read its replies" in daemon.log()
            assert daemon.log().count("event=drop") == 1
            assert other.alive()
            with contextlib.suppress(ConnectionResetError):  # what was sent before is there; then comes the end
                while stuck.socket.recv(1 << 20):
                    pass
        daemon.wait_holdings(before)


def test_trickling_reader_is_dropped() -> None:
    """One that takes a byte now and then does not keep its place by it; one that takes some thousand a second does."""
    with Daemon("--set", "limits.peer_timeout_s=3") as daemon, daemon.connect() as other:
        assert other.alive()
        before = daemon.holdings()
        with daemon.connect() as trickling, daemon.connect() as slow:
            assert send_until_paused(slow, PINGS, 10000) < 10000
            ring = Ring(trickling)
            trickling.call("hello", {"client": "trickling"})

            def sip() -> None:
                if slow.readable(0):
                    slow.socket.recv(300)

            def paused() -> bool:
                sip()
                if ring.room() >= len(PINGS):
                    ring.put(PINGS)
                    ring.publish()
                return any(c["paused"] and c["client"] == "trickling" for c in other.call("clients")["clients"])

            proc.eventually(paused, "it is not read any more")

            def dropped() -> bool:
                sip()
                ring.tail += 1
                ring.set(REPLY + TAIL, ring.tail)
                ring.ring()
                return "event=drop" in daemon.log()

            proc.eventually(dropped, "the one that trickles is dropped")
            assert ring.tail < 2 * 2048
            assert daemon.log().count("event=drop") == 1
            trickling.wait_closed()
            ring.close()
        assert other.alive()
        daemon.wait_holdings(before)


def test_reader_that_is_paused_for_ever() -> None:
    """0: a client may be stuck as long as it likes, until a reload says otherwise."""
    with Daemon(config="[limits]\npeer_timeout_s = 0\n") as daemon:
        with daemon.connect() as stuck, daemon.connect() as half, daemon.connect() as other:
            assert send_until_paused(stuck, PINGS, 10000) < 10000
            half.send(PINGS[:500])
            assert not half.readable(1.5)
            assert other.alive() and "event=drop" not in daemon.log()
            assert stuck.socket.recv(100)
            (daemon.folder / "kopsd.conf").write_text("[limits]\npeer_timeout_s = 1\n", encoding="utf-8")
            os.kill(daemon.pid, signal.SIGHUP)
            half.wait_closed()
            proc.eventually(lambda: daemon.log().count("event=drop") == 2, daemon.log)
            assert other.alive()


@pytest.mark.parametrize("path", ["socket", "ring"])
def test_half_a_message(path: str) -> None:
    """It holds no more than its own buffer, and its sender is dropped after limits.peer_timeout_s; it is told why.
    Who sends whole messages, and who sends nothing, is not."""
    with Daemon("--set", "limits.peer_timeout_s=1") as daemon:
        with daemon.connect() as quiet, daemon.connect() as other:
            assert quiet.alive() and other.alive()
            before = daemon.holdings()
            with daemon.connect() as half:
                ring = Ring(half) if path == "ring" else None
                data = raw.pack_request(1, "ping", {"x": bytes(40000)})
                (ring or half).send(data[:-1])
                assert other.alive()
                notification = half.wait_closed()
                assert notification is not None and notification["code"] == "protocol_error"
                assert "did not come within 1 s" in notification["message"]
                if ring:
                    ring.close()
            assert "the rest of a message did not come" in daemon.log()
            assert quiet.alive() and other.alive()
            daemon.wait_holdings(before)


def test_message_that_trickles_in(connect: Callable[..., raw.Connection]) -> None:
    """A message in many pieces is taken, and each message has its own time."""
    with Daemon("--set", "limits.peer_timeout_s=2") as daemon, daemon.connect() as slow, daemon.connect() as half:
        half.send(b"\x94")
        ended = False
        for n in range(100000):
            data = raw.pack_request(n, "ping", {"n": n})
            slow.send(data[:5])
            slow.send(data[5:])
            assert slow.reply(n).get() == {"n": n}
            if half.readable(0):
                ended = True
                break
        assert ended, "half a message stayed"


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


LIMIT = 160


@pytest.fixture
def unbounded() -> Iterator[Daemon]:
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


def test_newcomers_are_turned_away(unbounded: Daemon) -> None:
    """Before the last descriptor is gone: who is there can still register memory, open a ring, and be served."""
    daemon = unbounded
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


def test_not_one_descriptor_left(unbounded: Daemon) -> None:
    """A newcomer is told even then, over the one that is kept; nobody else notices, and the log is not flooded."""
    daemon = unbounded
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


def test_descriptors_that_cannot_be_taken(unbounded: Daemon) -> None:
    """Descriptors of a message are lost where there is no room for them. Its connection ends, and is told why; no other
    does."""
    daemon = unbounded
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
