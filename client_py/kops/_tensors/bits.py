"""Floats for which NumPy alone has no dtype, as arrays of their bits."""

from __future__ import annotations

from typing import Any, ClassVar

from .._base.needs_numpy import numpy
from .numpy import NumpyAdapter
from .operands import Operand, Operands


class Bits(numpy.ndarray):  # type: ignore[misc]
    """Unsigned integers with the bits of a dtype. As operands of ops with `out`."""

    of: ClassVar[str]  # the dtype, by the wire's name
    unsigned: ClassVar[str]  # the integers'


class Bfloat16Bits(Bits):
    of, unsigned = "bf16", "uint16"


class E4m3Bits(Bits):
    of, unsigned = "f8_e4m3", "uint8"


class E5m2Bits(Bits):
    of, unsigned = "f8_e5m2", "uint8"


BITS: dict[str, type[Bits]] = {kind.of: kind for kind in (Bfloat16Bits, E4m3Bits, E5m2Bits)}


class BitsAdapter(NumpyAdapter):
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        made = super().operand(value, operands, output=output, reads=reads)
        return Operand(made.value, made.source, made.offset, made.shape, made.strides, self.dtype, self)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return value


def bits_of(values: Any, dtype: str) -> Any:
    """float32 values without the bits that bf16 has not; of a dtype of 8 bits the next number, for values that it has room for."""
    kind = BITS[dtype]
    if dtype == "bf16":
        return (values.view("uint32") >> 16).astype("uint16").view(kind)
    known = numbers_of(dtype)
    positive = numpy.flatnonzero(numpy.isfinite(known[:128]))  # in the order of their bits
    between = (known[positive][1:] + known[positive][:-1]) / 2
    signs = numpy.where(values < 0, numpy.uint8(128), numpy.uint8(0))
    return (numpy.searchsorted(between, numpy.abs(values)).astype("uint8") | signs).view(kind)


def numbers_of(dtype: str) -> Any:
    """What each of the 256 bytes of an 8-bit dtype means, in float64."""
    bits = numpy.arange(256, dtype="uint16")
    if dtype == "f8_e5m2":
        return (bits << 8).view("float16").astype("float64")
    # a sign, four bits of exponent with the bias 7, three of mantissa; no infinities
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).astype("f8")
    made = numpy.where(exponent, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0), mantissa / 8 * 2.0**-6)
    made[(bits & 127) == 127] = numpy.nan
    return numpy.where(bits & 128, -made, made)
