"""An idle daemon uses no CPU and little memory."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from arrays import LongRun, Vectors
from support import backends, idle, proc, raw
from support.daemon import Daemon, sanitized

CONFIG = backends.config(backends.HOST)


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
