"""8-bit floats and directed rounding: what CUDA's headers say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import launch
from kops.interpret import run

FORMATS = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}  # digits, bias, the largest number


def values(name: str) -> Any:
    """The numbers of all codes from 0 to the largest, by definition."""
    digits, bias, largest = FORMATS[name]
    codes = np.arange(largest + 1)
    exponent, rest = codes >> digits, codes & (1 << digits) - 1
    normal = (1 + rest / (1 << digits)) * 2.0 ** (exponent - bias)
    return np.where(exponent > 0, normal, rest / (1 << digits) * 2.0 ** (1 - bias))


def nearest(name: str, x: Any, saturate: bool) -> Any:
    """The codes nearest to numbers, ties to the even code; what a further step of the format would round away is too large."""
    digits, _, largest = FORMATS[name]
    known = values(name)
    step = known[-1] - known[-2]
    magnitude = np.abs(np.asarray(x, "f8"))
    steps = np.append(known, known[-1] + step)
    at = np.clip(np.searchsorted(steps, magnitude), 1, len(steps) - 1)
    low, high = magnitude - steps[at - 1], steps[at] - magnitude
    code = np.where((low < high) | ((low == high) & ((at - 1) % 2 == 0)), at - 1, at)
    too_large = {"e4m3": 0x7F, "e5m2": 0x7C}[name]
    code = np.where(code > largest, largest if saturate else too_large, code)
    code = np.where(np.isnan(magnitude), 0x7F, code)
    return (code | np.where(np.signbit(x) & ~np.isnan(magnitude), 0x80, 0)).astype("u1")


def interesting(name: str, rng: Any) -> Any:
    known = values(name)
    middles = (known[1:] + known[:-1]) / 2
    beyond = known[-1] * np.array([1.03, 1.04, 1.07, 1.2, 9])
    edges = np.concatenate([known, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf), beyond])
    wide = rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 20, 2000)
    x = np.concatenate([edges, wide, [0.0, np.inf, 1e-300, 1e300]])
    return np.concatenate([x, -x, [np.nan]])


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_to_eight_bits(rng: Any, name: str) -> None:
    source = f"""#include <cuda_fp8.h>
__global__ void k(unsigned char *sat, unsigned char *free_, unsigned char *of_double, __nv_fp8_{name} *made, const float *x,
                  const double *d, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    sat[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_{name.upper()});
    free_[i] = __nv_cvt_float_to_fp8(x[i], __NV_NOSAT, __NV_{name.upper()});
    of_double[i] = __nv_cvt_double_to_fp8(d[i], __NV_SATFINITE, __NV_{name.upper()});
    made[i] = __nv_fp8_{name}(x[i]);
}}"""
    d = interesting(name, rng)
    with np.errstate(over="ignore"):
        x = d.astype("f4")
    out = [np.zeros(len(d), "u1") for _ in range(4)]
    params = [{"name": f"o{i}", "kind": "out", "dtype": f"f8_{name}" if i == 3 else "u8"} for i in range(4)]
    params += [{"name": n, "kind": "in", "dtype": dtype} for n, dtype in (("x", "f32"), ("d", "f64"))]
    params += [{"name": "n", "kind": "scalar", "dtype": "i32"}]
    run(source, "k", params, [*out, x, d, len(d)], grid="ceil_div(n, 256)", block=256)
    np.testing.assert_array_equal(out[0], nearest(name, x, True))
    np.testing.assert_array_equal(out[1], nearest(name, x, False))
    known = ~np.isnan(d)
    np.testing.assert_array_equal(out[2][known], nearest(name, d, True)[known])
    assert (out[2][~known] & 0x7F > FORMATS[name][2] + (name == "e5m2")).all()
    np.testing.assert_array_equal(out[3], out[0])


@pytest.mark.parametrize("name", FORMATS)
def test_every_number_of_eight_bits(name: str) -> None:
    source = f"""#include <cuda_fp8.h>
__global__ void k(float *wide, float *lanes, half *narrow, int *whole, const __nv_fp8_{name} *x)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    wide[i] = float(x[i]);
    narrow[i] = half(x[i]);
    whole[i] = int(x[i]) + (bool(x[i]) ? 1000000 : 0);
    if (i % 4 == 0) {{
        float4 all = float4(reinterpret_cast<const __nv_fp8x4_{name} *>(x)[i / 4]);
        __nv_fp8x2_{name} both(make_float2(all.x, all.y));
        float2 again = float2(both);
        lanes[i] = again.x; lanes[i + 1] = again.y; lanes[i + 2] = all.z; lanes[i + 3] = all.w;
    }}
}}"""
    known = values(name)
    tail = [np.nan] if name == "e4m3" else [np.inf, np.nan, np.nan, np.nan]
    wanted = np.concatenate([known, tail, -known, np.negative(tail)]).astype("f4")
    wide, lanes, narrow, whole = np.zeros(256, "f4"), np.zeros(256, "f4"), np.zeros(256, "f2"), np.zeros(256, "i4")
    codes = np.arange(256, dtype="u1")
    params = [{"name": n, "kind": "out", "dtype": t} for n, t in (("wide", "f32"), ("lanes", "f32"), ("narrow", "f16"), ("whole", "i32"))]
    run(source, "k", [*params, {"name": "x", "kind": "in", "dtype": f"f8_{name}"}], [wide, lanes, narrow, whole, codes], grid=2, block=128)
    np.testing.assert_array_equal(wide, wanted)
    np.testing.assert_array_equal(narrow.astype("f4"), wanted)
    finite = np.where(np.isinf(wanted), np.copysign(known[-1], wanted), wanted)  # made again of float, which saturates
    first_two = np.arange(256) % 4 < 2
    np.testing.assert_array_equal(lanes, np.where(first_two, finite, wanted))
    is_number = np.abs(wanted) < 1e6
    np.testing.assert_array_equal(whole[is_number], (np.trunc(wanted) + 1000000 * (wanted != 0))[is_number])


@pytest.mark.parametrize("kind, header", [("half", "fp16"), ("bfloat16", "bf16")])
def test_directed_rounding(rng: Any, kind: str, header: str) -> None:
    cpp = "half" if kind == "half" else "__nv_bfloat16"
    source = f"#include <cuda_{header}.h>\n" + f"""
__global__ void k(float *rn, float *rz, float *rd, float *ru, int *whole, const float *x, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    rn[i] = __float2{kind}_rn(x[i]); rz[i] = __float2{kind}_rz(x[i]);
    rd[i] = __float2{kind}_rd(x[i]); ru[i] = __float2{kind}_ru(x[i]);
    {cpp} h = __int2{kind}_ru(4097 + i);
    whole[i] = float(h) >= 4097 + i ? __{kind}2int_rd(h) - __{kind}2int_ru(h) : 9;
}}"""
    x = (rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 17, 4000)).astype("f4")
    x = np.concatenate([x, np.float32([0, -0.0, 65504, 65519, 65520, 70000, 1e-30, -1e-30, 3e38, np.inf, -np.inf, 1, -70000])])
    rn, rz, rd, ru = (np.zeros(len(x), "f4") for _ in range(4))
    whole = np.full(len(x), 7, "i4")
    signature = "float* rn, float* rz, float* rd, float* ru, int* whole, const float* x, int n"
    launch(source, "k", signature, rn, rz, rd, ru, whole, x, len(x), grid="ceil_div(n, 256)", block=256)
    assert (rd <= x).all() and (ru >= x).all() and (np.abs(rz) <= np.abs(x)).all() and (whole == 0).all()
    exact = rn == x
    assert (rd[exact] == x[exact]).all() and (ru[exact] == x[exact]).all() and (rz[exact] == x[exact]).all()
    # Up and down are neighbours, and the nearest is one of them.
    bits = {"half": lambda v: v.astype("f2").view("i2").astype("i4"), "bfloat16": lambda v: v.view("i4") >> 16}[kind]

    def order(v: Any) -> Any:
        b = bits(np.ascontiguousarray(v)) & 0xFFFF
        return np.where(b & 0x8000, -(b & 0x7FFF), b)

    with np.errstate(over="ignore"):
        assert (order(ru)[~exact] - order(rd)[~exact] == 1).all()
    assert ((rn == rd) | (rn == ru)).all()
    assert (rz == np.where(np.signbit(x), ru, rd)).all()
