"""scaled_gemm: every byte of both dtypes, special values and scales, and what is refused, by every client and device."""

from __future__ import annotations

from typing import Any

import dtypes
import numpy as np
import pytest
import runners
from cases import GUARD, POISON, Operand, lay_out

ALL = np.arange(256, dtype=np.uint8)
E4M3, E5M2 = "f8_e4m3", "f8_e5m2"
ONE = {E4M3: 0x38, E5M2: 0x3C}
F32 = np.float32


def place(
    memory: np.ndarray, arrays: list[np.ndarray], names: list[str], shape: tuple[int, ...], out_dtype: str
) -> tuple[list[Operand], Operand]:
    """Inputs as they are stored, and a poisoned output, one after the other."""
    operands, at = [], GUARD
    for array, name in zip(arrays, names, strict=True):
        operand, end = lay_out(array.shape, "contiguous", at, dtypes.size(name))
        operand.view(memory, name)[...] = array
        operands.append(operand)
        at = -(-(end + GUARD) // 64) * 64
    out, end = lay_out(shape, "contiguous", at, dtypes.size(out_dtype))
    memory[at : end + GUARD] = POISON
    return operands, out


def multiply(
    runner: runners.Runner, device: dict[str, Any], a: np.ndarray, b: np.ndarray, scale_a: Any, scale_b: Any,
    of_a: str = E4M3, of_b: str = E4M3, out_dtype: str = "f32", **attrs: Any,
) -> np.ndarray:  # fmt: skip
    """a and b as bytes; the result as float64."""
    names = [of_a, of_b, "f32", "f32"]
    shape = (a.shape[-1 if attrs.get("trans_a") else 0], b.shape[0 if attrs.get("trans_b") else -1])
    operands, out = place(runner.memory, [a, b, np.asarray(scale_a, F32), np.asarray(scale_b, F32)], names, shape, out_dtype)
    runner.run("scaled_gemm", ",".join(names), operands, out, attrs, device["uuid"], out_dtype)
    return dtypes.decode(out.view(runner.memory, out_dtype), out_dtype)


@pytest.mark.parametrize("of_b", [E4M3, E5M2])
@pytest.mark.parametrize("of_a", [E4M3, E5M2])
def test_every_byte_has_its_value(runner: runners.Runner, device: dict[str, Any], of_a: str, of_b: str) -> None:
    """A column of all bytes times one, and one times a row of them: exact, as NaN and infinities are."""
    column, row = ALL.reshape(256, 1), ALL.reshape(1, 256)
    got = multiply(runner, device, column, np.full((1, 1), ONE[of_b], np.uint8), 1, 1, of_a, of_b)
    np.testing.assert_array_equal(got[:, 0], dtypes.EIGHTHS[of_a])
    got = multiply(runner, device, np.full((1, 1), ONE[of_a], np.uint8), row, 1, 1, of_a, of_b)
    np.testing.assert_array_equal(got[0], dtypes.EIGHTHS[of_b])


@pytest.mark.parametrize(("of_a", "of_b"), [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)])
def test_products_of_all_bytes_are_exact(runner: runners.Runner, device: dict[str, Any], of_a: str, of_b: str) -> None:
    got = multiply(runner, device, ALL.reshape(256, 1), ALL.reshape(1, 256), 1, 1, of_a, of_b, precision="highest")
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, np.outer(dtypes.EIGHTHS[of_a], dtypes.EIGHTHS[of_b]))


def test_scales(runner: runners.Runner, device: dict[str, Any]) -> None:
    """Zero, infinite and NaN scales count as in any arithmetic; each row and column has its own."""
    a = dtypes.encode(np.array([[1.0, 2.0], [-1.0, 3.0], [0.0, 0.0]]), E4M3)
    b = dtypes.encode(np.array([[1.0, 4.0, -2.0], [0.5, 0.0, 1.0]]), E5M2)
    sums = dtypes.decode(a, E4M3) @ dtypes.decode(b, E5M2)
    rows, columns = np.array([[0.0], [np.inf], [np.nan]], F32), np.array([2.0, -0.5, 3e38], F32)
    with np.errstate(invalid="ignore", over="ignore"):
        for scale_a in (F32(0), F32(-3), F32(np.inf), F32(1e38), F32(1e-44), rows):
            for scale_b in (F32(0), F32(0.125), F32(np.nan), F32(1e38), columns):
                got = multiply(runner, device, a, b, scale_a, scale_b, E4M3, E5M2)
                either = [sums.astype(F32) * scale_a * scale_b, sums.astype(F32) * scale_b * scale_a]
                same = [np.array_equal(got, one.astype(np.float64), equal_nan=True) for one in either]
                assert any(same), (scale_a, scale_b, got, either)


def test_outputs_round_once_and_overflow(runner: runners.Runner, device: dict[str, Any]) -> None:
    a = dtypes.encode(np.array([[448.0, 448.0]]), E4M3)
    b = dtypes.encode(np.array([[448.0], [1.0]]), E4M3)
    exact = 448.0 * 449
    assert multiply(runner, device, a, b, 1, 1)[0, 0] == exact
    assert multiply(runner, device, a, b, 1, 1, out_dtype="f16")[0, 0] == np.inf
    assert multiply(runner, device, a, b, -1, 1, out_dtype="f16")[0, 0] == -np.inf
    assert multiply(runner, device, a, b, 0.25, 1, out_dtype="f16")[0, 0] == float(np.float16(exact / 4))
    assert multiply(runner, device, a, b, 1, 1, out_dtype="bf16")[0, 0] == 196 * 1024  # of 201152


def test_no_products_give_zeros(runner: runners.Runner, device: dict[str, Any]) -> None:
    got = multiply(runner, device, np.empty((3, 0), np.uint8), np.empty((0, 5), np.uint8), 2, 3)
    assert got.shape == (3, 5) and not got.any()


@pytest.mark.parametrize(
    ("shapes", "names", "out_dtype", "code", "says"),
    [
        (((4, 8), (8, 5), (), ()), (E4M3, "f16", "f32", "f32"), "f32", "dtype_mismatch", "b is f8_e4m3 or f8_e5m2"),
        (((4, 8), (8, 5), (), ()), (E4M3, E4M3, "f64", "f32"), "f32", "dtype_mismatch", "scale_a is f32"),
        (((4, 8), (8, 5), (), ()), (E4M3, E4M3, "f32", E4M3), "f32", "dtype_mismatch", "scale_b is f32"),
        (((4, 8), (8, 5), (), ()), ("f32", E4M3, "f32", "f32"), "f32", "unknown_dtype", "does not take f32"),
        (((4, 8), (8, 5), (), ()), (E4M3, E4M3, "f32", "f32"), E4M3, "dtype_mismatch", "it may be f32 or f16 or bf16"),
        (((4, 8), (8, 5), (4,), ()), (E4M3, E4M3, "f32", "f32"), "f32", "shape_mismatch", "shape [rows, 1]"),
        (((4, 8), (8, 5), (), (5, 1)), (E4M3, E4M3, "f32", "f32"), "f32", "shape_mismatch", "shape [columns]"),
        (((4, 8), (8, 5), (3, 1), ()), (E4M3, E4M3, "f32", "f32"), "f32", "shape_mismatch", "product's 4"),
        (((4, 8), (7, 5), (), ()), (E4M3, E4M3, "f32", "f32"), "f32", "shape_mismatch", "inner dimension"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_that_says_what_is_taken(
    raw_runner: runners.RawRunner, device: dict[str, Any], shapes: Any, names: Any, out_dtype: str, code: str, says: str
) -> None:
    arrays = [np.zeros(shape, dtypes.STORAGE[name]) for shape, name in zip(shapes, names, strict=True)]
    operands, out = place(raw_runner.memory, arrays, list(names), (4, 5), out_dtype)
    with pytest.raises(runners.Refused) as refused:
        raw_runner.run("scaled_gemm", ",".join(names), operands, out, {}, device["uuid"], out_dtype)
    assert refused.value.code == code and says in str(refused.value)


def test_forms_of_other_ops_are_refused(raw_runner: runners.RawRunner, device: dict[str, Any]) -> None:
    for attrs in ({"alpha": 2.0}, {"beta": 1.0}, {"precision": "exact"}):
        with pytest.raises(runners.Refused):
            multiply(raw_runner, device, ALL.reshape(16, 16), ALL.reshape(16, 16), 1, 1, **attrs)


@pytest.fixture(scope="session")
def raw_runner(daemon: Any) -> Any:
    made = runners.RawRunner(daemon, 1 << 20)
    yield made
    made.close()
