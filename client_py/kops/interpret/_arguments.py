"""Arguments: arrays become regions of memory that the kernel may use, numbers the bytes of their C type.

Each array is copied into a region of its own in memory that nothing else lies near, so that an address outside a region
still tells which one was meant. After a run without errors what was written is copied back.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import KopsError, Param
from .._companions import DTYPES, NAMES, compiled_part, convert, fault, numpy, plain_view, structure, to_bytes
from ._errors import InterpretError
from ._expressions import evaluate

# NumPy has no types of its own for these: their bits may be in an unsigned integer.
_BITS = {"bf16": "uint16", "f8_e4m3": "uint8", "f8_e5m2": "uint8"}
SEARCH_STEPS = 10_000  # steps of the search for an element that two arrays share
_TooHard: type[Exception] = getattr(numpy, "exceptions", numpy).TooHardError
MARGIN = 0xA5  # fills the pages beside a tensor
GAP = 1 << 30  # bytes of address space on both sides of a tensor
ALIGNMENT = 256  # as the device's allocator gives


def _arrays(dtype: str) -> tuple[str, ...]:
    """NumPy's dtypes that hold elements of this one."""
    return (NAMES[dtype], *([_BITS[dtype]] if dtype in _BITS else []))


class Tensor(NamedTuple):
    """An array argument in memory for the kernel."""

    parameter: Param
    start: int  # address of the usable memory
    size: int  # bytes of usable memory
    pointer: int  # the kernel's argument: the first element

    @property
    def itemsize(self) -> int:
        return DTYPES[self.parameter.dtype]


def parameters(items: Sequence[Any]) -> list[Param]:
    """The declaration; each item is a `Param` or like one: it has `name`, `kind` and `dtype`, as attributes or keys, and may have
    what else a `Param` has. What the daemon refuses is refused here."""
    compiled_part("the interpreter")
    result: list[Param] = []
    for i, item in enumerate(items):
        get = item.get if isinstance(item, Mapping) else lambda key, item=item: getattr(item, key, None)
        name = str(get("name") or f"argument_{i}")
        if get("map") is not None:
            raise InterpretError(
                f"{name} is a tensor map: what copies through it is a GPU's own unit, which the interpreter has not; run this "
                "kernel on a GPU, or interpret a version of it that takes pointers",
                "unsupported",
            )
        try:
            result.append(
                Param(
                    name, str(get("kind")), str(get("dtype")), get("shape"), get("elements"), get("rank"), get("align"),
                    bool(get("strided")), lanes=int(get("lanes") or 1),
                )
            )  # fmt: skip
        except KopsError as error:
            raise InterpretError(str(error), "signature") from None
    wrong = fault(result)
    if wrong is not None:
        raise InterpretError(wrong, "signature")
    return result


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


class _Array(NamedTuple):
    """An argument as a NumPy array, and how what was written reaches the argument."""

    array: Any
    target: Any  # a torch tensor elsewhere to copy to, or None

    @property
    def where(self) -> Any:
        """An array at the argument's own addresses, which may be another device's: to be compared, not to be read."""
        if self.target is None:
            return self.array
        tensor = self.target[0]
        strides = tuple(step * self.array.itemsize for step in tensor.stride())
        place = {"data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape), "strides": strides, "version": 3}
        return numpy.asarray(_Interface({**place, "typestr": self.array.dtype.str}))


class _Interface:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _share_elements(a: Any, b: Any) -> bool:
    """Whether two arrays have an element in common. Where that takes too long to find out they count as if they had."""
    try:
        return bool(numpy.shares_memory(a, b, max_work=SEARCH_STEPS))
    except _TooHard:
        return True


def _as_array(parameter: Param, value: Any) -> _Array:
    target = None
    try:
        value = plain_view(value, parameter, parameter.name)
    except KopsError as error:
        raise InterpretError(str(error), "signature") from None
    if _is_torch(value):
        import torch

        tensor = value.detach()
        if tensor.device.type != "cpu":
            target, tensor = tensor, tensor.cpu()
        if str(tensor.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"):
            if str(tensor.dtype).partition(".")[2] not in _arrays(parameter.dtype):
                raise InterpretError(f"{parameter.name}: dtype {tensor.dtype} for a parameter of {parameter.dtype}", "signature")
            array = tensor.view(torch.uint8 if DTYPES[parameter.dtype] == 1 else torch.int16).numpy()
            return _Array(array, (target, tensor) if target is not None else None)
        array = tensor.numpy()
        target = (target, tensor) if target is not None else None
    else:
        array = value._in_this_process() if hasattr(value, "_in_this_process") else value  # kops.Array
    if not isinstance(array, numpy.ndarray):
        if parameter.kind != "in":
            raise InterpretError(f"{parameter.name}: {type(value).__name__} is no array that could be written", "signature")
        array = numpy.asarray(array)
    if array.dtype.name not in _arrays(parameter.dtype):
        raise InterpretError(f"{parameter.name}: dtype {array.dtype} for a parameter of {parameter.dtype}", "signature")
    if not array.dtype.isnative:
        raise InterpretError(f"{parameter.name}: the bytes of {array.dtype} are swapped", "signature")
    return _Array(array, target)


def check_shape(parameter: Any, shape: tuple[int, ...], names: Mapping[str, Any]) -> None:
    """Holds an array's shape against the sizes that a parameter declares, in expressions over `names`."""
    name = parameter.name
    if parameter.rank is not None and len(shape) != parameter.rank:
        raise InterpretError(f"{name} has {len(shape)} dimensions, {parameter.rank} are declared", "signature")
    if parameter.shape is not None:
        wanted = [None if n is None else evaluate(n, names, f"{name}.shape[{i}]") for i, n in enumerate(parameter.shape)]
        if len(wanted) != len(shape) or any(n not in (None, m) for n, m in zip(wanted, shape)):
            declared = ", ".join("any" if n is None else str(n) for n in wanted)
            raise InterpretError(f"{name} has shape {tuple(shape)}, ({declared}) is declared", "signature")
    if parameter.elements is not None:
        least, size = evaluate(parameter.elements, names, f"{name}.elements"), math.prod(shape)
        if size < least:
            raise InterpretError(f"{name} has {size} elements, at least {least} are declared", "signature")


class Arguments:
    """The arguments of a kernel. Use as a context manager: leaving it frees the memory."""

    def __init__(self, declared: Sequence[Param], values: Sequence[Any], alias: bool = False) -> None:
        if len(values) != len(declared):
            raise InterpretError(f"{len(values)} arguments for {len(declared)} parameters", "signature")
        self.tensors: list[Tensor] = []
        self.names: dict[str, Any] = {}  # for expressions
        self.missing: list[Param] = []  # null pointers
        self._arrays: dict[int, tuple[Param, _Array]] = {}
        self._numbers: dict[int, bytes] = {}
        for i, (parameter, value) in enumerate(zip(declared, values)):
            if not parameter.is_tensor:
                self._numbers[i] = self._number(parameter, value)
            elif value is None:
                if parameter.shape is not None or parameter.elements is not None:
                    raise InterpretError(f"{parameter.name} is a null pointer, but it is declared with a size", "signature")
                self.missing.append(parameter)
                self.names[parameter.name] = None
                self._numbers[i] = bytes(8)
            else:
                array = _as_array(parameter, value)
                if parameter.kind != "in" and not array.array.flags.writeable:
                    raise InterpretError(f"{parameter.name}: the array is read-only", "signature")
                if not array.array.flags.c_contiguous and not parameter.strided:
                    raise InterpretError(f"{parameter.name}: the array is not contiguous", "signature")
                self._arrays[i] = (parameter, array)
                self.names[parameter.name] = tuple(int(n) for n in array.array.shape)
        for parameter, array in self._arrays.values():
            check_shape(parameter, array.array.shape, self.names)
        self._check_overlap(alias)
        self._count = len(declared)
        self._memory: mmap.mmap | None = None
        self._views: list[tuple[_Array, Any, Any]] = []
        self._margins: list[tuple[str, Any]] = []

    def _check_overlap(self, alias: bool) -> None:
        """The rule of launches: a written tensor shares no element with another one or itself unless `alias` allows it."""
        arrays = [(parameter, array, array.where) for parameter, array in self._arrays.values()]
        for i, (parameter, array, where) in enumerate(arrays):
            if parameter.kind == "in":
                continue
            if not alias and parameter.strided and _repeats(where):
                raise InterpretError(f"{parameter.name}: elements of it share memory with each other; {_NO_ALIAS}", "signature")
            for j, (other, its, there) in enumerate(arrays):
                if j == i or (j > i and other.kind != "in") or not _share_elements(where, there):
                    continue
                if not alias:
                    raise InterpretError(f"{parameter.name} shares memory with {other.name}; {_NO_ALIAS}", "signature")
                if array.target is not None or its.target is not None:
                    raise InterpretError(f"{parameter.name} shares memory with {other.name}: copy it to the CPU first", "signature")

    def _number(self, parameter: Param, value: Any) -> bytes:
        try:
            if parameter.lanes > 1:
                self.names[parameter.name] = ""  # expressions cannot use a structure
                return structure(parameter.dtype, parameter.lanes, value, f"{parameter.name}:", parameter.name)
            number = convert(parameter.dtype, value, f"{parameter.name}:", parameter.name)
        except KopsError as error:
            raise InterpretError(str(error), "signature") from None
        self.names[parameter.name] = number
        return to_bytes(parameter.dtype, number)

    @property
    def written(self) -> int:
        """Elements that the kernel could write."""
        return sum(a.array.size for p, a in self._arrays.values() if p.kind != "in")

    @property
    def can_write(self) -> bool:
        return any(p.kind != "in" for p, _ in self._arrays.values())

    def _distinct(self) -> dict[tuple[int, int], list[int]]:
        """Arguments by the memory that they are: arrays between whose elements those of a written one lie are in one
        piece. Address and size of each piece."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, (_, array) in self._arrays.items():
            found.setdefault(_span(array.array) if array.array.size else (-1 - i, 0), []).append(i)
        pieces: list[tuple[int, int, list[int]]] = []
        for (low, size), arguments in sorted(found.items()):
            end, held = low + size, list(arguments)
            while (other := self._meets(pieces, low, end, held)) is not None:
                pieces.remove(other)
                low, end, held = min(low, other[0]), max(end, other[1]), [*other[2], *held]
            pieces.append((low, end, held))
        return {(low, end - low): held for low, end, held in pieces}

    def _meets(self, pieces: Sequence[tuple[int, int, list[int]]], low: int, end: int, held: list[int]) -> Any:
        """A piece that overlaps these addresses where something is written in one of both; None if there is none."""
        for piece in pieces:
            written = any(self._arrays[i][0].kind != "in" for i in (*piece[2], *held))
            if written and piece[0] < end and low < piece[1]:
                return piece
        return None

    def _reserve(self, sizes: list[int]) -> mmap.mmap:
        """Address space for regions of these sizes with gaps between them, as wide as there is room."""
        self.gap = GAP
        while True:
            try:
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
                total = sum(sizes) + self.gap * (len(sizes) + 1)
                return mmap.mmap(-1, total, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            except (OSError, ValueError):
                if self.gap <= 1 << 16:
                    raise InterpretError("there is no memory for the tensors", "unsupported") from None
                self.gap >>= 4

    def __enter__(self) -> Arguments:
        distinct = self._distinct()
        sizes = [-(-size // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE for _, size in distinct]
        self._memory = self._reserve(sizes)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        offset = self.gap
        tensors: dict[int, Tensor] = {}
        for (low, size), arguments, room in zip(distinct, distinct.values(), sizes):
            first = [_data(self._arrays[i][1].array) - low if size else 0 for i in arguments]  # address of the first element
            start = offset + -(base + offset) % ALIGNMENT  # of the piece: a pointer into it is aligned no better than on a GPU
            for i, into in zip(arguments, first):
                tensors[i] = Tensor(self._arrays[i][0], base + start, size, base + start + into)
            if size:
                view = numpy.frombuffer(self._memory, numpy.uint8, size, start)
                outside = numpy.frombuffer((ctypes.c_uint8 * size).from_address(low), numpy.uint8)
                view[:] = outside
                self._margins += [(self._arrays[arguments[0]][0].name, self._margin(at)) for at in (start - mmap.PAGESIZE, start + size)]
                self._views += [(self._arrays[i][1], outside, view) for i in arguments if self._arrays[i][0].kind != "in"]
            offset += room + self.gap
        self.tensors = [tensors[i] for i in sorted(tensors)]
        bits = {i: struct.pack("=Q", tensor.pointer) for i, tensor in tensors.items()}
        self._values = [_aligned(bits.get(i) or self._numbers[i]) for i in range(self._count)]
        self.pointers = (ctypes.c_void_p * (self._count + 1))(*(address for _, address in self._values))
        return self

    def _margin(self, at: int) -> Any:
        """A page beside a tensor. It is looked at when the kernel has ended: an access that nothing has watched shows there."""
        made = numpy.frombuffer(self._memory, numpy.uint8, mmap.PAGESIZE, at)
        made[:] = MARGIN
        return made

    def check_margins(self) -> None:
        """Raises InterpretError where something beside a tensor was written."""
        for name, margin in self._margins:
            if (margin != MARGIN).any():
                text = f"a write outside of {name}, by an access that the interpreter does not watch"
                raise InterpretError(text, "out_of_bounds", tensor=name)

    def fill(self) -> None:
        """The arrays' contents, into what the kernel may have written."""
        for _, outside, view in self._views:
            view[:] = outside

    def copy_back(self) -> None:
        """Copies the kernel's outputs into the arrays."""
        for array, outside, view in self._views:
            outside[:] = view
            if array.target is not None:
                device_tensor, host_tensor = array.target
                device_tensor.copy_(host_tensor)

    def __exit__(self, *_: object) -> None:
        self._views.clear()
        self._margins.clear()
        self._memory = None  # unmapped with the last view of it


def _aligned(data: bytes) -> tuple[Any, int]:
    """Memory with these bytes, where any C type may lie, and its address."""
    memory = ctypes.create_string_buffer(len(data) + 32)
    address = ctypes.addressof(memory)
    address += -address % 32
    ctypes.memmove(address, data, len(data))
    return memory, address


_NO_ALIAS = "give it memory of its own, or declare the kernel with alias=True"


def _repeats(array: Any) -> bool:
    """Whether two indices may be one element: a dimension does not step over all that the smaller ones reach."""
    reach = 0
    if array.size <= 1:
        return False
    for stride, length in sorted((abs(stride), length) for stride, length in zip(array.strides, array.shape) if length > 1):
        if stride // array.itemsize <= reach:
            return True
        reach += (length - 1) * (stride // array.itemsize)
    return False


def _data(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _span(array: Any) -> tuple[int, int]:
    """Address and size of the memory from an array's lowest byte to its highest."""
    low = high = _data(array)
    for length, stride in zip(array.shape, array.strides):
        low += min(stride, 0) * (length - 1)
        high += max(stride, 0) * (length - 1)
    return low, high + array.itemsize - low
