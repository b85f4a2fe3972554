"""Descriptors whose close takes as long as their owner likes: nobody else waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from arrays import Vectors
from support import backends, proc, raw, users
from support.daemon import Daemon

CONFIG = backends.config(backends.HOST)
ALICE, BOB = 4001, 4002
FOREVER_S = 30000
POOL_THREADS = 8
GARBAGE = b"\xc1"


class Lingering:
    """A TCP connection whose last close waits: what was sent is not taken by the other end."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self.own = socket.create_connection(listener.getsockname())
            self.reader, _ = listener.accept()
        self.own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, FOREVER_S))
        self.own.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.own.send(bytes(65536))

    def end(self) -> None:
        self.own.close()
        self.reader.close()


NewLingering = Callable[[], Lingering]


@pytest.fixture
def lingering() -> Iterator[NewLingering]:
    made: list[Lingering] = []

    def new() -> Lingering:
        made.append(Lingering())
        return made[-1]

    yield new
    for one in made:
        one.reader.close()  # first: then nothing lingers
        one.end()


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """What is sent meanwhile is all there when the daemon looks; and the last close is the daemon's."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        proc.eventually(lambda: proc.states(daemon.pid) == {"T"}, "it is stopped")
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


REGISTER = {"kind": "memfd", "size": 4096, "fd": 0}
PING = raw.pack_request(1, "ping", {})


def send_refused(connection: raw.Connection, fd: int) -> None:
    connection.request("register", REGISTER, fds=[fd])


def send_half(connection: raw.Connection, fd: int) -> None:
    connection.send(raw.pack_request(1, "register", {**REGISTER, "nfds": 1})[:9], fds=[fd])
    connection.close()


def send_behind_garbage(connection: raw.Connection, fd: int) -> None:
    connection.send(GARBAGE)
    for _ in range(3):
        connection.send(PING, fds=[fd])


def send_too_many(connection: raw.Connection, fd: int) -> None:
    connection.send(PING, fds=[0] * 20 + [fd])


def threads(daemon: Daemon) -> int:
    return proc.status(daemon.pid, "Threads")


@pytest.mark.parametrize("send", [send_refused, send_half, send_behind_garbage, send_too_many])
def test_a_close_that_lasts_holds_up_nobody(send: Callable[[raw.Connection, int], None], lingering: NewLingering) -> None:
    with Daemon(config=CONFIG) as daemon, daemon.connect() as other:
        vectors = Vectors(other, 2, 1000)
        other.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        other.call("trim")
        before, more = daemon.holdings(), threads(daemon)
        rude = [lingering() for _ in range(POOL_THREADS + 1)]
        connections = [daemon.connect() for _ in rude]
        with stopped(daemon):
            for connection, one in zip(connections, rude, strict=True):
                send(connection, one.own.fileno())
                one.own.close()
        for _ in range(10):
            other.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
            Vectors(other, 1, 100)
            other.call("trim")
        for connection in connections:
            connection.close()
        proc.eventually(lambda: proc.closing(daemon.pid) == 1, "one thread waits in a close")
        assert threads(daemon) <= more + 1
        for one in rude:
            one.end()
        proc.eventually(lambda: proc.closing(daemon.pid) == 0 and threads(daemon) <= more, "all are closed")
        daemon.wait_holdings({**before, "memfd maps": before["memfd maps"] + 10})


def test_the_end_does_not_wait_for_it(lingering: NewLingering) -> None:
    with Daemon("--set", "server.loop_timeout_s=0", config=CONFIG) as daemon:
        rude = lingering()
        with daemon.connect() as connection:
            with stopped(daemon):
                send_refused(connection, rude.own.fileno())
                rude.own.close()
            assert connection.alive()
        daemon.stop()


def test_out_of_band(lingering: NewLingering) -> None:
    """What the kernel would drop by itself, were it not asked to keep it in line."""
    with Daemon(config=CONFIG) as daemon, daemon.connect() as other, daemon.connect() as connection:
        assert other.alive() and connection.alive()
        rude = lingering()
        with stopped(daemon):
            fds = struct.pack("i", rude.own.fileno())
            connection.socket.sendmsg([GARBAGE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)], socket.MSG_OOB)
            connection.request("ping", {})
            rude.own.close()
        assert other.alive()
        notification = connection.wait_closed()
        assert notification is not None and notification["code"] == "protocol_error"
        assert other.alive()


@users.as_root
@pytest.mark.parametrize(
    ("newcomers", "linger", "kept"), [(1000, 1, 400), (450, 450, 300)], ids=["behind one that lasts", "all last"]
)
def test_newcomers_do_not_pile_up(lingering: NewLingering, newcomers: int, linger: int, kept: int) -> None:
    """Those of a user who has all that may be, with descriptors: they wait until those before them are closed."""
    config = CONFIG + users.OPEN + "[quota]\nconnections = 1\n"
    with Daemon(config=config) as daemon, users.connect(daemon, BOB) as other, users.connect(daemon, ALICE) as connection:
        assert connection.alive() and other.alive()
        before, (one, two) = proc.fds(daemon.pid).total(), os.pipe()
        with stopped(daemon):
            for n in range(newcomers):
                rude = lingering() if n < linger else None
                with users.connect(daemon, ALICE) as newcomer:
                    newcomer.send(PING, fds=[rude.own.fileno() if rude else one])
                if rude:
                    rude.own.close()
        assert linger > 1 or other.alive() and connection.alive()
        with users.connect(daemon, ALICE) as newcomer:
            assert newcomer.wait_closed()  # it came behind all of them
        assert proc.fds(daemon.pid).total() < before + kept
        assert other.alive() and connection.alive()
        with users.connect(daemon, BOB + 1) as another:
            assert another.alive()
        os.close(one)
        os.close(two)


@users.as_root
def test_they_count_as_their_user_s(lingering: NewLingering) -> None:
    """Until they are closed. Whoever sends more and more such is refused, and only that user."""
    with Daemon(config=CONFIG + users.OPEN + "[quota]\nfds = 300\n") as daemon, users.connect(daemon, BOB) as other:
        rude, (one, two) = lingering(), os.pipe()
        with users.connect(daemon, ALICE) as connection:
            with stopped(daemon):
                first = connection.request("register", REGISTER, fds=[rude.own.fileno()])
                rude.own.close()
                for _ in range(25):
                    connection.request("register", REGISTER, fds=[one] * 15)
            assert connection.reply_error(first).code == "invalid_fd"
            notification = connection.wait_closed()
            assert notification is not None and notification["code"] == "quota_exceeded"
            assert notification["detail"]["quota"] == "fds" and notification["detail"]["limit"] == 300
        with users.connect(daemon, ALICE) as connection:
            notification = connection.wait_closed()
            assert notification is not None and notification["code"] == "quota_exceeded"
        assert other.alive()
        assert other.error("register", REGISTER, fds=[one]).code == "invalid_fd"
        rude.end()

        def welcome() -> bool:
            with users.connect(daemon, ALICE) as connection, contextlib.suppress(raw.Closed, OSError):
                return connection.alive()
            return False

        proc.eventually(welcome, "she may connect again")
        os.close(one)
        os.close(two)
