"""A client that owns its side of the shared memory and means harm: only its own connection ends, and nobody else
notices. tests/fuzz/ring.c tries what nobody thought of."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
from support import backends, memfd, proc, raw
from support.daemon import Daemon
from support.ring import CONSUMER_SLEEPS, HEAD, PAGE, PRODUCER_SLEEPS, REPLY, TAIL, Ring

CONFIG = backends.config(backends.HOST)
WORDS = (HEAD, TAIL, CONSUMER_SLEEPS, PRODUCER_SLEEPS)


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
def ring(daemon: Daemon) -> Iterator[Ring]:
    with daemon.connect() as connection:
        ring = Ring(connection)
        yield ring
        ring.close()


def expect_closed(ring: Ring) -> None:
    notification = ring.connection.wait_closed()
    assert notification is not None and notification["code"] == "protocol_error", notification
    assert notification["message"]


# ---- bytes ----


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x00",
        raw.pack([0, 1, "ping"]),
        raw.pack([1, 1, None, {}]),
        b"\x91" * 20,
        b"\x94\x00\x01\xa4ping\xdd\xff\xff\xff\xff",
        raw.pack_request(1, "ping", {"nfds": 1}),
        raw.pack_request(1, "register", {"kind": "memfd", "size": 4096, "fd": 0, "nfds": 1}),
    ],
    ids=["garbage", "number", "short", "response", "deep", "count", "descriptors", "register"],
)
def test_violations(data: bytes, ring: Ring) -> None:
    ring.send(data)
    expect_closed(ring)


def test_good_requests_before_garbage_are_answered(ring: Ring) -> None:
    ring.send(b"".join(raw.pack_request(i, "ping", {"n": i}) for i in range(5)) + b"\xc1")
    expect_closed(ring)
    ring.take()
    assert [ring.connection.replies[i].result for i in range(5)] == [{"n": i} for i in range(5)]


def test_message_longer_than_half_a_ring(ring: Ring) -> None:
    shell = len(raw.pack_request(1, "ping", {"x": bytes(70000)})) - 70000
    data = raw.pack_request(1, "ping", {"x": bytes(ring.request_bytes // 2 - shell + 1)})
    assert len(data) == ring.request_bytes // 2 + 1
    ring.send(data)
    expect_closed(ring)


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
    "head_back": moved(HEAD, lambda ring: ring.head - 1),
    "head_zero": moved(HEAD, lambda ring: 0),
    "head_far": moved(HEAD, lambda ring: ring.head + ring.request_bytes + 1),
    "head_wild": moved(HEAD, lambda ring: 1 << 63),
    "reply_tail_ahead": moved(REPLY + TAIL, lambda ring: ring.tail + ring.reply_bytes + 1),
    "reply_tail_wild": moved(REPLY + TAIL, lambda ring: (1 << 64) - 1),
}


@pytest.mark.parametrize("what", INDICES)
def test_impossible_indices(what: str, ring: Ring) -> None:
    for i in range(10):
        ring.call("ping", {"i": i})
    INDICES[what](ring)
    if what.startswith("reply"):
        for i in range(2 * ring.reply_bytes // 1000):  # the index is looked at when room is needed
            ring.put(raw.pack_request(1000 + i, "ping", {"x": bytes(1000)}))
            ring.publish()
            if ring.room() < 3000:
                select.select([ring.connection.socket], [], [], 0.2)
            if ring.room() < 3000:
                break
    else:
        ring.ring()
    expect_closed(ring)


def test_tail_of_the_reply_ring_goes_backwards(ring: Ring) -> None:
    for i in range(2 * ring.reply_bytes // 1000):  # so many that the daemon has looked at it
        ring.call("ping", {"i": i, "x": bytes(1000)})
    ring.set(REPLY + TAIL, 0)
    while not ring.connection.readable(0) and ring.room() > 3000:
        ring.put(raw.pack_request(1000, "ping", {"x": bytes(1000)}))
        ring.publish()
    expect_closed(ring)


def test_words_of_the_daemon_are_its_own(ring: Ring) -> None:
    """What a client writes over the daemon's indices changes nothing: the daemon has them elsewhere."""
    for i in range(10):
        ring.call("ping", {"i": i})
    ring.set(TAIL, 12345)
    ring.put(raw.pack_request(100, "ping", {"x": 1}))
    ring.publish()
    assert ring.reply(100).get() == {"x": 1}
    ring.set(REPLY + HEAD, ring.tail)
    ring.put(raw.pack_request(101, "ping", {"x": 2}))
    ring.publish()
    assert ring.reply(101).get() == {"x": 2}


@pytest.mark.parametrize("seed", range(30))
def test_scribbles(seed: int, daemon: Daemon) -> None:
    """Noise over words and bytes, with requests in between."""
    rng = random.Random(seed)
    with daemon.connect() as connection:
        ring = Ring(connection)
        for _ in range(rng.randrange(1, 30)):
            match rng.randrange(5):
                case 0:
                    word = rng.choice((0, REPLY)) + rng.choice(WORDS)
                    ring.set(word, (ring.get(word) + rng.randrange(-300, 300)) % (1 << 64))
                case 1:
                    at = rng.randrange(PAGE, ring.size - 4096)
                    ring.memory[at : at + 4096] = rng.randbytes(4096)
                case 2:
                    ring.set(HEAD, rng.getrandbits(64))
                case 3:
                    ring.memory[:512] = rng.randbytes(512)
                case 4:
                    ring.put(raw.pack_request(rng.randrange(1000), "ping", {"x": rng.randbytes(300)}))
                    ring.publish()
            ring.ring()
        ring.close()


def test_scribbles_while_the_daemon_reads(daemon: Daemon, spawn: Callable[[Callable[[], object]], int]) -> None:
    """Several processes that do nothing but change their memory under the daemon's eyes."""

    def scribble() -> None:
        rng = random.Random(os.getpid())
        while True:
            with daemon.connect() as connection:
                ring = Ring(connection)
                request = raw.pack_request(7, "ping", {"x": bytes(200)})
                for _ in range(200):
                    ring.put(request)
                    ring.set(HEAD, ring.head)
                    at = PAGE + rng.randrange(len(request))
                    ring.memory[at] = rng.randrange(256)
                    ring.ring()
                ring.close()

    pids = [spawn(scribble) for _ in range(3)]
    with daemon.connect() as connection:
        ring = Ring(connection)
        for i in range(1000):
            assert ring.call("ping", {"i": i}) == {"i": i}
            assert connection.call("ping", {"i": i}) == {"i": i}
        ring.close()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


# ---- bells ----


def test_doorbell_at_its_maximum(ring: Ring) -> None:
    """A counter that cannot count is the client's own loss; the daemon never reads it."""
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


@pytest.mark.parametrize("what", ["doorbell", "wake", "fd"])
def test_closed_descriptors(what: str, ring: Ring) -> None:
    ring.call("ping")
    os.close(getattr(ring, what))
    setattr(ring, what, -1)
    for i in range(20):
        ring.put(raw.pack_request(1000 + i, "ping", {}))
        ring.set(HEAD, ring.head)
        if what != "doorbell":
            ring.ring()
        assert ring.connection.alive()


def test_bell_for_nothing(ring: Ring) -> None:
    for _ in range(1000):
        ring.ring()
    assert ring.call("ping", {"x": 1}) == {"x": 1}


def test_holes_in_the_memory(ring: Ring) -> None:
    """A hole reads as zeros, and the daemon's pages come back when it writes."""
    ring.call("ping")
    memfd.punch_hole(ring.fd, 0, ring.size)
    ring.ring()
    expect_closed(ring)  # its head went back to 0


def test_half_closed_socket(ring: Ring) -> None:
    """The socket is the sign of life, whatever the ring does."""
    ring.connection.socket.shutdown(socket.SHUT_WR)
    ring.put(raw.pack_request(1, "ping", {}))
    ring.publish()
    assert ring.connection.wait_closed() is None


# ---- floods ----


def test_flood_does_not_starve_others(daemon: Daemon, spawn: Callable[[Callable[[], object]], int]) -> None:
    """Clients that keep their rings full and read everything; others on both paths get their turn each time."""

    def flood() -> None:
        with daemon.connect() as connection:
            ring = Ring(connection)
            data = b"".join(raw.pack_request(i, "ping", {}) for i in range(500))
            while True:
                piece = data[: ring.room()]
                ring.put(piece)
                ring.publish()
                data = data[len(piece) :] + piece
                ring.set(REPLY + TAIL, ring.get(REPLY + HEAD))
                if ring.get(REPLY + PRODUCER_SLEEPS, ctypes.c_uint32):
                    ring.ring()

    pids = [spawn(flood) for _ in range(2)]
    with daemon.connect() as connection:
        ring = Ring(connection)
        for i in range(300):
            assert ring.call("ping", {"i": i}) == {"i": i}
            assert connection.call("ping", {"i": i}) == {"i": i}
        ring.close()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_flood_does_not_keep_the_daemon_from_ending(spawn: Callable[[Callable[[], object]], int]) -> None:
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
