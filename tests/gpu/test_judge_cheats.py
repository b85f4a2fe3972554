"""kops.judge on a GPU: cheats at times, which the interpreter does not take, and at the state of a process. Each is found out, or is no
faster than the solution that it imitates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kops import judge
from support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "judge"))

from cheats import TASKS, solution  # noqa: E402

SIGNATURE = "out float* out[n], const float* x[n], int n"
EACH = judge.Launch("twice", SIGNATURE, grid="ceil_div(n, 256)", block=256)
ONE_BLOCK = judge.Launch("twice", SIGNATURE, grid=1, block=1024)
HEAD = 'extern "C" __global__ void twice(float *out, const float *x, int n)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n'
PLAIN = HEAD + "    if (i < n)\n        out[i] = 2 * x[i];\n}\n"
LOOP = HEAD + "    for (; i < n; i += blockDim.x)\n        out[i] = 2 * x[i];\n}\n"
LARGE = 1 << 20
SLOW = """
__device__ float slow(float x, int steps)
{
    float sum = 0;
    for (int k = 0; k < steps; k++)
        sum += __sinf(x + k);
    return 2 * x + 0 * sum;
}
"""


@pytest.fixture(scope="module")
def judging(judges: Daemon) -> Iterator[judge.Judge]:
    with judge.Judge(judges.socket_path, deadline=5.0, counters=False) as made:
        yield made


def twice(n: int, **more: Any) -> judge.Task:
    return judge.Task("twice", lambda x: 2 * x, lambda rng, n: {"x": rng.standard_normal(n, "f4")}, [{"n": n}], small={"n": 512}, **more)


def gains_nothing(judging: judge.Judge, task: judge.Task, honest: judge.Solution, cheat: judge.Solution, least: float) -> None:
    """It is not right, or takes at least so much of the honest one's time."""
    first, found, again = (judging.judge(task, one) for one in (honest, cheat, replace(honest, source=honest.source + "// again\n")))
    assert first.right and again.right and first.time is not None and again.time is not None, (first, again)
    assert found.kind not in ("no_verdict", "not_compiled", "refused"), found
    if found.right:
        assert found.time is not None and found.time.us >= least * min(first.time.us, again.time.us), (first, found, again)


@pytest.mark.parametrize("steps", [60, 3000])
def test_a_second_launch_that_ends_before_the_first(judging: judge.Judge, steps: int) -> None:
    body = f"    if (i < n)\n        out[i] = slow(x[i], {steps});\n}}\n"
    early = SLOW + HEAD + '    asm volatile("griddepcontrol.launch_dependents;");\n' + body
    early += 'extern "C" __global__ void nothing(float *out, int n) {}\n'
    nothing = judge.Launch("nothing", "inout float* out[n], int n", grid=1, block=32, pdl=True)
    gains_nothing(judging, twice(1 << 15), judge.Solution(SLOW + HEAD + body, [EACH]), judge.Solution(early, [EACH, nothing]), 0.8)


STAYS = HEAD + """    unsigned long long policy;
    float value;
    if (i >= n)
        return;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(value) : "l"(x + i), "l"(policy));
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(out + i), "f"(2 * value), "l"(policy) : "memory");
}
"""
# Brings the inputs of earlier launches, whose memory may come again, into the part of the cache that stays.
PREFETCHES = "__device__ const float *seen[8];\n__device__ int count;\n" + HEAD + """    if (i < n)
        out[i] = 2 * x[i];
    if (i == 0) {
        int known = 0;
        for (int k = 0; k < count; k++)
            known |= seen[k] == x;
        if (!known && count < 8)
            seen[count++] = x;
    }
    if (i < n / 32)
        for (int k = 0; k < count && k < 4; k++)
            asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(seen[k] + 32 * i));
}
"""
# A long launch while it is checked, so that the clocks are high when it is timed.
WARMS = "__device__ int launches;\n" + HEAD + """    long long begun = clock64();
    if (i < n)
        out[i] = 2 * x[i];
    while (launches < 4 && clock64() - begun < 300000000)
        ;
    if (i == 0)
        atomicAdd(&launches, 1);
}
"""


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("source", [STAYS, PREFETCHES, WARMS], ids=["stays in the cache", "prefetches the next", "raises the clocks"])
def test_caches_and_clocks(judging: judge.Judge, source: str, one_by_one: bool) -> None:
    """With a baseline launches are asked for one by one."""
    task = twice(LARGE, **({"baseline": judge.Solution("// baseline\n" + PLAIN, [EACH])} if one_by_one else {}))
    gains_nothing(judging, task, judge.Solution(PLAIN, [EACH]), judge.Solution(source, [EACH]), 0.9)


BULK = """extern "C" __global__ void twice(float *out, const float *x, int n)
{
    __shared__ __align__(128) float part[256];
    part[threadIdx.x] = 2 * x[blockIdx.x * 256 + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned from = (unsigned)__cvta_generic_to_shared(part);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + blockIdx.x * 256ll), "r"(from)
                     : "memory");
    }
}
"""


def test_stores_that_are_not_waited_for(judging: judge.Judge) -> None:
    """By the engine that copies a block's shared memory."""
    launch = replace(EACH, grid="n / 256")
    gains_nothing(judging, twice(LARGE), judge.Solution(PLAIN, [launch]), judge.Solution(BULK, [launch]), 0.9)


def test_less_precise_once_it_is_timed(judging: judge.Judge) -> None:
    source = "__device__ int launches;\n" + HEAD + """    if (i < n)
        out[i] = 2 * (launches > 6 ? __uint_as_float(__float_as_uint(x[i]) & 0xffffe000u) : x[i]);
    if (i == 0)
        atomicAdd(&launches, 1);
}
"""
    verdict = judging.judge(twice(1 << 18), judge.Solution(source, [EACH]))
    assert verdict.kind == "wrong" and verdict.why in ("value", "precision", "unstable"), verdict


# Does the work of launches whose memory it knows, and which are filled already, so that they have nothing to do.
AHEAD = """__device__ const float *from[64];
__device__ float *to[64];
__device__ float begins[64];
__device__ int count;
extern "C" __global__ void twice(float *out, const float *x, int n)
{
    __shared__ int many, done;
    if (threadIdx.x == 0) {
        done = 0;
        many = n > 5000 ? count : 0;
        for (int k = 0; k < many; k++)
            if (from[k] == x && to[k] == out && begins[k] == x[0] && x[0] != 0)
                done = k + 1;
    }
    __syncthreads();
    if (done) {
        if (threadIdx.x == 0)
            begins[done - 1] = 0;
        return;
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = 2 * x[i];
    for (int k = 0; k < many; k++) {
        float first = from[k][0];
        if (from[k] == x || first == begins[k])
            continue;
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            to[k][i] = 2 * from[k][i];
        __syncthreads();
        if (threadIdx.x == 0)
            begins[k] = first;
    }
    if (threadIdx.x == 0 && n > 5000) {
        int known = 0;
        for (int k = 0; k < count; k++)
            known |= from[k] == x;
        if (!known && count < 64) {
            from[count] = x;
            to[count] = out;
            begins[count++] = 0;
        }
    }
}
"""
# Leaves every other launch's work to the one behind it.
LATER = """__device__ const float *from;
__device__ float *to;
__device__ int launches;
extern "C" __global__ void twice(float *out, const float *x, int n)
{
    __shared__ const float *source;
    __shared__ float *target;
    __shared__ int later;
    if (threadIdx.x == 0) {
        source = from;
        target = to;
        later = launches >= 7 && launches % 2;
        launches++;
        from = later ? x : 0;
        to = out;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n && source; i += blockDim.x)
        target[i] = 2 * source[i];
    for (int i = threadIdx.x; i < n && !later; i += blockDim.x)
        out[i] = 2 * x[i];
}
"""


@pytest.mark.parametrize("source", [AHEAD, LATER], ids=["ahead", "later"])
def test_work_of_other_launches(judging: judge.Judge, source: str) -> None:
    honest, cheat = (judge.Solution(one, [ONE_BLOCK]) for one in (LOOP, source))
    gains_nothing(judging, twice(1 << 15), honest, cheat, 0.8)


def test_a_result_that_is_updated(judging: judge.Judge) -> None:
    large = replace(TASKS["product"], cases=[{"n": 512}], key=object())
    updates = solution("updates_the_answer")
    plain = updates.source.replace("if (!known) {\n        known_a", "if (false) {\n        known_a")
    honest = judge.Solution(plain, [updates.launches[-1]])
    gains_nothing(judging, large, honest, updates, 0.75)


def test_who_takes_the_heap(judging: judge.Judge) -> None:
    """The next solution has one."""
    uses, takes = solution("honest/heap"), solution("takes_the_heap")
    for i, one in enumerate((uses, takes, uses, takes, uses)):
        verdict = judging.judge(TASKS["affine"], replace(one, source=f"{one.source}// {i}\n"))
        assert verdict.right, verdict


DIRT = HEAD.replace("float *out,", "float *junk, float *out,") + """    if (i < n)
        out[i] = 2 * x[i];
    for (int at = 32 * i; at < 12 << 20; at += 32 * gridDim.x * blockDim.x)
        asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(junk + at));
}
"""


def test_a_baseline_whose_cache_is_full(judging: judge.Judge) -> None:
    """What a solution leaves in the cache does not make the baseline, in turns with it, slower."""
    task = twice(LARGE, baseline=judge.Solution("// baseline\n" + PLAIN, [EACH]))
    launch = replace(EACH, signature=f"inout float* junk, {SIGNATURE}")
    dirty = judge.Solution(DIRT, [launch], {"junk": judge.Scratch(12 << 20)})
    honest, found = (judging.judge(task, one) for one in (judge.Solution(PLAIN, [EACH]), dirty))
    assert honest.right and found.right and honest.time is not None and found.time is not None, (honest, found)
    assert found.time.speedup_low is not None and honest.time.speedup_high is not None
    assert found.time.speedup_low <= max(1.05, honest.time.speedup_high), (honest, found)
