"""The tasks that tutorials begin with: their baselines, and the package's examples as solutions."""

from __future__ import annotations

from pathlib import Path

import pytest
from kops import judge
from kops.judge.tutorial import tasks
from material import confined

KERNELS = Path(__file__).resolve().parents[2] / "client_py" / "examples" / "kernels"
TASKS = {task.name: task for task in tasks}
VECTORS = "out float* c[n], const float* a[n], const float* b[n], int n"
EXAMPLES = {
    "add2": judge.Launch("add2_kernel", VECTORS, "min(ceil_div(n, 256), 64)"),
    "vector_add": judge.Launch("vector_add", VECTORS, "ceil_div(n, 256)"),
    "custom": judge.Launch("custom_kernel", "out float* out[n], const float* x[n], int n", "ceil_div(n, 256)"),
    "square_matrix": judge.Launch(
        "square_matrix_kernel",
        "const float* x[height][width], out float* out[height][width], int width, int height",
        ("ceil_div(width, 32)", "ceil_div(height, 8)"),
        (32, 8),
    ),
    "gemm": judge.Launch(
        "gemm_kernel",
        "out float* c[n][m], const float* a[n][k], const float* b[k][m], int n, int m, int k",
        "ceil_div(n, 64) * ceil_div(m, 64)",
    ),
}


def small(task: judge.Task) -> judge.Task:
    """The task with cases that a GPU which is none gets through."""
    return judge.Task(task.name, task.reference, task.inputs, list(task.small or ()), task.outputs, small=task.small)


@confined
@pytest.mark.parametrize("name", TASKS)
def test_the_baselines_are_right(interpreter: judge.Judge, name: str) -> None:
    verdict = interpreter.judge(small(TASKS[name]), TASKS[name].baseline)
    assert verdict.right and not verdict.warnings, verdict


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_solutions(interpreter: judge.Judge, gpu: judge.Judge, name: str) -> None:
    solution = judge.Solution((KERNELS / f"{name}.cu").read_text(encoding="utf-8"), [EXAMPLES[name]], name=name)
    assert interpreter.judge(small(TASKS[name]), solution).right
    assert gpu.judge(small(TASKS[name]), solution).right
