"""Requests and replies through a connection's shared memory: the same daemon, another path. A client that owns its side of it and
means harm ends its own connection, and nobody else notices.

Everything runs twice: with a daemon that sleeps whenever it can, and with one that polls.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator

import pytest
from arrays import LongRun, Vectors, run_params
from support import backends, memfd, proc, raw
from support.daemon import Daemon, sanitized
from support.idle import assert_idle
from support.ring import CONSUMER_SLEEPS, HEAD, REPLY, TAIL, Ring

CONFIG = backends.config(backends.HOST)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def daemon(ring_daemon: Daemon) -> Iterator[Daemon]:
    """Two other clients, one with a ring, notice nothing; what the daemon held before it holds after."""
    before = ring_daemon.holdings()
    with ring_daemon.connect() as one, ring_daemon.connect() as two:
        other = Ring(two)
        assert one.alive() and other.call("ping") == {}
        yield ring_daemon
        assert ring_daemon.running(), ring_daemon.log()
        assert one.alive() and other.call("ping", {"x": 1}) == {"x": 1}
        assert one.notification is None and two.notification is None
        other.close()
    ring_daemon.wait_holdings(before)


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[raw.Connection]:
    with daemon.connect() as connection:
        yield connection


@pytest.fixture
def ring(connection: raw.Connection) -> Iterator[Ring]:
    ring = Ring(connection)
    yield ring
    ring.close()


def expect_closed(ring: Ring) -> None:
    notification = ring.connection.wait_closed()
    assert notification is not None and notification["code"] == "protocol_error", notification
    assert notification["message"]


# ---- making it ----


def test_what_hello_gives(connection: raw.Connection) -> None:
    hello = connection.call("hello")
    assert "shm" in hello["features"] and hello["limits"]["spin_us"] in (0, 300)
    assert "shm" not in hello and "nfds" not in hello, "only who asks gets it"
    ring = Ring(connection)
    assert ring.seals() == SEALS
    for size in (ring.request_bytes, ring.reply_bytes):
        assert size >= 4096 and size & (size - 1) == 0
    assert bytes(ring.memory[:64]) == bytes(64), "fresh: the first word's line, before anything was sent"
    for size in (ring.size + 1, 4096):
        with pytest.raises(OSError):
            os.ftruncate(ring.fd, size)
    for path in (connection, ring):  # a second one is refused
        error = path.reply(path.request("hello", {"shm": True})).error
        assert error is not None and (error["code"], error["detail"]["key"]) == ("invalid_argument", "shm")
    assert ring.call("ping", {"x": 1}) == {"x": 1} and connection.alive()
    ring.close()


def test_notification_makes_none(connection: raw.Connection, daemon: Daemon) -> None:
    assert connection.alive()
    before = daemon.holdings()
    connection.send(raw.pack([2, "hello", [{"shm": True}]]))
    assert connection.alive()
    assert daemon.holdings() == before


# ---- using it ----


def largest_ping(ring: Ring) -> dict[str, bytes]:
    """Whose request is half a ring."""
    shell = len(raw.pack_request(1, "ping", {"x": bytes(70000)})) - 70000
    params = {"x": os.urandom(ring.request_bytes // 2 - shell)}
    assert len(raw.pack_request(1, "ping", params)) == ring.request_bytes // 2
    return params


def test_largest_message(ring: Ring) -> None:
    """Half a ring goes through, and comes back. One byte more ends the connection."""
    params = largest_ping(ring)
    for _ in range(5):
        assert ring.call("ping", params) == params
    ring.send(raw.pack_request(1, "ping", {"x": params["x"] + b"x"}))
    expect_closed(ring)


def test_reply_with_a_descriptor_comes_over_the_socket(ring: Ring) -> None:
    reply = ring.reply(ring.request("alloc", {"size": 4096}))
    assert reply.get()["nfds"] == 1 == len(reply.fds)
    os.close(reply.fds[0])
    assert ring.call("release", {"buffer": reply.get()["buffer"]}) == {}


def test_reply_too_long_for_the_ring_comes_over_the_socket(ring: Ring) -> None:
    vectors = Vectors(ring.connection, 2, 1000)
    for i in range(800):  # rows, so that stats has more to say than half a ring takes
        tensors = [raw.tensor(vectors.buffer, [1 + i], offset=4000 * j) for j in (0, 1)]
        ring.call("run", run_params("square", tensors[:1], tensors[1]))
    before = ring.tail
    result = ring.call("stats")
    assert len(raw.pack(result)) > ring.reply_bytes // 2
    assert ring.tail == before, "it came through the ring"
    assert ring.call("ping", {"x": 1}) == {"x": 1}


def test_same_msgid_on_both_paths(ring: Ring) -> None:
    """One space of msgids."""
    vectors, work = Vectors(ring.connection, 2, 10), LongRun(ring.connection)
    ring.send(raw.pack_request(work.msgid, "ping", {}))
    notification = ring.connection.wait_closed()
    assert notification is not None and notification["code"] == "protocol_error"
    del vectors


def test_inflight_limit_counts_both_paths(ring: Ring, daemon: Daemon) -> None:
    connection, asked = ring.connection, 0
    with daemon.connect() as other:
        start = other.call("stats")["counters"]["requests"]
    limit = connection.call("hello")["limits"]["inflight"]
    vectors, work = Vectors(connection, 2, 10), LongRun(connection)
    params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
    for i in range(limit - 1):
        if i % 2:
            ring.request("run", params)
        else:
            connection.request("run", params)
    with daemon.connect() as other:

        def taken() -> bool:
            nonlocal asked
            asked += 1
            return other.call("stats")["counters"]["requests"] - start - asked >= limit

        proc.eventually(taken, "all are taken")
        ring.request("trim", {})
        connection.request("trim", {})
        assert other.alive() and other.alive()
    assert not ring.take() and not connection.readable(0), "read beyond its credit"
    del work


# ---- back-pressure ----

WHILE_S = 0.2  # in which a daemon that reads on has made room, where no other work keeps it from that
FLOOD = 4 << 20  # bytes that no daemon takes in whose client reads nothing


def flood(ring: Ring, data: bytes) -> int:
    """Sends and reads nothing, until nobody has made room for a while; how many bytes went."""
    sent = 0
    while sent < FLOOD:
        piece = data[: ring.room()]
        if piece:
            ring.put(piece)
            ring.publish()
            sent += len(piece)
            data = data[len(piece) :] + piece
        elif not select.select([], [], [], WHILE_S)[0] and not ring.room():
            break
    return sent


def test_flood_that_nobody_reads(ring: Ring, daemon: Daemon) -> None:
    """The daemon takes in what its rings and limits hold and no more, serves others, and sleeps."""
    before = proc.status(daemon.pid, "VmRSS")
    sent = flood(ring, raw.pack_request(1, "ping", {"x": bytes(985)}))
    assert sent < FLOOD
    assert proc.status(daemon.pid, "VmRSS") - before < (8 << 10 if not sanitized() else 256 << 10)
    with daemon.connect() as other:
        assert other.alive()
    assert_idle(daemon)


# ---- sleeping ----


def test_idle_ring_costs_nothing(ring: Ring, daemon: Daemon) -> None:
    """Nor does half a message in it."""
    data = raw.pack_request(1, "ping", {"x": bytes(1000)})
    ring.send(data[:500])
    assert_idle(daemon)
    ring.send(data[500:])
    assert ring.reply(1).get() == {"x": bytes(1000)}


def test_polling_that_never_pays_shrinks() -> None:
    """Requests further apart than the budget: after a few the daemon spends far less than the whole of it on each."""
    budget_s, calls = 0.02, 50
    with Daemon("--spin-us", str(int(budget_s * 1e6)), config=CONFIG) as daemon, daemon.connect() as connection:
        ring = Ring(connection)
        before = proc.cpu_ticks(daemon.pid)
        for i in range(calls):
            ring.call("ping", {"i": i})
            select.select([], [], [], 1.5 * budget_s)  # the pace of a client that has other things to do
        used = (proc.cpu_ticks(daemon.pid) - before) / os.sysconf("SC_CLK_TCK")
        assert used < calls * budget_s / 2
        ring.close()


# ---- the end ----


def test_end_of_the_daemon_answers_first() -> None:
    """What was in the ring before SIGTERM is answered before the socket ends."""
    with Daemon(config=CONFIG) as daemon, daemon.connect() as connection:
        ring = Ring(connection)
        vectors = Vectors(connection, 2, 1000)
        params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
        ids = [ring.request("run", params) for _ in range(100)]
        daemon.stop()
        assert connection.wait_closed() is None
        ring.take()
        assert set(ids) <= set(connection.replies)
        for i in ids:
            error = connection.replies[i].error
            assert error is None or error["code"] == "shutting_down"
        ring.close()


# ---- a client that means harm. tests/fuzz/ring.c tries what nobody thought of ----


def test_descriptors_on_the_socket_are_no_ring_messages(ring: Ring) -> None:
    """Descriptors wait for a message of their own path."""
    shared = memfd.Shared(4096)
    data = raw.pack_request(1, "register", {"kind": "memfd", "size": 4096, "fd": 0, "nfds": 1})
    ring.connection.send(data[:10], [shared.fd])
    ring.send(data)
    expect_closed(ring)


# ---- words ----


def moved(word: int, change: Callable[[Ring], int]) -> Callable[[Ring], None]:
    return lambda ring: ring.set(word, change(ring))


INDICES = {
    "head_zero": moved(HEAD, lambda ring: 0),
    "head_far": moved(HEAD, lambda ring: ring.head + ring.request_bytes + 1),
    "reply_tail_ahead": moved(REPLY + TAIL, lambda ring: ring.tail + ring.reply_bytes + 1),
}


@pytest.mark.parametrize("what", INDICES)
def test_impossible_indices(what: str, ring: Ring) -> None:
    for i in range(2 * ring.reply_bytes // 1000):  # so many that the daemon has looked at the reply ring's tail
        ring.call("ping", {"i": i, "x": bytes(1000)})
    INDICES[what](ring)
    if what.startswith("reply"):
        for i in range(2 * ring.reply_bytes // 1000):  # the index is looked at when room is needed
            ring.put(raw.pack_request(1000 + i, "ping", {"x": bytes(1000)}))
            ring.publish()
            if ring.room() < 3000:
                select.select([ring.connection.socket], [], [], 0.2)
            if ring.room() < 3000 or ring.connection.readable(0):
                break
    else:
        ring.ring()
    expect_closed(ring)


# ---- bells ----


def test_doorbell_at_its_maximum(ring: Ring) -> None:
    """A counter that cannot count is the client's own loss; the daemon never reads it."""
    for _ in range(1000):  # for nothing
        ring.ring()
    os.read(ring.doorbell, 8)
    os.write(ring.doorbell, ((1 << 64) - 2).to_bytes(8, "little"))
    with pytest.raises(BlockingIOError):
        ring.ring()
    assert ring.connection.alive()
    os.read(ring.doorbell, 8)
    assert ring.call("ping", {"x": 1}) == {"x": 1}


def test_bells_that_block(ring: Ring) -> None:
    """A client may take O_NONBLOCK from what it holds; the daemon must not wait for it."""
    for fd in (ring.doorbell, ring.wake):
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    os.read(ring.doorbell, 8) if select.select([ring.doorbell], [], [], 0)[0] else None
    for i in range(100):
        assert ring.call("ping", {"i": i}) == {"i": i}
    assert ring.connection.alive()


def test_wakes_that_nobody_reads(ring: Ring) -> None:
    """The pipe fills up; replies go on."""
    for i in range(20000):
        ring.set(REPLY + CONSUMER_SLEEPS, 1, ctypes.c_uint32)
        ring.put(raw.pack_request(i, "ping", {}))
        ring.publish()
        while i not in ring.connection.replies:
            ring.take()
        ring.connection.replies.pop(i)
    assert ring.connection.alive()


def test_holes_in_the_memory(ring: Ring) -> None:
    """A hole reads as zeros, and the daemon's pages come back when it writes."""
    ring.call("ping")
    memfd.punch_hole(ring.fd, 0, ring.size)
    ring.ring()
    expect_closed(ring)  # its head went back to 0


# ---- floods ----


def test_flood_does_not_keep_the_daemon_from_ending(spawn: Callable[..., int]) -> None:
    """What was sent before is read to its end; a ring that is always full of notifications has none."""
    with Daemon("--spin-us", "0", config=CONFIG) as daemon, daemon.connect() as connection:
        ring = Ring(connection)
        note = raw.pack([2, "nopenopenop", [{}]])
        assert len(note) == 16
        start = ring.head
        ring.put(note * (ring.request_bytes // 16))

        def flood() -> None:
            while True:
                read = (ring.get(TAIL) - start) // 16 * 16
                ring.set(HEAD, start + read + ring.request_bytes - 16)
                if ring.get(CONSUMER_SLEEPS, ctypes.c_uint32):
                    ring.ring()

        for _ in range(4):
            spawn(flood)
        proc.eventually(lambda: ring.get(TAIL) > 2 * ring.request_bytes, "the flood is read")
        os.kill(daemon.pid, signal.SIGSTOP)  # until both are there
        before = ring.get(TAIL)
        os.kill(daemon.pid, signal.SIGTERM)
        os.kill(daemon.pid, signal.SIGCONT)
        assert daemon.wait() == 0
        assert ring.get(TAIL) - before <= 2 * ring.request_bytes
