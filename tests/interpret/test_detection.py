"""Each mistake is found and named, and the kernel beside it that is right is not reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Part, Together, launch

Fails = Callable[..., Any]
together = Together("#include <assert.h>\n#include <cstdio>\n")


def zeros(n: int, dtype: str = "f4") -> Any:
    return np.zeros(n, dtype)


def body(text: str, parameters: str = "float *c, int n", before: str = "") -> Part:
    """A kernel on line 1, whose statements begin on line 2."""
    return together(f"{before}__global__ void k({parameters}) {{\n{text}\n}}\n")


class Case(NamedTuple):
    """Of a kernel with `size` numbers, for which `n` is a mistake, and `right`, another n or another kernel, is none."""

    kind: str
    part: Part
    n: int = 0
    found: dict[str, Any] = {}  # noqa: RUF012
    right: int | Part | None = None
    size: int = 64
    grid: int = 1
    block: int = 64
    more: dict[str, Any] = {}  # noqa: RUF012

    def run(self, call: Callable[..., Any], part: Part, n: int) -> tuple[Any, Any]:
        c = zeros(self.size)
        return call(part, "k", "float* c, int n", c, n, grid=self.grid, block=self.block, **self.more), c


def barrier(text: str) -> tuple[Part, Part]:
    """A kernel that lacks a barrier, and the one that has it."""
    return body(text.replace("BARRIER", "")), body(text.replace("BARRIER", "__syncthreads();"))


MISSING = barrier("__shared__ float s[64]; s[threadIdx.x] = threadIdx.x;\nBARRIER\nc[threadIdx.x] = s[63 - threadIdx.x];")
LOOP = """__shared__ float s[64]; for (int i = 0; i < n; i++) {
s[threadIdx.x] = i + threadIdx.x; __syncthreads(); c[threadIdx.x] += s[(threadIdx.x + 1) % 64]; BARRIER }"""
DOUBLED = LOOP.replace("BARRIER", "").replace("s[", "s[i % 2 * 64 + ").replace("s[i % 2 * 64 + 64]", "s[128]")
COUNT = "__shared__ float s[1]; if (threadIdx.x == 0) s[0] = 0;\n__syncthreads();\nADD\n__syncthreads(); c[0] = s[0];"
SAME = "__shared__ int s; s = VALUE;\n__syncthreads();\nc[threadIdx.x] = s;"
WARP = """__shared__ float s[32]; s[threadIdx.x] = threadIdx.x; FIRST
for (int d = 16; d; d /= 2) {
float v = threadIdx.x < d ? s[threadIdx.x + d] : 0; SYNC
if (threadIdx.x < d) s[threadIdx.x] += v; SYNC }
if (threadIdx.x == 0) c[0] = s[0];"""
IN_STEP = body(WARP.replace("FIRST", "__syncwarp();").replace("SYNC", "__syncwarp();"))
SHARED = "extern __shared__ float s[]; s[threadIdx.x] = 1; c[threadIdx.x] = s[threadIdx.x];"
DECLARED = "float s[32]; for (int i = 0; i < 32; i++) s[i] = i;\n__syncthreads(); c[0] = s[n];"
SKIPS = body("if (threadIdx.x < n)\n__syncthreads();\nc[0] = 1;")
RECURSION = body(
    "c[0] = deep(n);",
    before="__device__ __noinline__ int deep(int n) { volatile int x[8]; x[n & 7] = n; return n < 0 ? 0 : deep(n + 1) + x[n & 7]; }\n",
)

CASES = {
    # Bounds.
    "empty": Case("out_of_bounds", body("c[0] = 1;"), 0, {"index": 0}, size=0, block=1),
    "dynamic shared memory": Case("out_of_bounds", body(SHARED), 0, {"thread": (31, 0, 0)}, size=32, block=32, more={"shared": 124}),
    "a shared array": Case("out_of_bounds", body(f"__shared__ {DECLARED}"), 32, {"index": 32, "line": 3}, 31, block=1),
    "a local array": Case("out_of_bounds", body(DECLARED), 32, {"index": 32, "line": 3}, 31, block=1),
    # Other addresses.
    "wild": Case("wild_access", body("float *p = reinterpret_cast<float *>(0x123456789000ull + n * 4);\n*p = 1;"), 3, {"line": 3}, block=1),
    "another thread's": Case(
        "wild_access",
        body("__shared__ int *p; int mine = n;\nif (!threadIdx.x) p = &mine;\n__syncthreads();\nc[threadIdx.x] = *p;\n__syncthreads();"),
        3, {"line": 5}, size=32, block=32,
    ),
    "misaligned": Case("misaligned", body("*reinterpret_cast<float4 *>(c + n) = make_float4(1, 2, 3, 4);"), 1, {}, 4, block=1),
    "wild, unwatched": Case("wild_access", body("c[0] = *reinterpret_cast<int *>(64 + n);"), block=1, more={"check": False}),
    # Races.
    "at the end of a loop": Case("race", body(LOOP.replace("BARRIER", "")), 3, {}, body(LOOP.replace("BARRIER", "__syncthreads();"))),
    "a buffer for two": Case("race", body(LOOP.replace("BARRIER", "")), 9, {}, body(DOUBLED)),
    "different values": Case(
        "race", body(SAME.replace("VALUE", "threadIdx.x / 2")), 0,
        {"line": 2, "other_line": 2, "other": (1, 0, 0), "thread": (2, 0, 0)}, body(SAME.replace("VALUE", "1")),
    ),
    "read beside atomics": Case(
        "race", body("__shared__ int s; if (threadIdx.x == 0) s = 0;\n__syncthreads();\natomicAdd(&s, 1);\nc[threadIdx.x] = s;")
    ),
    "warps in step": Case("race", body(WARP.replace("FIRST", "").replace("SYNC", "")), right=IN_STEP, block=32),
    "warps in step later": Case("race", body(WARP.replace("FIRST", "__syncwarp();").replace("SYNC", "")), block=32),
    "syncwarp of another warp": Case(
        "race", body("__shared__ float s[64]; s[threadIdx.x] = 1;\n__syncwarp();\nc[threadIdx.x] = s[threadIdx.x ^ n];"), 32, {}, 1
    ),
    "bytes of one word": Case(
        "race", body("__shared__ unsigned char s[64]; s[threadIdx.x] = 1;\nc[threadIdx.x] = s[threadIdx.x ^ n];"), 2, {}, 0
    ),
    "a write before atomics": Case(
        "race", body("__shared__ int s; if (threadIdx.x == 0) s = 0;\natomicAdd(&s, 1);\n__syncthreads();\nc[0] = s;"),
        right=body("__shared__ int s; if (threadIdx.x == 0) s = 0; __syncthreads();\natomicAdd(&s, 1);\n__syncthreads();\nc[0] = s;"),
    ),
    # Shared memory that was not written.
    "not zero": Case(
        "uninitialised",
        body("__shared__ float s[64];\nif (threadIdx.x < n) s[threadIdx.x] = 1;\n__syncthreads();\nc[threadIdx.x] = s[threadIdx.x];"),
        60, {"thread": (60, 0, 0), "line": 5}, 64,
    ),
    "an index": Case(
        "uninitialised",
        body("__shared__ int s[64]; if (threadIdx.x < n) s[threadIdx.x] = threadIdx.x;\n__syncthreads();\nc[s[threadIdx.x]] = 1;"),
        60, {}, 64,
    ),
    "of another block": Case(
        "uninitialised", body("__shared__ int s; if (blockIdx.x == 0 && threadIdx.x == 0) s = 1;\n__syncthreads(); c[blockIdx.x] = s;"),
        0, {"block": (1, 0, 0)}, grid=2,
    ),
    # Barriers and collectives.
    "some skip it": Case("divergent_barrier", SKIPS, 40, {"line": 3, "thread": (0, 0, 0), "other": (40, 0, 0)}, 64),
    "all skip it": Case("divergent_barrier", SKIPS, 1, {}, 0),
    "two barriers": Case(
        "divergent_barrier", body("if (threadIdx.x < n) {\n__syncthreads();\n} else {\n__syncthreads();\n}\nc[0] = 1;"),
        32, {"line": 3, "other_line": 5}, 64,
    ),
    "barriers of a loop": Case(
        "divergent_barrier",
        body("for (int i = 0; i < (n ? n : threadIdx.x); i++) { if (i % 2) __syncthreads(); else __syncthreads_count(1); } c[0] = 1;"),
        0, {}, 7,
    ),
    "a lane is elsewhere": Case(
        "divergent_warp",
        body("float v = 1;\nif (threadIdx.x < n)\nv = __shfl_down_sync(0xffffffffu, v, 1);\n__syncwarp(); c[threadIdx.x] = v;"),
        16, {"line": 4, "other": (16, 0, 0)}, 32, block=32,
    ),
    "a lane that no mask has": Case(
        "divergent_warp", body("c[threadIdx.x] = threadIdx.x < n ? __ballot_sync(0xffffu, 1) : 0;"),
        32, {"thread": (16, 0, 0)}, 16, block=32,
    ),
    "a lane that has returned": Case(
        "divergent_warp", body("if (threadIdx.x >= n) return;\nfloat v = threadIdx.x;\nc[threadIdx.x] = __shfl_down_sync(~0u, v, 1);"),
        20, {"line": 4, "thread": (19, 0, 0)}, 32, block=32,
    ),
    # Ends.
    "a loop without an end": Case("timeout", body("while (true);"), size=1, more={"timeout": 0.2}),
    "a loop that writes": Case("timeout", body("for (;;) c[0] += 1;"), block=1, more={"timeout": 0.2}),
    "a loop that reads": Case("timeout", body("volatile int x = 0; while (!x);"), more={"timeout": 0.2}),
    "trap": Case("trap", body("if (threadIdx.x == 5) __trap();"), 0, {"thread": (5, 0, 0)}),
    "division": Case("division_by_zero", body("c[0] = 7 / n;"), 0, {"line": 2}, 2, block=1),
    "recursion": Case("stack_overflow", RECURSION, block=1),
    "recursion, unwatched": Case("stack_overflow", RECURSION, block=1, more={"check": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mistake(fails: Fails, name: str) -> None:
    case = CASES[name]
    error, c = case.run(lambda *args, **how: fails(case.kind, *args, **how), case.part, case.n)
    assert {key: getattr(error, key) for key in case.found} == case.found and not c.any(), "arrays are as they were"
    if case.right is not None:
        case.run(launch, *((case.right, case.n) if isinstance(case.right, Part) else (case.part, case.right)))


# ---- what is said of it, and what is right computes ----

ADD = "  int i = blockIdx.x * 256 + threadIdx.x;\n  {} c[i] = a[i];"
WRITES, READS, GUARDED = (
    body(ADD.format(guard), "float *c, const float *a, int n") for guard in ("if (i > n) return;", "if (i >= 1024) return;", "if (i < n)")
)


def test_past_the_end(fails: Fails) -> None:
    def call(how: Any, part: Part, *sizes: int) -> Any:
        return how(part, "k", "float* c, const float* a, int n", *map(zeros, sizes), 1000, grid=4, block=256)

    error = call(lambda *args, **how: fails("out_of_bounds", *args, **how), WRITES, 1000, 1001)
    assert (error.tensor, error.index, error.block, error.thread, error.line) == ("c", 1000, (3, 0, 0), (232, 0, 0), 3)
    assert str(error) == "block (3,0,0) thread (232,0,0): write of c[1000], c has 1000 elements, kernel.cu:3"
    error = call(lambda *args, **how: fails("out_of_bounds", *args, **how), READS, 1024, 1000)
    assert (error.tensor, error.index) == ("a", 1000)
    call(launch, GUARDED, 1000, 1000)


AT_N = body("if (c) c[n] = 1;")


@pytest.mark.parametrize("index", [-1, -5000, 10, 123456789])
def test_index_names_the_tensor_meant(fails: Fails, index: int) -> None:
    error = fails("out_of_bounds", AT_N, "k", "float* c, int n", zeros(10), index, block=1)
    assert (error.tensor, error.index) == ("c", index)


NULL = body("c[n] = 1;")


def test_null_pointer(fails: Fails) -> None:
    error = fails("wild_access", NULL, "k", "float* c, int n", None, 3, block=1)
    assert error.tensor == "c" and error.index == 3
    launch(AT_N, "k", "float* c, int n", None, 3, block=1)


COPY = body("memcpy(c, a, n);", "float *c, const float *a, int n")
TO_INPUT = body("const_cast<float *>(a)[1] = 2;", "const float *a")


def test_memory_copies(fails: Fails) -> None:
    a, c = np.arange(10, dtype="f4"), zeros(10)
    launch(COPY, "k", "float* c, const float* a, int n", c, a, 40, block=1)
    assert (c == a).all()
    assert fails("out_of_bounds", COPY, "k", "float* c, const float* a, int n", c, a, 41, block=1).tensor == "a"


def test_write_to_an_input(fails: Fails) -> None:
    error = fails("read_only", TO_INPUT, "k", "const float* a", zeros(4), block=1)
    assert (error.tensor, error.index) == ("a", 1)


def test_missing_barrier(fails: Fails) -> None:
    missing, there = MISSING
    error = fails("race", missing, "k", "float* c, int n", zeros(64), 0, block=64)
    assert {error.line, error.other_line} == {2, 4} and error.thread != error.other and error.tensor == "s"
    c = zeros(64)
    launch(there, "k", "float* c, int n", c, 0, block=64)
    assert (c == np.arange(64)[::-1]).all()


BEYOND = body("if (threadIdx.x >= n) return;\n__syncthreads();\nc[0] = 1;")
ASSERTS = body("assert(threadIdx.x < n);")


def test_what_is_said(fails: Fails) -> None:
    assert "has returned" in str(fails("divergent_barrier", BEYOND, "k", "float* c, int n", zeros(1), 40, block=64))
    error = fails("assertion", ASSERTS, "k", "float* c, int n", zeros(1), 20)
    assert error.thread == (20, 0, 0) and error.line == 2 and "threadIdx.x < n" in str(error)


HALF_WARPS = """unsigned m = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;\nint v = 1;
if (threadIdx.x < 16) v = __reduce_add_sync(m, v); else v = 100 + __popc(__ballot_sync(m, threadIdx.x & 1));\nc[threadIdx.x] = v;"""
SPINS = """__shared__ int flag; if (threadIdx.x == 0) flag = 0;\n__syncthreads();
if (threadIdx.x == 0) while (atomicAdd(&flag, 0) != 63); else atomicAdd(&flag, 1);\nc[threadIdx.x] = 1;"""
RIGHT: dict[str, tuple[Part, int, Any]] = {
    "neighbouring bytes": (
        body("__shared__ unsigned char s[64]; s[threadIdx.x] = threadIdx.x; c[threadIdx.x] = s[threadIdx.x];"),
        64,
        np.arange(64),
    ),
    "counted together": (body(COUNT.replace("ADD", "atomicAdd(&s[0], 1.0f);")), 64, [64, *[0] * 63]),
    "a warp not in step": (IN_STEP, 32, [31 * 16, *[0] * 63]),
    "half warps by masks": (body(HALF_WARPS), 32, [16] * 16 + [108] * 16 + [0] * 32),
    "who spins lets others go on": (body(SPINS), 64, [1] * 64),
    "all of dynamic shared memory": (body(SHARED), 32, [1] * 32 + [0] * 32),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right(name: str) -> None:
    part, block, wanted = RIGHT[name]
    c = zeros(64)
    launch(part, "k", "float* c, int n", c, 0, block=block, shared=128)
    assert c.tolist() == list(wanted)


COUNT_PLAINLY = body(COUNT.replace("ADD", "s[0] += 1;"))
RACE = body("__shared__ float s[64]; s[threadIdx.x % 32] = threadIdx.x; c[threadIdx.x] = s[(threadIdx.x + 1) % 32];")
LATER = body("__shared__ volatile float s; if (blockIdx.x) s = threadIdx.x;\nc[threadIdx.x] = 1;")


def test_races_can_be_left_out(fails: Fails) -> None:
    fails("race", COUNT_PLAINLY, "k", "float* c, int n", zeros(1), 0, block=100)
    fails("race", RACE, "k", "float* c, int n", zeros(64), 0, block=64)
    launch(RACE, "k", "float* c, int n", zeros(64), 0, block=64, check=())
    fails("race", RACE, "k", "float* c, int n", zeros(64), 0, block=64, check=False)
    fails("race", LATER, "k", "float* c, int n", zeros(64), 0, block=64, grid=2)
    launch(LATER, "k", "float* c, int n", zeros(64), 0, block=64, grid=2, check=False)


PASSES = body(
    "__shared__ int s[64]; if (threadIdx.x >= n) return;\ns[threadIdx.x] = threadIdx.x;\n__syncthreads();\n"
    "c[threadIdx.x] = s[n - 1 - threadIdx.x] + 100 * __syncthreads_count(1);"
)
GOES_ON = body("if (threadIdx.x < n)\n__syncthreads();\nelse if (threadIdx.x > n) __syncwarp(1u << threadIdx.x % 32), __syncthreads();")


def test_exited_threads_may_pass(fails: Fails) -> None:
    """From sm_70 on a barrier waits for the threads that have not returned."""
    assert 'exited_threads="allow"' in str(fails("divergent_barrier", PASSES, "k", "float* c, int n", zeros(64), 40, block=64))
    c = zeros(64)
    launch(PASSES, "k", "float* c, int n", c, 40, block=64, exited_threads="allow")
    assert c.tolist() == [4000 + 39 - i for i in range(40)] + [0] * 24
    fails("divergent_barrier", GOES_ON, "k", "float* c, int n", zeros(1), 40, block=64, exited_threads="allow")
    fails("launch", PASSES, "k", "float* c, int n", zeros(64), 40, block=64, exited_threads="maybe")


def warp_sum(volatile: str, step: str = "s[i] += s[i + STEP];") -> Part:
    steps = " ".join(step.replace("STEP", str(one)) for one in (32, 16, 8, 4, 2, 1))
    return body(
        """__shared__ float s[512]; int i = threadIdx.x; s[i] = 1; __syncthreads();
for (int half = 256; half > 32; half /= 2) { if (i < half) s[i] += s[i + half]; __syncthreads(); }
if (i < 32) last_warp(s, i);
if (i == 0) c[blockIdx.x] = s[0];""",
        before=f"__device__ void last_warp({volatile}float *s, int i) {{ {steps} }}\n",
    )


SUMS = {volatile: warp_sum(volatile) for volatile in ("", "volatile ")}
GOOD_SUM = warp_sum("", "{ float own = s[i + STEP]; __syncwarp(); s[i] += own; __syncwarp(); }")


@pytest.mark.parametrize("check", [True, False])
def test_code_that_relies_on_warps_in_step_is_never_silently_wrong(fails: Fails, check: bool) -> None:
    for source in SUMS.values():
        assert "s (shared" in str(fails("race", source, "k", "float* c, int n", zeros(2), 0, grid=2, block=512, check=check))
    c = zeros(2)
    launch(GOOD_SUM, "k", "float* c, int n", c, 0, grid=2, block=512, check=check)
    assert c.tolist() == [512, 512]


CALLS = body('if (threadIdx.x == 0) { c[blockIdx.x] += ++calls; printf("%d.", blockIdx.x); }', before="__device__ int calls;")


def test_the_first_block_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs twice without checks: what it wrote and printed the first time is gone."""
    c = zeros(3)
    launch(CALLS, "k", "float* c, int n", c, 0, grid=3, block=32, check=False)
    assert c.tolist() == [1, 2, 3] and capsys.readouterr().out == "0.1.2."


OVERFLOWS = body("int row = 70000 + threadIdx.x, width = n;\nint at = row * width;\nc[at + 3] = 1;")
HASH = "int h = 17;\nfor (int i = 0; i < 20; i++) h = h * 31 + n;\nc[AT] = h & 3;"
HASHES, BEYOND_HASHES = (body(HASH.replace("AT", at)) for at in ("threadIdx.x", "n"))
UNSIGNED = body("unsigned row = 70000 + threadIdx.x;\nc[row * n] = 1;")


def test_index_that_overflowed(fails: Fails) -> None:
    error = fails("out_of_bounds", OVERFLOWS, "k", "float* c, int n", zeros(100), 70000, block=1)
    assert error.index == 605032707 and "70000 * 70000 in line 3, which 'int' cannot hold: compute it in long long" in str(error)
    # Overflow that is no index is nobody's business.
    launch(HASHES, "k", "float* c, int n", zeros(32), 70000)
    error = fails("out_of_bounds", BEYOND_HASHES, "k", "float* c, int n", zeros(32), 70000)
    assert "long long" not in str(error)
    assert "32 bits could not hold" in str(fails("wild_access", UNSIGNED, "k", "float* c, int n", zeros(100), 70000, block=1))


LOCALS = body("float sum; int count[4]; if (n) { sum = 0; count[0] = 0; }\nc[0] = sum; c[1] = count[n & 3] == 0;")


def test_locals_are_not_zero_by_chance() -> None:
    c = zeros(2)
    launch(LOCALS, "k", "float* c, int n", c, 0, block=1)
    assert c[0] != 0 and c[1] == 0
