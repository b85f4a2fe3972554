"""Nothing in a source takes a function out of the checks: neither by attributes and pragmas, however they are spelled, nor by assembly, nor
by functions with the names of the checks' own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from conftest import launch
from kops.interpret import InterpretError
from kops.interpret._compiler import compiler

CLANG = "clang" in os.environ.get("CXX", "") or (not os.environ.get("CXX") and "clang" in compiler()[1])
SOURCE = """
PRELUDE
BEFORE __device__ __noinline__ void put(float* out, int at) { out[at] = 1; }
AFTER
extern "C" __global__ void k(float* out, int n) { put(out, threadIdx.x == 31 ? n : threadIdx.x); }
"""
ATTRIBUTES = {
    "thread": '__attribute__((no_sanitize("thread")))',
    "underscores": '__attribute__((__no_sanitize__("thread")))',
    "short": "__attribute__((no_sanitize_thread))",
    "another": "__attribute__((no_sanitize_address))",
    "undefined": "__attribute__((no_sanitize_undefined))",
    "in brackets": "[[gnu::no_sanitize_thread]]",
    "in brackets, of clang": '[[clang::no_sanitize("thread")]]',
    "with others": '__attribute__((unused, no_sanitize("thread", "undefined")))',
    "of the clock": "__attribute__((no_sanitize_coverage))",
    "of functions": "__attribute__((no_instrument_function))",
    "of clang": "__attribute__((disable_sanitizer_instrumentation))",
    "optimizes": '__attribute__((optimize("O3")))',
    "does not": "__attribute__((optnone))",
}
PRELUDES: dict[str, tuple[str, ...]] = {
    "joined": ("#define JOINED(a, b) a##b\n#define QUIET __attribute__((JOINED(no_sani, tize)(\"thread\")))", "QUIET"),
    "split": ("#define QUIET __attribute__((no_sani\\\ntize(\"thread\")))", "QUIET"),
    "of another file": ("#line 1 \"/usr/include/math.h\"", '__attribute__((no_sanitize("thread")))'),
    "of the headers": ("#line 1 \"include/kops_host/entry.h\"", '__attribute__((no_sanitize("thread"))) static'),
    "pragma": ('#pragma GCC optimize ("O3")', ""),
    "pragma, an operator": ('#define DO(x) _Pragma(#x)\nDO(GCC optimize ("O3"))', ""),
    "pragma of clang": (
        "#pragma clang attribute push(__attribute__((no_sanitize(\"thread\"))), apply_to = function)", "", "#pragma clang attribute pop",
    ),
    "the checks' own": ('extern "C" __attribute__((used)) void __tsan_write4(void*) {}', ""),
    "the checks' own, by its symbol": ('void quiet(void*) __asm__("__tsan" "_write4");\nvoid quiet(void*) {}', ""),
    "the clock's own": ('extern "C" __attribute__((used)) void __sanitizer_cov_trace_pc() {}', ""),
}


def refused(source: str, kind: str = "compile", **more: Any) -> InterpretError:
    out = numpy.zeros(32, "f4")
    with pytest.raises(InterpretError) as caught:
        launch(source, "k", "float* out, int n", out, 32, **more)
    assert caught.value.kind == kind, caught.value
    return caught.value


def test_without_them_it_is_found(fails: Callable[..., InterpretError]) -> None:
    plain = SOURCE.replace("PRELUDE", "").replace("BEFORE", "").replace("AFTER", "")
    fails("out_of_bounds", plain, "k", "float* out, int n", numpy.zeros(32, "f4"), 32)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str) -> None:
    error = refused(SOURCE.replace("PRELUDE", "").replace("BEFORE", ATTRIBUTES[name]).replace("AFTER", ""))
    assert "nothing in a source can switch that off" in str(error) and error.line == 3


@pytest.mark.parametrize("name", PRELUDES)
def test_what_hides_them(name: str) -> None:
    if name == "the checks' own, by its symbol" and CLANG:
        pytest.skip("clang takes no other symbol for it")
    prelude, before, *after = PRELUDES[name]
    source = SOURCE.replace("PRELUDE", prelude).replace("BEFORE", before).replace("AFTER", "".join(after))
    assert "Leave it out" in str(refused(source))


def test_a_header_of_the_interpreter_s_that_is_left_out() -> None:
    assert "KOPS_HOST_ENTRY_H" in str(refused(SOURCE, options=("-DKOPS_HOST_ENTRY_H",)))


@pytest.mark.parametrize("where", ["in a function", "beside functions", "by a macro"])
def test_assembly(where: str) -> None:
    store = 'asm volatile("movl $0, (%0)" :: "r"(out + n) : "memory");' if where != "beside functions" else ""
    outside = 'asm(".pushsection .note\\n.popsection");' if where == "beside functions" else ""
    if where == "by a macro":
        outside, store = "#define A(x) __as##x\n#define STORE A(m__)", store.replace("asm", "STORE")
    source = f'{outside}\nextern "C" __global__ void k(float* out, int n) {{ {store} out[threadIdx.x] = 1; }}'
    assert "inline" in str(refused(source, "unsupported"))


def test_what_is_no_switch() -> None:
    """Barriers of the compiler's, alignment, and words that only look like it."""
    source = """
    struct __align__(16) Four { float x, y, z, w; };
    __device__ __forceinline__ void optimize(float* out, int target) { out[target] = 1; }
    __device__ void f(__attribute__((unused)) int a, float* target) { optimize(target, a); }
    extern "C" __global__ void k(float* out, int n) { asm volatile("" ::: "memory"); f(threadIdx.x, out); }
    """
    out = numpy.zeros(32, "f4")
    launch(source, "k", "float* out, int n", out, 32)
    assert (out == 1).all()


STORES = {
    "of the processor": "__builtin_ia32_movntps(AT, (v4){1, 1, 1, 1});",
    "of several bytes": "__builtin_memset(AT, 0, 16);",
}


@pytest.mark.skipif(CLANG, reason="clang has other names for them")
@pytest.mark.parametrize("where", ["out + n", "out - 4"])
@pytest.mark.parametrize("name", STORES)
def test_writes_that_are_not_watched(fails: Callable[..., InterpretError], name: str, where: str) -> None:
    """What lies beside a tensor is looked at, too."""
    source = f"""
    typedef float v4 __attribute__((vector_size(16)));
    extern "C" __global__ void k(float* out, int n) {{ out[threadIdx.x] = 1; {STORES[name].replace("AT", where)} }}
    """
    out = numpy.zeros(32, "f4")
    assert "outside of out" in str(fails("out_of_bounds", source, "k", "float* out, int n", out, 32)) and not out.any()
