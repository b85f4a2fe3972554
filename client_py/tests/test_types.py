"""Types of more than one number, and types that are known by their namespaces, in signatures and in sources."""

from __future__ import annotations

import kops
import pytest
from kops._base.declarations import DTYPES
from kops._source.signature import Param, fault, parse
from kops._source.source import check, scan, signature
from which import compiled_only


@pytest.mark.parametrize(
    "text, dtype, lanes, align",
    [
        ("cuFloatComplex", "f32", 2, 8), ("cuComplex", "f32", 2, 8), ("cuDoubleComplex", "f64", 2, 16), ("__int128", "i64", 2, 16),
        ("unsigned __int128", "u64", 2, 16), ("thrust::complex<float>", "f32", 2, 8), ("cuda::std::complex<double>", "f64", 2, 16),
        ("::std::complex<__half>", "f16", 2, 4), ("c10::complex<c10::BFloat16>", "bf16", 2, 4), ("complex<float>", "f32", 2, 8),
        ("nv_half2", "f16", 2, 4), ("dim3", "u32", 3, None), ("bytes<16>", "u8", 16, None), ("bytes<4>", "u8", 4, None),
    ],
)  # fmt: skip
def test_pointers_to_more_than_one_number(text: str, dtype: str, lanes: int, align: int | None) -> None:
    (x, n) = parse(f"const {text}* __restrict__ x[n + 1], int n")
    assert (x.kind, x.dtype, x.elements, x.align) == ("in", dtype, f"{lanes} * (n + 1)", align)
    if "bytes" in text:
        return  # no type of C
    for source in (f"{text} const* x, int n", f"cplx* x, int n) {{}} typedef {text} cplx; using other = {text}; void g(other* x"):
        made = signature(scan(f"typedef {text} cplx; __global__ void f({source}) {{}}"), "f")
        assert [(p.dtype, p.align) for p in made[:1]] == [(dtype, align)]
    assert signature(scan("template <class T> __global__ void f(T* x, int n) {}"), f"f<{text}>")[0].dtype == dtype


@pytest.mark.parametrize(
    "text, dtype, lanes",
    [("float4", "f32", 4), ("double2", "f64", 2), ("half2", "f16", 2), ("dim3", "u32", 3), ("__int128", "i64", 2),
     ("cuDoubleComplex", "f64", 2), ("bytes<24>", "u8", 24), ("thrust::complex<float>", "f32", 2)],
)  # fmt: skip
@compiled_only
def test_more_than_one_number_by_value(text: str, dtype: str, lanes: int) -> None:
    (x,) = parse(f"const {text} x")
    assert x == Param("x", "scalar", dtype, lanes=lanes)
    assert x.wire() == {"name": "x", "kind": "scalar", "dtype": dtype, "lanes": lanes}
    if "bytes" not in text:
        source = scan(f"__global__ void f({text} x) {{}}")
        assert signature(source, "f") == (x,)
        check(source, "f", parse(f"bytes<{lanes * DTYPES[dtype]}> x"))
        for wrong in (f"bytes<{lanes * DTYPES[dtype] + 1}> x", f"{dtype} x", f"{text}* x"):
            with pytest.raises(kops.SignatureMismatch):
                check(source, "f", parse(wrong))
    check(scan("struct P { float a[9]; }; __global__ void f(P x) {}"), "f", (x,))
    assert fault((x,)) is None and "at most 704" in str(fault(parse("bytes<400> a, bytes<400> b")))


@pytest.mark.parametrize(
    "text", ["complex<int>", "complex<float, 2>", "vec<float>", "thrust::complex", "a::float4", "bytes<0>", "bytes<n>"]
)
def test_templates_that_are_no_types(text: str) -> None:
    with pytest.raises(kops.BadArgument, match="no type|not understood|no name"):
        parse(f"{text}* x")


@pytest.mark.parametrize("text, dtype", [("at::Half", "f16"), ("::c10::BFloat16", "bf16"), ("cutlass::float_e4m3_t", "f8_e4m3")])
def test_types_that_are_known_by_their_namespace(text: str, dtype: str) -> None:
    kernel = scan(f"using T = {text}; __global__ void f(const {text}* x, T* y, other::{text}* z, int Half) {{}}")
    assert [(p.name, p.dtype) for p in signature(kernel, "f")] == [("x", dtype), ("y", dtype), ("z", dtype), ("Half", "i32")]
    check(kernel, "f", parse(f"{text}* x, {dtype}* y, {dtype}* z, int Half"))
    with pytest.raises(kops.SignatureMismatch):
        check(kernel, "f", parse(f"double* x, {dtype}* y, {dtype}* z, int Half"))
