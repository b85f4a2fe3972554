"""Tasks and solutions of the tests. The stand-in driver computes `add2_kernel`, `vector_add` and others by their names alone, whatever
their code; the interpreter runs the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kops import judge
from kops.judge import _worker

# Of tests that need the sandbox of strangers' code, or a verdict without the warning that there is none: the one rule for them.
NO_SANDBOX = _worker.missing()
confined = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
SIGNATURE = "out float* c[n], const float* a[n], const float* b[n], int n"
ADD = judge.Launch("add2_kernel", SIGNATURE, grid="ceil_div(n, 256)", block=256)


def spy(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]) -> None:
    """From now on `note` is called with the result and the arguments of each call."""
    real = getattr(owner, name)

    def call(*given: Any, **how: Any) -> Any:
        made = real(*given, **how)
        note(made, *given, **how)
        return made

    monkeypatch.setattr(owner, name, call)


def inputs(rng: Any, n: int) -> dict[str, Any]:
    return {name: rng.standard_normal(n, dtype="f4") for name in "ab"}


def task(**more: Any) -> judge.Task:
    how: dict[str, Any] = {"reference": lambda a, b: a + b, "inputs": inputs, "cases": [{"n": 1000}, {"n": 3001}], "outputs": "c"}
    how["exchange"] = True
    how["small"] = how["cases"] if "cases" not in more else None  # so that verdicts of the interpreter are about all of them
    return judge.Task("add2", **{**how, **more})


def add(body: str = "c[i] = a[i] + b[i];", prelude: str = "", launch: judge.Launch = ADD, **more: Any) -> judge.Solution:
    """add2_kernel with another body: a thread an element."""
    source = f"""{prelude}
extern "C" __global__ void add2_kernel(float* c, const float* a, const float* b, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{ {body} }}
}}
"""
    return judge.Solution(source, [launch], **more)


VECTOR = """
extern "C" __global__ void vector_add(float* c, const float* a, const float* b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""
FAULT = 'extern "C" __global__ void fault_kernel(float* p) { p[-1] = 1; }'
SPIN = 'extern "C" __global__ void spin_forever(float* p) { while (true) *(volatile float*)p = 1; }'

RIGHT = judge.Solution(VECTOR, [judge.Launch("vector_add", SIGNATURE, grid="ceil_div(n, 256)", block=256)])
SHORT = judge.Solution(VECTOR, [judge.Launch("vector_add", SIGNATURE, grid=1, block=256)], name="short")
FAULTY = judge.Solution(FAULT, [judge.Launch("fault_kernel", "float* c", block=1)])
HANGS = judge.Solution(SPIN, [judge.Launch("spin_forever", "float* c", block=1)])
