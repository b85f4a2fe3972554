"""Sources, declarations and launches of user kernels, for the tests of them. The stand-in driver computes what these
kernels compute; the real compiler makes their code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_machine import Machine, N, vector
from support import backends, proc, raw
from support.cuda_exporter import Exporter, Memory

only_with_nvrtc = pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")

ADD = """extern "C" __global__ void add2_kernel(float* c, const float* a, const float* b, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}
"""
OTHERS = """extern "C" __global__ void custom_kernel(float* out, const float* in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2 * in[i];
}
extern "C" __global__ void histogram_kernel(unsigned* bins, const unsigned char* data, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&bins[data[i]], 1u);
}
extern "C" __global__ void spin_forever(float* p)
{
    while (atomicAdd(p, 0.0f) == 0) {
    }
}
extern "C" __global__ void fault_kernel(float* p)
{
    p[1ull << 40] = 1;
}
"""
# What users may do to each other. spin_forever and fault_kernel belong here, too.
HOSTILE = """extern "C" __global__ void count_forever(unsigned* count)
{
    for (;;)
        atomicAdd(count, 1u);
}
extern "C" __global__ void run_for(unsigned* runs, int us)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < 1000ull * us);
    atomicAdd(runs, 1u);
}
extern "C" __global__ void read_range(unsigned* out, unsigned long long address, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = ((volatile const unsigned*)address)[i];
}
extern "C" __global__ void tell_address(unsigned long long* out, const float* p)
{
    *out = (unsigned long long)p;
}
"""
ARCH = "sm_90a"


def pointer(name: str, kind: str, dtype: str = "f32", **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "dtype": dtype, **more}


def scalar(name: str, dtype: str = "i32") -> dict[str, Any]:
    return {"name": name, "kind": "scalar", "dtype": dtype}


ADD_PARAMS = [pointer("c", "out", elements="n"), pointer("a", "in", elements="n"), pointer("b", "in", elements="n"), scalar("n")]
HOSTILE_PARAMS = {
    "count_forever": [pointer("count", "inout", "u32", elements="1")],
    "run_for": [pointer("runs", "inout", "u32", elements="1"), scalar("us")],
    "read_range": [pointer("out", "out", "u32", elements="n"), scalar("address", "u64"), scalar("n")],
    "tell_address": [pointer("out", "out", "u64", elements="1"), pointer("p", "in")],
    "spin_forever": [pointer("p", "inout")],
    "fault_kernel": [pointer("p", "inout")],
}
CUSTOM_PARAMS = [pointer("out", "out", elements="n"), pointer("in_", "in", elements="n"), scalar("n")]


def compile_source(connection: raw.Connection, source: str = ADD, *entries: str, **more: Any) -> dict[str, Any]:
    return connection.call("compile", {"source": source, "entries": list(entries) or ["add2_kernel"], **more})


def declare(connection: raw.Connection, module: int, **more: Any) -> int:
    """add2_kernel, or what `more` says, of a module."""
    params = {
        "module": module,
        "entry": "add2_kernel",
        "params": ADD_PARAMS,
        "grid": ["ceil_div(n, 256)"],
        "block": [256],
        **more,
    }
    return connection.call("kernel", params)["kernel"]


def add_kernel(connection: raw.Connection, **more: Any) -> int:
    return declare(connection, compile_source(connection)["module"], **more)


def custom_kernel(connection: raw.Connection, **more: Any) -> int:
    module = compile_source(connection, OTHERS, "custom_kernel")["module"]
    return declare(connection, module, **{"entry": "custom_kernel", "params": CUSTOM_PARAMS, **more})


def hostile_kernel(connection: raw.Connection, entry: str, **more: Any) -> int:
    """One of HOSTILE_PARAMS, launched as one thread; its arguments are in that order."""
    source = HOSTILE if f" {entry}(" in HOSTILE else OTHERS
    module = compile_source(connection, source, entry)["module"]
    return declare(connection, module, entry=entry, params=HOSTILE_PARAMS[entry], grid=[1], block=[1], **more)


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
