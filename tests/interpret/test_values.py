"""What C++ leaves open and a GPU answers: conversions that do not fit, shifts by too much, the least number by -1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import launch
from kops.interpret import run
from kops.interpret._source import mark

Fails = Callable[..., Any]
EDGES = [
    0,
    -0.0,
    0.5,
    -0.5,
    1.9,
    *(s * v for b in (7, 8, 15, 16, 31, 32, 63, 64) for v in (2.0**b - 1, 2.0**b, 1.5 * 2.0**b) for s in (1, -1)),
]
EDGES += [-5.7, 300, -300, 70000, -70000, 4e9, -4e9, 1e20, -1e20, 3e38, -3e38, math.inf, -math.inf, math.nan, -math.nan]
TYPES = {"i1": "signed char", "u1": "unsigned char", "i2": "short", "u2": "unsigned short"}
TYPES |= {"i4": "int", "u4": "unsigned", "i8": "long long", "u8": "unsigned long long"}


def converted(x: Any, to: str) -> Any:
    """By PTX's rules for cvt.rzi: the nearest number of 32 or 64 bits, of which small integers get the low ones."""
    kind = np.dtype(to)
    bits = max(8 * kind.itemsize, 32)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.kind == "i" else (0, (1 << bits) - 1)
    of_nan = 1 << bits - 1 if bits == 64 or x.dtype == "f8" else 0
    results = []
    for value in map(float, x):
        exact = of_nan if math.isnan(value) else (low if value < low else high) if math.isinf(value) else min(max(int(value), low), high)
        results.append(exact & (1 << 8 * kind.itemsize) - 1)
    return np.array(results, "u8").astype(f"u{kind.itemsize}").view(kind)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("of, cpp", [("f4", "float"), ("f8", "double")])
def test_conversions_that_do_not_fit(of: str, cpp: str, check: bool) -> None:
    written = "; ".join(f"{to}[i] = x[i]; {to}[i + n] = ({to_cpp})x[n - 1 - i]" for to, to_cpp in TYPES.items())
    source = f"""extern "C" __global__ void k({", ".join(f"{to_cpp} *{to}" for to, to_cpp in TYPES.items())}, const {cpp} *x, int n)
{{ int i = threadIdx.x; if (i < n) {{ {written}; }} }}"""
    x = np.array(EDGES, of)
    out = {to: np.zeros(2 * len(x), to) for to in TYPES}
    dtypes = [*(f"{to[0]}{8 * int(to[1])}" for to in TYPES), f"f{8 * int(of[1])}"]
    params = [{"name": n, "kind": "in" if n == "x" else "out", "dtype": d} for n, d in zip([*TYPES, "x"], dtypes)]
    run(source, "k", [*params, {"name": "n", "kind": "scalar", "dtype": "i32"}], [*out.values(), x, len(x)], grid=1, block=128, check=check)
    for to, values in out.items():
        np.testing.assert_array_equal(values, converted(np.concatenate([x, x[::-1]]), to), to)


def test_converting_functions_and_unused_conversions() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void k(int *y, long long *z, const float *x, const double *d) {
    (void)(unsigned)x[0]; int unused = (int)x[0]; (void)unused;
    y[0] = x[1]; y[1] = __float2int_rn(x[2]); y[2] = __double2int_rn(d[0]); y[3] = x[3] * 3; int i = x[4]; i += x[0]; y[4] = i;
    z[0] = __float2ll_rz(x[2]); z[1] = __double2ll_rd(d[1]); z[2] = __half2ll_rz(__float2half(x[2])); z[3] = (unsigned)x[4];
}"""
    y, z = np.zeros(5, "i4"), np.zeros(4, "i8")
    x, d = np.array([1e20, 7.9, math.nan, 1e9, -3.0], "f4"), np.array([math.nan, -1e300])
    launch(source, "k", "int* y, long long* z, const float* x, const double* d", y, z, x, d, block=1)
    assert y.tolist() == [7, 0, -(2**31), 2**31 - 1, 2**31 - 1] and z.tolist() == [-(2**63), -(2**63), -(2**63), 0]


def test_shifts_by_too_much() -> None:
    source = r"""
#define ROTL(x, n) (((x) << (n)) | ((x) >> (32 - (n))))
template <typename T, int N> struct Box { T v[N << 1]; };
struct Vec { int v; __device__ Vec operator<<(int n) const { return {v * 1000 + n}; } };
__device__ Vec operator>>(Vec a, const Vec &b) { return {a.v * 10 + b.v}; }
struct Bits { unsigned a : 5; unsigned b : 9; };
template <typename T> __device__ T sh(T a, int n) { return a << n; }
enum Mode { A = 1 << 3, B = A << 1 };
extern "C" __global__ void k(unsigned *y, long long *z, const int *s, int n) {
    int w = s[0];
    Box<Box<int, 4>, 2> box; box.v[0].v[1] = 3;
    Bits bits{7, 33};
    y[0] = 1u << w; y[1] = ~0u >> w; y[2] = int(-5) >> w; y[3] = 1u << w - 1; y[4] = 1u << (w & 31); y[5] = 7 << s[2];
    y[6] = ROTL(0x80000001u, s[1]); unsigned q = 5; q <<= w; y[7] = q; q = 5; q >>= w; y[8] = q; q = 0x80; q >>= n ? s[1] : 3; y[9] = q;
    y[10] = (Vec{3} << w).v; y[11] = (Vec{3} >> Vec{4}).v; y[12] = 1u << bits.b; y[13] = bits.a << 2;
    y[14] = sh<int>(3, w); y[15] = sh<long long>(3, w) >> 32; y[16] = B; y[17] = n < w >> 1; y[18] = box.v[0].v[1];
    y[19] = (unsigned char)200 << s[1]; y[20] = (short)-3 >> 40; y[21] = 1u << ++w; y[22] = 1u << -n; y[23] = ROTL(5u, n);
    w = s[0];
    z[0] = 1ll << w; z[1] = 1ll << 2 * w; z[2] = -1ll >> 64; z[3] = ~0ull >> w + w; z[4] = -7ll >> w + w - 1;
}"""
    y, z = np.zeros(24, "u4"), np.zeros(5, "i8")
    launch(source, "k", "unsigned* y, long long* z, const int* s, int n", y, z, np.array([32, 4, -1], "i4"), 0, block=1)
    assert y.view("i4").tolist() == [
        0, 0, -1, -(2**31), 1, 0, 24, 0, 0, 16, 3032, 34, 0, 28, 0, 3, 16, 1, 3, 3200, -1, 0, 1, 5
    ]  # fmt: skip
    assert z.tolist() == [2**32, 0, -1, 0, -1]


@pytest.mark.parametrize(
    "text",
    [
        "std::vector<std::vector<int>> v;", 'std::cout << x << "a" << std::endl;', "k<<<grid, block>>>(x);", "T operator<<(T a, int b);",
        "x = (os << ... << args);", "#include <a>>b>", 'char *s = "a << b";', "// a << b", "int n = 1 << 4;", "A<B<C<int>>> d;",
    ],
)  # fmt: skip
def test_what_is_no_shift_of_numbers_stays(text: str) -> None:
    assert mark(text) == text


def test_source_whose_shifts_cannot_be_marked(fails: Fails) -> None:
    """A field of bits cannot be shifted by reference: the source is compiled as it is, and errors show it as it is."""
    source = "struct Bits { unsigned a : 5; };\n__global__ void k(int *y, int n)\n{\nBits b{3}; b.a <<= n; y[0] = b.a;\n}"
    y = np.zeros(1, "i4")
    launch(source, "k", "int* y, int n", y, 2, block=1)
    assert y[0] == 12
    error = fails("compile", source.replace("y[0] =", "y[0] = nothing <<"), "k", "int* y, int n", y, 2)
    assert "kernel.cu:4" in str(error) and "kops_host" not in error.log


@pytest.mark.parametrize("check", [True, False])
def test_division_of_the_least_number(fails: Fails, check: bool) -> None:
    source = """__global__ void k(int *y, long long *z, const int *a, const long long *b, int n) {
    int i = threadIdx.x; long long m = n; y[2 * i] = a[i] / n; y[2 * i + 1] = a[i] % n; z[2 * i] = b[i] / m; z[2 * i + 1] = b[i] % m; }"""
    signature = "int* y, long long* z, const int* a, const long long* b, int n"
    a, b = np.array([-(2**31), 7], "i4"), np.array([-(2**63), 7], "i8")
    y, z = np.ones(4, "i4"), np.ones(4, "i8")
    launch(source, "k", signature, y, z, a, b, -1, block=2, check=check)
    assert y.tolist() == [-(2**31), 0, -7, 0] and z.tolist() == [-(2**63), 0, -7, 0]
    error = fails("division_by_zero", source, "k", signature, y, z, a, b, 0, block=2, check=check)
    assert error.line == 2
