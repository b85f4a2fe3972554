"""Kernels of the usual kinds give what NumPy gives in float64: odd sizes, one element, none. Barriers that are objects, cuda::barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Together, launch

SIZES = [0, 1, 31, 32, 33, 257, 1000, 4099]

REDUCE = """
__global__ void reduce(float *sums, const float *values, int n)
{
    extern __shared__ float part[];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += values[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        atomicAdd(sums, part[0]);
}
"""


@pytest.mark.parametrize("n", SIZES)
def test_reduction_in_shared_memory(rng: Any, n: int) -> None:
    values, total = rng.standard_normal(n).astype("f4"), np.zeros(1, "f4")
    launch(REDUCE, "reduce", "float* sums, const float* values, int n", total, values, n, grid=2, block=256, shared=1024)
    np.testing.assert_allclose(total[0], values.astype("f8").sum(), rtol=1e-4, atol=1e-4)


TRANSPOSE = """
template <typename T, int TILE> __global__ void transpose(T *out, const T *in, int width, int height)
{
    __shared__ T tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += blockDim.y)
        if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += blockDim.y)
        if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
"""


@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (33, 65), (7, 100)])
@pytest.mark.parametrize(("cpp", "dtype"), [("float", "f4"), ("unsigned char", "u1"), ("double", "f8")])
def test_transpose_template(rng: Any, shape: tuple[int, int], cpp: str, dtype: str) -> None:
    matrix = (rng.standard_normal(shape) * 100).astype("i4").astype(dtype)
    out = np.zeros(shape[::-1], dtype)
    signature = f"{cpp}* out, const {cpp}* in, int width, int height"
    grid = ("ceil_div(width, 32)", "ceil_div(height, 32)")
    launch(TRANSPOSE, f"transpose<{cpp}, 32>", signature, out, matrix, shape[1], shape[0], grid=grid, block=(32, 8))
    np.testing.assert_array_equal(out, matrix.T)


WMMA = """
#include <mma.h>
using namespace nvcuda;
// c[m][n] = a[m][k] * b[n][k]^T, one warp a tile of 16 * 16
__global__ void gemm(float *c, const half *a, const half *b, int n, int k)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + blockIdx.y * 16 * k + i, k);
        wmma::load_matrix_sync(fb, b + blockIdx.x * 16 * k + i, k);
        wmma::mma_sync(sum, fa, fb, sum);
    }
    for (int i = 0; i < sum.num_elements; i++)
        sum.x[i] *= 2;
    wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}
"""


def test_matrix_fragments(rng: Any) -> None:
    a, b = rng.standard_normal((48, 80)).astype("f2"), rng.standard_normal((32, 80)).astype("f2")
    c = np.zeros((48, 32), "f4")
    launch(WMMA, "gemm", "float* c, const half* a, const half* b, int n, int k", c, a, b, 32, 80, grid=(2, 3))
    np.testing.assert_allclose(c, 2 * a.astype("f8") @ b.astype("f8").T, rtol=1e-5, atol=1e-4)


Fails = Callable[..., Any]
together = Together("#include <cuda/barrier>\n#include <cooperative_groups.h>\n")
INIT = "if (block.thread_rank() == 0) init(&bar, block.size()); block.sync();"


def kernel(init: str, meet: str) -> Any:
    return together(f"""__global__ void k(int *c, int n)
{{
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int s[64];
    auto block = cooperative_groups::this_thread_block();
    {init}
    s[threadIdx.x] = threadIdx.x;
    {meet}
    c[threadIdx.x] = s[63 - threadIdx.x];
}}""")


MEET = {
    "at once": kernel(INIT, "bar.arrive_and_wait();"),
    "with a token": kernel(INIT, "auto token = bar.arrive(); bar.wait(std::move(token));"),
    "again": kernel(INIT, "for (int i = 0; i < 5; i++) bar.arrive_and_wait();"),
}
MISUSED = {
    "nobody waits": (kernel(INIT, "(void)bar.arrive();"), "race"),
    "no init": (kernel("block.sync();", "bar.arrive_and_wait();"), "uninitialised"),
    "init beside": (kernel("if (block.thread_rank() == 0) init(&bar, block.size());", "bar.arrive_and_wait();"), "race"),
    "one returns": (kernel(INIT, "if (threadIdx.x == n) return; bar.arrive_and_wait();"), "divergent_barrier"),
    "one is elsewhere": (kernel(INIT, "if (threadIdx.x == n) __syncthreads(); bar.arrive_and_wait();"), "divergent_barrier"),
    "too many": (kernel(INIT.replace("block.size()", "32"), "(void)bar.arrive(33);"), "divergent_barrier"),
}
# A part of the block arrives without waiting; copies are complete behind the barrier.
ROLES = together("""__global__ void k(int *c, const int *a)
{
    typedef cuda::barrier<cuda::thread_scope::thread_scope_block> barrier;
    __shared__ int s[32];
    __shared__ barrier full, empty;
    if (threadIdx.x == 0) { init(&full, 64); init(&empty, 64); }
    __syncthreads();
    for (int round = 0; round < 3; round++) {
        if (threadIdx.x < 32) {
            if (round) empty.arrive_and_wait();
            cuda::memcpy_async(&s[threadIdx.x], &a[round * 32 + threadIdx.x], cuda::aligned_size_t<4>(sizeof(int)), full);
            (void)full.arrive();
        } else {
            full.arrive_and_wait();
            c[round * 32 + threadIdx.x - 32] = s[63 - threadIdx.x];
            if (round < 2) (void)empty.arrive();
        }
    }
}""")


@pytest.mark.parametrize("how", MEET)
@pytest.mark.parametrize("check", [True, False])
def test_barriers_of_a_block(how: str, check: bool) -> None:
    c = np.zeros(64, "i4")
    launch(MEET[how], "k", "int* c, int n", c, 64, block=64, check=check)
    assert c.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("how", MISUSED)
def test_misused_barriers(fails: Fails, how: str) -> None:
    source, kind = MISUSED[how]
    error = fails(kind, source, "k", "int* c, int n", np.zeros(64, "i4"), 5, block=64)
    if how.startswith("one"):
        assert "arrive_and_wait waits for 1 more to arrive" in str(error) and error.line == 8


def test_producers_and_consumers() -> None:
    a, c = np.arange(96, dtype="i4"), np.zeros(96, "i4")
    launch(ROLES, "k", "int* c, const int* a", c, a, block=64)
    assert c.reshape(3, 32).tolist() == a.reshape(3, 32)[:, ::-1].tolist()
