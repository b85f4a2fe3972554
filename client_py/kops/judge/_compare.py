"""Whether arrays are right, quickly: in one pass without the GIL where the package's compiled part is there, else in NumPy, by parts
that fit into a cache. What is wrong with an array that is not is for `_check`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._companions import native, numpy
from ._values import Tensor, floats_of

PART = 1 << 15  # elements


class Errors(NamedTuple):
    """Of a tensor of floats: elements that are wrong, the sum of the squares of the errors of those that are finite, and elements of at
    least some size that are further off than `rtol` of themselves, so that `atol` alone may allow them."""

    wrong: int
    squares: float
    by_atol: int


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def sum_of_squares(values: Any) -> float:
    """Of a vector. Not by BLAS, whose threads go on spinning for a while after each call, and take the processors from all that
    is prepared beside the GPU."""
    return float(numpy.einsum("i,i->", values, values))


def same_bytes(a: Any, b: Any) -> bool:
    """Of contiguous arrays of one size in bytes."""
    if a.nbytes != b.nbytes or not (a.flags.c_contiguous and b.flags.c_contiguous):
        raise ValueError("arrays of different sizes, or with gaps")
    if native is not None:
        return bool(native.compare_bytes(_address(a), _address(b), a.nbytes))
    flat = [one.reshape(-1).view(numpy.uint8) for one in (a, b)]
    return all(numpy.array_equal(flat[0][at : at + 8 * PART], flat[1][at : at + 8 * PART]) for at in range(0, a.nbytes, 8 * PART))


def float_errors(got: Tensor, want: Any, rtol: float, atol: float, least: float = math.inf) -> Errors:
    """What is off. `want` is of float64. Right is what is within `atol + rtol * |want|`, the same infinity, or NaN for NaN. `least`:
    the size from which on elements count for `by_atol`."""
    if want.dtype != numpy.float64 or want.shape != got.data.shape or not (want.flags.c_contiguous and got.data.flags.c_contiguous):
        raise ValueError("what is right is float64 of the same shape, without gaps")
    if native is not None:
        found = native.compare_floats(got.dtype, _address(got.data), _address(want), want.size, rtol, atol, least)
        if found is not None:
            return Errors(*found)
    sums = [0, 0.0, 0]
    flat, right = got.data.reshape(-1), want.reshape(-1)
    with numpy.errstate(all="ignore"):
        for at in range(0, right.size, PART):
            found = _part(floats_of(Tensor(got.dtype, flat[at : at + PART])), right[at : at + PART], rtol, atol, least)
            sums = [one + more for one, more in zip(sums, found)]
    return Errors(int(sums[0]), sums[1], int(sums[2]))


def _part(got: Any, want: Any, rtol: float, atol: float, least: float) -> Errors:
    far = numpy.abs(got - want)
    allowed = numpy.abs(want)
    counts = allowed >= least
    allowed *= rtol
    counts &= far > allowed
    allowed += atol
    right = far <= allowed
    squares = sum_of_squares(far)
    if not numpy.isfinite(squares):
        finite = numpy.isfinite(got) & numpy.isfinite(want)
        right = numpy.where(finite, right, (got == want) | (numpy.isnan(got) & numpy.isnan(want)))
        counts &= finite
        far[~finite] = 0
        squares = sum_of_squares(far)
    return Errors(int(right.size - numpy.count_nonzero(right)), squares, int(numpy.count_nonzero(counts)))
