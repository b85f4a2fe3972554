"""Tasks: what is their own fault is nobody else's, and what they can be."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import kops
import numpy as np
import pytest
from kops import judge
from kops.judge import _draws
from material import add, confined, task

count = itertools.count()


def raises(**_: Any) -> Any:
    raise ZeroDivisionError("by mistake")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "generator raises": ({"inputs": lambda rng, n: 1 / 0}, "its generator of inputs raises ZeroDivisionError"),
    "generator ends": ({"inputs": lambda rng, n: exit(3)}, "raises SystemExit"),
    "other keywords": ({"inputs": lambda rng, m: {}}, "raises TypeError"),
    "no dict": ({"inputs": lambda rng, n: np.zeros(n)}, "must return a dict"),
    "no arrays": ({"inputs": lambda rng, n: {"a": "text", "b": 1}}, "the input a is of str"),
    "objects": ({"inputs": lambda rng, n: {"a": np.array([None]), "b": 1}}, "is of object"),
    "complex": ({"inputs": lambda rng, n: {"a": np.zeros(n, "c8"), "b": 1}}, "is of complex64"),
    "an output's name": ({"inputs": lambda rng, n: {"c": np.zeros(n, "f4")}}, "is an input and an output"),
    "a number twice": ({"inputs": lambda rng, n: {"n": 3, "a": np.zeros(n, "f4")}}, "of the case and of the inputs"),
    "shapes vary": ({"inputs": lambda rng, n: {"a": rng.random(int(rng.integers(1, 9999)), "f4"), "b": 1}}, "shape"),
    "reference raises": ({"reference": raises}, "its reference raises ZeroDivisionError: by mistake"),
    "reference is random": ({"reference": lambda a, b: a + np.random.default_rng().random(a.shape, "f4")}, "its reference is random"),
    "reference counts": ({"reference": lambda a, b: a + next(count)}, "its reference is random"),
    "too many results": ({"reference": lambda a, b: (a, b)}, "returns 2 arrays for the outputs c"),
    "no result": ({"reference": lambda a, b: None}, "of NoneType"),
    "a float": ({"reference": lambda a, b: float(a.sum())}, "of float"),
    "only float32": ({"reference": lambda a, b: a + b if a.dtype == "f4" else raises(), "precision": "f64"}, "ZeroDivisionError"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_tasks(interpreter: judge.Judge, what: str) -> None:
    changed, text = BAD[what]
    verdict = interpreter.judge(task(**changed), add())
    assert verdict.kind == "no_verdict" and text in verdict.text and "task add2" in verdict.text, verdict


def test_bad_tasks_are_refused_where_they_are_made() -> None:
    for changed in (
        {"cases": []}, {"cases": [3]}, {"cases": [{"n": []}]}, {"outputs": ()}, {"outputs": ("a", "a")}, {"timed": 7},
        {"precision": "high"}, {"tolerance": 0.1}, {"reference": 3},
    ):  # fmt: skip
        with pytest.raises(kops.BadArgument):
            task(**changed)
    with pytest.raises(kops.BadArgument):
        judge.Tolerance(rtol=-1)


def test_a_constant_would_pass(interpreter: judge.Judge) -> None:
    ones = task(inputs=lambda rng, n: {x: np.ones(n, "f4") for x in "ab"})
    verdict = interpreter.judge(ones, add())
    assert verdict.right and "a constant would pass" in verdict.warnings[0] and "WARNING" in str(verdict)


def test_a_reference_that_changes_its_inputs(interpreter: judge.Judge) -> None:
    def reference(a: Any, b: Any) -> Any:
        a += b
        return a

    assert interpreter.judge(task(reference=reference), add()).right


@confined
def test_a_reference_that_takes_no_float64(interpreter: judge.Judge) -> None:
    def reference(a: Any, b: Any) -> Any:
        if a.dtype != np.float32:
            raise TypeError("float32 only")
        return a + b

    verdict = interpreter.judge(task(reference=reference), add())
    assert verdict.right and "does not take float64" in verdict.warnings[0]
    assert not interpreter.judge(task(reference=reference, precision="native"), add()).warnings


def test_a_reference_that_is_asked_once(interpreter: judge.Judge) -> None:
    asked: list[int] = []
    lock = threading.Lock()

    def reference(a: Any, b: Any) -> Any:
        with lock:
            asked.append(1)
        return a + b

    shared = task(reference=reference)
    assert interpreter.judge(shared, add()).right
    first = len(asked)
    assert all(one.result().right for one in [interpreter.submit(shared, add()) for _ in range(2)])
    assert len(asked) == first


def test_what_is_not_finite(interpreter: judge.Judge) -> None:
    def reference(a: Any, b: Any) -> Any:
        c = a + b
        c[3], c[4], c[5] = np.nan, np.inf, -np.inf
        return c

    special = 'c[i] = i == 3 ? nanf("") : i == 4 ? INFINITY : i == 5 ? {} : a[i] + b[i];'
    assert interpreter.judge(task(reference=reference), add(special.format("-INFINITY"))).right
    verdict = interpreter.judge(task(reference=reference), add(special.format("INFINITY")))
    assert verdict.kind == "wrong" and verdict.worst is not None and verdict.worst.index == (5,)
    verdict = interpreter.judge(task(), add('c[i] = i == 9 ? nanf("") : a[i] + b[i];'))
    assert verdict.kind == "wrong" and verdict.worst is not None and verdict.worst.index == (9,) and verdict.worst.wrong == 1


KINDS = """
extern "C" __global__ void both(long long* sums, bool* larger, const int* x, const int* y, float limit, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sums[i] = (long long)x[i] + y[i]; larger[i] = x[i] > limit; }
}
"""


def test_integers_bools_and_numbers_of_the_inputs(interpreter: judge.Judge) -> None:
    def drawn(rng: Any, n: int) -> dict[str, Any]:
        low, high = -(2**31), 2**31 - 1
        return {"x": rng.integers(low, high, n, "i4"), "y": rng.integers(low, high, n, "i4"), "limit": float(rng.integers(-1000, 1000))}

    several = judge.Task(
        "both", lambda x, y, limit: (x.astype("i8") + y, x > limit), drawn, [{"n": 300}], outputs=("sums", "larger"),
    )  # fmt: skip
    launch = judge.Launch("both", "out long long* sums[n], out bool* larger[n], const int* x[n], const int* y[n], float limit, int n", 2)
    verdict = interpreter.judge(several, judge.Solution(KINDS, [launch]))
    assert verdict.right, verdict
    verdict = interpreter.judge(several, judge.Solution(KINDS.replace("x[i] > limit", "x[i] > limit || i == 11"), [launch]))
    assert verdict.kind == "wrong" and verdict.worst is not None and verdict.worst.output == "larger"
    verdict = interpreter.judge(several, judge.Solution(KINDS.replace("(long long)x[i] + y[i]", "x[i] + y[i]"), [launch]))
    assert verdict.kind == "wrong" and verdict.worst is not None and verdict.worst.output == "sums"


def test_torch_tensors_of_bfloat16(interpreter: judge.Judge) -> None:
    torch = pytest.importorskip("torch")
    source = """
    #include <cuda_bf16.h>
    extern "C" __global__ void scale(__nv_bfloat16* out, const __nv_bfloat16* x, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = __float2bfloat16(3 * __bfloat162float(x[i]));
    }
    """
    scale = judge.Task(
        "scale", lambda x: 3 * x, lambda rng, n: {"x": torch.from_numpy(rng.standard_normal(n)).to(torch.bfloat16)}, [{"n": 500}],
    )  # fmt: skip
    launch = judge.Launch("scale", "out bf16* out[n], const bf16* x[n], int n", "ceil_div(n, 256)")
    assert interpreter.judge(scale, judge.Solution(source, [launch])).right
    verdict = interpreter.judge(scale, judge.Solution(source.replace("3 *", "3.2f *"), [launch]))
    assert verdict.kind == "wrong" and verdict.worst is not None
    assert verdict.worst.got == pytest.approx(verdict.worst.expected * 3.2 / 3, rel=0.02)


def test_infinities_of_the_outputs_own_precision_are_right(interpreter: judge.Judge) -> None:
    """The reference in float64 has none."""
    squares = judge.Task("squares", lambda a: a * a, lambda rng, n: {"a": (300 * rng.standard_normal(n)).astype("f2")}, [{"n": 200}])
    source = """#include <cuda_fp16.h>
extern "C" __global__ void square(__half* out, const __half* a, int n) { int i = threadIdx.x; if (i < n) out[i] = a[i] * a[i]; }"""
    solution = judge.Solution(source, [judge.Launch("square", "out __half* out[n], const __half* a[n], int n", block=256)])
    verdict = interpreter.judge(squares, solution)
    assert verdict.right, verdict


def test_inputs_keep_their_form_unless_elements_may_be_exchanged(interpreter: judge.Judge) -> None:
    """A reference that refuses anything else would notice."""

    def highest(a: Any) -> Any:
        assert (np.diff(a) >= 0).all()
        return a[-1:]

    ordered = judge.Task("highest", highest, lambda rng, n: {"a": np.sort(rng.standard_normal(n))}, [{"n": 500}])
    source = 'extern "C" __global__ void highest(double* out, const double* a, int n) { *out = a[n - 1]; }'
    solution = judge.Solution(source, [judge.Launch("highest", "out double* out[1], const double* a[n], int n", block=1)])
    assert interpreter.judge(ordered, solution).right


REDUCTIONS = {"sum": lambda x: x.sum(keepdims=True), "max": lambda x: x.max(keepdims=True), "sort": np.sort}


def reduction(name: str) -> judge.Task:
    return judge.Task(name, lambda x: REDUCTIONS[name](x), lambda rng, n: {"x": rng.standard_normal(n, "f4")}, [{"n": 500}], exchange=True)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_exchange_that_changes_no_result_is_none(name: str) -> None:
    """Else who knows inputs by a few elements would have the right result for the changed ones, too."""
    one = reduction(name)
    first = _draws.draw(one, one.timed_case, 1)
    made = [_draws.changed(one, first, seed, seed) for seed in range(2, 8)]
    for draw in made:
        assert not _draws._passes(one, draw, first)
        assert np.mean(draw.tensors["x"].data == first.tensors["x"].data) < 0.1


def test_an_exchange_that_changes_the_result_is_kept() -> None:
    one = task()
    first = _draws.draw(one, one.timed_case, 1)
    made = [_draws.changed(one, first, seed, seed) for seed in range(2, 8)]
    for draw in made:
        assert not _draws._passes(one, draw, first)
        assert np.mean(draw.tensors["a"].data == first.tensors["a"].data) > 0.99
