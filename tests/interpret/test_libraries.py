"""CUB's collectives, cuda::atomic, cuda::pipeline, cuda::std, partitions of groups, and atomics of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Part, Together, launch

Fails = Callable[..., Any]
together = Together("""#include <cub/cub.cuh>
#include <cub/block/block_reduce.cuh>
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/std/atomic>
#include <cuda/std/limits>
#include <cuda/std/type_traits>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
struct P { int total; __device__ int operator()(int a) { int old = total; total += a; return old; } };
""")
X = np.arange(128, dtype="i4")


def kernel(body: str) -> Part:
    return together(f"__global__ void k(int *y, const int *x) {{ int t = threadIdx.x;\n{body}\n}}")


def result(part: Part, x: Any = X, block: int = 128) -> list[int]:
    y = np.zeros(128, "i4")
    launch(part, "k", "int* y, const int* x", y, x, block=block)
    return y.tolist()


REDUCE = "typedef cub::BlockReduce<int, {n}> R; __shared__ typename R::TempStorage s; int v = R(s).{call}; if (!t) y[0] = v;"


REDUCED = [
    (128, "Sum(x[t])", sum(range(128))), (128, "Sum(x[t], 50)", sum(range(50))), (100, "Sum(x[t])", sum(range(100))),
    (128, "Reduce(x[t], cub::Max())", 127), (100, "Reduce(-x[t], cub::Min(), 33)", -32), (32, "Reduce(x[t], cuda::maximum<>())", 31),
    (1, "Sum(x[t] + 7)", 7),
]  # fmt: skip
SCAN = "typedef cub::BlockScan<int, 128> S; __shared__ typename S::TempStorage s; int a = 0; (void)a;\n"
SUMS = np.cumsum(X)
WHOLE = [
    (SCAN + "S(s).InclusiveSum(x[t], y[t]);", SUMS), (SCAN + "S(s).ExclusiveSum(x[t], y[t], a); y[t] += a;", SUMS - X + 8128),
    (SCAN + "S(s).InclusiveScan(-x[t], y[t], cub::Max());", 0 * X),
    (SCAN + "S(s).ExclusiveScan(x[t], y[t], 5, cub::Max());", np.maximum(X - 1, 5)),
    (SCAN + "int v[2] = {x[t] * 2, x[t] * 2 + 1}; S(s).ExclusiveSum(v, v); y[t] = v[1];", X * (2 * X + 1)),
    (SCAN + "P p{5}; int v; for (int i = 0; i < 2; i++) { S(s).ExclusiveSum(1, v, p); __syncthreads(); } y[t] = v;", 133 + X),
    ("typedef cub::WarpReduce<int> R; __shared__ R::TempStorage s[4]; int v = R(s[t / 32]).Sum(x[t]); y[t] = t % 32 ? 0 : v;",
     [sum(range(t, t + 32)) if t % 32 == 0 else 0 for t in range(128)]),
    ("typedef cub::WarpReduce<double, 8> R; __shared__ R::TempStorage s[16]; int v = R(s[t / 8]).Reduce(x[t] + 0.5, cub::Max(), 5);\n"
     "y[t] = t % 8 ? 0 : v;", [t + 4 if t % 8 == 0 else 0 for t in range(128)]),
    ("typedef cub::WarpScan<int> S; __shared__ S::TempStorage s[4]; int a; S(s[t / 32]).ExclusiveSum(x[t], y[t], a);\n"
     "if (t % 32 == 31) y[t] = a;", [sum(range(t // 32 * 32, t + (t % 32 == 31))) for t in range(128)]),
]  # fmt: skip
COLLECTIVES = [(kernel(REDUCE.format(n=n, call=call)), n, [wanted, *[0] * 127]) for n, call, wanted in REDUCED]
COLLECTIVES += [(kernel(body), 128, list(wanted)) for body, wanted in WHOLE]


@pytest.mark.parametrize("at", range(len(COLLECTIVES)))
def test_collectives_of_blocks_and_warps(at: int) -> None:
    part, block, wanted = COLLECTIVES[at]
    assert result(part, block=block) == wanted


TWICE = "typedef cub::BlockReduce<int, 128> R; __shared__ typename R::TempStorage s;\n"
TWICE += "int v = R(s).Sum(x[t]); MEET v += R(s).Sum(1); if (!t) y[0] = v;"
AGAIN, AT_ONCE = (kernel(TWICE.replace("MEET", meet)) for meet in ("__syncthreads();", ""))


def test_storage_that_is_used_again(fails: Fails) -> None:
    assert result(AGAIN)[0] == 127 * 64 + 128
    fails("race", AT_ONCE, "k", "int* y, const int* x", np.zeros(128, "i4"), X, block=128)


MOVED = kernel("""typedef cub::BlockLoad<int, 32, 4, cub::BLOCK_LOAD_TRANSPOSE> L;
typedef cub::BlockStore<int, 32, 4, cub::BLOCK_STORE_STRIPED> S;
__shared__ L::TempStorage l; __shared__ S::TempStorage s; int v[4]; L(l).Load(x, v, 126, -1); S(s).Store(y, v);""")
ATOMIC = kernel("""__shared__ cuda::atomic<int, cuda::thread_scope_block> s; if (!t) s.store(0); __syncthreads();
s.fetch_add(t, cuda::memory_order_relaxed); s++; s |= 0; __syncthreads(); int sum = s;
cuda::atomic_ref<int, cuda::thread_scope_device> r(y[0]); r.fetch_max(t);
int expected = -1; if (t == 5) y[1] = r.compare_exchange_strong(expected, 3);
__shared__ cuda::std::atomic<int> host; if (!t) host = 1; __syncthreads(); host += 2; __syncthreads(); if (t > 1) y[t] = sum + host;
static_assert(cuda::std::is_same<int, int>::value); if (t == 7) y[7] = cuda::std::numeric_limits<int>::max();""")


def test_loads_and_stores_of_a_block() -> None:
    assert result(MOVED, block=32) == [4 * (i % 32) + i // 32 if 4 * (i % 32) + i // 32 < 126 else -1 for i in range(128)]


def test_atomic_objects() -> None:
    y = result(ATOMIC)
    assert y[0] == 127 and y[1] == 0 and y[7] == 2**31 - 1 and y[2] == 8128 + 128 + 257


STAGES = """__shared__ int s[2][128]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
auto b = cg::this_thread_block(); auto p = cuda::make_pipeline(b, &state); y[t] = 0;
for (int f = 0, c = 0; c < 4; c++) {
    for (; f < 4 && f < c + 2; f++) {
        p.producer_acquire(); cuda::memcpy_async(b, s[f % 2], x + 128 * f, sizeof(int) * 128, p); p.producer_commit(); }
    WAIT
    y[t] += s[c % 2][127 - t]; p.consumer_release(); }"""
ALONE = """__shared__ int s[128]; auto p = cuda::make_pipeline(); p.producer_acquire();
cuda::memcpy_async(s + t, x + t, sizeof(int), p); p.producer_commit(); WAIT
__syncthreads(); y[t] = s[127 - t]; p.consumer_release();"""
ROLES = """__shared__ int s[2][64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
auto b = cg::this_thread_block(); bool fills = t < 64;
auto p = cuda::make_pipeline(b, &state, fills ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
for (int i = 0; i < 5; i++) {
    if (fills) { p.producer_acquire(); cuda::memcpy_async(&s[i % 2][t], x + 64 * i + t, sizeof(int), p); p.producer_commit(); }
    else { p.consumer_wait(); y[t] += s[i % 2][127 - t]; p.consumer_release(); } }"""


LONG = np.arange(512, dtype="i4")
PIPELINES = [
    (kernel(STAGES.replace("WAIT", "p.consumer_wait();")), LONG.reshape(4, 128).sum(0)[::-1]),
    (kernel(ALONE.replace("WAIT", "p.consumer_wait();")), X[::-1]),
    (kernel(ALONE.replace("WAIT", "cuda::pipeline_consumer_wait_prior<0>(p);")), X[::-1]),
    (kernel(ROLES), [*[0] * 64, *LONG[:320].reshape(5, 64).sum(0)[::-1]]),
]
UNWAITED = [kernel(body.replace("WAIT", instead)) for body, instead in ((STAGES, "b.sync();"), (ALONE, ""))]
LABELS = kernel("""auto g = cg::tiled_partition<32>(cg::this_thread_block());
auto p = cg::labeled_partition(g, t % 3); y[t] = p.size() * 100 + p.thread_rank();""")
BINARY = kernel("auto q = cg::binary_partition(cg::coalesced_threads(), t < 5); y[t] = q.size();")


def test_pipelines(fails: Fails) -> None:
    for part, wanted in PIPELINES:
        assert result(part, LONG) == list(wanted)
    for part in UNWAITED:
        error = fails("race", part, "k", "int* y, const int* x", np.zeros(128, "i4"), LONG, block=128)
        assert "nothing has waited for the asynchronous copy" in str(error)


def test_partitions_of_a_group() -> None:
    wanted = [sum(k % 3 == t % 3 for k in range(t // 32 * 32, t // 32 * 32 + 32)) * 100 + (t - (t // 32 * 32)) // 3 for t in range(128)]
    got = result(LABELS)
    assert [v // 100 for v in got] == [v // 100 for v in wanted] and all(abs(v - w) <= 1 for v, w in zip(got, wanted))
    assert result(BINARY) == [5] * 5 + [27] * 27 + [32] * 96


def test_atomics_of_vectors_and_clocks() -> None:
    y = np.zeros(8, "f4")
    text = """__global__ void k(float *y, int *c) { float4 old = atomicAdd((float4 *)y, make_float4(1, 2, 3, 4));
atomicAdd((float2 *)(y + 4), make_float2(old.x >= 0, 0.5f));
clock_t a = clock(); long long b = clock64(); c[0] = clock64() >= b && a >= 0; }"""
    ticks = np.zeros(1, "i4")
    launch(text, "k", "float* y, int* c", y, ticks, block=32)
    assert y.tolist() == [32, 64, 96, 128, 32, 16, 0, 0] and ticks[0] == 1


@pytest.mark.parametrize("header", ["cuda/pipeline", "cuda/atomic", "cub/block/block_reduce.cuh", "cooperative_groups/memcpy_async.h"])
def test_a_header_alone(header: str) -> None:
    launch(f"#include <{header}>\n__global__ void k(int *y) {{ y[0] = 1; }}", "k", "int* y", np.zeros(1, "i4"), block=1)
