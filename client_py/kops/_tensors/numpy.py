"""NumPy arrays, and values that NumPy makes an array of: lists, numbers, anything with `__array__`.

An array that lies in the pool's memory (made by `empty`, `array`, a result, or a view of such) is referred to where it
is, recognised by its address. Any other is copied into a block of the pool for the call, and an output is copied back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any

from .._base.declarations import DTYPES
from .._base.dtypes import FLOATS, NAMES, OF_ML_DTYPES
from .._base.errors import BadArgument, Overlap, ReadOnly, ShapeMismatch
from .._base.needs_numpy import numpy
from .._memory.pool import Block, pool
from .operands import Adapter, Layout, Operand, Operands, copied_strides, unknown_dtype

# numpy dtype -> (name, native dtype or None when it is that already)
_dtypes: dict[Any, tuple[str, Any]] = {}
_native: dict[str, Any] = {}  # wire name -> numpy dtype


def dtype_name(dtype: Any) -> tuple[str, Any]:
    """The wire's name for a NumPy dtype, and the native-endian dtype when it is of the other byte order."""
    found = _dtypes.get(dtype)
    if found is None:
        native = dtype.newbyteorder("=")
        name = next((short for short, long in NAMES.items() if native.name == long and short in DTYPES), None)
        if name is None:
            raise unknown_dtype(dtype)
        found = _dtypes[dtype] = (name, None if native == dtype else native)
    return found


def numpy_dtype(dtype: Any) -> Any:
    """The NumPy dtype for a wire name, a NumPy dtype or its name. bfloat16 and 8-bit floats need the package
    ml_dtypes."""
    name = NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if isinstance(name, str) and name in OF_ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise BadArgument(f"NumPy has no {name}: install ml_dtypes, or use torch tensors") from None
        return numpy.dtype(getattr(ml_dtypes, name))
    made = numpy.dtype(name)
    dtype_name(made)
    return made


def empty(shape: Any, dtype: Any) -> Any:
    """An array in shared memory, its content whatever was there."""
    shape = (int(shape),) if isinstance(shape, (int, numpy.integer)) else tuple(int(n) for n in shape)
    if any(n < 0 for n in shape):
        raise BadArgument(f"negative dimensions in shape {shape}")
    count = math.prod(shape)
    if count == 0:
        return numpy.empty(shape, dtype)
    return numpy.ndarray(shape, dtype, pool.take(count * dtype.itemsize))


def _element_strides(array: Any) -> tuple[int, ...]:
    """Strides in elements of an array that is not contiguous; empty when some are negative or no whole elements."""
    size = array.itemsize
    result = []
    for stride, length in zip(array.strides, array.shape, strict=True):
        if length == 1:
            stride = size
        if stride < 0 or stride % size:
            return ()
        result.append(stride // size)
    return tuple(result)


class NumpyAdapter(Adapter):
    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        dtype, foreign = _dtypes.get(value.dtype) or dtype_name(value.dtype)
        flags = value.flags
        if output and not flags.writeable:
            raise ReadOnly("out is a read-only array")
        size = value.size
        base = value.base
        if base is not None and size and foreign is None:
            if isinstance(base, Block):
                segment, offset = base.segment, base.offset
            else:
                address = value.__array_interface__["data"][0]
                segment = pool.find(address)
                offset = address - segment.address if segment is not None else 0
            if segment is not None and flags.aligned:
                strides = None if flags.c_contiguous else _element_strides(value)
                if strides != ():
                    operands.keep.append(value)
                    return Operand(value, segment, offset, value.shape, strides, dtype, self)
        if not size:
            return Operand(value, None, 0, value.shape, None, dtype, self)
        return self._stage(value, operands, dtype, foreign, output, reads)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return broadcast(value, shape, dtype)

    def layout(self, value: Any, staged: bool = True) -> Layout:
        """As `operand` refers to it, or copies it."""
        dtype, foreign = _dtypes.get(value.dtype) or dtype_name(value.dtype)
        address = value.__array_interface__["data"][0]
        if value.flags.c_contiguous or not value.size:
            return Layout(dtype, value.shape, None, address)
        strides: tuple[int, ...] | None = _element_strides(value)
        copied = foreign is not None or not value.flags.aligned or strides == () or (staged and pool.find(address) is None)
        if copied:
            repeated = tuple(s == 0 and n > 1 for s, n in zip(value.strides, value.shape, strict=True))
            strides = copied_strides(value.shape, repeated)
        return Layout(dtype, value.shape, strides, address)

    def on_host(self, value: Any) -> Any:
        usable = value.dtype.isnative and value.flags.aligned and (value.flags.c_contiguous or _element_strides(value) != ())
        return value if usable else numpy.array(value, value.dtype.newbyteorder("="), order="C")

    def _stage(self, value: Any, operands: Operands, dtype: str, native: Any, output: bool, reads: bool) -> Operand:
        # An array that is given twice (both inputs, or in place) is one operand for the daemon, too.
        key = (value.__array_interface__["data"][0], value.shape, value.strides, value.dtype)
        found: Operand | None = operands.staged.get(key)
        repeated = tuple(s == 0 and n > 1 for s, n in zip(value.strides, value.shape, strict=True))
        if output and any(repeated):
            raise Overlap("out has elements that share memory (stride 0)")
        if found is None:
            # Repeated elements are copied once and repeated by stride 0.
            distinct = value[tuple(slice(0, 1) if r else slice(None) for r in repeated)] if any(repeated) else value
            block = pool.take(distinct.size * distinct.itemsize)
            stage = numpy.ndarray(distinct.shape, native or value.dtype, block)
            if reads:
                numpy.copyto(stage, distinct)
            strides = None
            if any(repeated):
                strides = copied_strides(value.shape, repeated)
            found = Operand(stage, block.segment, block.offset, value.shape, strides, dtype, self)
            operands.staged[key] = found
            operands.keep.append(stage)
        if output:
            stage = found.value
            operands.copies.append(lambda: numpy.copyto(value, stage))
        return Operand(value, found.source, found.offset, value.shape, found.strides, dtype, self)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        name = like.dtype
        dtype = _native.get(name)
        if dtype is None:
            dtype = _native[name] = numpy_dtype(name)
        count = math.prod(shape)
        if not count:
            return Operand(numpy.empty(shape, dtype), None, 0, shape, None, name, self)
        block = pool.take(count * dtype.itemsize)
        made = numpy.ndarray(shape, dtype, block)
        operands.keep.append(made)
        return Operand(made, block.segment, block.offset, shape, None, name, self)


class PlainAdapter(Adapter):
    """Numbers, lists and other values that NumPy makes an array of. As inputs only."""

    plain = True

    def convert(self, value: Any, dtype: str | None, operands: Operands) -> Operand:
        """As an array of `dtype`; without one its own floating-point dtype if it has one, else f32."""
        array = as_array(value, FLOATS) if dtype is None else numpy.asarray(value, numpy_dtype(dtype))
        made = numpy_adapter.operand(array, operands)
        return Operand(made.value, made.source, made.offset, made.shape, made.strides, made.dtype, self)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return broadcast(value, shape, dtype)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        return numpy_adapter.allocate(like, shape, operands)

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        raise BadArgument("out must be an array")


class DLPackHostAdapter(NumpyAdapter):
    """Host memory by DLPack, such as JAX's CPU arrays: copied like an ordinary NumPy array. Results are made in shared
    memory and handed back by the framework's own from_dlpack."""

    def __init__(self, value: Any) -> None:
        self._package = type(value).__module__.partition(".")[0].replace("jaxlib", "jax")

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        found = numpy_adapter.operand(numpy.from_dlpack(value), operands, output=output, reads=reads)
        return Operand(value, found.source, found.offset, found.shape, found.strides, found.dtype, self)

    def layout(self, value: Any, staged: bool = True) -> Layout:
        return super().layout(numpy.from_dlpack(value), staged)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return value

    def on_host(self, value: Any) -> Any:
        return value

    def result(self, value: Any) -> Any:
        module: Any = sys.modules.get(self._package)
        places: list[Any] = [module, getattr(module, "numpy", None), getattr(module, "dlpack", None)]
        for place in places:
            if hasattr(place, "from_dlpack"):
                return place.from_dlpack(value)
        return value


def broadcast(value: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """`value` as an array of that dtype and shape, where what is repeated takes no memory."""
    given = numpy.asarray(value, numpy_dtype(dtype))
    try:
        return given if given.shape == shape else numpy.broadcast_to(given, shape)
    except ValueError:
        raise ShapeMismatch(f"a value of shape {given.shape} does not broadcast to the array's, {shape}") from None


def to_copy(value: Any, dtype: Any, keeps: Collection[str] = NAMES) -> tuple[Any, Any]:
    """`value` as a NumPy array, and the supported dtype that a copy of it is to have, in native byte order: that asked
    for, else its own when it is an array of one that it `keeps`, else f32."""
    if dtype is not None:
        wanted = numpy_dtype(dtype)
        return value if isinstance(value, numpy.ndarray) else numpy.asarray(value, wanted), wanted.newbyteorder("=")
    array = numpy.asarray(value)
    if hasattr(value, "dtype"):
        try:
            if dtype_name(array.dtype)[0] in keeps:
                return array, array.dtype.newbyteorder("=")
        except TypeError:
            pass
    if array.dtype.kind not in "fiub":
        raise unknown_dtype(array.dtype)
    return array, numpy.dtype(numpy.float32)


def as_array(value: Any, keeps: Collection[str]) -> Any:
    """`value` as a NumPy array of a supported dtype, see `to_copy`."""
    array, wanted = to_copy(value, None, keeps)
    return array if array.dtype.newbyteorder("=") == wanted else array.astype(wanted)


numpy_adapter = NumpyAdapter()
