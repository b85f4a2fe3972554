"""Parameter lists: as texts, and as sources say them."""

from __future__ import annotations

import json
from pathlib import Path

import kops
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kops._base.declarations import DTYPES
from kops._source import source as sources
from kops._source.maps import TensorMap
from kops._source.signature import Param, _plain, declarations, fault, parse
from kops._source.source import check, gather, names, scan, signature
from kops._source.tokens import tokens
from which import compiled_only

VECTORS = Path(__file__).resolve().parents[2] / "tests/vectors"
SCALARS = {
    "int": "i32", "unsigned": "u32", "unsigned int": "u32", "int unsigned": "u32", "signed": "i32", "long": "i64", "unsigned long": "u64",
    "long long": "i64", "long long int": "i64", "unsigned long long": "u64", "size_t": "u64", "char": "i8", "signed char": "i8",
    "unsigned char": "u8", "short": "i16", "short int": "i16", "unsigned short": "u16", "float": "f32", "double": "f64", "half": "f16",
    "__half": "f16", "__nv_bfloat16": "bf16", "bool": "bool", "int8_t": "i8", "uint64_t": "u64", "std::int32_t": "i32",
}  # fmt: skip


@pytest.mark.parametrize("text, dtype", SCALARS.items())
def test_scalar_types(text: str, dtype: str) -> None:
    assert parse(f"{text} x") == (Param("x", "scalar", dtype),)
    assert parse(f"const {text} x")[0].dtype == parse(f"{text} const x")[0].dtype == dtype
    (pointer,) = parse(f"const {text}* __restrict__ x")
    assert (pointer.kind, pointer.dtype) == ("in", dtype)


def test_what_a_pointer_is() -> None:
    c, a, b, n = parse("float* c, const float* a, const float* b, int n")
    assert [(p.kind, p.name) for p in (c, a, b, n)] == [("inout", "c"), ("in", "a"), ("in", "b"), ("scalar", "n")]
    assert c.wire() == {"name": "c", "kind": "inout", "dtype": "f32"} and n.wire() == {"name": "n", "kind": "scalar", "dtype": "i32"}
    assert parse("") == parse("void") == ()
    declared = parse("out float* a, inout float* b, in float* c, float *const d, float const *e, const __nv_fp8_e4m3* x")
    assert [p.kind for p in declared] == ["out", "inout", "in", "inout", "in", "in"] and declared[-1].dtype == "f8_e4m3"
    assert parse("int in, float* out")[1].name == "out"


def test_sizes() -> None:
    declared = parse("float* a[n * (m + 1)], float* b[h][w], float* c[][w], const float d[16], int* e[b.shape[0]]")
    at_least, exact, any_rows, number, nested = declared
    assert at_least.elements == "n * (m + 1)" and at_least.shape is None
    assert exact.shape == ("h", "w") and exact.wire()["shape"] == ("h", "w") and any_rows.shape == (None, "w")
    assert number.elements == 16 and number.kind == "in" and nested.elements == "b.shape[0]"
    (a, b, c) = parse("const float4* a[n], out half2* b, const uchar3* c[h][w]")
    assert (a.dtype, a.align, a.elements) == ("f32", 16, "4 * (n)"), "vectors are aligned elements"
    assert (b.dtype, b.align, b.kind) == ("f16", 4, "out")
    assert (c.dtype, c.align, c.shape) == ("u8", None, ("h", "3 * (w)"))


@pytest.mark.parametrize(
    "text, why",
    [
        ("float*", "no name"), ("float** a", "pointer to a pointer"), ("float& a", "reference"), ("void* p", "elements"),
        ("thing* p", "thing is no type"), ("unsigned float x", "no type"), ("long long long x", "no type"), ("float a b", "no type"),
        ("Params v", "for a structure write its size, bytes<16>"), ("__nv_fp8x4_e4m3 v", "tensors only"),
        ("__nv_fp8_e5m2 x", "tensors only"), ("in int n", "pointers"), ("out const float* a", "const"),
        ("float* a, int a", "second parameter a"), ("int n,", "empty"), ("int n = 3", "="), ("float* a[n", "brackets"),
        ("float* a[n] b", "after the sizes"), ("f(int) x", "not understood"), ("tma const half* a[m][k]", "needs its box"),
        ("tma half* a box[64] swizzle wide", "a number of bytes"), ("tma half* a box[64] fill one", "is not understood"),
        ("tma half* a box[64] box[64]", "twice"), ("tma half* a box[64] steps[n]", "steps are numbers"),
        ("tma half2* a box[64]", "of vectors"), ("CUtensorMap a", "declare it as a tensor map"),
    ],
)  # fmt: skip
def test_what_is_not_understood(text: str, why: str) -> None:
    with pytest.raises(kops.BadArgument, match="signature") as error:
        parse(text)
    assert why in str(error.value) and error.value.detail["key"] == "signature"


@compiled_only
def test_tensor_maps() -> None:
    a, c, n = parse("tma const half* a[rows][cols] box[64][bn] swizzle 128, tma out float* c[rows, max(cols, 8)] box[8, 32] l2 256, int n")
    assert a == Param("a", "in", "f16", shape=("rows", "cols"), map=TensorMap((64, "bn"), swizzle=128))
    assert c == Param("c", "out", "f32", shape=("rows", "max(cols, 8)"), map=TensorMap((8, 32), l2=256))
    assert n.map is None and a.strided
    assert a.wire()["map"] == {"box": [64, "bn"], "swizzle": 128}
    (x,) = parse("tma float* x box[1][2][4] steps[1][2][4] interleave 16 fill nan as tf32")
    assert x.kind == "inout" and x.shape is None
    assert x.wire()["map"] == {"box": [1, 2, 4], "steps": [1, 2, 4], "interleave": 16, "nan": True, "tf32": True}
    (declared,) = declarations("tma const half* a[n] box[64]")
    assert declared.c == "const __grid_constant__ CUtensorMap a" and declared.param.shape == ("n",)
    assert parse("int tma, float* box[n]")[1].elements == "n"  # the words are names elsewhere
    full = TensorMap((8, 8), (1, 1), 128, 0, 256, True, True)
    assert fault([Param("a", "in", "f32", rank=2, map=full)]) is None
    assert "map.nan" in str(fault([Param("a", "in", "i32", map=TensorMap((8, 8), nan=True))]))
    text = '#include <cuda.h>\n__global__ void f(const __grid_constant__ CUtensorMap a, const __grid_constant__ int n, float* c) {}'
    with pytest.raises(kops.BadArgument, match="declare it as a tensor map"):
        signature(scan(text), "f")
    check(scan(text), "f", parse("tma const half* a box[64], int n, float* c"))
    with pytest.raises(kops.SignatureMismatch, match="c"):
        check(scan(text), "f", parse("tma const half* a box[64], int n, tma float* c box[64]"))


def test_explicit_parameters() -> None:
    params = [kops.Param("x", "in", "f16", rank=2, align=16, strided=True), kops.Param("n", "scalar", "u8")]
    assert parse(params) == tuple(params)
    assert params[0].wire() == {"name": "x", "kind": "in", "dtype": "f16", "rank": 2, "align": 16, "strided": True}
    assert kops.Param("x", "out", "f32", shape=["n", 3]).wire()["shape"] == ("n", 3)  # type: ignore[arg-type]
    for wrong in (("x", "ou", "f32"), ("x", "in", "f31"), ("x", "scalar", "f8_e4m3")):
        with pytest.raises(kops.BadArgument):
            kops.Param(*wrong)
    with pytest.raises(kops.BadArgument, match="same name"):
        parse([params[0], params[0]])
    with pytest.raises(kops.WrongType):
        parse([1])  # type: ignore[list-item]


identifiers = st.from_regex(r"p[a-z0-9_]{0,8}", fullmatch=True)
spaces = st.sampled_from(["", " ", "\n\t", " /* float* */ ", " // int\n"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(SCALARS)), st.booleans(), st.booleans(), identifiers), unique_by=lambda p: p[3]), spaces)
def test_what_is_written_is_read(parts: list[tuple[str, bool, bool, str]], gap: str) -> None:
    text = ",".join(
        f"{gap}{'const ' if const else ''}{kind}{'*' if pointer else ''} {gap}{name}{gap}" for kind, const, pointer, name in parts
    )
    made = parse(text)
    assert [p.name for p in made] == [name for *_, name in parts]
    for param, (kind, const, pointer, _) in zip(made, parts, strict=True):
        assert param.dtype == SCALARS[kind] and param.dtype in DTYPES
        assert param.kind == ("scalar" if not pointer else "in" if const else "inout")
    # In a kernel's source it is read the same, and its C text again.
    assert signature(scan(f"__global__ void entry({text}) {{}}"), "entry") == made
    assert parse(", ".join(d.c for d in declarations(text))) == made


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet="float*int,[]()&<>:const/\"'#\\\n =0123abcR(", max_size=60))
def test_nonsense_is_refused_or_read(text: str) -> None:
    found = tokens(text)
    assert all(text.startswith(token.text, token.start) for token in found)
    assert all(token.line == text.count("\n", 0, token.start) + 1 for token in found)
    scan(text)
    try:
        parse(text)
    except kops.BadArgument:
        pass


SOURCE = r"""
#include <cuda_fp16.h>
#define REAL float
#define TWICE(x) \
    __global__ void in_a_macro(int x)
// __global__ void in_a_comment(int x);
const char *text = R"x(__global__ void in_a_string(int x))x", c = '"';
struct Pair { int a, b; };
typedef struct { float n; } Other;

extern "C" __global__ void add2_kernel(float* c, const float* a,
                                       const float *__restrict__ b, /* how many */ int n)
{ if (n > 0) { c[0] = 1; } }
static __global__ __launch_bounds__(256, 2) void bounded(unsigned char *out) {}
void __global__ turned(double x) {}
namespace a { namespace b::c { __global__ void inner(const half* x, size_t n) {} } }
namespace { __global__ void hidden(int n) {} }
extern "C" { __global__ void __cluster_dims__(2, 1, 1) clustered(int n) {} }
template <typename T, int N> __global__ void scale(T* y, int n) {}
template <> __global__ void scale<float, 4>(float* y, int n) {}
__global__ void with_macro(REAL* x) {}
__global__ void with_struct(Pair* x) {}
__global__ void with_default(int n = 3) {}
__global__ void with_array(float x[4]) {}
__global__ void declared(float* x, int n);
__global__ void declared(float* x, int n) {}
#ifdef WIDE
__global__ void twice(double* x) {}
#else
__global__ void twice(float* x) {}
#endif
__global__ void conditional(float* x
#ifdef WIDE
    , int n
#endif
) {}
#define PICK(a, b) a
__global__ void with_function(PICK(int, float) x) {}
#if __CUDA_ARCH__ >= 900
__global__ void for_an_architecture(double* x) {}
typedef float mixed;
#else
__global__ void for_an_architecture(float* x) {}
typedef double mixed;
#endif
__global__ void with_two(mixed* x) {}
template <typename... T> __global__ void traits(T* x) {}
template <class T> __global__ void nested(typename T::type* x) {}
"""


def test_a_source_shows_its_kernels() -> None:
    found = scan(SOURCE)
    assert names(found) == [
        "add2_kernel", "bounded", "turned", "a::b::c::inner", "hidden", "clustered", "with_macro", "with_struct", "with_default",
        "with_array", "declared", "twice", "conditional", "with_function", "for_an_architecture", "with_two",
    ]  # fmt: skip
    assert signature(found, "add2_kernel") == parse("float* c, const float* a, const float* b, int n")
    assert signature(found, "bounded") == parse("unsigned char* out")
    assert signature(found, "turned") == parse("double x")
    assert signature(found, "inner") == signature(found, "a::b::c::inner") == parse("const half* x, size_t n")
    assert signature(found, "clustered") == signature(found, "hidden") == parse("int n")
    assert signature(found, "declared") == parse("float* x, int n")


@pytest.mark.parametrize(
    "entry, why",
    [
        ("absent", "add2_kernel"), ("scale", "template"), ("scale<float", "template"), ("scale<float>", "argument N"),
        ("add2_kernel<float>", "no template"), ("traits<float>", "not plain"), ("nested<Holder>", "depends on"), ("with_struct", "Pair"),
        ("scale<Pair, 1>", "Pair"), ("with_function", "PICK"), ("with_array", "array"), ("for_an_architecture", "several forms"),
        ("with_two", "several forms"), ("in_a_macro", "no kernel"), ("in_a_comment", "no kernel"), ("in_a_string", "no kernel"),
    ],
)  # fmt: skip
def test_what_a_source_does_not_say_plainly(entry: str, why: str) -> None:
    with pytest.raises(kops.BadArgument, match="give the signature") as error:
        signature(scan(SOURCE), entry)
    assert why in str(error.value)


def test_what_conditionals_and_macros_choose() -> None:
    found = scan(SOURCE)
    assert signature(found, "with_macro") == signature(found, "twice") == signature(found, "conditional") == parse("float* x")
    assert signature(found, "with_default") == parse("int n")
    wide = scan(SOURCE, options=["-DWIDE"])
    assert signature(wide, "twice") == parse("double* x") and signature(wide, "conditional") == parse("float* x, int n")
    assert signature(found, "scale<half, 4>") == parse("half* y, int n")
    assert signature(found, "scale<unsigned long long,2>") == parse("unsigned long long* y, int n")


FLOATX = """
#if defined(ENABLE_BF16)
typedef __nv_bfloat16 floatX;
#elif (PRECISION + 1 == 17 && !defined ENABLE_BF16) || 0
using floatX = half;
#else
typedef float floatX;
#endif
"""


@pytest.mark.parametrize(
    "options, dtype",
    [([], "f32"), (["-DENABLE_BF16"], "bf16"), (["-D", "PRECISION=0x10"], "f16"), (["--define-macro=ENABLE_BF16=1"], "bf16")],
)
@pytest.mark.parametrize("where", ["source", "file", "nested"])
def test_types_behind_conditionals(options: list[str], dtype: str, where: str) -> None:
    kernel = "namespace n { __global__ void f(floatX* y, const floatX* __restrict__ x, int n = 3) {} }"
    files = {"common.h": "#ifndef CUDA_COMMON_H\n#define CUDA_COMMON_H\n" + FLOATX + "#endif\n", "all.h": '#include "common.h"\n'}
    source = {"source": FLOATX, "file": '#include "common.h"\n', "nested": "#include <all.h>\n#include <common.h>\n"}[where] + kernel
    made = scan(source, {} if where == "source" else files, options)
    assert [(p.kind, p.dtype) for p in signature(made, "n::f")] == [("inout", dtype), ("in", dtype), ("scalar", "i32")]
    assert names(made) == ["n::f"]


@pytest.mark.parametrize(
    "before, text, expected",
    [
        ("typedef unsigned char byte; typedef byte pixel;", "const pixel* x", "const unsigned char* x"),
        ("namespace a { using index = std::int64_t; }", "a::index n", "long long n"),
        ("using std::size_t; using namespace a;", "size_t n, uint m", "size_t n, unsigned m"),
        ("#define RESTRICT __restrict__\n#define T const float", "T* RESTRICT x", "const float* x"),
        ("typedef float4 vec;", "vec* x", "float4* x"),
        ("struct S { typedef int real; }; void f() { using real = short; } typedef double real;", "real x", "double x"),
        ("#define WIDTH 4\n#if WIDTH == 4\ntypedef int t;\n#else\ntypedef short t;\n#endif", "t* x", "int* x"),
        ("#undef A\n#if !A && FOO < 1\ntypedef int t;\n#endif", "t* x", "int* x"),
        ("#if defined(__CUDA_ARCH__) || 1\ntypedef int t;\n#else\ntypedef short t;\n#endif", "t* x", "int* x"),
        ("#if defined(__CUDA_ARCH__) && 0\ntypedef int t;\n#else\ntypedef short t;\n#endif", "t* x", "short* x"),
    ],
)
def test_names_of_the_sources_own(before: str, text: str, expected: str) -> None:
    assert signature(scan(f"{before}\n__global__ void f({text}) {{}}"), "f") == parse(expected)


@pytest.mark.parametrize(
    "template, entry, expected",
    [
        ("typename T, int N", "f<float, 4>", "float* x, const int* i"),
        ("class T = __nv_bfloat16, bool B = (1 > 0)", "f<>", "bf16* x, const int* i"),
        ("class T, class U = float", "f< unsigned short >", "ushort* x, const int* i"),
        ("typename T, int N = 4, typename = void", "n::f<std::uint8_t,8>", "u8* x, const int* i"),
    ],
)
def test_templates(template: str, entry: str, expected: str) -> None:
    source = f"namespace n {{ template <{template}> __global__ void f(T* x, const int* i) {{}} }}"
    assert signature(scan(source), entry) == parse(expected)


def test_options_and_files_count() -> None:
    source, include, wanted = "__global__ void f(real* x, int n) {}", '#include "t.h"\n', parse("float* x, int n")
    for made in (
        scan(source, {}, ["-Dreal=float"]), scan(include + source, {"t.h": "#define real float"}),
        scan(include + source, {"t.h": "typedef float real;"}), scan(source, {}, ["-define-macro", "real=float"]),
        scan("struct n {}; __global__ void f(float* x, int n) {}"),  # a type of the source's own that has a parameter's name is no matter
    ):  # fmt: skip
        assert signature(made, "f") == wanted
    with pytest.raises(kops.BadArgument, match="real is no type"):
        signature(scan(source, {"t.h": "typedef float real;"}), "f")


def test_included_files_are_gathered(tmp_path: Path) -> None:
    for name, text in {
        "a.cuh": '#include "sub/b.cuh"\n#include "absent.h"\n#include <cuda_fp16.h>\n', "sub/c.cuh": "int c;\n", "more/d.h": "int d;\n",
        "sub/b.cuh": '#pragma once\n#include "c.cuh"\n  #  include "c.cuh"\n',
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    text = '#include "a.cuh"\n#include <d.h>\n// #include "nothing.h"\n'
    assert set(gather(text, tmp_path)) == {"a.cuh", "sub/b.cuh", "c.cuh"}
    assert gather(text, tmp_path, [tmp_path / "more"])["d.h"] == "int d;\n"
    (tmp_path / "c.cuh").write_text("another\n")
    with pytest.raises(kops.BadArgument, match="different names"):
        gather(text + '#include "c.cuh"\n', tmp_path)


@pytest.mark.parametrize("row", json.loads((VECTORS / "c_types.json").read_text()), ids=lambda row: row["type"] or "none")
def test_types_are_those_of_libkops(row: dict[str, str | None]) -> None:
    try:
        found = declarations(f"{row['type']}* x")[0].type
    except kops.BadArgument:
        found = None
    assert (found.dtype if found is not None and found.lanes == 1 else None) == row["dtype"]  # C has no vectors


GELU = "#include <cuda_bf16.h>\ntemplate <class T> __global__ void t(T* y, int n) {}\n__global__ void gelu(__nv_bfloat16* y, int n) {}"


@pytest.mark.parametrize(
    "entry, declared, why",
    [
        ("gelu", "float* y, int n", "parameter 1 (y): declared as a tensor of f32 (float), in the source it is `__nv_bfloat16 * y`"),
        ("gelu", "float* y, int n", "write `__nv_bfloat16* y`"), ("gelu", "half* y, int n", "elements of bf16"),
        ("gelu", "out float* y, int n", "write `out __nv_bfloat16* y`"), ("gelu", "bf16* y", "2 parameters in the source, 1 are declared"),
        ("gelu", "bf16* y, float n", "write `int n`"), ("gelu", "bf16* y, long long n", "parameter 2 (n)"),
        ("gelu", "bf16 y, int n", "declared as a scalar of bf16"), ("gelu", "bf16* y, int* n", "declared as a tensor of i32"),
        ("t<double>", "float* y, int n", "`double * y`"), ("t<bool>", "f8_e4m3* y, int n", "in the source"),
        ("t<int>", "float* y, int n", "in the source"), ("t<half>", "bf16* y, int n", "in the source"),
        ("t<cuComplex>", "thrust::complex<double>* y, int n", "in the source"), ("t<Unknown>", "float* y, float n", "write `int n`"),
        ("t<float4>", "half* y, int n", "in the source"),
    ],
)  # fmt: skip
def test_declarations_are_held_against_the_source(entry: str, declared: str, why: str) -> None:
    with pytest.raises(kops.SignatureMismatch) as error:
        check(scan(GELU), entry, parse(declared))
    assert why in str(error.value) and error.value.detail["key"] == "signature"


def test_declarations_that_mean_the_same() -> None:
    for entry, declared in (
        ("gelu", "bf16* y, unsigned n"), ("gelu", "ushort* y, int n"), ("gelu", "short* y, int n"), ("t<short>", "half* y, int n"),
        ("t<signed char>", "f8_e4m3* y, int n"), ("t<c10::complex<float>>", "complex<float>* y, int n"),
        ("t<float2>", "cuFloatComplex* y, int n"), ("t<Unknown>", "float* y, int n"), ("t<int4>", "half* y, int n"),
        ("t<float4>", "float* y, int n"), ("elsewhere", "float* y"),
    ):  # fmt: skip
        check(scan(GELU), entry, parse(declared))


MACROS = "#define A0 1\n" + "".join(f"#define A{i} (A{i - 1}+A{i - 1})\n" for i in range(1, 31))
WORDS = "#define B0 float\n" + "".join(f"#define B{i} B{i - 1} B{i - 1}\n" for i in range(1, 31))


@pytest.mark.parametrize(
    "before",
    [
        MACROS + "#if A30\n#endif\n", WORDS + "B30 b;\n", "#if " + "(" * 2000 + "1" + ")" * 2000 + "\n#endif\n",
        "#if " + "!" * 2000 + "1\n#endif\n", "__global__ f(" * 2000, "struct " * 8000, "using " * 8000,
    ],
)  # fmt: skip
def test_what_would_take_for_ever_is_not_known(before: str) -> None:
    """A compiler that is told to skip it takes the source."""
    source = f"#ifdef NEVER\n{before}\n#endif\nextern \"C\" __global__ void k(float *y) {{ y[0] = 1; }}\n"
    assert "k" in names(scan(source))
    assert [param.name for param in signature(scan(source), "k")] == ["y"]


def test_a_quote_within_a_number_of_a_directive() -> None:
    source = "#define N 1'024 /* threads\n of a block { */\nextern \"C\" __global__ void k(float *y) { y[0] = N; }\n"
    assert names(scan(source)) == ["k"]


# Types of more than one number, and types that are known by their namespaces

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
    for params in (f"{text} const* x, int n", f"cplx* x, int n) {{}} typedef {text} cplx; using other = {text}; void g(other* x"):
        made = signature(scan(f"typedef {text} cplx; __global__ void f({params}) {{}}"), "f")
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


# Parts of random signatures. Where _plain() reads one, the parser reads the same.

WRITTEN = (
    "in ", "out ", "inout ", "const ", "float", "f16", "f8_e4m3", "int", "unsigned ", "long ", "float4", "void", "*", " * ", "* ", " ", "x",
    "y ", "n", "in", "std", "__restrict__ ", "[", "]", "[n]", "[ 4 ]", "[]", "[n*2]", "[h][w]", "[0x10]", ",", ", ", "tma ", "/**/", "\n",
    "&", "float* x[n]", "out half* y[h][w]", "int n",
)  # fmt: skip


@settings(max_examples=800, deadline=None)
@given(st.lists(st.sampled_from(WRITTEN), max_size=9).map("".join))
@example("const float* a[n], out float *c[ 4 ] , int n")
@example("in float x[4], out f8_e4m3* y[h][w]")
def test_plain_parameters_are_those_that_would_be_read(text: str) -> None:
    plain = _plain(text)
    assert plain is None or plain == tuple(declared.param for declared in declarations(text))


def test_what_is_plain() -> None:
    for text in ("out float c[n], const float a[n], const float b[n], int n", "float*x", " in half * x [ h ][ w ] ,bool flag "):
        assert _plain(text) is not None
    for text in ("", "void", "float* x, float* x", "float* int", "float4* x", "out const float* x", "out int n", "float* x,", "f8_e4m3 x"):
        assert _plain(text) is None


C_PARAMS = (
    "float *x", "const float *__restrict__ x", "float x", "float", "float *", "unsigned x", "unsigned int *x", "unsigned int", "half *x",
    "T *x", "real *x", "REAL *x", "MACRO *x", "MACRO(x) *x", "Own *x", "std::size_t x", "float x[4]", "float **x", "float &x", "int x = 3",
    "long *x", "float4 *x", "char x", "float * const x", "int *NAMED", "void *x", "const __grid_constant__ CUtensorMap x",
)  # fmt: skip
DECLARATIONS = (
    "float* x", "const float* x", "float x", "unsigned* x", "int* x", "unsigned x", "int x", "half* x", "double* x", "size_t x", "i64* x",
    "tma const half* x box[64]", "",
)  # fmt: skip


@pytest.mark.parametrize(
    "form, can",
    [
        ("__global__ void f({});", True), ("namespace n {{ __global__ void f({}); }}", False),
        ("template <class T> __global__ void f({});", False), ("__global__ void f({0}); __global__ void f({0});", False),
        ("__global__ void f({}); __global__ void f(int x);", False),
    ],
)  # fmt: skip
def test_what_agrees_at_first_sight_agrees_when_it_is_read(form: str, can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = "typedef double real;\ntypedef double half;\n#define REAL double\n#define MACRO(x) x\n#define NAMED x\nstruct Own {};\n"
    plainly = 0
    for text in C_PARAMS:
        made = scan(before + form.format(text))
        for declaration in DECLARATIONS:
            for entry in ("f", "n::f", "f<float>"):
                declared = parse(declaration)
                if not sources._agrees_plainly(made, entry, declared):
                    continue
                plainly += 1
                with monkeypatch.context() as patch:
                    patch.setattr(sources, "_agrees_plainly", lambda *_: False)
                    check(made, entry, declared)
    assert (plainly > 0) == can


def test_a_parameter_that_is_none() -> None:
    """It is the compiler's to refuse."""
    check(scan("__global__ void f(int a,) {}"), "f", parse("int a, int b"))


def test_lines_behind_strings_of_several_lines() -> None:
    text = 'a R"x(\n)" \n)x" b u8R"(\n)" c "d\\\n" e'
    assert [(t.text, t.line) for t in tokens(text) if t.kind == "name"] == [("a", 1), ("b", 3), ("c", 4), ("e", 5)]


@pytest.mark.parametrize("name", [*DTYPES])
def test_names_of_dtypes(name: str) -> None:
    (x, y) = declarations(f"const {name}* x, out {name}* y[4]")
    assert (x.param.kind, x.param.dtype, y.param.dtype, y.param.elements) == ("in", name, name, 4)
    assert parse(x.c) == (x.param,) and name not in x.c.replace("__nv_fp8", "").replace("bool", "").split()
    # In a source they are names like any other.
    with pytest.raises(kops.BadArgument):
        signature(scan(f"struct {name}; __global__ void f({name}* x) {{}}"), "f")
