"""Kernels of users, good and harmful ones: sources, and requests that make them known. The stand-in driver computes what these
kernels compute; a GPU runs them."""

from __future__ import annotations

from typing import Any

from . import raw

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
# Takes longer to compile than any test waits.
ENDLESS = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
template <int P> struct B<0, P> { static constexpr long v = P; };
extern "C" __global__ void k(long* p) { *p = B<40, 1>::v; }
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


def hostile_kernel(connection: raw.Connection, entry: str, device: str = "", **more: Any) -> int:
    """One of HOSTILE_PARAMS, launched as one thread; its arguments are in that order. `device`: that it runs on."""
    source = HOSTILE if f" {entry}(" in HOSTILE else OTHERS
    module = compile_source(connection, source, entry, **({"device": device} if device else {}))["module"]
    return declare(connection, module, entry=entry, params=HOSTILE_PARAMS[entry], grid=[1], block=[1], **more)
