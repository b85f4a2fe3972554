"""Problems of KernelBench's form as tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kops import BadArgument, judge
from kops.judge import kernelbench

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

pytestmark = pytest.mark.skipif(torch is None, reason="torch is not installed")
PROBLEMS = Path(__file__).resolve().parent / "problems"
ROWS = judge.Solution(
    r"""
extern "C" __global__ void rows(float* out, const float* x, const float* weight, const float* bias, float scale, int features, int outputs)
{
    float sum = 0;
    for (int o = 0; o < outputs; o++) {
        float product = 0;
        for (int i = 0; i < features; i++)
            product += x[blockIdx.x * features + i] * weight[o * features + i];
        sum += (product + bias[o]) * scale;
    }
    out[blockIdx.x] = sum;
}
""",
    [
        judge.Launch(
            "rows",
            "out float* out, const float* x, const float* gemm_weight, const float* gemm_bias, float scale, int in_features, "
            "int out_features",
            grid="batch_size",
            block=1,
        )
    ],
)
SMALL = {"batch_size": 3, "in_features": 20, "out_features": 7}


def test_a_problem_is_a_task(interpreter: judge.Judge) -> None:
    task = kernelbench.load(PROBLEMS / "scaled_rows.py", {"batch_size": 5, "out_features": 10}, small=SMALL)
    assert task.name == "scaled_rows" and "bias" in task.text
    sizes = [(case["batch_size"], case["in_features"], case["out_features"]) for case in task.cases]
    assert sizes == [(5, 256, 10), (64, 256, 96)], "the file's own sizes are timed"
    verdict = interpreter.judge(task, ROWS)
    assert verdict.kind == "unproven" and verdict.cases[0].startswith("in_features=20"), verdict


def test_a_problem_without_its_own_sizes(interpreter: judge.Judge) -> None:
    """Which may be too large for the machine."""
    task = kernelbench.load(PROBLEMS / "scaled_rows.py", [SMALL, {"batch_size": 5, "out_features": 10}], own=False)
    assert [(case["batch_size"], case["out_features"]) for case in task.cases] == [(3, 7), (5, 10)]
    assert task.timed_case["batch_size"] == 5 and "bias" in task.text and interpreter.judge(task, ROWS).kind == "unproven"
    with pytest.raises(BadArgument, match="give sizes"):
        kernelbench.load(PROBLEMS / "scaled_rows.py", own=False)


def test_weights_and_inputs_are_drawn_anew() -> None:
    task = kernelbench.load(PROBLEMS / "norm.py", small={"batch_size": 2})
    case = task.cases[0]
    assert (case["window_0"], case["window_1"], case["height"], case["features"]) == (2, 3, 16, 4)
    before = torch.random.get_rng_state()
    one, other, same = (task.inputs(np.random.default_rng(seed), **case) for seed in (1, 2, 1))
    assert torch.equal(torch.random.get_rng_state(), before), "torch's own generator is as before"
    assert set(one) >= {"x", "shift", "norm_weight", "norm_bias", "norm_running_mean", "norm_running_var"} and one["shift"] == 1.5
    assert (one["x_0"], one["x_1"], one["x_2"], one["x_3"]) == (8, 4, 16, 12)
    assert torch.equal(one["x"], same["x"]) and not torch.equal(one["x"], other["x"])
    kept = one["norm_running_mean"].clone()
    answer = task.reference(**one)
    assert tuple(answer.shape) == (8, 4, 8, 4) and torch.equal(answer, task.reference(**one))
    assert torch.equal(one["norm_running_mean"], kept), "a model that writes to its buffers writes to copies"
    wide = task.reference(**{name: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for name, v in one.items()})
    assert wide.dtype == torch.float64 and torch.allclose(wide.float(), answer, atol=1e-5)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="assigns no rows; its sizes are batch_size"):
        kernelbench.load(PROBLEMS / "scaled_rows.py", {"rows": 3})
    with pytest.raises(BadArgument, match="two cases have the same sizes"):
        kernelbench.load(PROBLEMS / "scaled_rows.py", {"batch_size": 64})
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    with pytest.raises(BadArgument, match="it has no Model, get_inputs, get_init_inputs"):
        kernelbench.load(other)
    assert not kernelbench.is_problem("x = (") and kernelbench.is_problem((PROBLEMS / "norm.py").read_text())
