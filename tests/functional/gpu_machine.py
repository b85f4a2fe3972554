"""A daemon with a GPU that is none, clients' processes with memory on it and kernels of their own, and fixtures of both. The stand-in
driver computes what the kernels of tests/support/kernels.py compute; the real compiler makes their code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin_cuda.control import Control
from support import backends, memfd, proc, raw
from support.cuda_exporter import Exporter, Memory
from support.daemon import Daemon
from support.kernels import compile_source
from support.raw import tensor

only_with_the_standin = pytest.mark.skipif(
    backends.missing(backends.STANDIN) is not None,
    reason=str(backends.missing(backends.STANDIN)),
)
only_with_nvrtc = pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
N = 1024  # elements of a vector
ILLEGAL_ADDRESS, OUT_OF_MEMORY, LAUNCH_OUT_OF_RESOURCES, UNKNOWN = 700, 2, 701, 999
DEVICE_LOST_STATUS = 75


class Machine:
    """A daemon with a GPU that is none, and its control page."""

    def __init__(self, more: str = "", env: dict[str, str] | None = None, start: bool = True) -> None:
        self.control = Control()
        self.env = {**self.control.env, "KOPS_CUDA_DRIVER": str(backends.standin_driver()), **(env or {})}
        self.daemon = Daemon(config=backends.config(backends.STANDIN) + more, env=self.env, start=start)
        self.gpu = self.find_gpu() if start else ""

    def hello(self) -> dict[str, Any]:
        with self.daemon.connect() as connection:
            return connection.call("hello")

    def find_gpu(self) -> str:
        return next(d["uuid"] for d in self.hello()["devices"] if d["backend"] == "cuda")

    def exporter(self, ordinal: int = 0) -> Exporter:
        return Exporter(self.env, ordinal)

    @contextmanager
    def operands(self) -> Iterator[tuple[Memory, Memory]]:
        """What a square reads and what it writes, in memory of another process."""
        exporter = self.exporter()
        yield operands(exporter)
        exporter.close()

    @property
    def row(self) -> Any:
        """Of the process that does the work of all users, or of the daemon where there is none."""
        return self.control.row(self.daemon.gpu_pid)

    def wait(self, condition: Callable[[], bool]) -> None:
        self.control.wait_for(condition, raw.PATIENCE)

    def reaches(self, gate: str, count: int = 1, pid: int = 0) -> None:
        """So many calls wait there, of the process `pid` or of that of `row`."""
        self.wait(lambda: (self.control.row(pid) if pid else self.row).waiting(gate) >= count)


@pytest.fixture(scope="module")
def shared_machine() -> Iterator[Machine]:
    machine = Machine()
    with machine.daemon:
        # What is made at the first use and kept (kernels, scratch, threads) is no leak of a later test.
        exporter = machine.exporter()
        memory, shared = vector(exporter.alloc(4 * N)), memfd.Shared(8 * N)
        with machine.daemon.connect() as connection:
            view = tensor(connection.register(shared), [N])
            for stream in range(4):
                connection.call("run", square(memory, memory, stream=stream, repeat=1))
                connection.run("square", [view], [{**view, "offset": 4 * N}], stream=stream, device=machine.gpu)
        exporter.close()
        machine.wait(lambda: machine.row.live_ipc_mappings == machine.row.live_host_registrations == 0)
        pid = machine.daemon.pid
        proc.eventually(lambda: proc.fds(pid)["socket"] == proc.own_sockets(pid), "only its own sockets are left")
        yield machine


@pytest.fixture
def machine(shared_machine: Machine) -> Iterator[Machine]:
    """The shared daemon; after the test its driver holds what it held before, and was used correctly."""
    m = shared_machine
    before, holdings = m.row.live(), m.daemon.holdings()
    yield m
    pooled = ("live_streams", "live_events", "live_modules", "live_allocations", "live_allocation_bytes")

    def settled() -> bool:
        return proc.no_more({k: v for k, v in m.row.live().items() if k not in pooled}, before)

    proc.eventually(settled, lambda: f"{before}, but {m.row.live()}")
    assert not m.control.misuses()
    m.daemon.wait_holdings(holdings)


Connect = Callable[[], raw.Connection]


@pytest.fixture
def connect(machine: Machine) -> Iterator[Connect]:
    made: list[raw.Connection] = []

    def new() -> raw.Connection:
        made.append(machine.daemon.connect())
        return made[-1]

    yield new
    for connection in made:
        connection.close()


@pytest.fixture
def connection(connect: Connect) -> raw.Connection:
    return connect()


@pytest.fixture
def exporter(machine: Machine) -> Iterator[Exporter]:
    process = machine.exporter()
    yield process
    process.close()


def vector(memory: Memory, values: Any = None) -> Memory:
    """Fills an allocation with float32 values (default: all 3)."""
    memory.write(np.full(memory.size // 4, 3, np.float32).tobytes() if values is None else values.tobytes())
    return memory


def operands(exporter: Exporter) -> tuple[Memory, Memory]:
    return vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)


def values(memory: Memory, count: int = N, offset: int = 0) -> np.ndarray:
    return np.frombuffer(memory.read(4 * count, offset), np.float32)


def register(connection: raw.Connection, memory: Memory, **more: Any) -> int:
    return connection.call("register", memory.register_params(**more))["buffer"]


def square(memory: Memory, out: Memory, **more: Any) -> dict[str, Any]:
    return {"op": "square", "in": [memory.inline([N])], "out": [out.inline([N])], **more}


def reuse(exporter: Exporter, old: Memory) -> Memory:
    """Frees and allocates anew: other memory under the same handle bytes, as some drivers do."""
    old.free()
    new = exporter.alloc(old.size)
    assert new.handle == old.handle and new.alloc_id != old.alloc_id, "the stand-in repeats handles"
    return new


# ---- kernels of users ----


def pidfds(pid: int) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            count += "\nPid:" in path.read_text()
        except FileNotFoundError:
            pass
    return count


def wait_for_compilers(pid: int, connections: int = 0) -> None:
    """Until the daemon holds what it holds when nothing is compiled: the one that forks, and a spare process."""
    proc.eventually(
        lambda: (
            proc.fds(pid)["socket"] == proc.own_sockets(pid) + 2 + connections
            and pidfds(pid) == 2 + connections + len(proc.executors(pid))
        ),
        "its own, the forker and a spare process are left",
    )


@pytest.fixture(scope="module", autouse=True)
def compilers(shared_machine: Machine) -> None:
    """The processes that compile are started by the first compile and stay: no leak of a later test."""
    with shared_machine.daemon.connect() as connection:
        compile_source(connection)


@pytest.fixture(autouse=True)
def steady(shared_machine: Machine) -> None:
    """A spent compiler goes and the next one comes after the answer."""
    wait_for_compilers(shared_machine.daemon.pid)


@pytest.fixture
def vectors(exporter: Exporter) -> list[Memory]:
    """Four vectors of N random numbers."""
    rng = np.random.default_rng()
    return [vector(exporter.alloc(4 * N), rng.integers(1, 100, N).astype(np.float32)) for _ in range(4)]


def add_args(vectors: list[Memory], n: int = N) -> list[Any]:
    c, a, b = (v.inline([n]) for v in vectors[:3])
    return [c, a, b, n]


# A test module binds these names, which is how pytest finds them.
FIXTURES = (shared_machine, machine, connect, connection, exporter)
KERNEL_FIXTURES = (compilers, steady, vectors)
