"""The first kernels of CUDA tutorials, as tasks: the five kernels of the package's examples, and a softmax.

Their baselines are the kernels as a first attempt would have them, one thread an element.
"""

from __future__ import annotations

from typing import Any

from .._companions import numpy
from ._solution import Launch, Solution
from ._task import Task

__all__ = ["tasks"]


def _normal(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, dtype=numpy.float32)


def _baseline(name: str, source: str, *launches: Launch) -> Solution:
    return Solution(source, launches, name=f"{name}: a first attempt")


_VECTORS = "out float* c[n], const float* a[n], const float* b[n], int n"
_SIZES = ({"n": 1}, {"n": 1000}, {"n": 4_194_301}, {"n": 16_777_216})

_ADD = r"""
extern "C" __global__ void add(float *c, const float *a, const float *b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}
"""

_CUSTOM = r"""
extern "C" __global__ void twice(float *out, const float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2.0f * x[i];
}
"""

_SQUARE = r"""
extern "C" __global__ void square(float *out, const float *x, int height, int width)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < height && column < width)
        out[(size_t)row * width + column] = x[(size_t)row * width + column] * x[(size_t)row * width + column];
}
"""

_GEMM = r"""
extern "C" __global__ void gemm(float *c, const float *a, const float *b, int n, int m, int k)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    if (row >= n || column >= m)
        return;
    for (int i = 0; i < k; i++)
        sum += a[(size_t)row * k + i] * b[(size_t)i * m + column];
    c[(size_t)row * m + column] = sum;
}
"""

_SOFTMAX = r"""
extern "C" __global__ void softmax(float *out, const float *x, int rows, int columns)
{
    __shared__ float part[256];
    const float *from = x + (size_t)blockIdx.x * columns;
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        most = fmaxf(most, from[i]);
    part[threadIdx.x] = most;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        sum += expf(from[i] - most);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[(size_t)blockIdx.x * columns + i] = expf(from[i] - most) / part[0];
}
"""


def _softmax(x: Any) -> Any:
    raised = numpy.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


tasks = [
    Task(
        "vector_add", lambda a, b: a + b, lambda rng, n: {"a": _normal(rng, n), "b": _normal(rng, n)}, _SIZES, outputs=("c",),
        baseline=_baseline("vector_add", _ADD, Launch("add", _VECTORS, "ceil_div(n, 256)")), small={"n": 300}, exchange=True,
        text="c = a + b, vectors of n elements",
    ),
    Task(
        "add2", lambda a, b: a + b, lambda rng, n: {"a": _normal(rng, n), "b": _normal(rng, n)},
        ({"n": 255}, {"n": 5003}, {"n": 67_108_864}), outputs=("c",),
        baseline=_baseline("add2", _ADD, Launch("add", _VECTORS, "ceil_div(n, 256)")), small={"n": 300}, exchange=True,
        text="c = a + b again, of vectors so large that a grid may be smaller than they are",
    ),
    Task(
        "custom", lambda x: 2 * x, lambda rng, n: {"x": _normal(rng, n)}, _SIZES,
        baseline=_baseline("custom", _CUSTOM, Launch("twice", "out float* out[n], const float* x[n], int n", "ceil_div(n, 256)")),
        small={"n": 300}, exchange=True, text="out = 2 x, vectors of n elements",
    ),
    Task(
        "square_matrix", lambda x: x * x, lambda rng, height, width: {"x": _normal(rng, height, width)},
        ({"height": 1, "width": 7}, {"height": 1000, "width": 1001}, {"height": 4096, "width": 4096}),
        baseline=_baseline("square_matrix", _SQUARE, Launch(
            "square", "out float* out[height][width], const float* x[height][width], int height, int width",
            ("ceil_div(width, 32)", "ceil_div(height, 8)"), (32, 8),
        )),
        small={"height": 9, "width": 35}, exchange=True, text="each element of a matrix [height, width], squared",
    ),
    Task(
        "gemm", lambda a, b: a @ b, lambda rng, n, m, k: {"a": _normal(rng, n, k), "b": _normal(rng, k, m)},
        ({"n": 1, "m": 1, "k": 1}, {"n": 129, "m": 130, "k": 131}, {"n": 1024, "m": 1024, "k": 1024}), outputs=("c",),
        baseline=_baseline("gemm", _GEMM, Launch(
            "gemm", "out float* c[n][m], const float* a[n][k], const float* b[k][m], int n, int m, int k",
            ("ceil_div(m, 16)", "ceil_div(n, 16)"), (16, 16),
        )),
        small={"n": 17, "m": 18, "k": 19}, exchange=True, flops="2 * n * m * k", text="c = a b, of float32: a is [n, k], b [k, m]",
    ),
    Task(
        "softmax", _softmax, lambda rng, rows, columns: {"x": 4 * _normal(rng, rows, columns)},
        ({"rows": 1, "columns": 1}, {"rows": 100, "columns": 1000}, {"rows": 4096, "columns": 4096}),
        baseline=_baseline("softmax", _SOFTMAX, Launch(
            "softmax", "out float* out[rows][columns], const float* x[rows][columns], int rows, int columns", "rows",
        )),
        small={"rows": 3, "columns": 300}, exchange=True, text="exp(x) over the sum of exp(x), row by row of a matrix [rows, columns]",
    ),
]  # fmt: skip
