"""What is wrong with a task's baseline is the task's fault, costs the solutions nothing, and is not tried again and again."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import numpy
import pytest
from conftest import soon
from kops import judge
from kops.judge import _machine
from material import FAULT, RIGHT, SHORT, SIGNATURE, SPIN, VECTOR, add, inputs, task

pytestmark = pytest.mark.usefixtures("unlocated")
BAD: dict[str, tuple[Any, str]] = {
    "an illegal access": (judge.Solution(FAULT, [judge.Launch("fault_kernel", "out float* c[n]", block=1)]), "fault_kernel"),
    "a hang": (judge.Solution(SPIN, [judge.Launch("spin_forever", "out float* c[n]", block=1)]), "spin_forever"),
    "a part": (SHORT, "was not written"),
    "a source that is none": (add("x"), "its baseline does not run"),
    "an entry that is none": (judge.Solution(VECTOR, [judge.Launch("vector_sub", SIGNATURE)]), "its baseline does not run"),
    "an op that computes another thing": ("sub_square", "its baseline is wrong"),
    "an op of other operands": ("square", "its baseline does not run"),
}


@pytest.mark.parametrize("what", BAD)
def test_it_is_the_task_s_fault(gpu: judge.Judge, what: str) -> None:
    baseline, text = BAD[what]
    bad = task(baseline=baseline)
    assert gpu.judge(task(), add(prelude="// first")).right
    for _ in range(2):
        with soon(gpu) if what == "a hang" else contextlib.nullcontext():
            verdict = gpu.judge(bad, add())
        assert verdict.kind == "no_verdict" and "task add2: its baseline" in verdict.text and text in verdict.text, verdict
        assert verdict.fault is None and verdict.worst is None and verdict.cases == ("n=1000", "n=3001"), verdict
    verdict = gpu.judge(task(baseline=RIGHT), add())
    assert verdict.right and verdict.time is not None and verdict.time.speedup is not None, verdict
    assert gpu.judge(bad, SHORT).kind == "wrong"  # that is found without the baseline


@pytest.mark.parametrize("what", ["an illegal access", "a hang"])
def test_it_costs_the_solutions_no_executor(gpu: judge.Judge, executors: list[Any], monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """It is tried once."""
    run, tried = _machine.Machine._baseline_runner, list[Any]()
    monkeypatch.setattr(_machine.Machine, "_baseline_runner", lambda self, one: (tried.append(one), run(self, one))[1])
    bad = task(baseline=BAD[what][0])
    assert gpu.judge(task(), add(prelude="// first")).right
    before = len(executors)
    with soon(gpu) if what == "a hang" else contextlib.nullcontext():
        assert [gpu.judge(bad, add(prelude=f"// {i}")).kind for i in range(3)] == ["no_verdict"] * 3
    assert gpu.judge(task(), add(prelude="// last")).right and len(executors) == before and len(tried) == 1


# ---- functions in torch, which is none here ----


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return Torch.ends

    def elapsed_time(self, other: Event) -> float:
        return 0.001


class Value:
    """What such functions get and answer."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def to(self, device: Any) -> Any:
        return self.array


class Torch(types.ModuleType):
    ends, broken = True, ""
    Tensor = Value

    @staticmethod
    def from_numpy(array: Any) -> Value:
        return Value(array)

    @staticmethod
    def device(kind: str, index: int) -> Any:
        return types.SimpleNamespace(index=index)

    class cuda:  # noqa: N801
        Event = Event

        @staticmethod
        def _sleep(cycles: int) -> None:
            pass

        @staticmethod
        def synchronize(device: Any) -> None:
            if Torch.broken:
                raise RuntimeError(Torch.broken)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "torch", Torch("torch"))
    monkeypatch.setattr(_machine, "_cuda_index", lambda task, device: 0)
    monkeypatch.setattr(_machine, "TORCH_SECONDS", 0.05)
    monkeypatch.setattr(_machine, "_lost", {})
    monkeypatch.setattr(Torch, "ends", True)
    monkeypatch.setattr(Torch, "broken", "")
    return Torch


def raises(**_: Any) -> Any:
    raise ZeroDivisionError("by mistake")


def faults(**_: Any) -> Any:
    Torch.broken = "CUDA error: an illegal memory access was encountered"
    raise RuntimeError(Torch.broken)


def hangs(a: Any, b: Any) -> Any:
    Torch.ends = False
    return a + b


def test_a_function_that_is_right(gpu: judge.Judge, torch: Any) -> None:
    verdict = gpu.judge(task(baseline=lambda a, b: a + b), add())
    assert verdict.right and verdict.time is not None and verdict.time.baseline is not None, verdict
    rounded = gpu.judge(task(baseline=lambda a, b: (a + b).astype("f2").astype("f4"), tolerance=judge.Tolerance(1e-2, 1e-2)), add())
    assert rounded.right, rounded  # as torch's own kernels may do


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a, b: a - b, "its baseline is wrong: c["),
        (lambda a, b: (a + b)[:-1], "its baseline answers c as [3000], and its reference as [3001]"),
        (lambda a, b: (a + b).astype("i4"), "its baseline answers c as i32, and its reference as f32"),
        (lambda a, b: (a, b), "its baseline answers 2 arrays for the outputs c"),
        (lambda a, b: None, "its baseline: the output c is of NoneType"),
        (raises, "its baseline raises ZeroDivisionError: by mistake"),
    ],
)
def test_a_function_that_is_not(gpu: judge.Judge, torch: Any, function: Any, text: str) -> None:
    verdict = gpu.judge(task(baseline=function), add())
    assert verdict.kind == "no_verdict" and f"task add2: {text}" in verdict.text, verdict
    assert gpu.judge(task(baseline=lambda a, b: numpy.add(a, b)), add()).right


@pytest.mark.parametrize(("function", "text"), [(faults, "raises RuntimeError: CUDA error"), (hangs, "does not end within 0.05 s")])
def test_a_function_that_costs_torch_its_context(gpu: judge.Judge, torch: Any, function: Any, text: str) -> None:
    """That stays so in this process: other tasks that need torch are told whose fault it was, the rest goes on."""
    verdict = gpu.judge(judge.Task("bad", lambda a, b: a + b, inputs, [{"n": 1000}], outputs="c", baseline=function), add())
    assert verdict.kind == "no_verdict" and f"task bad: its baseline {text}" in verdict.text, verdict
    verdict = gpu.judge(task(baseline=lambda a, b: a + b), add())
    assert verdict.kind == "no_verdict" and "the baseline of the task bad" in verdict.text and "new process" in verdict.text, verdict
    assert gpu.judge(task(baseline=RIGHT), add()).right


def test_the_solution_s_fault_is_not_the_baseline_s(gpu: judge.Judge, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches are emptied on the solution's connection, also before the baseline runs."""
    from kops.judge import _timed, _verdict

    def flush(self: Any) -> None:
        raise _verdict.Stop("faulted", "its memory is gone", True)

    monkeypatch.setattr(_timed._Timing, "flush", flush)
    for baseline in (lambda a, b: a + b, RIGHT, "add"):
        assert gpu.judge(task(baseline=baseline), add()).kind == "faulted"
