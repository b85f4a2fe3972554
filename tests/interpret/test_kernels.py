"""Kernels of the usual kinds give what NumPy gives in float64: odd sizes, one element, none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import launch

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


SCAN = """
__device__ __forceinline__ int warp_scan(int value, int lane)
{
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, value, d);
        if (lane >= d) value += other;
    }
    return value;
}

__global__ void scan(int *out, const int *in, int n)
{
    __shared__ int totals[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int value = warp_scan(threadIdx.x < n ? in[threadIdx.x] : 0, lane);
    if (lane == 31) totals[warp] = value;
    __syncthreads();
    if (warp == 0)
        totals[lane] = warp_scan(lane < blockDim.x / 32 ? totals[lane] : 0, lane);
    __syncthreads();
    if (warp) value += totals[warp - 1];
    if (threadIdx.x < n) out[threadIdx.x] = value;
}
"""


@pytest.mark.parametrize("n", [1, 31, 33, 1000, 1024])
def test_scan_with_shuffles(rng: Any, n: int) -> None:
    values, out = rng.integers(-50, 50, n).astype("i4"), np.zeros(n, "i4")
    launch(SCAN, "scan", "int* out, const int* in, int n", out, values, n, block=1024)
    np.testing.assert_array_equal(out, np.cumsum(values))


HISTOGRAM = """
__global__ void histogram(unsigned *bins, const unsigned char *data, int n)
{
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(bins + i, local[i]);
}
"""


@pytest.mark.parametrize("n", SIZES)
def test_histogram(rng: Any, n: int) -> None:
    data, bins = rng.integers(0, 256, n).astype("u1"), np.zeros(256, "u4")
    launch(HISTOGRAM, "histogram", "unsigned* bins, const unsigned char* data, int n", bins, data, n, grid=3, block=96)
    np.testing.assert_array_equal(bins, np.bincount(data, minlength=256))


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


SOFTMAX = """
__global__ void softmax(float *out, const float *in, int columns)
{
    const float *row = in + blockIdx.x * columns;
    float largest = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += warpSize) largest = fmaxf(largest, row[i]);
    for (int d = 16; d; d /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    for (int i = threadIdx.x; i < columns; i += warpSize) sum += __expf(row[i] - largest);
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    for (int i = threadIdx.x; i < columns; i += warpSize) out[blockIdx.x * columns + i] = __expf(row[i] - largest) / sum;
}
"""


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (5, 33), (2, 500)])
def test_softmax(rng: Any, shape: tuple[int, int]) -> None:
    values = rng.standard_normal(shape).astype("f4") * 5
    out = np.zeros_like(values)
    launch(SOFTMAX, "softmax", "float* out, const float* in, int columns", out, values, shape[1], grid="in.shape[0]")
    exact = np.exp(values.astype("f8") - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, exact / exact.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)


HALF = """
#include <cuda_fp16.h>
__global__ void axpy(half *y, const half *x, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i + 1 < n) {
        half2 v = reinterpret_cast<const half2 *>(x)[i];
        half2 *to = reinterpret_cast<half2 *>(y) + i;
        *to = __hfma2(__float2half2_rn(a), v, *to);
    } else if (2 * i < n) {
        y[2 * i] = __hfma(__float2half(a), x[2 * i], y[2 * i]);
    }
}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 255, 1000])
def test_half(rng: Any, n: int) -> None:
    x, y = rng.standard_normal((2, n)).astype("f2")
    exact = np.float64(np.float16(1.7)) * x.astype("f8") + y.astype("f8")
    launch(HALF, "axpy", "half* y, const half* x, float a, int n", y, x, 1.7, n, grid="ceil_div(n, 64)")
    np.testing.assert_array_equal(y, exact.astype("f2"))


BFLOAT = """
#include <cuda_bf16.h>
__global__ void scale(__nv_bfloat16 *y, const __nv_bfloat16 *x, const float *a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __float2bfloat16(__bfloat162float(x[i]) * *a);
}
"""


def to_bfloat16(values: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even."""
    bits = values.astype("f4").view("u4").astype("u8")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")


@pytest.mark.parametrize("n", [0, 1, 33, 1000])
def test_bfloat16(rng: Any, n: int) -> None:
    x, factor = to_bfloat16(rng.standard_normal(n)), np.array([1.3], "f4")
    y = np.zeros(n, "u2")
    signature = "__nv_bfloat16* y, const __nv_bfloat16* x, const float* a, int n"
    launch(BFLOAT, "scale", signature, y, x, factor, n, grid="ceil_div(n, 32)")
    widened = (x.astype("u4") << 16).view("f4")
    np.testing.assert_array_equal(y, to_bfloat16(widened * factor[0]))


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
