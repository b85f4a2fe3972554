"""An idle daemon uses no CPU and little memory, and the steady path of a request takes none from the allocator."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from arrays import LongRun, Vectors, run_params
from support import backends, idle, proc, raw
from support.daemon import Daemon, build_folder, sanitized
from support.ring import Ring

CONFIG = backends.config(backends.HOST)
LIBRARY = build_folder() / "lib" / "libcount_allocations.so"
CALLS = 300


def test_idle_clients_cost_nothing() -> None:
    """One that has only connected, one whose work is done, one whose work was cancelled, and one whose replies do not fit its
    socket: it is waited for, not polled."""
    with Daemon(config=CONFIG) as daemon, ExitStack() as stack:
        idle.assert_idle(daemon)  # without any, too
        connected, used, slow = (stack.enter_context(daemon.connect()) for _ in range(3))
        assert connected.alive()
        vectors = Vectors(used, 2, 1 << 20)
        used.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        tensors = [raw.tensor(vectors.buffer, [64, 64], offset=65536 * i) for i in range(3)]
        used.run("gemm", tensors[:2], tensors[2:])
        with daemon.connect() as cancelled:
            work = LongRun(cancelled)
            cancelled.call("cancel", {"msgid": work.msgid})
            cancelled.reply(work.msgid)
            slow.ask_without_reading()
            idle.assert_idle(daemon)


@pytest.mark.skipif(sanitized(), reason="a sanitizer needs more memory by itself")
def test_small_before_the_first_blas_call() -> None:
    """Resident memory without CUDA and before any gemm, after other use."""
    with Daemon(config=CONFIG) as daemon, daemon.connect() as connection:
        vectors = Vectors(connection, 3, 1000)
        connection.run("add", [vectors.tensor(0), vectors.tensor(1)], [vectors.tensor(2)])
        assert proc.status(daemon.pid, "VmRSS") < 20 << 10


def test_memory_of_clients_that_left_is_given_back() -> None:
    """Twenty clients with a message each of the most bytes."""
    with Daemon(config=CONFIG) as daemon:
        with daemon.connect() as connection:
            size = connection.call("hello")["limits"]["message_bytes"] - 1000
        before = proc.status(daemon.pid, "VmRSS")
        connections = [daemon.connect() for _ in range(20)]
        for connection in connections:
            assert len(connection.call("ping", {"x": bytes(size)})["x"]) == size
        for connection in connections:
            connection.close()
        if not sanitized():
            proc.eventually(lambda: proc.status(daemon.pid, "VmRSS") - before < 8 << 10, "memory is given back")


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not LIBRARY.exists():
        pytest.skip("built with a sanitizer, which has an allocator of its own")
    path = tmp_path_factory.mktemp("count") / "count"
    path.write_bytes(bytes(8))
    return path


@pytest.mark.parametrize("spin_us", [0, 300])
@pytest.mark.parametrize("method", ["ping", "run", "run_wrong"])
@pytest.mark.parametrize("path", ["socket", "ring"])
def test_no_allocation_per_request(path: str, method: str, spin_us: int, counter: Path) -> None:
    def count() -> int:
        return int.from_bytes(counter.read_bytes(), "little")

    env = {"LD_PRELOAD": str(LIBRARY), "KOPS_TEST_COUNT": str(counter)}
    with Daemon("--spin-us", str(spin_us), config=CONFIG, env=env) as daemon, daemon.connect() as connection:
        ring = Ring(connection)
        vectors = Vectors(connection, 3, 1000)
        tensors = [vectors.tensor(i) for i in range(3)]
        params = {
            "ping": {"x": [1, 2.5, "three", b"four"]},
            "run": run_params("add", tensors[:2], tensors[2]),
            "run_wrong": run_params("add", tensors[:2], raw.tensor(12345, [1000])),
        }[method]
        name = method.split("_")[0]
        call: Callable[[], raw.Reply]
        if path == "ring":
            call = lambda: ring.reply(ring.request(name, params))  # noqa: E731
        else:
            call = lambda: connection.reply(connection.request(name, params))  # noqa: E731
        for _ in range(CALLS):
            call()
        assert (call().error is not None) == (method == "run_wrong")
        before = count()
        for _ in range(CALLS):
            call()
        assert count() == before
        with daemon.connect() as other:
            assert other.alive()
        assert count() > before, "nothing is counted"
        ring.close()
        for reply in connection.replies.values():
            for fd in reply.fds:
                os.close(fd)
