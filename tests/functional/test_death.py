"""The end of a connection, however it comes: everything that it owned is given back, and nobody else notices.

The `daemon` fixture compares the daemon's descriptors and mappings before and after each test.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import prometheus
import pytest
from arrays import LongRun, Vectors, run_params
from support import memfd, proc, raw
from support.daemon import Daemon

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
