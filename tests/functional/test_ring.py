"""Requests and replies through a connection's shared memory: the same daemon, another path.

Everything runs twice: with a daemon that sleeps whenever it can, and with one that polls.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator

import pytest
from arrays import LongRun, Vectors, run_params
from children import Spawn, child_with, kill
from support import backends, proc, raw
from support.daemon import Daemon, sanitized
from support.idle import assert_idle
from support.ring import Ring

CONFIG = backends.config(backends.HOST)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def daemon(ring_daemon: Daemon) -> Iterator[Daemon]:
    before = ring_daemon.holdings()
    yield ring_daemon
    assert ring_daemon.running(), ring_daemon.log()
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


# ---- making it ----


def test_offered(connection: raw.Connection) -> None:
    hello = connection.call("hello")
    assert "shm" in hello["features"]
    assert hello["limits"]["spin_us"] in (0, 300)
    assert "shm" not in hello and "nfds" not in hello, "only who asks gets it"


def test_what_hello_gives(ring: Ring) -> None:
    assert ring.seals() == SEALS
    for size in (ring.request_bytes, ring.reply_bytes):
        assert size >= 4096 and size & (size - 1) == 0
    assert bytes(ring.memory[: raw_page()]) == bytes(raw_page()), "fresh"
    with pytest.raises(OSError):
        os.ftruncate(ring.fd, ring.size + 1)
    with pytest.raises(OSError):
        os.ftruncate(ring.fd, 4096)


def raw_page() -> int:
    return 64  # the first word's line: nothing has been sent yet


def test_second_one_is_refused(ring: Ring) -> None:
    error = ring.connection.error("hello", {"shm": True})
    assert (error.code, error.key) == ("invalid_argument", "shm")
    assert ring.call("ping", {"x": 1}) == {"x": 1}
    assert ring.connection.alive()


def test_asked_for_through_the_ring(ring: Ring) -> None:
    reply = ring.reply(ring.request("hello", {"shm": True}))
    assert reply.error is not None and reply.error["code"] == "invalid_argument"


def test_notification_makes_none(connection: raw.Connection, daemon: Daemon) -> None:
    assert connection.alive()
    before = daemon.holdings()
    connection.send(raw.pack([2, "hello", [{"shm": True}]]))
    assert connection.alive()
    assert daemon.holdings() == before


def test_wrong_type(connection: raw.Connection) -> None:
    error = connection.error("hello", {"shm": 1})
    assert (error.code, error.key) == ("wrong_type", "shm")


# ---- using it ----


def test_many_calls_each_after_a_sleep(ring: Ring) -> None:
    """No bell is lost: the client sleeps before every reply."""
    for i in range(3000):
        assert ring.call("ping", {"i": i}) == {"i": i}


def test_runs(ring: Ring) -> None:
    vectors = Vectors(ring.connection, 3, 1000)
    vectors[0][:], vectors[1][:] = 3, 4
    for _ in range(100):
        result = ring.call("run", run_params("add", [vectors.tensor(0), vectors.tensor(1)], vectors.tensor(2)))
        assert result["variant"] and result["timings"]["total_us"] > 0
    assert (vectors[2] == 7).all()


def test_errors_come_back_the_same_way(ring: Ring) -> None:
    for method, params, code in (
        ("no_such_method", {}, "unknown_method"),
        ("cancel", {}, "missing_key"),
        ("release", {"buffer": 12345}, "unknown_buffer"),
    ):
        msgid = ring.request(method, params)
        error = ring.reply(msgid).error
        assert error is not None and error["code"] == code
        assert not ring.connection.readable(0)


def test_requests_in_pieces(ring: Ring) -> None:
    """A ring is a stream: where one publication ends means nothing."""
    data = b"".join(raw.pack_request(i, "ping", {"n": i, "x": bytes(i)}) for i in range(50))
    for i in range(0, len(data), 7):
        ring.send(data[i : i + 7])
    for i in range(50):
        assert ring.reply(i).get() == {"n": i, "x": bytes(i)}


def test_largest_message(ring: Ring) -> None:
    """Half a ring goes through, and comes back."""
    shell = len(raw.pack_request(1, "ping", {"x": bytes(70000)})) - 70000
    params = {"x": os.urandom(ring.request_bytes // 2 - shell)}
    assert len(raw.pack_request(1, "ping", params)) == ring.request_bytes // 2
    for _ in range(5):
        assert ring.call("ping", params) == params


def test_both_paths_at_once(ring: Ring) -> None:
    pairs = [(ring.request("ping", {"r": i}), ring.connection.request("ping", {"s": i})) for i in range(100)]
    for i, (by_ring, by_socket) in enumerate(pairs):
        assert ring.reply(by_ring).get() == {"r": i}
        assert ring.reply(by_socket).get() == {"s": i}


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


def test_cancel_through_the_other_path(ring: Ring) -> None:
    work = LongRun(ring.connection)
    assert ring.call("cancel", {"msgid": work.msgid}) == {"cancelled": True}
    error = ring.connection.reply(work.msgid).error
    assert error is not None and error["code"] == "cancelled"


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


def test_credit_comes_back(ring: Ring) -> None:
    limit = ring.connection.call("hello")["limits"]["inflight"]
    vectors = Vectors(ring.connection, 2, 10)
    params = run_params("square", [vectors.tensor(0)], vectors.tensor(1))
    ids = []
    for _ in range(5 * limit):
        ids.append(ring.request("run", params))
        if len(ids) >= limit:
            ring.reply(ids.pop(0)).get()
    for msgid in ids:
        ring.reply(msgid).get()


def test_many_rings(daemon: Daemon) -> None:
    rings = [Ring(daemon.connect()) for _ in range(50)]
    for round_ in range(20):
        ids = [ring.request("ping", {"x": [i, round_]}) for i, ring in enumerate(rings)]
        for i, (ring, msgid) in enumerate(zip(rings, ids, strict=True)):
            assert ring.reply(msgid).get() == {"x": [i, round_]}
    for ring in rings:
        ring.close()
        ring.connection.close()


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
    """The daemon takes in what its rings and limits hold and no more, and serves others."""
    before = proc.status(daemon.pid, "VmRSS")
    sent = flood(ring, raw.pack_request(1, "ping", {"x": bytes(985)}))
    assert sent < FLOOD
    assert proc.status(daemon.pid, "VmRSS") - before < (8 << 10 if not sanitized() else 256 << 10)
    with daemon.connect() as other:
        assert other.alive()


def test_flooder_that_reads_again_is_served(ring: Ring) -> None:
    """Paused, not broken: every request is answered, in order."""
    count = 0
    while ring.room() > 2000 or count * 900 <= ring.request_bytes + ring.reply_bytes:
        proc.eventually(lambda: ring.room() > 2000, "what the rings have room for is taken")
        ring.put(raw.pack_request(count, "ping", {"n": count, "x": bytes(900)}))
        ring.publish()
        count += 1
    for i in range(count):
        assert ring.reply(i).get()["n"] == i
    assert ring.call("ping", {"after": 1}) == {"after": 1}


def test_idle_with_unread_replies_costs_nothing(ring: Ring, daemon: Daemon) -> None:
    flood(ring, raw.pack_request(1, "ping", {"x": bytes(985)}))
    assert_idle(daemon)


# ---- sleeping ----


def test_idle_ring_costs_nothing(ring: Ring, daemon: Daemon) -> None:
    """Nor does half a message in it."""
    for i in range(100):
        ring.call("ping", {"i": i})
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


def with_ring(work: Callable[[Ring], object]) -> Callable[[raw.Connection], object]:
    def on_connection(connection: raw.Connection) -> object:
        ring = Ring(connection)
        return ring, work(ring)

    return on_connection


def in_flight(ring: Ring) -> object:
    work = LongRun(ring.connection)
    for stream in range(20):
        ring.request("run", run_params("square", [work.vectors.tensor(0)], work.vectors.tensor(1), stream=stream))
    return work


@pytest.mark.parametrize(
    "work",
    [
        lambda ring: ring.call("ping"),
        lambda ring: ring.send(raw.pack_request(1, "ping", {"x": bytes(1000)})[:500]),
        lambda ring: flood(ring, raw.pack_request(1, "ping", {"x": bytes(985)})),
        in_flight,
    ],
    ids=["idle", "in_a_message", "paused", "in_flight"],
)
def test_killed(work: Callable[[Ring], object], daemon: Daemon, spawn: Spawn) -> None:
    before = daemon.holdings()
    pid = child_with(daemon, with_ring(work), spawn)
    assert daemon.holdings()["memfd maps"] > before["memfd maps"]
    kill(pid)
    daemon.wait_holdings(before)


def test_forked_child_keeps_nothing_alive(daemon: Daemon, spawn: Spawn) -> None:
    """The process that connected counts; a child with its socket and memory does not."""
    before = daemon.holdings()
    told, tell = os.pipe()

    def work(ring: Ring) -> Ring:
        child = os.fork()
        if not child:
            signal.pause()
        os.write(tell, child.to_bytes(4, "little"))
        return ring

    pid = child_with(daemon, with_ring(work), spawn)
    child = int.from_bytes(os.read(told, 4), "little")
    kill(pid)
    try:
        daemon.wait_holdings(before)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(told)
        os.close(tell)
