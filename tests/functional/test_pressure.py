"""Back-pressure: a client that sends more than it reads is paused, and the daemon does not grow."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable

import pytest
from arrays import LongRun, Vectors, run_params
from support import proc, raw
from support.daemon import Daemon, sanitized, thread_sanitized
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


def test_flooder_that_reads_again_is_served(connection: raw.Connection) -> None:
    """Paused, not broken: once it reads, every request is answered, each once and in full."""
    sent, left = 0, b""
    connection.socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sent < 200000:
            left = raw.pack_request(sent, "ping", {"n": sent, "x": bytes(500)})
            sent += 1
            left = left[connection.socket.send(left) :]
    assert left, "the socket never filled up"
    connection.socket.setblocking(True)
    connection.socket.settimeout(raw.PATIENCE)
    rest = threading.Thread(target=connection.socket.sendall, args=[left])
    rest.start()
    for n in range(sent):
        assert connection.reply(n).get() == {"n": n, "x": bytes(500)}
    rest.join()
    assert not connection.replies and not connection.readable(0)


def exhaust(connection: raw.Connection, limits: dict[str, int]) -> tuple[LongRun, list[int]]:
    """As many requests in flight as there may be: one that lasts and others behind it."""
    vectors = Vectors(connection, 2, 10)
    work = LongRun(connection)
    params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
    return work, [connection.request("run", params) for _ in range(limits["inflight"] - 1)]


def test_inflight_limit(connect: Callable[..., raw.Connection], limits: dict[str, int]) -> None:
    """With its credit used up a connection's requests wait in the socket, whatever they are, from the first on that
    takes credit; others are served."""
    busy, other = connect(), connect()
    work, _ = exhaust(busy, limits)
    busy.request("hello", {})
    ping = busy.request("ping", {})
    assert other.alive()
    # The daemon looked at both sockets since the ping was sent (it answered the other), and again for this.
    assert other.alive()
    assert not busy.readable(0), "read beyond its credit"
    del work, ping


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


def test_patience_ends_with_a_reload() -> None:
    """A limit that is taken over holds for who waits already."""
    with Daemon(config="[limits]\npeer_timeout_s = 0\n") as daemon, daemon.connect() as half:
        assert half.alive()
        half.send(b"\x94")
        assert not half.readable(1)
        (daemon.folder / "kopsd.conf").write_text("[limits]\npeer_timeout_s = 1\n", encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        told = half.wait_closed()
        assert told is not None and "did not come within 1 s" in told["message"]


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


def test_waiting_costs_nothing() -> None:
    """A daemon with half a message and a stuck reader sleeps."""
    with Daemon() as daemon, daemon.connect() as half, daemon.connect() as stuck, daemon.connect() as other:
        half.send(b"\x94")
        assert send_until_paused(stuck, PINGS, 10000) < 10000
        assert other.alive()
        before = proc.context_switches(daemon.pid)
        select.select([half.socket], [], [], 1)
        assert proc.context_switches(daemon.pid) - before < 10 or thread_sanitized()


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
