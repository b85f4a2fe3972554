"""Sources, declarations and launches of user kernels, for the tests of them. The stand-in driver computes what these
kernels compute; the real compiler makes their code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_machine import Machine, N, vector
from support import backends, proc
from support.cuda_exporter import Exporter, Memory
from support.kernels import (
    ADD,
    ADD_PARAMS,
    ARCH,
    CUSTOM_PARAMS,
    HOSTILE_PARAMS,
    OTHERS,
    add_kernel,
    compile_source,
    custom_kernel,
    declare,
    hostile_kernel,
    pointer,
    scalar,
)

__all__ = [
    "ADD", "ADD_PARAMS", "ARCH", "CUSTOM_PARAMS", "FIXTURES", "HOSTILE_PARAMS", "OTHERS", "add_args", "add_kernel", "compile_source",
    "compilers", "custom_kernel", "declare", "hostile_kernel", "only_with_nvrtc", "pidfds", "pointer", "scalar", "steady", "vectors",
    "wait_for_compilers",
]  # fmt: skip

only_with_nvrtc = pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")


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
FIXTURES = (compilers, steady, vectors)
