"""Operands: from any array of any framework to a reference that travels, and back; numbers beside arrays.

A number has the dtype of the array beside it and is where that is: it does not promote the array, as with torch and NumPy. On the host a
number takes the place of one element in shared memory. Beside torch CUDA tensors it is a tensor of one element, made once: the cache keeps
the last ones.
"""

from __future__ import annotations

import math
import numbers
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._base.declarations import DTYPES, OPS
from .._base.dtypes import NAMES
from .._base.errors import DeviceMismatch, UnknownDtype, WrongType
from .._memory.exports import Allocation, allocations
from .._memory.pool import Source, Unknown, pool
from .._source.scalars import convert, to_bytes
from .._source.types import TENSORS_ONLY

_OPS: Mapping[str, Any] = OPS


class Operand:
    """A tensor as the wire sees it. `source` is None when it has no element. `strides` count elements; None is
    row-major."""

    __slots__ = ("value", "source", "offset", "shape", "strides", "dtype", "adapter")

    def __init__(
        self,
        value: Any,
        source: Source | None,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: str,
        adapter: Adapter,
    ) -> None:
        self.value = value  # given by the caller, or allocated
        self.source = source
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.adapter = adapter

    @property
    def layout(self) -> Layout:
        """How the daemon sees it."""
        source, strides = self.source, None if self.strides is None else tuple(self.strides)
        return Layout(self.dtype, tuple(self.shape), strides, None if source is None else source.base + self.offset)

    def wire(self, key: int) -> dict[str, Any]:
        """The tensor map on the connection of that key. Raises Unknown."""
        source = self.source
        if source is None:
            return {"shape": self.shape, "dtype": self.dtype}
        buffer = source.ids.get(key)
        if buffer is None:
            raise Unknown(source)
        made = {"buffer": buffer, "offset": self.offset, "shape": self.shape, "dtype": self.dtype}
        if self.strides is not None:
            made["strides"] = self.strides
        return made


class Layout(NamedTuple):
    """A tensor without its memory's owner, as the extension takes arrays of launches here. `strides` count elements; None is row-major.
    `address` is where the first element is, in this process; `device` the number of its CUDA device there, -1 where that is not told."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    address: int | None
    device: int = -1


class Operands:
    """Needs of one call's tensors: memory to keep until the reply, streams to wait for before it, copies after it."""

    __slots__ = ("keep", "staged", "waits", "copies")

    def __init__(self) -> None:
        self.keep: list[Any] = []
        self.staged: dict[Any, Any] = {}  # identity of an ordinary array -> its staged operand
        self.waits: dict[Any, Callable[[], None]] = {}
        self.copies: list[Callable[[], None]] = []  # staged outputs back to where they belong

    def synchronize(self) -> None:
        """Waits for the streams that the operands are made on: inputs must be ready when a request is sent, and memory
        that an allocator reuses in stream order must be free."""
        for wait in self.waits.values():
            wait()

    @property
    def torch_device(self) -> int | None:
        """The CUDA device whose torch tensors these are, all of them; None when some are something else."""
        if len(self.waits) != 1 or self.staged:
            return None
        ((kind, index),) = self.waits
        return index if kind == "torch" else None

    def finish(self) -> None:
        for copy in self.copies:
            copy()


class Adapter:
    """One framework. Stateless."""

    plain = False  # takes its dtype from the other operands
    number = False  # a plain one without elements to choose a dtype by

    def convert(self, value: Any, dtype: str | None, operands: Operands) -> Operand:
        """As `operand`, for a value that has no dtype of its own."""
        raise NotImplementedError

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        """Refers to `value`, or to a copy of it in shared memory. An `output` is copied back by `operands.finish()`;
        with `reads` its content is copied in first."""
        raise NotImplementedError

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        """A new tensor of the same framework, device and dtype as `like`."""
        raise NotImplementedError

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        """A number as an operand of the dtype of `like` and where that is: here in shared memory."""
        data = number_bytes(value, like.dtype)[1]
        block = pool.take(len(data))
        memoryview(block).cast("B")[: len(data)] = data
        operands.keep.append(block)
        return Operand(value, block.segment, block.offset, (), None, like.dtype, self)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """What `copy` takes to fill an array of that shape and dtype with `value`."""
        return value

    def layout(self, value: Any, staged: bool = True) -> Layout:
        """How the daemon will see an array, before it is referred to or copied; not `staged`: as it is, with its device."""
        return self.operand(value, Operands()).layout

    def on_host(self, value: Any) -> Any:
        """An input as the interpreter takes it: in host memory, with strides of whole elements that are not negative."""
        return value

    def result(self, value: Any) -> Any:
        """The result that the caller gets for an allocated tensor."""
        return value


def check_devices(some: list[Operand], others: list[Operand]) -> None:
    """Host memory and device memory do not mix: where to compute would be a guess."""
    kind = None
    for operand in (*some, *others):
        source = operand.source
        if source is not None and source.on_host is not kind:
            if kind is not None:
                raise DeviceMismatch(
                    "some of these tensors are in host memory and some on a GPU: move them to one device, to a GPU's with "
                    "k.array(x, device=…), from there with .get()"
                )
            kind = source.on_host


def number_bytes(value: Any, dtype: str) -> tuple[Any, bytes]:
    """A number in the dtype of the array beside it, and its bytes. Raises WrongType or OutOfRange."""
    if dtype in TENSORS_ONLY:
        raise unknown_dtype(NAMES[dtype])
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        raise WrongType(f"a number beside an array of {NAMES[dtype]} must be real, not {value!r}")
    number = convert(dtype, value, f"a number beside an array of {NAMES[dtype]}", "in")
    return number, to_bytes(dtype, number)


def unknown_dtype(dtype: Any) -> UnknownDtype:
    return UnknownDtype(f"dtype {dtype} is not supported: convert to float32, float64, float16 or bfloat16")


def check_dtypes(op: str, operands: Iterable[Operand]) -> None:
    """Most built-in ops compute with floating-point numbers; other dtypes are for kernels, and for copies."""
    for operand in operands:
        check_dtype(op, operand.dtype)


def check_dtype(op: str, dtype: str) -> None:
    taken: Sequence[str] = _OPS[op]["dtypes"]
    if dtype not in taken:
        raise UnknownDtype(f"{op} of {NAMES[dtype]} is not supported: convert to one of {', '.join(NAMES[n] for n in taken)}")


def span(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: str) -> int:
    """Bytes from a tensor's first element to the end of its furthest; it is not empty."""
    if strides is None:
        return math.prod(shape) * DTYPES[dtype]
    return (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * DTYPES[dtype]


def extent(operand: Operand) -> tuple[int, int] | None:
    """The addresses of its elements, from the first to the end of the furthest; None where it has none."""
    if operand.source is None:
        return None
    start = operand.source.base + operand.offset
    return start, start + span(operand.shape, operand.strides, operand.dtype)


def overlap(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]


def copied_strides(shape: Sequence[int], repeated: Sequence[bool]) -> tuple[int, ...] | None:
    """The strides of a row-major copy that has what is repeated once; None where nothing is."""
    if not any(repeated):
        return None
    result, step = [], 1
    for size, again in zip(reversed(shape), reversed(repeated)):
        result.append(0 if again else step)
        step *= 1 if again else size
    return tuple(reversed(result))


def as_dtype(operand: Operand, dtype: str | None) -> Operand:
    """What an adapter makes a tensor or number of that dtype like; None: of the operand's own."""
    if dtype is None or operand.dtype == dtype:
        return operand
    return Operand(operand.value, None, 0, (), None, dtype, operand.adapter)


def widened(operand: Operand, row: bool, column: bool) -> Operand:
    """The same memory as a matrix of one row, one column, or both."""
    shape, strides = widened_sizes(operand.shape, operand.strides, row, column)
    return Operand(operand.value, operand.source, operand.offset, shape, strides, operand.dtype, operand.adapter)


def widened_sizes(
    sizes: Sequence[int], steps: Sequence[int] | None, row: bool, column: bool
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The shape and strides with a dimension of one element before the last one, behind it, or with two behind all."""
    shape, strides = list(sizes), None if steps is None else list(steps)
    at = len(shape) if column else len(shape) - 1
    for _ in range(row + column):
        shape.insert(at, 1)
        if strides is not None:
            strides.insert(at, strides[at] * shape[at + 1] if at < len(strides) else 1)
    return tuple(shape), None if strides is None else tuple(strides)


def renew(operand: Operand) -> None:
    """Looks an operand's memory up again, after a daemon called the reference stale."""
    source = operand.source
    if isinstance(source, Allocation):
        pointer = source.base + operand.offset
        allocations.forget(source)
        found = allocations.cover(pointer, span(operand.shape, operand.strides, operand.dtype))
        operand.source, operand.offset = found, pointer - found.base
    elif source is not None:
        source.forget()


CACHED = 256  # numbers on devices that are kept for the next calls


class NumberAdapter(Adapter):
    """Python's and NumPy's numbers. As inputs only."""

    plain = number = True

    def beside(self, value: Any, like: Operand | None, operands: Operands) -> Operand:
        """The number as an operand beside an array."""
        if like is not None:
            made = like.adapter.number_operand(value, like, operands)
            made.strides, made.adapter = None, self
            return made
        raise WrongType(
            f"{value!r} is a number, and nothing beside it is an array: a number alone has no dtype and no device. Pass an array, "
            "such as k.array([2.0])"
        )

    def convert(self, value: Any, dtype: str | None, operands: Operands) -> Operand:
        from .numpy import PlainAdapter

        return PlainAdapter().convert(value, dtype, operands)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        from .numpy import broadcast

        return broadcast(value, shape, dtype)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        from .numpy import numpy_adapter

        return numpy_adapter.allocate(like, shape, operands)


number_adapter = NumberAdapter()


class NumbersOnDevices:
    """Tensors of one element, by device, dtype and bytes. `make` fills a new one and waits for that, so that any stream, batch or
    program may read it. Whoever reads a tensor keeps it, so the cache may drop it at any time."""

    def __init__(self, make: Callable[[Any, str, Any], Any]) -> None:
        self._make = make
        self._made: OrderedDict[tuple[int, str, bytes], Any] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, device: Any, dtype: str, value: Any) -> Any:
        number, data = number_bytes(value, dtype)
        key = (device.index, dtype, data)
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
                return found
        made = self._make(device, dtype, number)
        with self._lock:
            self._made[key] = made
            while len(self._made) > CACHED:
                self._made.popitem(last=False)
        return made
