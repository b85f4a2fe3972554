"""Roofs: what a task says of its operations, and what a verdict makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kops
import numpy as np
import pytest
from conftest import LIMITS
from kops import judge
from kops.judge import _draws, _machine, _timed
from kops.judge.tutorial import tasks
from material import add, spy, task

from support.daemon import Daemon  # isort: skip

PROBLEMS = Path(__file__).resolve().parent / "problems"


def draw_of(one: judge.Task) -> Any:
    return _draws.draw(one, one.timed_case, 1)


def test_operations() -> None:
    for flops in (6002, "2 * n", "2 * a.shape[0]", lambda n: 2.0 * n):
        assert _timed.flops_of(task(flops=flops), draw_of(task())) == 6002.0
    for flops, found in ((None, None), (0, 0.0)):
        assert _timed.flops_of(task(flops=flops), draw_of(task())) == found
    gemm = next(one for one in tasks if one.name == "gemm")
    assert _timed.flops_of(gemm, draw_of(gemm)) == 2.0 * 1024**3


@pytest.mark.parametrize(
    ("flops", "why"),
    [("2 * k", "k"), (lambda n: n / 0, "ZeroDivisionError"), (lambda n: "many", "'many'"), (lambda n: float("nan"), "nan"), (-1, "-1")],
)  # fmt: skip
def test_the_task_s_own_fault(gpu: judge.Judge, flops: Any, why: str) -> None:
    verdict = gpu.judge(task(flops=flops), add())
    assert verdict.kind == "no_verdict" and "flops" in verdict.text and why in verdict.text, verdict


def test_no_operations() -> None:
    for flops in ([1], True):
        with pytest.raises(kops.BadArgument, match="flops"):
            task(flops=flops)


@pytest.mark.parametrize(("gflop_s", "name"), [(1000.0, "memory"), (10.0, "arithmetic")])
def test_which_roof_bounds(gflop_s: float, name: str) -> None:
    """10^6 bytes and 10^6 operations in 100 us: 10 GB/s and 10 GFLOP/s."""
    roof = _timed.roof_of(100.0, 10**6, 1e6, 20.0, {"f32": gflop_s}, "f32")
    assert roof.memory == 0.5 and roof.arithmetic == pytest.approx(10 / gflop_s) and roof.name == name
    assert roof.part == max(0.5, 10 / gflop_s)
    assert _timed.roof_of(100.0, 10**6, None, 20.0, {"f32": gflop_s}, "f32").name == "memory"
    assert _timed.roof_of(100.0, 10**6, 1e6, None, {"f16": 1.0}, "f32").name == ""


def test_the_dtype_is_that_of_most_inputs() -> None:
    def mixed(rng: Any, n: int) -> dict[str, Any]:
        return {"a": rng.standard_normal(n).astype("f2"), "b": rng.standard_normal(n // 2), "i": np.zeros(9 * n, "i4")}

    assert _timed.dtype_of(draw_of(judge.Task("m", lambda a, b, i: a, mixed, [{"n": 100}]))) == "f16"
    assert _timed.dtype_of(draw_of(judge.Task("i", lambda i: i / 2, lambda rng: {"i": rng.integers(0, 9, 5)}))) == "f64"


def test_verdicts_have_both(daemon: Daemon) -> None:
    with judge.Judge(daemon.socket_path, seed=1, deadline=5.0, limits=LIMITS, peak_gb_s=1e9, peak_gflop_s={"f32": 1e-6}) as made:
        verdict = made.judge(task(flops="n"), add())
        plain = made.judge(task(), add(prelude="// other"))
    time = verdict.time
    assert verdict.right and time is not None and time.flops == 3001 and time.gflop_s == pytest.approx(3001 / time.us / 1e3)
    assert (time.roof_of, time.bound, time.dtype) == ("arithmetic", "arithmetic", "f32") and time.roof == time.arithmetic_roof
    assert time.memory_roof == pytest.approx(time.gb_s / 1e9) and "does it compute it all" in verdict.warnings[-1]
    assert "GFLOP/s" in str(verdict) and "of the roof of arithmetic with f32" in str(verdict)
    assert judge.Verdict.of(verdict.json()).time == time
    assert plain.time is not None and (plain.time.roof_of, plain.time.flops, plain.time.dtype) == ("memory", None, "")


def test_a_roof_is_measured_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kops.profiler._report.GPU", (1 << 16, 64))
    asked: list[str] = []
    spy(monkeypatch, _machine, "gflop_s", lambda measured, client, device, dtype: asked.append(dtype))
    with judge.Judge(daemon.socket_path, deadline=5.0, limits=LIMITS, peak_gb_s=1.0) as made:
        verdicts = [made.judge(task(flops="n"), add(prelude=f"// {i}")) for i in range(2)]
    assert asked == ["f32"] and all(one.time is not None and one.time.arithmetic_roof for one in verdicts), verdicts[0]


def test_operations_of_a_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from kops.judge import kernelbench

    path = tmp_path / "linear.py"
    path.write_text(
        "import torch\nbatch, wide, out = 8, 16, 32\n"
        "class Model(torch.nn.Module):\n    def __init__(self, wide, out):\n        super().__init__()\n"
        "        self.linear = torch.nn.Linear(wide, out)\n    def forward(self, x):\n        return torch.relu(self.linear(x))\n"
        "def get_inputs():\n    return [torch.randn(batch, wide)]\ndef get_init_inputs():\n    return [wide, out]\n"
    )
    one = kernelbench.load(path, {"wide": 64})
    assert [one.flops(**case) for case in one.all_cases] == [2.0 * 8 * 64 * 32, 2.0 * 8 * 16 * 32]
