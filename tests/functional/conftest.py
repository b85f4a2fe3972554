from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "proto" / "golden")]

from arrays import BACKEND, LongRun, Vectors  # noqa: E402
from support import backends, proc, raw  # noqa: E402
from support.daemon import Daemon  # noqa: E402
from support.users import public_folder  # noqa: E402


@pytest.fixture
def public() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def shared_daemon() -> Iterator[Daemon]:
    """One daemon for every test that does not harm it."""
    why_not = backends.missing(BACKEND)
    if why_not:
        pytest.skip(why_not)
    with Daemon(config=backends.config(BACKEND)) as daemon:
        if BACKEND != backends.HOST:
            warm_up(daemon)
        yield daemon


def warm_up(daemon: Daemon) -> None:
    """What a GPU's backend makes at its first use and keeps is no leak of a later test."""
    with daemon.connect() as connection:
        vectors = Vectors(connection, 2, 1000)
        for stream in range(8):
            connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)], stream=stream)
    proc.eventually(lambda: proc.fds(daemon.pid)["socket"] == proc.own_sockets(daemon.pid), "only its own sockets are left")


@pytest.fixture(scope="session")
def bystander(shared_daemon: Daemon) -> Iterator[raw.Connection]:
    """A client that must notice nothing of what others do."""
    with shared_daemon.connect() as connection:
        assert connection.alive()
        yield connection


@pytest.fixture
def daemon(shared_daemon: Daemon, bystander: raw.Connection) -> Iterator[Daemon]:
    """The shared daemon. After the test it holds what it held before, and its other client is served."""
    with shared_daemon.connect() as newest:
        assert newest.alive()  # so whoever connected before it, in another test, has been accepted
    assert bystander.alive()
    before = shared_daemon.holdings()
    yield shared_daemon
    assert shared_daemon.running(), shared_daemon.log()
    assert bystander.alive()
    shared_daemon.wait_holdings(before)


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[..., raw.Connection]]:
    """Makes connections that are closed after the test."""
    made = []

    def new(**options: int) -> raw.Connection:
        made.append(daemon.connect(**options))
        return made[-1]

    yield new
    for connection in made:
        connection.close()


@pytest.fixture
def connection(connect: Callable[..., raw.Connection]) -> raw.Connection:
    return connect()


@pytest.fixture(scope="session")
def limits(shared_daemon: Daemon) -> dict[str, int]:
    with shared_daemon.connect() as connection:
        return connection.call("hello")["limits"]


@pytest.fixture(scope="module", params=[0, 300], ids=["sleeping", "polling"])
def ring_daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """One for the tests of rings, which watch its memory."""
    with Daemon("--spin-us", str(request.param), config=backends.config(backends.HOST)) as daemon:
        maps = proc.maps(daemon.pid)
        with daemon.connect() as connection:
            LongRun(connection)  # what is made at the first use, and kept
        proc.eventually(lambda: proc.fds(daemon.pid)["socket"] == proc.own_sockets(daemon.pid), "only its own sockets are left")
        proc.eventually(lambda: proc.maps(daemon.pid) == maps, "its memory is unmapped")
        yield daemon


@pytest.fixture
def spawn() -> Iterator[Callable[..., int]]:
    """Forks a child that runs a function and never returns to pytest; whatever is left is killed after the test."""
    pids = []

    def start(function: Callable[[], object]) -> int:
        pid = os.fork()
        if not pid:
            try:
                function()
            finally:
                os._exit(0)
        pids.append(pid)
        return pid

    yield start
    for pid in pids:
        try:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
