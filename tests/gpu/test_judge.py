"""kops.judge on a GPU: faults beside tensors, what solutions leave to each other, and times that are true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kops import judge
from support.daemon import Daemon

SIGNATURE = "out float* y[n], const float* x[n], int n"
LAUNCH = judge.Launch("scale", SIGNATURE, grid="min(ceil_div(n, 256), 32 * multiprocessors)", block=256)
EACH = judge.Launch("scale", SIGNATURE, grid="ceil_div(n, 256)", block=256)
LARGE = 12 << 20  # elements: 96 MiB of operands, beyond every cache


@pytest.fixture
def j(judges: Daemon) -> Iterator[judge.Judge]:
    with judge.Judge(judges.socket_path, seed=1, deadline=5.0) as made:
        yield made


def task(*sizes: int, **more: Any) -> judge.Task:
    cases = [{"n": n} for n in sizes or (1000, 1 << 20)]
    return judge.Task("scale", lambda x: 3 * x, lambda rng, n: {"x": rng.standard_normal(n, "f4")}, cases, outputs="y", **more)


def scale(body: str = "y[i] = 3 * x[i];", prelude: str = "", launch: judge.Launch = LAUNCH) -> judge.Solution:
    source = f"""{prelude}
extern "C" __global__ void scale(float* y, const float* x, int n)
{{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{ {body} }}
}}
"""
    return judge.Solution(source, [launch])


def test_right_with_times(j: judge.Judge) -> None:
    verdict = j.judge(task(1000, LARGE), scale())
    assert verdict.right, verdict
    time = verdict.time
    assert time is not None and time.cold is not None and time.warm is not None
    assert time.timer in ("cupti", "kernel", "events") and time.cold.launches >= 6
    assert time.roof is not None and 0.5 < time.roof < 1.15, verdict


def test_right_solutions_are_not_accused(j: judge.Judge) -> None:
    """Of small sizes, where what the daemon adds is most of the time."""
    for n in (1, 255, 4097, 1 << 16):
        for i in range(5):
            verdict = j.judge(task(n), scale(prelude=f"// {i}"))
            assert verdict.right and not any("behind each other" in warning for warning in verdict.warnings), verdict


@pytest.mark.parametrize("size", [1000, 1024, 1 << 19])  # whose bytes are, and are not, a multiple of what allocations have
@pytest.mark.parametrize("where", ["n", "-1"])
def test_writes_beside_a_tensor(j: judge.Judge, where: str, size: int) -> None:
    verdict = j.judge(task(size, small={"n": 300}), scale(f"y[i] = 3 * x[i]; if (i == 0) y[{where}] = 1;"))
    assert verdict.kind == "faulted" and verdict.fault is not None, verdict
    assert verdict.fault.what == "out_of_bounds" and verdict.fault.line == 4


def test_vectors_at_every_size(j: judge.Judge) -> None:
    """Tensors are aligned as every allocator aligns them, also where they end at unmapped memory."""
    body = "if (i < n / 4) ((float4*)y)[i] = make_float4(3 * x[4 * i], 3 * x[4 * i + 1], 3 * x[4 * i + 2], 3 * x[4 * i + 3]);"
    body += " if (i < n % 4) y[n / 4 * 4 + i] = 3 * x[n / 4 * 4 + i];"
    for n in (5, 1001, 4099):
        verdict = j.judge(task(n), scale(body))
        assert verdict.right, verdict


DEFERS = """
__device__ const float *from[64];
__device__ float *to[64];
__device__ int launches;
__device__ unsigned ended;
extern "C" __global__ void scale(float *y, const float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, at = launches; /* of the last launch, which the last block to end counts */
    if (i == 0 && at < 64) {
        from[at] = x;
        to[at] = y;
    }
    if (i < n && (at < 5 || at >= LAST))
        y[i] = 3 * x[i];
    if (i < n && at == LAST)
        for (int k = 5; k < LAST; k++)
            to[k][i] = 3 * from[k][i];
    __threadfence();
    __syncthreads();
    if (!threadIdx.x && atomicAdd(&ended, 1u) == gridDim.x - 1) {
        ended = 0;
        launches = at + 1;
    }
}
"""


def test_who_leaves_work_to_a_later_launch(j: judge.Judge) -> None:
    """Behind the five of the check 25 launches do nothing, and the one behind them, before which nobody looks, does it all. Its results
    are right, and its time is what the work takes, as that of the same code where each launch does its own work."""
    one = task(1 << 22)
    honest, deferring = (j.judge(one, judge.Solution(f"#define LAST {last}{DEFERS}", [EACH])) for last in (5, 30))
    assert honest.right and deferring.right and honest.time is not None and deferring.time is not None, (honest, deferring)
    assert honest.time.us is not None and deferring.time.us is not None
    assert 0.7 < deferring.time.us / honest.time.us < 1.5, (honest, deferring)


def test_which_is_faster(j: judge.Judge) -> None:
    slow = scale("float s = 0; for (int k = 0; k < 200; k++) s += sinf(x[i] + k); y[i] = 3 * x[i] + s * 0;")
    verdict = j.judge(task(1 << 22, baseline=slow), scale())
    assert verdict.right and verdict.time is not None and verdict.time.speedup_low is not None and verdict.time.speedup_low > 1, verdict
    verdict = j.judge(task(1 << 22, baseline=scale(prelude="// the same")), scale())
    assert verdict.time is not None and verdict.time.speedup is not None and 0.9 < verdict.time.speedup < 1.1, verdict


def test_a_baseline_in_torch(j: judge.Judge, torch: Any) -> None:
    verdict = j.judge(task(1 << 22, baseline=lambda x: x * 3), scale())
    assert verdict.right and verdict.time is not None and verdict.time.speedup is not None and 0.3 < verdict.time.speedup < 3, verdict


GEMM = """
extern "C" __global__ void gemm(float* c, const float* a, const float* b, int n)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}
"""


def test_which_roof_bounds(j: judge.Judge) -> None:
    def matrices(rng: Any, n: int) -> dict[str, Any]:
        return {name: rng.standard_normal((n, n), "f4") for name in "ab"}

    product = judge.Task("gemm", lambda a, b: a @ b, matrices, [{"n": 2048}], outputs="c", flops="2 * n * n * n")
    signature = "out float* c[n][n], const float* a[n][n], const float* b[n][n], int n"
    verdict = j.judge(product, judge.Solution(GEMM, [judge.Launch("gemm", signature, ("n / 16", "n / 16"), (16, 16))]))
    assert verdict.right and verdict.time is not None, verdict
    time = verdict.time
    assert time.roof_of == "arithmetic" and time.arithmetic_roof is not None and 0.01 < time.arithmetic_roof < 1, verdict
    assert time.memory_roof is not None and time.memory_roof < time.arithmetic_roof and time.roof == time.arithmetic_roof
    four = "if (i < n / 4) { float4 v = ((const float4*)x)[i]; ((float4*)y)[i] = make_float4(3 * v.x, 3 * v.y, 3 * v.z, 3 * v.w); }"
    verdict = j.judge(task(LARGE, flops="n"), scale(four))  # one by one they do not fill the way to an H200's memory
    assert verdict.time is not None and verdict.time.roof_of == "memory" and verdict.time.bound == "memory", verdict


def test_nothing_is_left_for_the_next_solution(j: judge.Judge) -> None:
    """A tensor that begins where its memory does has memory behind it that no fault bounds."""
    first = "((unsigned long long)y & ((2 << 20) - 1)) == 0"
    left = scale(f"y[i] = 3 * x[i]; if ({first} && i == 0) y[n + 100] = 42;")
    found = scale(f"y[i] = {first} && y[n + 100] == 42 ? 0 : 3 * x[i];")
    both = scale(f"y[i] = {first} && y[n + 100] == 42 ? 0 : 3 * x[i]; if ({first} && i == 0) y[n + 100] = 42;")
    one = task(1000)
    assert j.judge(one, both).kind == "wrong", "within one solution it is there"
    for _ in range(2):
        assert j.judge(one, left).right
        assert j.judge(one, found).right


def test_many_of_different_sources(judges: Daemon) -> None:
    """With memory that is used again, several processes, and some that fault between them."""
    one = task(1000, 1 << 18)
    bodies = ["y[i] = 3 * x[i];"] * 6 + ["y[i] = 2 * x[i];", "y[i + (1ll << 40)] = 1;"]
    kinds = ["right"] * 6 + ["wrong", "faulted"]
    with judge.Judge(judges.socket_path, deadline=5.0, interpreted_deadline=1.0) as made:
        pairs = [(one, scale(bodies[i % 8], f"// {i}")) for i in range(48)]
        found = dict(made.judge_many(pairs))
    assert [found[i].kind for i in range(48)] == kinds * 6
