"""`kops.ray.judge_many`: every solution has one verdict."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import kops
import kops.ray
import numpy as np
import pytest
from kops import judge
from machines import Machines, standin, wait_for
from support import backends, chrome_trace

only_with_a_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="the interpreter needs a C++ compiler"
)
DOUBLE = 'extern "C" __global__ void custom_kernel(float *out, const float *in, int n)\n{{\n    int i = blockIdx.x * blockDim.x + ' \
    "threadIdx.x;\n\n    if (i < n)\n        out[i] = {formula};\n}}\n"  # fmt: skip
LAUNCH = judge.Launch("custom_kernel", "out float* out[n], const float* in[n], int n", grid="ceil_div(n, 64)", block=64)


def solution(formula: str, name: str) -> judge.Solution:
    return judge.Solution(DOUBLE.format(formula=formula), [LAUNCH], name=name)


def make_inputs(rng: Any, n: int) -> dict[str, Any]:
    return {"in": rng.standard_normal(n, dtype=np.float32)}


TASK = judge.Task("double", lambda **given: 2 * given["in"], make_inputs, [{"n": 100}])
TRIPLE = judge.Task("triple", lambda **given: 3 * given["in"], make_inputs, [{"n": 100}])
SOLUTIONS = [
    ("right", solution("2 * in[i]", "right")),
    ("wrong", solution("in[i]", "wrong")),
    ("not_compiled", solution("in[i", "not_compiled")),
    ("faulted", solution("2 * in[i + 1000]", "faulted")),
]


@only_with_a_compiler
def test_each_solution_has_its_verdict(pool: kops.ray.Pool, tmp_path: Path) -> None:
    expected = [kind for kind, _ in SOLUTIONS] * 2
    run = kops.ray.judge_many(TASK, [one for _, one in SOLUTIONS] * 2, pool=pool, trace=tmp_path / "trace.json")
    verdicts = dict(run)
    assert [verdicts[i].kind for i in range(len(expected))] == expected
    assert all(verdict.how == "interpreter" and verdict.task == "double" for verdict in verdicts.values() if verdict.right)
    assert isinstance(verdicts[1], judge.Verdict) and verdicts[1].worst is not None
    assert run.trace is not None and sum(node["items"] for node in run.trace["nodes"]) == len(expected)
    events = chrome_trace.load(tmp_path / "trace.json")["traceEvents"]
    assert chrome_trace.check(events).categories["item"] == len(expected), "those that are judged at one time have rows of their own"


@only_with_a_compiler
def test_a_task_for_each_solution_in_their_order(pool: kops.ray.Pool) -> None:
    tasks = [TASK, TRIPLE, TRIPLE, TASK]
    solutions = [solution("2 * in[i]", "a"), solution("2 * in[i]", "b"), solution("3 * in[i]", "c"), solution("3 * in[i]", "d")]
    verdicts = list(kops.ray.judge_many(iter(tasks), iter(solutions), ordered=True, pool=pool))
    assert [(i, v.task, v.solution, v.kind) for i, v in verdicts] == [
        (0, "double", "a", "right"), (1, "triple", "b", "wrong"), (2, "triple", "c", "right"), (3, "double", "d", "wrong")
    ]  # fmt: skip
    with pytest.raises(kops.BadArgument, match="fewer tasks"):
        list(kops.ray.judge_many([TASK], solutions, pool=pool))
    with pytest.raises(kops.BadArgument, match="got Task, str"):
        list(kops.ray.judge_many(TASK, ["source"], pool=pool))


@only_with_a_compiler
def test_a_task_that_is_at_fault(pool: kops.ray.Pool) -> None:
    def fails(rng: Any, n: int) -> dict[str, Any]:
        raise ValueError("no such inputs")

    task = judge.Task("fails", lambda **given: given["in"], fails, [{"n": 4}])
    ((_, verdict),) = kops.ray.judge_many(task, [solution("in[i]", "any")], pool=pool)
    assert verdict.kind == "no_verdict" and "no such inputs" in verdict.text


@only_with_a_compiler
def test_a_task_that_ends_its_worker(pool: kops.ray.Pool) -> None:
    """The verdicts of the others are there; its own says what happened."""
    def ends(rng: Any, n: int) -> dict[str, Any]:
        os._exit(1)

    task = judge.Task("ends", lambda **given: given["in"], ends, [{"n": 4}])
    tasks = [TASK] * 8 + [task] + [TASK] * 8
    verdicts = dict(kops.ray.judge_many(tasks, [solution("2 * in[i]", f"{i}") for i in range(17)], tries=2, pool=pool))
    assert sorted(verdicts) == list(range(17))
    gone = verdicts.pop(8)
    assert (gone.kind, gone.task, gone.solution) == ("no_verdict", "ends", "8") and "given up after 2 tries" in gone.text
    assert all(verdict.right for verdict in verdicts.values())


@pytest.mark.skipif(backends.missing(backends.STANDIN) is not None, reason="there is no stand-in driver")
@pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
def test_on_gpus_and_a_daemon_that_is_lost(cluster: Machines) -> None:
    """Two GPUs of the stand-in, whose daemon is killed half-way."""
    limits = judge.Limits(at_most=0.2, launches=8, flush_bytes=1 << 16, slack_us=1e9)
    env = standin(2, KOPSD_EXECUTORS_ISOLATE="connection", KOPSD_EXECUTORS_FAULTS="0")
    with cluster.gpus(env, num_cpus=4, num_gpus=2), kops.ray.Pool() as pool:
        wait_for(pool, 2)
        run = kops.ray.judge_many(TASK, [solution("2 * in[i]", f"{i}") for i in range(12)], pool=pool, limits=limits, peak_gb_s=100.0)
        verdicts: dict[int, Any] = {}
        for index, verdict in run:
            assert index not in verdicts
            verdicts[index] = verdict
            if len(verdicts) == 4:
                os.kill(pool.workers[0].daemon, signal.SIGKILL)
    assert sorted(verdicts) == list(range(12))
    assert [v.kind for v in verdicts.values()] == ["right"] * 12, [v.text for v in verdicts.values()]
    assert {v.how for v in verdicts.values()} == {"gpu"} and all(v.time is not None for v in verdicts.values())
