"""The quick comparison beside a plain one, with and without the compiled part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kops.judge import _draws, _values

FLOATS = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")


@pytest.fixture(params=["compiled", "numpy"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(_values, "native", None)
    elif _values.native is None:
        pytest.skip("the compiled part is not here")
    return str(request.param)


def bits_of(dtype: str, values: Any) -> _values.Tensor:
    if dtype == "bf16":
        return _values.Tensor(dtype, (values.astype("f4").view("u4") >> 16).astype("u2"))
    if dtype.startswith("f8"):
        return _values.Tensor(dtype, np.random.default_rng(1).integers(0, 256, values.shape, "u1"))
    return _values.Tensor(dtype, values.astype(_values.bits_dtype(dtype)))


def plainly(got: _values.Tensor, want: Any, rtol: float, atol: float, least: float = math.inf) -> tuple[int, float, int]:
    wide = _values.floats_of(got)
    bad, far = _draws._compare_floats(_draws.Expected("c", got.dtype, want), wide, rtol, atol)
    counted = np.isfinite(wide) & np.isfinite(want) & (np.abs(want) >= least) & (far > rtol * np.abs(want))
    return int(bad.sum()), float(np.square(far[np.isfinite(far)]).sum()), int(counted.sum())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 3, 4, 4096, 4097, 100_003])
def test_floats(how: str, dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    want = rng.standard_normal(size)
    with np.errstate(all="ignore"):
        got = bits_of(dtype, want * (1 + 1e-3 * rng.standard_normal(size)))
        for rule in ((1e-3, 0.0), (0.0, 1e-2), (1e-2, 1e-2), (0.0, 0.0), (1e-3, 1e-2, 0.0), (1e-3, 1e-2, 0.5)):
            errors, expected = _values.float_errors(got, want, *rule), plainly(got, want, *rule)
            assert errors.squares == pytest.approx(expected[1], rel=1e-9)
            assert (errors.wrong, errors.by_atol) == expected[::2]
    assert dtype.startswith("f8") or not _values.float_errors(got, _values.floats_of(got), 0.0, 0.0)[0]


SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e308, -1e308)


@pytest.mark.parametrize("at", [0, 5, 4095, 8191])
def test_what_is_not_finite(how: str, at: int) -> None:
    """Each beside each, anywhere among others."""
    for got in SPECIAL:
        for want in SPECIAL:
            right, tensor = np.ones(8192), _values.Tensor("f64", np.ones(8192))
            right[at], tensor.data[at] = want, got
            with np.errstate(all="ignore"):
                found = _values.float_errors(tensor, right, 1e-6, 1e-6, 0.5)
                assert found[::2] == plainly(tensor, right, 1e-6, 1e-6, 0.5)[::2], (got, want)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_number_of_two_bytes(how: str, dtype: str) -> None:
    tensor = _values.Tensor(dtype, np.arange(1 << 16, dtype="u2").view(_values.bits_dtype(dtype)))
    assert _values.float_errors(tensor, _values.floats_of(tensor), 0.0, 0.0) == (0, 0.0, 0)


def test_bytes(how: str) -> None:
    a = np.random.default_rng(1).integers(0, 256, 1_000_001, "u1")
    b = a.copy()
    assert _values.same_bytes(a, b) and _values.same_bytes(a[:0], b[:0])
    for at in (0, 7, 500_000, 1_000_000):
        b[at] ^= 1
        assert not _values.same_bytes(a, b)
        b[at] ^= 1
    nan = np.full(3, np.nan)
    assert _values.same_bytes(nan, nan.copy()) and not _values.same_bytes(np.zeros(1), -np.zeros(1))


def test_what_cannot_be_compared(how: str) -> None:
    one = np.zeros((4, 4))
    for a, b in ((one, one[:2]), (one, one.T[1:].T), (one[:, ::2], one[:, ::2])):
        with pytest.raises(ValueError, match="gaps"):
            _values.same_bytes(a, b)
    for got, want in ((one, one[0]), (one, one.astype("f4")), (one.T[::2], one[:2])):
        with pytest.raises(ValueError, match="float64"):
            _values.float_errors(_values.Tensor("f64", got), want, 0.0, 0.0)
