"""What an op must give: references in NumPy, in float64 and in the integers themselves, and the one tolerance check that every suite uses.

PROTOCOL.md defines it: |got - ref| ≤ rtol·|ref| + scaled·S + atol, S being the sum of the absolute values of the terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

# op -> function of (inputs, out before, attributes) that returns (reference, S)
Reference = Callable[[list[np.ndarray], np.ndarray, dict[str, Any]], tuple[np.ndarray, np.ndarray]]


def add(inputs: list[np.ndarray], _out: np.ndarray, _attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    a, b = inputs
    return a + b, np.abs(a) + np.abs(b)


def add_square(inputs: list[np.ndarray], _out: np.ndarray, _attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    ref = (inputs[0] + inputs[1]) * (inputs[0] + inputs[1])
    return ref, np.abs(ref)


def sub_square(inputs: list[np.ndarray], _out: np.ndarray, _attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    ref = (inputs[0] - inputs[1]) * (inputs[0] - inputs[1])
    return ref, np.abs(ref)


def square(inputs: list[np.ndarray], _out: np.ndarray, _attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return inputs[0] * inputs[0], inputs[0] * inputs[0]


def copy(inputs: list[np.ndarray], _out: np.ndarray, _attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return inputs[0], np.abs(inputs[0])


def gemm(inputs: list[np.ndarray], out: np.ndarray, attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    a, b = inputs
    if attrs.get("trans_a"):
        a = np.swapaxes(a, -1, -2)
    if attrs.get("trans_b"):
        b = np.swapaxes(b, -1, -2)
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 0.0)
    ref, scale = alpha * (a @ b), abs(alpha) * (np.abs(a) @ np.abs(b))
    if beta:
        ref, scale = ref + beta * out, scale + np.abs(beta * out)
    return ref, scale


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def linear(inputs: list[np.ndarray], out: np.ndarray, attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    a, b, bias = inputs
    ref, scale = gemm([a, b], out, attrs)
    return ACTIVATIONS[attrs.get("activation", "none")](ref + bias), scale + np.abs(bias)


def scaled_gemm(inputs: list[np.ndarray], out: np.ndarray, attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    a, b, scale_a, scale_b = inputs
    ref, scale = gemm([a, b], out, attrs)
    return ref * scale_a * scale_b, scale * np.abs(scale_a) * np.abs(scale_b)


REFERENCES: dict[str, Reference] = {
    "add": add, "square": square, "add_square": add_square, "sub_square": sub_square, "gemm": gemm,
    "linear": linear, "scaled_gemm": scaled_gemm, "copy": copy,
}  # fmt: skip


def tolerance(op: dict[str, Any], dtype: str, attrs: dict[str, Any]) -> dict[str, float]:
    own = op.get(f"tolerance_{attrs.get('precision')}", {})
    return own.get(dtype, op["tolerance"][dtype])


def check(got: np.ndarray, ref: np.ndarray, scale: np.ndarray, allowed: dict[str, float]) -> None:
    """Raises AssertionError that names the worst element."""
    assert got.shape == ref.shape, f"shape {got.shape}, not {ref.shape}"
    if got.dtype.kind in "iu":  # exact
        np.testing.assert_array_equal(got, ref)
        assert not any(allowed.values()) and got.dtype == ref.dtype
        return
    limit = allowed.get("rtol", 0) * np.abs(ref) + allowed.get("scaled", 0) * scale + allowed.get("atol", 0)
    error = np.abs(got - ref)
    wrong = ~(error <= limit)
    if not wrong.any():
        return
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error - limit)), error.shape)
    raise AssertionError(
        f"{np.count_nonzero(wrong)} of {error.size} elements are wrong; at {tuple(int(i) for i in worst)} "
        f"{got[worst]!r}, not {ref[worst]!r} (error {error[worst]:.3g}, allowed {limit[worst]:.3g})"
    )
