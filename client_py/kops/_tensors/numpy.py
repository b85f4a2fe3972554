"""NumPy arrays, and values that NumPy makes an array of: lists, numbers, anything with `__array__`.

An array that lies in the pool's memory (made by `empty`, `array`, a result, or a view of such) is referred to where it
is, recognised by its address. Any other is copied into a block of the pool for the call, and an output is copied back.

Nothing imports this file before arrays, lists or numbers are met: torch tensors go without NumPy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any, ClassVar

from .._base.declarations import DTYPES
from .._base.dtypes import FLOATS, NAMES, OF_ML_DTYPES
from .._base.errors import BadArgument, Overlap, ReadOnly, ShapeMismatch
from .._memory.pool import Block, pool
from .operands import Adapter, Layout, Operand, Operands, copied_strides, unknown_dtype

try:
    import numpy as numpy
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    raise ModuleNotFoundError(
        "NumPy is not installed, which kops needs for arrays, lists and numbers (not for torch tensors): pip install numpy", name="numpy"
    ) from None

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
        made.adapter = self
        return made

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
        made = numpy_adapter.operand(numpy.from_dlpack(value), operands, output=output, reads=reads)
        made.value, made.adapter = value, self
        return made

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


# Floats for which NumPy alone has no dtype, as arrays of their bits


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
        made.dtype = self.dtype
        return made

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


# Outputs of recorded ops, which have no content before the sequence or program runs


class Promise:
    """Whether a recorder's ops have run, so that their outputs can be read."""

    __slots__ = ("kept", "name")

    def __init__(self, name: str) -> None:
        self.kept = False
        self.name = name  # "sequence" or "program"

    def __reduce__(self) -> tuple[Any, ...]:
        return Promise, (self.name,)


WHEN = {"sequence": "when its `with` block ends", "program": "with its first run()"}


def _plain(value: Any) -> Any:
    """Without the guard; raises where there is nothing to read yet."""
    if isinstance(value, Recorded):
        value._check()
        return value.view(numpy.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value


class Recorded(numpy.ndarray):  # type: ignore[misc]
    """See above. Operations on it give plain arrays."""

    _promise: Promise | None

    def __array_finalize__(self, obj: Any) -> None:
        self._promise = getattr(obj, "_promise", None)

    def _check(self) -> None:
        promise = self._promise
        if promise is not None and not promise.kept:
            raise BadArgument(
                f"this array is written {WHEN[promise.name]}: the {promise.name} that an op was recorded in has not run, and "
                "there is nothing to read before. Its shape and dtype can be looked at, and it can be given to other ops of "
                f"the {promise.name}"
            )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        return getattr(ufunc, method)(*map(_plain, inputs), **{key: _plain(value) for key, value in keywords.items()})

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in SEEN_FROM_OUTSIDE:
            return super().__array_function__(func, types, args, kwargs)
        plain = {key: _plain(value) for key, value in kwargs.items()}
        return func(*map(_plain, args), **plain)

    def __repr__(self) -> str:
        if self._promise is not None and not self._promise.kept:
            shape = "×".join(map(str, self.shape)) or "a number"
            return f"<kops: {shape} {self.dtype}, written {WHEN[self._promise.name]}>"
        return repr(self.view(numpy.ndarray))

    def __str__(self) -> str:
        return repr(self) if self._promise is not None and not self._promise.kept else str(self.view(numpy.ndarray))

    def __format__(self, spec: str) -> str:
        return repr(self) if self._promise is not None and not self._promise.kept else format(self.view(numpy.ndarray), spec)

    def __reduce__(self) -> Any:
        return _plain(self).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return _plain(self).__deepcopy__(memo)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, Recorded):  # a number
            self._check()
        return found


# Functions that look at shape and place only.
SEEN_FROM_OUTSIDE = {
    getattr(numpy, name)
    for name in ("shape", "ndim", "size", "shares_memory", "may_share_memory", "broadcast_to", "broadcast_arrays", "reshape",
                 "transpose", "swapaxes", "moveaxis", "squeeze", "expand_dims", "ravel", "atleast_1d", "atleast_2d", "result_type",
                 "empty_like", "zeros_like", "ones_like", "full_like", "copyto", "putmask")
    if hasattr(numpy, name)
}  # fmt: skip


def _reading(name: str) -> Any:
    method = getattr(numpy.ndarray, name)

    def read(self: Recorded, *args: Any, **keywords: Any) -> Any:
        return method(_plain(self), *map(_plain, args), **keywords)

    read.__name__, read.__doc__ = name, method.__doc__
    return read


for _name in (
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__int__", "__float__", "__complex__", "__index__",
    "__iter__", "__contains__", "__copy__", "item", "tolist",
    "tobytes", "tofile", "dump", "dumps", "copy", "astype", "byteswap", "all", "any", "argmax", "argmin", "argsort",
    "argpartition", "choose", "clip", "compress", "conj", "conjugate", "cumprod", "cumsum", "diagonal", "dot", "flatten", "max",
    "mean", "min", "nonzero", "prod", "ptp", "repeat", "round", "searchsorted", "std", "sum", "take", "trace", "var",
):  # fmt: skip
    if hasattr(numpy.ndarray, _name):
        setattr(Recorded, _name, _reading(_name))


def promised(value: Any, promise: Promise) -> Any:
    """An output of a recorded op as its caller gets it."""
    if type(value) is numpy.ndarray:
        value = value.view(Recorded)
        value._promise = promise
        return value
    return tuple(promised(one, promise) for one in value) if type(value) is tuple else value
