"""What a tolerance lets through: no shortcut that costs less than computing, and every plain computation in the dtype's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kops import judge
from kops.judge import _draws, _values
from material import add, task


def case_of(reference: Callable[..., Any], inputs: Callable[..., Any], **more: Any) -> tuple[judge.Task, list[_draws.Draw]]:
    made = judge.Task("made", reference, inputs, **more)
    return made, [_draws.draw(made, made.timed_case, seed) for seed in range(6)]


def said(one: judge.Task, draw: _draws.Draw, values: Any) -> str:
    """What is wrong with a result, empty where nothing is."""
    expected = draw.expected[0]
    got = _values.tensor_of(np.asarray(values).astype(_values.bits_dtype(expected.dtype)), "out")
    worst = _draws.compare(one, expected, got, draw.case, draw.number)
    return "" if worst is None else worst.why


def normal(*shape: int, dtype: str = "f4", times: float = 1.0) -> Callable[..., Any]:
    return lambda rng: {"x": (times * rng.standard_normal(shape)).astype(dtype)}


def in_order(x: Any) -> Any:
    """Sums of rows, one number after the other."""
    return np.add.accumulate(x, axis=1, dtype=x.dtype)[:, -1]


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def gelu(x: Any) -> Any:
    return (x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2).astype(x.dtype)


def mean16(x: Any) -> Any:
    return x.mean(axis=1, dtype=np.float64 if x.dtype == np.float64 else np.float32).astype(x.dtype)


# A reference, inputs, and a plain computation of the same in the inputs' dtype, whose order is another one.
PLAIN: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "sums": (lambda x: x.sum(axis=1), normal(500, 4096), in_order),
    "sums of halves": (mean16, normal(300, 2048, dtype="f2"), lambda x: in_order(x.astype("f4")) / x.shape[1]),
    "differences": (lambda x: x[:, 1:] - x[:, :-1].mean(axis=1, keepdims=True), normal(64, 999), lambda x: (
        x[:, 1:] - (in_order(x[:, :-1]) / np.float32(x.shape[1] - 1))[:, None])),
    "softmax": (softmax, normal(64, 1000, times=20), lambda x: softmax(x[:, ::-1])[:, ::-1]),
    "gelu": (gelu, normal(100_000, times=5), lambda x: gelu(x) * np.float32(1 - 6e-8)),
    "relu": (lambda x: np.maximum(x @ x.T, 0), normal(200, 200), lambda x: (
        np.maximum(in_order((x[:, None] * x).reshape(-1, 200)), 0).reshape(200, 200))),
    "halves": (lambda x: 3 * x - 1, normal(100_000, dtype="f2"), lambda x: x * np.float16(3) - np.float16(1)),
    "small": (lambda x: x * np.float32(1e-30) * np.float32(1e-8), normal(10_000), lambda x: x * np.float32(1e-38)),
    "few": (lambda x: x.sum(axis=1), normal(3, 5000), in_order),
    "large": (lambda x: x**3, normal(100_000, times=1e6), lambda x: x * x * x),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_computation_is_right(name: str) -> None:
    reference, inputs, plain = PLAIN[name]
    one, draws = case_of(reference, inputs)
    for draw in draws:
        with np.errstate(all="ignore"):
            assert said(one, draw, plain(draw.tensors["x"].data)) == ""


def gated(dtype: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def inputs(rng: Any) -> dict[str, Any]:
        low, high = (-8, 2) if dtype == "f4" else (-6, 2)
        return normal(64, 64)(rng) | {"s": (10 ** rng.uniform(low, high, 64)).astype("f4")}

    return lambda x, s: (s[:, None] * (x @ x)).astype(x.dtype if dtype == "f4" or x.dtype == np.float64 else dtype), inputs


@pytest.mark.parametrize(("dtype", "part"), [("f4", 0.2), ("f4", 0.4), ("f2", 0.6)])
def test_small_elements_are_computed_too(dtype: str, part: float) -> None:
    """Rows and single elements, also where each of them is within the tolerance of the whole output; but what the task allows is right."""
    reference, inputs = gated(dtype)
    one, draws = case_of(reference, inputs)
    for draw in draws:
        right = draw.expected[0].values
        size = np.abs(right)
        rows = size.mean(axis=1, keepdims=True)
        for skipped in (rows < np.quantile(rows, part), size < np.quantile(size, part)):
            assert said(one, draw, np.where(skipped, 0, right)) in (("small",) if dtype == "f4" else ("small", "value"))
        assert said(one, draw, right) == ""
    allowing = judge.Task("made", reference, inputs, tolerance=judge.Tolerance(atol=1.0))
    draw = _draws.draw(allowing, allowing.timed_case, 1)
    right = draw.expected[0].values
    assert said(allowing, draw, np.where(np.abs(right) < 1e-3, 0, right)) == ""


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("offset", [0.0, 8.0])
def test_parts_and_constants_are_not_right(dtype: str, offset: float) -> None:
    one, draws = case_of(mean16, lambda rng: {"x": (rng.random((32, 16384)) + offset * rng.random((32, 1))).astype(dtype)})
    for draw in draws:
        x = draw.tensors["x"].data.astype("f8")
        for part in (x[:, ::16], x[:, :1024], x[:, -1024:], x[:, 1::16]):
            assert said(one, draw, part.mean(axis=1)) in ("precision", "value")
        assert said(one, draw, np.full(32, 0.5 + offset / 2)) in ("precision", "value")
        assert said(one, draw, x.mean(axis=1)) == ""


def test_what_does_not_depend_on_all_inputs_is_no_shortcut() -> None:
    """A task that reads a part of its inputs, or none, has right solutions that do so."""
    for reference in (lambda x: x[:, :1] * 2, lambda x: np.full(100, 0.5, x.dtype), lambda x: x[:16]):
        one, draws = case_of(reference, normal(64, 64, dtype="f2"))
        for draw in draws:
            assert said(one, draw, draw.expected[0].values) == "" and len(draw.expected[0].shortcuts) == 3


def test_a_task_that_a_constant_would_solve(interpreter: judge.Judge) -> None:
    """The author is told; solutions are not judged by it."""
    tolerance = judge.Tolerance(1e-3, 1e-3, math.inf)
    near = task(inputs=lambda rng, n: {x: (1 + 1e-9 * rng.random(n)).astype("f8") for x in "ab"}, tolerance=tolerance)
    verdict = interpreter.judge(near, add())
    assert verdict.kind == "no_verdict" and "a constant would pass" in verdict.text and "task add2" in verdict.text, verdict


def test_a_task_that_half_of_the_inputs_would_solve() -> None:
    """Nothing tells the solutions apart, so verdicts warn."""
    one, draws = case_of(mean16, lambda rng: {"x": (rng.random((64, 65536)) + 8 * rng.random((64, 1))).astype("f2")})
    warnings = _draws.examine(one, one.timed_case, *draws[:3])
    assert any("half of the inputs" in warning for warning in warnings)
    fine, draws = case_of(mean16, lambda rng: {"x": rng.random((64, 65536)).astype("f4")})
    assert not _draws.examine(fine, fine.timed_case, *draws[:3])
