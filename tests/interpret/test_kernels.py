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
