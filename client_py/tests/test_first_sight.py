"""Signatures and parameters that are understood at first sight: as they are when they are read."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kops._source import signature, source

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
    plain = signature._plain(text)
    assert plain is None or plain == tuple(declared.param for declared in signature.declarations(text))


def test_what_is_plain() -> None:
    for text in ("out float c[n], const float a[n], const float b[n], int n", "float*x", " in half * x [ h ][ w ] ,bool flag "):
        assert signature._plain(text) is not None
    for text in ("", "void", "float* x, float* x", "float* int", "float4* x", "out const float* x", "out int n", "float* x,", "f8_e4m3 x"):
        assert signature._plain(text) is None


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
        made = source.scan(before + form.format(text))
        for declaration in DECLARATIONS:
            for entry in ("f", "n::f", "f<float>"):
                declared = signature.parse(declaration)
                if not source._agrees_plainly(made, entry, declared):
                    continue
                plainly += 1
                with monkeypatch.context() as patch:
                    patch.setattr(source, "_agrees_plainly", lambda *_: False)
                    source.check(made, entry, declared)
    assert (plainly > 0) == can


def test_a_parameter_that_is_none() -> None:
    """It is the compiler's to refuse."""
    source.check(source.scan("__global__ void f(int a,) {}"), "f", signature.parse("int a, int b"))
