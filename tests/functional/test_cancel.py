"""cancel and deadline_ms: what is queued is dropped, what runs stops as soon as it can, who asked is told what has become
of it, and the stream goes on. The end of a connection, however it comes: everything that it owned is given back (the fixture `daemon`
compares), and nobody else notices."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import numpy as np
import prometheus
import pytest
from arrays import BACKEND, POISON, LongRun, Vectors, run_params
from support import backends, memfd, proc, raw
from support.daemon import Daemon

only_on_the_host = pytest.mark.skipif(BACKEND != backends.HOST, reason="test_cuda.py holds a GPU's kernels at a gate")

EXEC, OTHER = ("host_us", "gpu_us") if BACKEND == backends.HOST else ("gpu_us", "host_us")
ENDED, GOES_ON = {"ended": True}, {"ended": False}


def answer(connection: raw.Connection, msgid: int) -> tuple[str, dict[str, object]]:
    error = connection.reply_error(msgid)
    return error.code, error.detail


def square(vectors: Vectors, **more: object) -> dict[str, object]:
    return run_params("square", [vectors.tensor(0)], vectors.tensor(1), **more)


def nobody_writes(connection: raw.Connection, memory: np.ndarray) -> None:
    """The memory is the client's again."""
    memory[:] = POISON
    assert connection.alive()
    assert (memory == POISON).all(), "it went on"


def test_cancel_running(connection: raw.Connection) -> None:
    """The run behind it is executed."""
    vectors = Vectors(connection, 2, 100)
    vectors[0][:] = 3
    work = LongRun(connection)
    behind = connection.request("run", square(vectors))
    assert connection.call("cancel", {"msgid": work.msgid}) == {"cancelled": True}
    assert answer(connection, work.msgid) == ("cancelled", ENDED)
    nobody_writes(connection, work.vectors[1])
    connection.reply(behind).get()
    assert (vectors[1] == 9).all()


@pytest.mark.parametrize("why", ["cancelled", "deadline_exceeded"])
def test_queued(connection: raw.Connection, why: str) -> None:
    """It is answered though the job before it still runs, and it is never executed."""
    vectors = Vectors(connection, 2, 100)
    vectors[1][:] = POISON
    work = LongRun(connection)
    queued = connection.request("run", square(vectors, **({"deadline_ms": 20} if why == "deadline_exceeded" else {})))
    if why == "cancelled":
        assert connection.call("cancel", {"msgid": queued}) == {"cancelled": True}
    assert answer(connection, queued) == (why, ENDED)
    assert work.msgid not in connection.replies, "the one before it was cancelled, too"
    connection.call("cancel", {"msgid": work.msgid})
    connection.reply(work.msgid)
    assert connection.alive()
    assert (vectors[1] == POISON).all(), "it was executed"


def test_what_cannot_be_cancelled(connect: Callable[..., raw.Connection]) -> None:
    """What has ended, what is no run, and what is another connection's."""
    connection, other = connect(), connect()
    msgid = connection.request("run", square(Vectors(connection, 2, 10)))
    connection.reply(msgid).get()
    assert connection.call("cancel", {"msgid": msgid}) == {"cancelled": False}
    assert connection.reply(connection.request("cancel", {"msgid": 500}, msgid=500)).get() == {"cancelled": False}
    work = LongRun(connection)
    assert other.call("cancel", {"msgid": work.msgid}) == {"cancelled": False}
    assert connection.alive() and work.msgid not in connection.replies
    connection.call("cancel", {"msgid": work.msgid})


def test_cancel_right_after_run(connection: raw.Connection) -> None:
    """In one send, a hundred times: each ends one way or the other, once."""
    vectors = Vectors(connection, 2, 1000)
    vectors[0][:] = 3
    for i in range(100):
        run = raw.pack_request(1000 + i, "run", square(vectors, repeat=100))
        connection.send(run + raw.pack_request(2000 + i, "cancel", {"msgid": 1000 + i}))
        cancelled = connection.reply(2000 + i).get()["cancelled"]
        reply = connection.reply(1000 + i)
        assert cancelled == (reply.error is not None), "what is said is what happens"
        assert reply.error is None or reply.error["code"] == "cancelled"


def test_deadline_of_a_running_job(connection: raw.Connection) -> None:
    """It is answered at once, and `trim` when nothing uses the memory any more."""
    work = LongRun(connection, wait=False, deadline_ms=20)
    assert answer(connection, work.msgid) == ("deadline_exceeded", GOES_ON)
    connection.call("trim")
    nobody_writes(connection, work.vectors[1])


class Product:
    """A matrix product of one execution that takes a while, most of it in a library that knows of no cancelling."""

    def __init__(self, connection: raw.Connection, dtype: str = "f32", attrs: dict[str, object] | None = None) -> None:
        self.connection = connection
        self.attrs = attrs or {}
        size = {"f32": 4, "f16": 2}[dtype]
        self.shared = memfd.Shared(3 * size * SIDE * SIDE)
        buffer = connection.register(self.shared)
        self.a, self.b, self.out = (
            raw.tensor(buffer, [SIDE, SIDE], dtype=dtype, offset=size * SIDE * SIDE * i) for i in range(3)
        )

    def ask(self, **more: object) -> int:
        return self.connection.request("run", run_params("gemm", [self.a, self.b], self.out, attrs=self.attrs, **more))


SIDE = 3000


@only_on_the_host
@pytest.mark.parametrize(("dtype", "attrs"), [("f32", {}), ("f32", {"variant": "blocked"}), ("f16", {})])
def test_one_long_execution(connection: raw.Connection, dtype: str, attrs: dict[str, object]) -> None:
    """It does not hold up the answer at a deadline; a cancel ends it."""
    product = Product(connection, dtype, attrs)
    for _ in range(3):
        assert answer(connection, product.ask(deadline_ms=20)) == ("deadline_exceeded", GOES_ON)
    connection.call("trim")
    for _ in range(3):
        msgid = product.ask()
        assert connection.alive()
        assert connection.call("cancel", {"msgid": msgid}) == {"cancelled": True}
        assert answer(connection, msgid) == ("cancelled", ENDED)
        nobody_writes(connection, product.shared.view(np.float32, 1, product.shared.size - 4))


@only_on_the_host
def test_what_comes_behind_waits_for_the_end(connection: raw.Connection) -> None:
    """The reply frees the msgid, and nothing else: the next run of the stream finds what the first one left."""
    work = LongRun(connection, deadline_ms=500)
    assert connection.reply_error(work.msgid).detail == GOES_ON
    connection.send(raw.pack_request(work.msgid, "run", square(work.vectors)))
    connection.reply(work.msgid).get()
    nobody_writes(connection, work.vectors[1])


@only_on_the_host
def test_late_ends_are_counted(connection: raw.Connection) -> None:
    """The device's time is the user's until the work has ended, whoever was told what before."""
    connection.call("hello", {"client": "late"})
    assert connection.reply_error(LongRun(connection, deadline_ms=500).msgid).detail == GOES_ON
    connection.call("trim")
    row = next(r for r in connection.call("clients")["clients"] if r["client"] == "late")
    assert row["device_us"] > 20e3, "not even what passed until the reply"


# ---- order: within a stream; streams are independent ----


@pytest.mark.parametrize("apart", ["streams", "connections"])
def test_others_do_not_wait(apart: str, connect: Callable[..., raw.Connection]) -> None:
    """One stream's or connection's long run does not hold up another's short one."""
    one = connect()
    two = one if apart == "streams" else connect()
    vectors = Vectors(two, 2, 100)
    vectors[0][:] = 2
    work = LongRun(one, stream=1)
    two.run("square", [vectors.tensor(0)], [vectors.tensor(1)], stream=2 if apart == "streams" else 1)
    assert (vectors[1] == 4).all()
    assert work.msgid not in one.replies and not one.readable(0)
    assert one.call("cancel", {"msgid": work.msgid})["cancelled"] is True
    assert one.reply_error(work.msgid).code == "cancelled"


def test_trim_and_stats_wait_for_earlier_requests(connection: raw.Connection) -> None:
    work = LongRun(connection)
    stats, trim = connection.request("stats"), connection.request("trim")
    assert connection.alive()
    assert stats not in connection.replies and trim not in connection.replies
    connection.call("cancel", {"msgid": work.msgid})
    assert connection.reply_error(work.msgid).code == "cancelled"
    for msgid in (stats, trim):
        connection.reply(msgid).get()


# ---- timings ----


def test_repeat_and_warmup(connection: raw.Connection) -> None:
    timings = connection.call("run", square(Vectors(connection, 2, 1000), warmup=3, repeat=20))["timings"]
    assert len(timings["samples"]) == 20 and all(s > 0 for s in timings["samples"])
    ordered = sorted(timings["samples"])
    assert timings["min"] == ordered[0] and timings["max"] == ordered[-1]
    assert ordered[0] <= timings["median"] <= timings["p90"] <= ordered[-1]
    assert timings[EXEC] == timings["median"]
    assert OTHER not in timings


@pytest.mark.parametrize("repeat", [1, 20])
def test_timings_that_nobody_asked_for(connection: raw.Connection, repeat: int) -> None:
    """The host measures all the same, and a GPU with its events only what it was asked for."""
    timings = connection.call("run", square(Vectors(connection, 2, 777), repeat=repeat, timing=False))["timings"]
    assert not set(timings) & {"gpu_us", "h2d_us", "d2h_us", "min", "median", "p90", "max", "samples"}
    assert ("host_us" in timings) == (EXEC == "host_us")
    if EXEC == "host_us":
        (row,) = [r for r in connection.call("stats")["ops"] if r["shapes"] == [[777], [777]]]
        assert row["exec_us"]["p50"] > 0


def test_timings_of_one_execution(connection: raw.Connection) -> None:
    timings = connection.call("run", square(Vectors(connection, 2, 1000)))["timings"]
    assert set(timings) >= {"recv_to_start_us", "queue_us", "total_us", EXEC}
    assert not set(timings) & {OTHER, "min", "samples"}
    assert ("h2d_us" in timings) == ("d2h_us" in timings) == (EXEC == "gpu_us")
    assert isinstance(timings.pop("received_ns"), int)
    assert all(isinstance(v, float) and v >= 0 for v in timings.values()), timings
    assert timings["queue_us"] <= timings["recv_to_start_us"] <= timings["total_us"]
    assert timings[EXEC] <= timings["total_us"]


Spawn = Callable[[Callable[[], object]], int]


def child_with(daemon: Daemon, work: Callable[[raw.Connection], object], spawn: Spawn) -> int:
    """A process that does `work` on a connection of its own, says so, and then waits to be killed; at SIGUSR1 it exits."""
    ready, done = os.pipe()

    def main() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        connection = daemon.connect()
        keep = work(connection)
        os.write(done, b"x")
        signal.sigwait({signal.SIGUSR1})
        del keep

    pid = spawn(main)
    os.close(done)
    assert os.read(ready, 1) == b"x", "the child failed"
    os.close(ready)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def hold(c: raw.Connection) -> object:
    return [Vectors(c, 2, 1000) for _ in range(10)]


def queue(c: raw.Connection) -> object:
    """Repeats stop with the client: 10000 of them would take far longer than this test's patience with a slow machine."""
    long, vectors = LongRun(c), Vectors(c, 9, 1000)
    for stream in range(8):
        out = vectors.tensor(1 + stream)  # streams of one client run at the same time
        for _ in range(3):
            c.request("run", run_params("square", [vectors.tensor(0)], out, stream=stream, repeat=10000))
    return long, vectors


def send_half(c: raw.Connection) -> None:
    c.send(raw.pack_request(1, "ping", {"a": bytes(1000)})[:500])


def send_half_with_descriptors(c: raw.Connection) -> None:
    fds = [memfd.make(4096) for _ in range(16)]
    c.send(raw.pack_request(1, "ping", {"nfds": 16, "a": bytes(1000)})[:500], fds)


def leave_replies(c: raw.Connection) -> None:
    """Replies with descriptors are under way to nobody."""
    for _ in range(30):
        c.request("alloc", {"size": 4096})


@pytest.mark.parametrize("work", [hold, LongRun, queue, send_half, send_half_with_descriptors, leave_replies])
def test_killed(work: Callable[[raw.Connection], object], daemon: Daemon, spawn: Spawn) -> None:
    before = daemon.holdings()
    pid = child_with(daemon, work, spawn)
    assert work is not LongRun or daemon.holdings()["memfd maps"] > before["memfd maps"]
    kill(pid)
    daemon.wait_holdings(before)


def test_what_is_made_for_nobody_is_cancelled_not_failed(daemon: Daemon) -> None:
    """Memory comes when the one who asked for it is gone: that is no fault of the daemon's, nor counted as one."""
    with daemon.connect() as watcher:

        def errors() -> dict[str, float]:
            family = prometheus.parse(watcher.call("metrics")["text"])["kopsd_errors_total"]
            return {dict(labels)["code"]: value for (_, labels), value in family.samples.items()}

        before = errors()

        def abandoned() -> bool:
            with daemon.connect() as connection:
                for _ in range(30):
                    connection.request("alloc", {"size": 4096})
            return errors() != before

        proc.eventually(abandoned, "some of them end before their memory comes")
        now = errors()
        assert {code for code, n in now.items() if n != before.get(code, 0)} == {"cancelled"}


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "exits"])
def test_a_child_holds_its_socket(daemon: Daemon, spawn: Spawn, killed: bool) -> None:
    """A fork of the client keeps the socket open; the connection ends with the process that connected, as the child sees."""
    before = daemon.holdings()
    report, told = os.pipe()

    def work(connection: raw.Connection) -> object:
        kept = Vectors(connection, 2, 1000), LongRun(connection)
        pid = os.fork()
        if not pid:
            try:
                connection.wait_closed()
                os.write(told, b"closed")
                signal.pause()
            finally:
                os._exit(0)
        os.write(told, pid.to_bytes(4, "little"))
        return kept

    pid = child_with(daemon, work, spawn)
    child = int.from_bytes(os.read(report, 4), "little")
    try:
        if killed:
            kill(pid)
        else:
            os.kill(pid, signal.SIGUSR1)
            os.waitpid(pid, 0)
        daemon.wait_holdings(before)
        assert os.read(report, 6) == b"closed"
        os.kill(child, 0)  # it lives, and holds the socket
    finally:
        os.kill(child, signal.SIGKILL)
    os.close(report)
    os.close(told)


def test_a_child_closing_its_copy_is_no_end(daemon: Daemon, connection: raw.Connection, spawn: Spawn) -> None:
    vectors = Vectors(connection, 2, 10)
    os.waitpid(spawn(lambda: connection.socket.close()), 0)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])


@pytest.mark.parametrize("paused", [False, True])
def test_end_of_file(daemon: Daemon, connect: Callable[..., raw.Connection], limits: dict[str, int], paused: bool) -> None:
    """With work in flight. Where the credit is used up, the connection is not read; its end is noticed all the same, not only
    when its work is done, which would take hours."""
    before = daemon.holdings()
    connection = connect()
    work = LongRun(connection)
    params = run_params("square", [work.vectors.tensor(0)], work.vectors.tensor(1), repeat=10000)
    for _ in range(limits["inflight"] if paused else 0):
        connection.request("run", params)
    connection.close()
    daemon.wait_holdings(before)


def test_half_closed(connection: raw.Connection) -> None:
    """A client that ends its sending side and still reads: what it sent before is either answered or dropped, and the
    connection ends."""
    connection.request("ping", {"a": 1}, msgid=1)
    connection.socket.shutdown(socket.SHUT_WR)
    connection.wait_closed()
    assert connection.replies.get(1) is None or connection.replies[1].result == {"a": 1}
