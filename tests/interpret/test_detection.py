"""Each mistake is found and named, and the kernel beside it that is right is not reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import launch

Fails = Callable[..., Any]


def zeros(n: int, dtype: str = "f4") -> Any:
    return np.zeros(n, dtype)


def body(text: str, parameters: str = "float *c, int n") -> str:
    """A kernel on line 1, whose statements begin on line 2."""
    return f"__global__ void k({parameters}) {{\n{text}\n}}\n"


# ---- out of bounds ----

ADD = "__global__ void add(float *c, const float *a, int n) {\n  int i = blockIdx.x * 256 + threadIdx.x;\n  %s c[i] = a[i];\n}"


def test_write_past_the_end(fails: Fails) -> None:
    source = ADD.replace("a[i]", "1.0f") % ""
    error = fails("out_of_bounds", source, "add", "float* c, const float* a, int n", zeros(1000), zeros(1000), 1000, grid=4, block=256)
    assert (error.tensor, error.index, error.block, error.thread, error.line) == ("c", 1000, (3, 0, 0), (232, 0, 0), 3)
    assert str(error) == "block (3,0,0) thread (232,0,0): write of c[1000], c has 1000 elements, kernel.cu:3"


def test_read_past_the_end(fails: Fails) -> None:
    error = fails("out_of_bounds", ADD % "", "add", "float* c, const float* a, int n", zeros(1024), zeros(1000), 1000, grid=4, block=256)
    assert (error.tensor, error.index) == ("a", 1000)


def test_guarded_tail() -> None:
    launch(ADD % "if (i < n)", "add", "float* c, const float* a, int n", zeros(1000), zeros(1000), 1000, grid=4, block=256)


@pytest.mark.parametrize("index", [-1, -5000, 10, 123456789])
def test_index_names_the_tensor_meant(fails: Fails, index: int) -> None:
    error = fails("out_of_bounds", body("c[n] = 1;"), "k", "float* c, int n", zeros(10), index, block=1)
    assert (error.tensor, error.index) == ("c", index)


def test_empty_tensor(fails: Fails) -> None:
    assert fails("out_of_bounds", body("c[0] = 1;"), "k", "float* c, int n", zeros(0), 0, block=1).index == 0


def test_arrays_are_untouched_after_an_error(fails: Fails) -> None:
    c = zeros(10)
    fails("out_of_bounds", body("c[threadIdx.x] = 1;"), "k", "float* c, int n", c, 0)
    assert not c.any()


@pytest.mark.parametrize(("shared", "good"), [(128, True), (124, False)])
def test_dynamic_shared_memory(fails: Fails, shared: int, good: bool) -> None:
    source = body("extern __shared__ float s[]; s[threadIdx.x] = 1; c[threadIdx.x] = s[threadIdx.x];")
    if good:
        launch(source, "k", "float* c, int n", zeros(32), 0, shared=shared)
    else:
        assert fails("out_of_bounds", source, "k", "float* c, int n", zeros(32), 0, shared=shared).thread == (31, 0, 0)


@pytest.mark.parametrize("where", ["__shared__ float s[32];", "float s[32];"])
def test_declared_array(fails: Fails, where: str) -> None:
    source = body(f"{where} for (int i = 0; i < 32; i++) s[i] = i;\n__syncthreads(); c[0] = s[n];")
    error = fails("out_of_bounds", source, "k", "float* c, int n", zeros(1), 32, block=1)
    assert error.index == 32 and error.line == 3
    launch(source, "k", "float* c, int n", zeros(1), 31, block=1)


def test_memory_copies(fails: Fails) -> None:
    source = body("memcpy(c, a, n);", "float *c, const float *a, int n")
    a, c = np.arange(10, dtype="f4"), zeros(10)
    launch(source, "k", "float* c, const float* a, int n", c, a, 40, block=1)
    assert (c == a).all()
    assert fails("out_of_bounds", source, "k", "float* c, const float* a, int n", c, a, 41, block=1).tensor == "a"


# ---- other addresses ----


def test_write_to_an_input(fails: Fails) -> None:
    source = body("const_cast<float *>(a)[1] = 2;", "const float *a")
    error = fails("read_only", source, "k", "const float* a", zeros(4), block=1)
    assert (error.tensor, error.index) == ("a", 1)


def test_null_pointer(fails: Fails) -> None:
    error = fails("wild_access", body("c[n] = 1;"), "k", "float* c, int n", None, 3, block=1)
    assert error.tensor == "c" and error.index == 3
    launch(body("if (c) c[n] = 1;"), "k", "float* c, int n", None, 3, block=1)


def test_wild_pointer(fails: Fails) -> None:
    source = body("float *p = reinterpret_cast<float *>(0x123456789000ull + n * 4);\n*p = 1;")
    assert fails("wild_access", source, "k", "float* c, int n", zeros(1), 3, block=1).line == 3


def test_local_variable_of_another_thread(fails: Fails) -> None:
    source = body("__shared__ int *p; int mine = n;\nif (threadIdx.x == 0) p = &mine;\n__syncthreads();\n"
                  "c[threadIdx.x] = *p;\n__syncthreads();")  # fmt: skip
    assert fails("wild_access", source, "k", "float* c, int n", zeros(32), 3).line == 5


def test_misaligned_vector(fails: Fails) -> None:
    source = body("*reinterpret_cast<float4 *>(c + n) = make_float4(1, 2, 3, 4);")
    fails("misaligned", source, "k", "float* c, int n", zeros(8), 1, block=1)
    launch(source, "k", "float* c, int n", zeros(8), 4, block=1)


# ---- races ----


def test_missing_barrier(fails: Fails) -> None:
    source = body("__shared__ float s[64]; s[threadIdx.x] = threadIdx.x;\n%s\nc[threadIdx.x] = s[63 - threadIdx.x];")
    error = fails("race", source % "", "k", "float* c, int n", zeros(64), 0, block=64)
    assert {error.line, error.other_line} == {2, 4} and error.thread != error.other and error.tensor == "s"
    c = zeros(64)
    launch(source % "__syncthreads();", "k", "float* c, int n", c, 0, block=64)
    assert (c == np.arange(64)[::-1]).all()


LOOP = """
__global__ void k(float *c, int n) {{
    __shared__ float s[64];
    for (int i = 0; i < n; i++) {{
        s[threadIdx.x] = i + threadIdx.x;
        __syncthreads();
        c[threadIdx.x] += s[(threadIdx.x + 1) % 64];
        {}
    }}
}}
"""


def test_barrier_missing_at_the_end_of_a_loop(fails: Fails) -> None:
    fails("race", LOOP.format(""), "k", "float* c, int n", zeros(64), 3, block=64)
    launch(LOOP.format("__syncthreads();"), "k", "float* c, int n", zeros(64), 3, block=64)
    doubled = LOOP.format("").replace("s[", "s[i % 2 * 64 + ").replace("s[i % 2 * 64 + 64]", "s[128]")
    launch(doubled, "k", "float* c, int n", zeros(64), 9, block=64)


@pytest.mark.parametrize(("add", "good"), [("s[0] += 1;", False), ("atomicAdd(&s[0], 1.0f);", True)])
def test_counting_together(fails: Fails, add: str, good: bool) -> None:
    source = body(f"__shared__ float s[1]; if (threadIdx.x == 0) s[0] = 0;\n__syncthreads();\n{add}\n__syncthreads(); c[0] = s[0];")
    c = zeros(1)
    if good:
        launch(source, "k", "float* c, int n", c, 0, block=100)
        assert c[0] == 100
    else:
        fails("race", source, "k", "float* c, int n", c, 0, block=100)


@pytest.mark.parametrize(("value", "good"), [("1", True), ("threadIdx.x / 2", False)])
def test_threads_that_write_the_same(fails: Fails, value: str, good: bool) -> None:
    source = body(f"__shared__ int s; s = {value};\n__syncthreads();\nc[threadIdx.x] = s;")
    if good:
        launch(source, "k", "float* c, int n", zeros(64), 0, block=64)
    else:
        error = fails("race", source, "k", "float* c, int n", zeros(64), 0, block=64)
        assert error.line == error.other_line == 2 and (error.other, error.thread) == ((1, 0, 0), (2, 0, 0))


def test_plain_read_beside_atomics(fails: Fails) -> None:
    source = body("__shared__ int s; if (threadIdx.x == 0) s = 0;\n__syncthreads();\natomicAdd(&s, 1);\nc[threadIdx.x] = s;")
    fails("race", source, "k", "float* c, int n", zeros(64), 0, block=64)


WARP = """
__global__ void k(float *c, int n) {
    __shared__ float s[32];
    s[threadIdx.x] = threadIdx.x;
    %s
    for (int d = 16; d; d /= 2) {
        float v = threadIdx.x < d ? s[threadIdx.x + d] : 0;
        %s
        if (threadIdx.x < d) s[threadIdx.x] += v;
        %s
    }
    if (threadIdx.x == 0) c[0] = s[0];
}
"""


def test_threads_of_a_warp_are_not_in_step(fails: Fails) -> None:
    c = zeros(1)
    launch(WARP % (("__syncwarp();",) * 3), "k", "float* c, int n", c, 0)
    assert c[0] == 31 * 16
    fails("race", WARP % ("", "", ""), "k", "float* c, int n", c, 0)
    fails("race", WARP % ("__syncwarp();", "", ""), "k", "float* c, int n", c, 0)


def test_syncwarp_orders_one_warp_only(fails: Fails) -> None:
    source = body("__shared__ float s[64]; s[threadIdx.x] = 1;\n__syncwarp();\nc[threadIdx.x] = s[threadIdx.x ^ n];")
    launch(source, "k", "float* c, int n", zeros(64), 1, block=64)
    fails("race", source, "k", "float* c, int n", zeros(64), 32, block=64)


def test_neighbouring_bytes() -> None:
    source = body("__shared__ unsigned char s[64]; s[threadIdx.x] = threadIdx.x; c[threadIdx.x] = s[threadIdx.x];")
    c = zeros(64)
    launch(source, "k", "float* c, int n", c, 0, block=64)
    assert (c == np.arange(64)).all()


def test_bytes_of_one_word(fails: Fails) -> None:
    source = body("__shared__ unsigned char s[64]; s[threadIdx.x] = 1;\nc[threadIdx.x] = s[threadIdx.x ^ 2];")
    fails("race", source, "k", "float* c, int n", zeros(64), 0, block=64)


def test_races_can_be_left_out(fails: Fails) -> None:
    source = body("__shared__ float s[64]; s[threadIdx.x % 32] = threadIdx.x; c[threadIdx.x] = s[(threadIdx.x + 1) % 32];")
    fails("race", source, "k", "float* c, int n", zeros(64), 0, block=64)
    launch(source, "k", "float* c, int n", zeros(64), 0, block=64, check=())
    fails("race", source, "k", "float* c, int n", zeros(64), 0, block=64, check=False)
    later = body("__shared__ volatile float s; if (blockIdx.x) s = threadIdx.x;\nc[threadIdx.x] = 1;")
    fails("race", later, "k", "float* c, int n", zeros(64), 0, block=64, grid=2)
    launch(later, "k", "float* c, int n", zeros(64), 0, block=64, grid=2, check=False)


# ---- uninitialised shared memory ----


def test_shared_memory_is_not_zero(fails: Fails) -> None:
    source = body("__shared__ float s[64];\nif (threadIdx.x < n) s[threadIdx.x] = 1;\n__syncthreads();\nc[threadIdx.x] = s[threadIdx.x];")
    launch(source, "k", "float* c, int n", zeros(64), 64, block=64)
    error = fails("uninitialised", source, "k", "float* c, int n", zeros(64), 60, block=64)
    assert error.thread == (60, 0, 0) and error.line == 5


def test_index_that_nobody_has_written(fails: Fails) -> None:
    source = body("__shared__ int s[64]; if (threadIdx.x < n) s[threadIdx.x] = threadIdx.x;\n__syncthreads();\nc[s[threadIdx.x]] = 1;")
    fails("uninitialised", source, "k", "float* c, int n", zeros(64), 60, block=64)


def test_shared_memory_is_new_for_each_block(fails: Fails) -> None:
    source = body("__shared__ int s; if (blockIdx.x == 0 && threadIdx.x == 0) s = 1;\n__syncthreads(); c[blockIdx.x] = s;")
    assert fails("uninitialised", source, "k", "float* c, int n", zeros(2), 0, grid=2).block == (1, 0, 0)


# ---- barriers and collectives ----


def test_barrier_that_some_threads_skip(fails: Fails) -> None:
    source = body("if (threadIdx.x < n)\n__syncthreads();\nc[0] = 1;")
    error = fails("divergent_barrier", source, "k", "float* c, int n", zeros(1), 40, block=64)
    assert error.line == 3 and error.thread == (0, 0, 0) and error.other == (40, 0, 0)
    launch(source, "k", "float* c, int n", zeros(1), 64, block=64)
    launch(source, "k", "float* c, int n", zeros(1), 0, block=64)


def test_return_before_a_barrier(fails: Fails) -> None:
    source = body("if (threadIdx.x >= n) return;\n__syncthreads();\nc[0] = 1;")
    assert "has returned" in str(fails("divergent_barrier", source, "k", "float* c, int n", zeros(1), 40, block=64))


def test_two_barriers(fails: Fails) -> None:
    source = body("if (threadIdx.x < n) {\n__syncthreads();\n} else {\n__syncthreads();\n}\nc[0] = 1;")
    error = fails("divergent_barrier", source, "k", "float* c, int n", zeros(1), 32, block=64)
    assert {error.line, error.other_line} == {3, 5}


def test_barrier_in_a_uniform_loop() -> None:
    source = body("for (int i = 0; i < n; i++) { if (i % 2) __syncthreads(); else __syncthreads_count(1); } c[0] = 1;")
    launch(source, "k", "float* c, int n", zeros(1), 7, block=64)


def test_collective_that_a_lane_does_not_reach(fails: Fails) -> None:
    source = body("float v = 1;\nif (threadIdx.x < n)\nv = __shfl_down_sync(0xffffffffu, v, 1);\n__syncwarp(); c[threadIdx.x] = v;")
    error = fails("divergent_warp", source, "k", "float* c, int n", zeros(32), 16)
    assert error.line == 4 and error.other == (16, 0, 0)
    launch(source, "k", "float* c, int n", zeros(32), 32)


def test_lane_that_is_not_in_the_mask(fails: Fails) -> None:
    source = body("c[threadIdx.x] = __ballot_sync(0xffffu, 1);")
    assert fails("divergent_warp", source, "k", "float* c, int n", zeros(32), 0).thread == (16, 0, 0)
    launch(source, "k", "float* c, int n", zeros(16), 0, block=16)


def test_shuffle_from_a_lane_that_has_returned(fails: Fails) -> None:
    source = body("if (threadIdx.x >= n) return;\nfloat v = threadIdx.x;\nc[threadIdx.x] = __shfl_down_sync(~0u, v, 1);")
    error = fails("divergent_warp", source, "k", "float* c, int n", zeros(32), 20)
    assert error.line == 4 and error.thread == (19, 0, 0)


def test_half_warps_by_mask() -> None:
    source = body("unsigned m = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;\nint v = 1;\n"
                  "if (threadIdx.x < 16) v = __reduce_add_sync(m, v); else v = 100 + __popc(__ballot_sync(m, threadIdx.x & 1));\n"
                  "c[threadIdx.x] = v;")  # fmt: skip
    c = zeros(32)
    launch(source, "k", "float* c, int n", c, 0)
    assert (c[:16] == 16).all() and (c[16:] == 108).all()


# ---- ends ----


@pytest.mark.parametrize("loop", ["while (true);", "for (;;) c[0] += 1;", "volatile int x = 0; while (!x);"])
def test_endless_kernel(fails: Fails, loop: str) -> None:
    fails("timeout", body(loop), "k", "float* c, int n", zeros(1), 0, timeout=0.2)


def test_spinning_lets_others_go_on() -> None:
    source = body("__shared__ int flag; if (threadIdx.x == 0) flag = 0;\n__syncthreads();\n"
                  "if (threadIdx.x == 0) while (atomicAdd(&flag, 0) != 63); else atomicAdd(&flag, 1);\nc[threadIdx.x] = 1;")  # fmt: skip
    c = zeros(64)
    launch(source, "k", "float* c, int n", c, 0, block=64)
    assert c.all()


def test_assertion(fails: Fails) -> None:
    source = "#include <assert.h>\n" + body("assert(threadIdx.x < n);")
    error = fails("assertion", source, "k", "float* c, int n", zeros(1), 20)
    assert error.thread == (20, 0, 0) and error.line == 3 and "threadIdx.x < n" in str(error)


def test_trap(fails: Fails) -> None:
    assert fails("trap", body("if (threadIdx.x == 5) __trap();"), "k", "float* c, int n", zeros(1), 0).thread == (5, 0, 0)


def test_division_by_zero(fails: Fails) -> None:
    source = body("c[0] = 7 / n;")
    error = fails("division_by_zero", source, "k", "float* c, int n", zeros(1), 0, block=1)
    assert error.line == 2
    launch(source, "k", "float* c, int n", zeros(1), 2, block=1)


@pytest.mark.parametrize("check", [True, False])
def test_endless_recursion(fails: Fails, check: bool) -> None:
    source = "__device__ __noinline__ int deep(int n) { volatile int x[8]; x[n & 7] = n; return n < 0 ? 0 : deep(n + 1) + x[n & 7]; }\n"
    source += body("c[0] = deep(n);")
    fails("stack_overflow", source, "k", "float* c, int n", zeros(1), 0, block=1, check=check)


def test_wild_pointer_without_checks(fails: Fails) -> None:
    source = body("c[0] = *reinterpret_cast<int *>(64 + n);")
    fails("wild_access", source, "k", "float* c, int n", zeros(1), 0, block=1, check=False)


def test_exited_threads_may_pass(fails: Fails) -> None:
    """From sm_70 on a barrier waits for the threads that have not returned."""
    source = body("__shared__ int s[64]; if (threadIdx.x >= n) return;\ns[threadIdx.x] = threadIdx.x;\n__syncthreads();\n"
                  "c[threadIdx.x] = s[n - 1 - threadIdx.x] + 100 * __syncthreads_count(1);")  # fmt: skip
    assert 'exited_threads="allow"' in str(fails("divergent_barrier", source, "k", "float* c, int n", zeros(64), 40, block=64))
    c = zeros(64)
    launch(source, "k", "float* c, int n", c, 40, block=64, exited_threads="allow")
    assert c.tolist() == [4000 + 39 - i for i in range(40)] + [0] * 24
    skips = body("if (threadIdx.x < n)\n__syncthreads();\nelse if (threadIdx.x > n) __syncwarp(1u << threadIdx.x % 32), __syncthreads();")
    fails("divergent_barrier", skips, "k", "float* c, int n", zeros(1), 40, block=64, exited_threads="allow")
    fails("launch", source, "k", "float* c, int n", zeros(64), 40, block=64, exited_threads="maybe")


WARP_SUM = """
__device__ void last_warp({volatile}float *s, int i) {{
    s[i] += s[i + 32]; s[i] += s[i + 16]; s[i] += s[i + 8];
    s[i] += s[i + 4]; s[i] += s[i + 2]; s[i] += s[i + 1];
}}
__global__ void k(float *c, int n) {{
    __shared__ float s[512];
    int i = threadIdx.x;
    s[i] = 1;
    __syncthreads();
    for (int half = 256; half > 32; half /= 2) {{ if (i < half) s[i] += s[i + half]; __syncthreads(); }}
    if (i < 32) last_warp(s, i);
    if (i == 0) c[blockIdx.x] = s[0];
}}
"""


@pytest.mark.parametrize("volatile", ["", "volatile "])
@pytest.mark.parametrize("check", [True, False])
def test_code_that_relies_on_warps_in_step_is_never_silently_wrong(fails: Fails, volatile: str, check: bool) -> None:
    source = WARP_SUM.format(volatile=volatile)
    error = fails("race", source, "k", "float* c, int n", zeros(2), 0, grid=2, block=512, check=check)
    assert "s (shared" in str(error)
    good = source
    for step in (32, 16, 8, 4, 2, 1):
        good = good.replace(f"s[i] += s[i + {step}];", f"{{ float own = s[i + {step}]; __syncwarp(); s[i] += own; __syncwarp(); }}")
    c = zeros(2)
    launch(good, "k", "float* c, int n", c, 0, grid=2, block=512, check=check)
    assert c.tolist() == [512, 512]


def test_the_first_block_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs twice without checks: what it wrote and printed the first time is gone."""
    source = "__device__ int calls;\n#include <cstdio>\n"
    source += body('if (threadIdx.x == 0) { c[blockIdx.x] += ++calls; printf("%d.", blockIdx.x); }')
    c = zeros(3)
    launch(source, "k", "float* c, int n", c, 0, grid=3, block=32, check=False)
    assert c.tolist() == [1, 2, 3] and capsys.readouterr().out == "0.1.2."


def test_index_that_overflowed(fails: Fails) -> None:
    source = body("int row = 70000 + threadIdx.x, width = n;\nint at = row * width;\nc[at + 3] = 1;")
    error = fails("out_of_bounds", source, "k", "float* c, int n", zeros(100), 70000, block=1)
    assert error.index == 605032707 and "70000 * 70000 in line 3, which 'int' cannot hold: compute it in long long" in str(error)
    # Overflow that is no index is nobody's business.
    hash_of = body("int h = 17;\nfor (int i = 0; i < 20; i++) h = h * 31 + n;\nc[threadIdx.x] = h & 3;")
    launch(hash_of, "k", "float* c, int n", zeros(32), 70000)
    error = fails("out_of_bounds", hash_of.replace("c[threadIdx.x]", "c[n]"), "k", "float* c, int n", zeros(32), 70000)
    assert "long long" not in str(error)
    unsigned = body("unsigned row = 70000 + threadIdx.x;\nc[row * n] = 1;")
    assert "32 bits could not hold" in str(fails("wild_access", unsigned, "k", "float* c, int n", zeros(100), 70000, block=1))


def test_locals_are_not_zero_by_chance() -> None:
    source = body("float sum; int count[4]; if (n) { sum = 0; count[0] = 0; }\nc[0] = sum; c[1] = count[n & 3] == 0;")
    c = zeros(2)
    launch(source, "k", "float* c, int n", c, 0, block=1)
    assert c[0] != 0 and c[1] == 0


def test_write_before_atomics_of_the_same_thread(fails: Fails) -> None:
    """The atomic operation that follows does not make the plain write one."""
    source = body("__shared__ int s; if (threadIdx.x == 0) s = 0;\natomicAdd(&s, 1);\n__syncthreads();\nc[0] = s;")
    assert fails("race", source, "k", "float* c, int n", zeros(1), 0, block=64).line in (2, 3)
    launch(source.replace("s = 0;\n", "s = 0; __syncthreads();\n"), "k", "float* c, int n", zeros(1), 0, block=64)
