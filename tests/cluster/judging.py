"""A task and solutions of it, for the tests of `kops.ray.judge_many`."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from kops import judge

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
