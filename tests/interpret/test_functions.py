"""Functions of CUDA's headers against their definitions: exact ones for integers, fractions for rounding, series for the rest."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from conftest import launch

getcontext().prec = 60


def lanes(words: Any, bits: int, signed: bool) -> Any:
    return np.ascontiguousarray(words).view(f"{'i' if signed else 'u'}{bits // 8}").astype("i8")


def words(values: Any, bits: int) -> Any:
    return np.ascontiguousarray((values & (1 << bits) - 1).astype(f"u{bits // 8}")).view("u4")


def cut(values: Any, bits: int, signed: bool) -> Any:
    return np.clip(values, -(1 << bits - 1), (1 << bits - 1) - 1) if signed else np.clip(values, 0, (1 << bits) - 1)


# Name without 2 or 4, whether its lanes have signs, and its value.
SIMD: list[tuple[str, bool, Any]] = [
    ("vadd", False, lambda x, y, sat: x + y),
    ("vaddss", True, lambda x, y, sat: sat(x + y)), ("vaddus", False, lambda x, y, sat: sat(x + y)),
    ("vsub", False, lambda x, y, sat: x - y),
    ("vsubss", True, lambda x, y, sat: sat(x - y)), ("vsubus", False, lambda x, y, sat: sat(x - y)),
    ("vavgs", True, lambda x, y, sat: np.where(x + y >= 0, (x + y + 1) // 2, (x + y) // 2)),
    ("vavgu", False, lambda x, y, sat: (x + y + 1) // 2),
    ("vhaddu", False, lambda x, y, sat: (x + y) // 2), ("vabsdiffs", True, lambda x, y, sat: abs(x - y)),
    ("vabsdiffu", False, lambda x, y, sat: abs(x - y)), ("vmaxs", True, lambda x, y, sat: np.maximum(x, y)),
    ("vmaxu", False, lambda x, y, sat: np.maximum(x, y)), ("vmins", True, lambda x, y, sat: np.minimum(x, y)),
    ("vminu", False, lambda x, y, sat: np.minimum(x, y)),
    *((f"v{sort}{name}{sign}", sign == "s", lambda x, y, sat, compare=compare, one=one: np.where(compare(x, y), one, 0))
      for sort, one in (("cmp", -1), ("set", 1))
      for name, compare in (("ge", np.greater_equal), ("gt", np.greater), ("le", np.less_equal), ("lt", np.less)) for sign in "su"),
    *((f"v{sort}{name}", False, lambda x, y, sat, compare=compare, one=one: np.where(compare(x, y), one, 0))
      for sort, one in (("cmp", -1), ("set", 1)) for name, compare in (("eq", np.equal), ("ne", np.not_equal))),
]  # fmt: skip
UNARY: list[tuple[str, Any]] = [
    ("vabs", lambda x, sat: abs(x)), ("vabsss", lambda x, sat: sat(abs(x))), ("vneg", lambda x, sat: -x), ("vnegss", lambda x, sat: sat(-x))
]  # fmt: skip


@pytest.fixture
def pairs(rng: Any) -> tuple[Any, Any]:
    a, b = rng.integers(0, 1 << 32, (2, 400), "u4")
    edges = np.array([0, 0x80008000, 0x80807F7F, 0xFFFFFFFF, 0x7FFF7FFF, 0x00010001, 0x0180FF7F], "u4")
    return np.concatenate([a, np.repeat(edges, 7), a[:50]]), np.concatenate([b, np.tile(edges, 7), a[:50]])


@pytest.mark.parametrize("count, bits", [(2, 16), (4, 8)])
def test_numbers_in_a_word(pairs: Any, count: int, bits: int) -> None:
    a, b = pairs
    calls = [f"__{name}{count}(a[i], b[i])" for name, _, _ in SIMD] + [f"__{name}{count}(a[i])" for name, _ in UNARY]
    calls += [f"__vsad{sign}{count}(a[i], b[i])" for sign in "su"]
    source = "__global__ void k(unsigned *y, const unsigned *a, const unsigned *b, int n)\n{ int i = threadIdx.x; if (i >= n) return;\n"
    source += "\n".join(f"y[{at} * n + i] = {call};" for at, call in enumerate(calls)) + "}"
    y = np.zeros((len(calls), len(a)), "u4")
    launch(source, "k", "unsigned* y, const unsigned* a, const unsigned* b, int n", y, a, b, len(a), block=512)
    for row, (name, signed, value) in zip(y, SIMD):
        wanted = value(lanes(a, bits, signed), lanes(b, bits, signed), lambda v, signed=signed: cut(v, bits, signed))
        np.testing.assert_array_equal(row, words(wanted, bits), name)
    for row, (name, value) in zip(y[len(SIMD) :], UNARY):
        np.testing.assert_array_equal(row, words(value(lanes(a, bits, True), lambda v: cut(v, bits, True)), bits), name)
    for row, signed in zip(y[-2:], (True, False)):
        np.testing.assert_array_equal(row, abs(lanes(a, bits, signed) - lanes(b, bits, signed)).reshape(-1, count).sum(1))


def test_products_and_dynamic_programming(pairs: Any) -> None:
    a, b = pairs
    calls = [
        "__dp4a(int(a[i]), int(b[i]), i)", "__dp4a(a[i], b[i], unsigned(i))", "__dp2a_lo(int(a[i]), int(b[i]), i)",
        "__dp2a_hi(a[i], b[i], 7u)",
        "__viaddmax_s32(a[i], b[i], 5)", "__viaddmin_u16x2(a[i], b[i], a[n - 1 - i])", "__vimax3_s16x2_relu(a[i], b[i], 3u)",
        "__vibmin_s32(int(a[i]), int(b[i]), &first) * 2 + first", "__funnelshift_lc(a[i], b[i], i % 40)", "__urhadd(a[i], b[i])",
        "__fns(a[i], 3, 2)",
    ]  # fmt: skip
    source = "__global__ void k(unsigned *y, const unsigned *a, const unsigned *b, int n)\n"
    source += "{ int i = threadIdx.x; bool first; if (i >= n) return;\n"
    source += "\n".join(f"y[{at} * n + i] = {call};" for at, call in enumerate(calls)) + "}"
    y = np.zeros((len(calls), len(a)), "u4")
    launch(source, "k", "unsigned* y, const unsigned* a, const unsigned* b, int n", y, a, b, len(a), block=512)
    i, sa, sb = np.arange(len(a)), a.astype("i4").astype("i8"), b.astype("i4").astype("i8")

    def dot(x: Any, z: Any) -> Any:
        return (x * z).sum(1)

    s8, u8, s16, u16 = (
        (lambda v, bits=bits, signed=signed: lanes(v, bits, signed).reshape(len(a), -1)) for bits in (8, 16) for signed in (True, False)
    )
    set_bits = [[k for k in range(3, 32) if int(v) >> k & 1] for v in a]
    wanted = [
        dot(s8(a), s8(b)) + i, dot(u8(a), u8(b)) + i, dot(s16(a), s8(b)[:, :2]) + i, dot(u16(a), u8(b)[:, 2:]) + 7,
        np.maximum((sa + sb).astype("i4"), 5), words(np.minimum((u16(a) + u16(b)) & 0xFFFF, u16(a[::-1])), 16).reshape(-1),
        words(np.maximum(np.maximum(s16(a), s16(b)), s16(np.full(len(a), 3, "u4"))).clip(0), 16).reshape(-1),
        np.minimum(sa, sb) * 2 + (sa <= sb),
        [(int(h) << 32 | int(lo)) << min(k % 40, 32) >> 32 & 0xFFFFFFFF for k, (lo, h) in enumerate(zip(a, b))],
        (a.astype("u8") + b + 1) // 2, [at[1] if len(at) > 1 else 0xFFFFFFFF for at in set_bits],
    ]  # fmt: skip
    for call, row, exact in zip(calls, y, wanted):
        np.testing.assert_array_equal(row, np.asarray(exact).astype("i8").astype("u4"), call)


def neighbours(exact: Fraction, dtype: str) -> tuple[Any, Any]:
    """The largest number that is not above, and the smallest that is not below."""
    near = np.dtype(dtype).type(float(exact))
    low = near if Fraction(float(near)) <= exact else np.nextafter(near, near.dtype.type(-np.inf))
    return low, low if Fraction(float(low)) == exact else np.nextafter(low, low.dtype.type(np.inf))


@pytest.mark.parametrize("dtype, cpp, letter, fma", [("f4", "float", "f", "fmaf"), ("f8", "double", "d", "fma")])
def test_directed_rounding_of_arithmetic(rng: Any, dtype: str, cpp: str, letter: str, fma: str) -> None:
    n = 200
    x, y, z = (rng.standard_normal((3, n)) * 2.0 ** rng.integers(-20, 20, (3, n))).astype(dtype)
    calls = ["{l}add_{m}(x[i], y[i])", "{l}sub_{m}(x[i], y[i])", "{l}mul_{m}(x[i], y[i])", "{l}div_{m}(x[i], y[i])", "{l}rcp_{m}(x[i])"]
    calls += ["{f}_{m}(x[i], y[i], z[i])", "ll2{c}_{m}((long long)(w[i]))", "{l}sqrt_{m}(fabs(x[i]))"]
    modes = ["rd", "ru", "rz", "rn"]
    source = f"__global__ void k({cpp} *r, const {cpp} *x, const {cpp} *y, const {cpp} *z, const long long *w, int n)\n"
    source += "{ int i = threadIdx.x; if (i >= n) return;\n"
    made = [f"__{call.format(l=letter, m=mode, f=fma, c=cpp)}" for call in calls for mode in modes]
    source += "\n".join(f"r[{at} * n + i] = {call};" for at, call in enumerate(made)) + "}"
    w = rng.integers(-(2**63), 2**63 - 1, n)
    r = np.zeros((len(calls), len(modes), n), dtype)
    launch(source, "k", f"{cpp}* r, const {cpp}* x, const {cpp}* y, const {cpp}* z, const long long* w, int n", r, x, y, z, w, n, block=256)
    for at in range(n):
        a, b, c = (Fraction(float(v[at])) for v in (x, y, z))
        exact = [a + b, a - b, a * b, a / b, 1 / a, a * b + c, Fraction(int(w[at]))]
        for values, value in zip(r[:, :, at], exact):
            low, high = neighbours(value, dtype)
            assert (values[0], values[1], values[2]) == (low, high, high if value < 0 else low) and values[3] in (low, high)
        down, up, zero, near = (Fraction(float(v)) for v in r[-1, :, at])
        assert down**2 <= abs(a) <= up**2 and zero == down and near in (down, up)
        assert down == up or np.nextafter(r[-1, 0, at], r[-1, 1, at]) == r[-1, 1, at]


def bessel(order: int, x: float) -> float:
    value, term, k = Decimal(0), Decimal(1) if order == 0 else Decimal(x) / 2, 0
    while k < 5 or abs(term) > abs(value) * Decimal("1e-40"):
        value += term
        k += 1
        term *= (Decimal(x) / 2) ** 2 / k / (k + order)
    return float(value)


def test_special_functions() -> None:
    """Inverses are checked by what they are the inverse of, where the float's own error is that of one unit in the last place."""
    names = ["erfinv", "erfcinv", "normcdf", "normcdfinv", "cyl_bessel_i0", "cyl_bessel_i1", "erfcx", "j0", "y1"]
    source = "__global__ void k(double *d, float *f, const double *x, int n)\n{ int i = threadIdx.x; if (i >= n) return;\n"
    source += "\n".join(f"d[{at} * n + i] = {name}(x[i]); f[{at} * n + i] = {name}f(float(x[i]));" for at, name in enumerate(names)) + "}"
    x = np.array([1e-300, 1e-30, 1e-9, 0.003, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1 - 2.0**-40, 1.0, 1.7, 3.0, 12.0, 40.0, 300.0])
    d, f = np.zeros((len(names), len(x))), np.zeros((len(names), len(x)), "f4")
    launch(source, "k", "double* d, float* f, const double* x, int n", d, f, x, len(x), block=32)
    value = dict(zip(names, d))
    inside = (x < 1) & (x > 1e-200)
    np.testing.assert_allclose([math.erf(v) for v in value["erfinv"][inside]], x[inside], rtol=4e-16)
    np.testing.assert_allclose([math.erfc(v) for v in value["erfcinv"][inside]], x[inside], rtol=2e-13)
    np.testing.assert_allclose([math.erfc(-v / math.sqrt(2)) / 2 for v in value["normcdfinv"][inside]], x[inside], rtol=2e-13)
    np.testing.assert_allclose(value["normcdf"], [math.erfc(-v / math.sqrt(2)) / 2 for v in x], rtol=1e-15)
    np.testing.assert_allclose(value["cyl_bessel_i0"], [bessel(0, v) for v in x], rtol=3e-16)
    np.testing.assert_allclose(value["cyl_bessel_i1"], [bessel(1, v) for v in x], rtol=3e-16)
    np.testing.assert_allclose(value["erfcx"][:14], [math.exp(v * v) * math.erfc(v) for v in x[:14]], rtol=1e-14)
    asymptotic = [(1 - 1 / (2 * v**2) + 3 / (4 * v**4) - 15 / (8 * v**6)) / (v * math.sqrt(math.pi)) for v in x[-2:]]
    np.testing.assert_allclose(value["erfcx"][-2:], asymptotic, rtol=1e-11)
    assert np.isinf(value["erfinv"][x == 1]) and np.isnan(value["erfinv"][x > 1]).all() and np.isnan(value["erfcinv"][x > 2]).all()
    narrow = (x > 1e-3) & (x < 80)
    for name, row in zip(names, f):
        finite = narrow & np.isfinite(value[name]) & (abs(1 - x) > 1e-6)
        np.testing.assert_allclose(row[finite], value[name][finite], rtol=3e-4 if "inv" in name else 3e-6, err_msg=name)


@pytest.mark.parametrize("kind, cpp, header", [("f16", "half", "fp16"), ("bf16", "__nv_bfloat16", "bf16")])
def test_comparisons_of_pairs(kind: str, cpp: str, header: str) -> None:
    values = [1.0, 2.0, -1.0, 0.0, math.nan]
    tests = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}
    forms = [name + u for name in tests for u in ("", "u")]
    functions = "\n".join(
        f"__device__ __noinline__ int f{at}({cpp}2 p, {cpp}2 q) {{ return __h{form}(p.x, q.x) + 2 * __hb{form}2(p, q)"
        f" + 4 * (__h{form}2_mask(p, q) == (__h{form}(p.x, q.x) ? 0xffffu : 0)"
        f" + (__h{form}(p.y, q.y) ? 0xffff0000u : 0)) + 8 * (float(__h{form}2(p, q).y) == (__h{form}(p.y, q.y) ? 1 : 0)); }}"
        for at, form in enumerate(forms)
    )
    source = f"""#include <cuda_{header}.h>
{functions}
__global__ void k(int *y, const float *x) {{ int t = threadIdx.x;
{cpp} a = x[t / 5], b = x[t % 5]; {cpp}2 p(a, b), q(b, a);
{" ".join(f"y[t * {len(forms)} + {at}] = f{at}(p, q);" for at in range(len(forms)))} }}"""
    y = np.zeros((25, len(forms)), "i4")
    launch(source, "k", "int* y, const float* x", y, np.array(values, "f4"), block=25)
    for t in range(25):
        a, b = values[t // 5], values[t % 5]
        for form, got in zip(forms, y[t]):
            compare = {"==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[tests[form[:2]]]
            other = {"==": a == b, "!=": a != b, "<": b < a, ">": b > a, "<=": b <= a, ">=": b >= a}[tests[form[:2]]]
            unordered = math.isnan(a) or math.isnan(b)
            first, second = (form[2:] == "u") if unordered else compare, (form[2:] == "u") if unordered else other
            assert got == first + 2 * (first and second) + 12, (form, a, b)


def test_more_of_halves() -> None:
    source = """#include <cuda_fp16.h>
__global__ void k(float *y) {
    half2 a = __floats2half2_rn(-2, 3), b = __floats2half2_rn(1, 0.5), nan = __half2half2(__ushort_as_half(0x7fff));
    half2 r = __hfma2_relu(a, b, b), s = __hadd2_sat(a, b), c = __hcmadd(a, b, __half2half2(1));
    y[0] = r.x; y[1] = r.y; y[2] = s.x; y[3] = s.y; y[4] = c.x; y[5] = c.y;
    y[6] = __hisnan(__hfma2_relu(nan, b, b).x) && __hisnan(__hmax2_nan(nan, b).y) && float(__hmax2(nan, b).x) == 1;
    y[7] = __ll2half_rd(2049); y[8] = __ull2half_ru(2049);
    y[9] = __half2char_rz(__float2half(-200)); y[10] = __half2uchar_rz(__float2half(-1));
    y[11] = __hne(nan.x, b.x); y[12] = nan.x != b.x;
    half2 f = __hfma2(a, b, b); y[13] = f.x; y[14] = f.y; y[15] = __hfma(a.x, b.y, a.y);
}"""
    y = np.zeros(16, "f4")
    launch(source, "k", "float* y", y, block=1)
    assert y.tolist() == [0, 2, 0, 1, -2 - 1.5 + 1, -1 + 3 + 1, 1, 2048, 2050, -128, 0, 0, 1, -1, 2, 2]


def test_complex_numbers() -> None:
    source = """#include <cuComplex.h>
__global__ void k(double *out, double *r) {
    cuDoubleComplex *y = (cuDoubleComplex *)out;
    cuDoubleComplex a = make_cuDoubleComplex(3, -4), b = make_cuDoubleComplex(1e200, 2e200);
    y[0] = cuCadd(a, b); y[1] = cuCmul(a, a); y[2] = cuCdiv(b, b); y[3] = cuCfma(a, cuConj(a), a);
    y[4] = cuCdiv(a, make_cuDoubleComplex(1, 1));
    cuFloatComplex f = cuCsubf(make_cuComplex(1, 2), make_cuFloatComplex(3, 4)); y[5] = cuComplexFloatToDouble(f);
    r[0] = cuCabs(a); r[1] = cuCreal(a) + cuCimagf(f);
}"""
    y, r = np.zeros(6, "c16"), np.zeros(2)
    launch(source, "k", "double* out, double* r", y.view("f8"), r, block=1)
    np.testing.assert_allclose(y, [1e200 + 2e200j, -7 - 24j, 1, 28 - 4j, -0.5 - 3.5j, -2 - 2j], rtol=1e-15)
    assert r.tolist() == [5, 1]
