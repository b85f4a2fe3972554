"""`Array`: an array in memory of the daemon's, on a device that the caller chose, and such arrays as operands: by reference, also their
views. Results lie on the same device.

Numbers beside arrays on GPUs take a few bytes there, which are written at the first use and kept for the next.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .._base.declarations import DTYPES
from .._base.dtypes import NAMES, TYPESTRS
from .._base.errors import BadArgument, NoCuda, ShapeMismatch, UnknownDevice, Unsupported, WrongType
from .._base.records import Device
from .._memory.device_pool import DeviceBlock, DeviceSegment, pool_of
from .._memory.exports import pointer_of
from .._memory.pool import Source, pool
from .operands import CACHED, Adapter, Operand, Operands, number_bytes

_TYPESTRS = {name: typestr for typestr, name in TYPESTRS.items()}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Array:
    """An array in memory of the daemon's on one of its devices. Made by `k.empty`, `k.zeros` and `k.array` with `device=`, and by ops
    whose inputs are such arrays.

    Ops, programs and kernels use it where it is. `get`, `set` and `numpy.asarray` copy. Slices with positive steps, `reshape` of a
    contiguous array, `transpose` and `T` are views of the same memory. The memory is freed with the last reference to it; it outlives
    the client, and the daemon.

    On a GPU this process needs no CUDA. Where it has a CUDA context of that GPU, `__cuda_array_interface__` and DLPack give the same
    memory to CuPy, Numba, torch and others without a copy: what ops that have returned wrote is there. Wait for work that these
    put on CUDA streams before you pass the array to an op. On the host device the memory is shared memory, and DLPack gives it to NumPy.

    Thread-safe as a NumPy array is: calls may come from any thread, and who writes what others read waits for them.
    """

    __slots__ = ("_client", "_block", "_start", "_strides", "_type", "device", "shape", "__weakref__")
    __array_ufunc__ = None  # NumPy's functions would copy each time: call numpy.asarray where that is meant

    device: Device
    shape: tuple[int, ...]

    def __init__(self, client: Any, device: Device, block: Any, start: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str):
        """Arrays are made by clients. `block` is None where there are no elements; `start` counts bytes of the block's segment."""
        self._client = client
        self._block = block
        self._start = start
        self._strides = strides  # in elements
        self._type = dtype  # the wire's name
        self.device = device
        self.shape = shape

    # Properties

    @property
    def dtype(self) -> Any:
        """The NumPy dtype. bfloat16 and 8-bit floats need the package ml_dtypes."""
        from .numpy import numpy_dtype

        return numpy_dtype(self._type)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return DTYPES[self._type]

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes, as NumPy's."""
        return tuple(stride * self.itemsize for stride in self._strides)

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow each other in row-major order."""
        if len(self.shape) == 1:
            return self._strides[0] == 1 or self.shape[0] <= 1
        if not self.size:
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self._strides)):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "a number"
        return f"<kops.Array {shape} {NAMES[self._type]} on {self.device.uuid}>"

    # Copies

    def get(self, out: Any = None, blocking: bool = True, stream: int = 0) -> Any:
        """Copies it to the host: into `out`, a NumPy array or torch CPU tensor of the same shape and dtype, or a new NumPy array.
        Returns that array; with `blocking=False` a `Pending` whose `result()` is that array, and the copy goes on beside work
        of other `stream=`s. A new array is in shared memory, and so is one of `k.empty`: it is written by the GPU directly, others
        through shared memory. Within one stream the copy comes after the calls made before. With asyncio: `await a.get()`."""
        if out is None:
            from .numpy import empty

            out = empty(self.shape, self.dtype)
        return self._client._copy(self, out, stream, blocking)

    def set(self, value: Any, blocking: bool = True, stream: int = 0) -> Any:
        """Copies to it: an array of the same shape, or anything that NumPy broadcasts to it, converted to its dtype. Returns the array;
        with `blocking=False` a `Pending`. Then a `value` that is in shared memory of `k.empty` must stay as it is until that has
        ended; others were copied when the call returns. With asyncio: `await a.set(value)`."""
        from .adapters import adapter_of

        return self._client._copy(adapter_of(value).filling(value, self.shape, self._type), self, stream, blocking)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("the array is on a device of the daemon's: NumPy cannot have it without a copy")
        self._client._check_readable()
        got = self.get()
        return got if dtype is None else got.astype(dtype, copy=False)

    def __setitem__(self, key: Any, value: Any) -> None:
        made = self[key].set(value)
        if hasattr(made, "close") and hasattr(made, "send"):
            made.close()
            raise BadArgument("with asyncio: await a[…].set(value)")

    def __reduce__(self) -> Any:
        raise TypeError("an array on a device is of this process: send a.get() to another one; k.copy(a) is another array here")

    # Views

    def _view(self, start: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
        return Array(self._client, self.device, self._block, start, tuple(shape), tuple(strides), self._type)

    def __getitem__(self, key: Any) -> Array:
        """A view: of integers, slices with positive steps, `...` and None. There is no indexing by arrays."""
        keys = list(key) if isinstance(key, tuple) else [key]
        dots = sum(one is Ellipsis for one in keys)
        used = sum(one is not None and one is not Ellipsis for one in keys)
        if dots > 1 or used > self.ndim:
            raise IndexError(f"{used} indices, and {dots} times `...`, for an array of {self.ndim} dimensions")
        at = next((i for i, one in enumerate(keys) if one is Ellipsis), len(keys))
        keys[at : at + dots] = [slice(None)] * (self.ndim - used)
        start, shape, strides, axis = 0, [], [], 0
        for one in keys:
            if one is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[axis], self._strides[axis]
            if isinstance(one, slice):
                first, end, step = one.indices(size)
                if step < 0:
                    raise BadArgument("a slice with a negative step cannot be a view here: reverse it in NumPy")
                start += first * stride if first < end else 0
                shape.append(max(0, -(-(end - first) // step)))
                strides.append(stride * step)
            else:
                try:
                    index = operator.index(one)
                except TypeError:
                    raise IndexError(f"only integers, slices, `...` and None are indices here, not {type(one).__name__}") from None
                if not -size <= index < size:
                    raise IndexError(f"index {index} is out of bounds for dimension {axis} of size {size}")
                start += index % size * stride
            axis += one is not None
        return self._view(self._start + start * self.itemsize, shape, strides)

    def reshape(self, *shape: Any) -> Array:
        """A view of another shape; -1 once for what is left. Only of contiguous arrays: `k.copy(a)` makes one."""
        wanted = [operator.index(n) for n in (shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)]
        if wanted.count(-1) == 1:
            rest = -math.prod(wanted)
            wanted[wanted.index(-1)] = self.size // rest if rest else 0
        if math.prod(wanted) != self.size or any(n < 0 for n in wanted):
            raise ShapeMismatch(f"{self.size} elements have no shape {tuple(wanted)}")
        if not self.contiguous:
            raise BadArgument("the elements do not follow each other in memory: reshape a copy, k.copy(a)")
        return self._view(self._start, wanted, row_major(wanted))

    def transpose(self, *axes: Any) -> Array:
        """A view with its dimensions in another order, all reversed without one."""
        order = list(axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes) or list(range(self.ndim))[::-1]
        if sorted(n % self.ndim if -self.ndim <= n < self.ndim else -1 for n in order) != list(range(self.ndim)):
            raise BadArgument(f"{tuple(order)} does not name each of {self.ndim} dimensions once")
        return self._view(self._start, [self.shape[n] for n in order], [self._strides[n] for n in order])

    @property
    def T(self) -> Array:
        return self.transpose()

    # For other frameworks

    def _address(self) -> int | None:
        """The first element's address in this process; None: it has none here. Raises NoCuda where the driver refuses."""
        if self._block is None:
            return 0
        segment = self._block.segment
        if not isinstance(segment, DeviceSegment):
            return int(segment.address) + self._start
        if segment.fd < 0:
            return None
        base = pointer_of(segment)
        return None if base is None else base + self._start

    def _why_no_address(self) -> str:
        if self._block is not None and self._block.segment.fd < 0:
            return "nothing has written the array yet: the sequence or program that it is an output of has not run"
        return f"this process has no CUDA context on {self.device.uuid}, and none is made for that: copy the array with .get()"

    def _in_this_process(self) -> Any:
        """A NumPy array of the same memory, for the interpreter. Raises WrongType where it is a GPU's."""
        if self.device.backend != "host":
            raise WrongType("the interpreter works on arrays of this process: give it a.get(), and set the array from what it has written")
        import numpy

        if self._block is None:
            return numpy.empty(self.shape, self.dtype)
        return numpy.ndarray(self.shape, self.dtype, self._block, self._start - self._block.offset, self.strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.backend == "host":
            raise AttributeError("the array is in host memory: numpy.from_dlpack(a) is it without a copy, numpy.asarray(a) copies")
        if self._type not in _TYPESTRS:
            raise AttributeError(f"__cuda_array_interface__ has no {NAMES[self._type]}: use DLPack, such as torch.from_dlpack(a)")
        try:
            address = self._address()
        except NoCuda as error:
            raise AttributeError(f"the array cannot be mapped in this process: {error}") from error
        if address is None:
            raise AttributeError(self._why_no_address())
        return {
            "shape": self.shape, "typestr": _TYPESTRS[self._type], "data": (address, False), "version": 3, "stream": None,
            "strides": None if self.contiguous else self.strides,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        from . import device

        return device.device_of(self.device)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        from . import device

        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("DLPack gives the array where it is; copy it with .get() or k.copy(a)")
        try:
            address = self._address()
        except NoCuda as error:
            raise BufferError(f"the array cannot be mapped in this process: {error}") from error
        if address is None:
            raise BufferError(self._why_no_address())
        versioned = max_version is not None and tuple(max_version) >= device.VERSION
        return device.capsule(self, address, self._type, self.shape, self._strides, self.__dlpack_device__(), versioned)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        wanted = tuple(map(operator.index, shape)) if hasattr(shape, "__iter__") else (operator.index(shape),)
    except TypeError:
        raise WrongType(f"a shape is an integer or a tuple of integers, not {shape!r}") from None
    if any(n < 0 for n in wanted):
        raise BadArgument(f"negative dimensions in shape {wanted}")
    return wanted


def new(client: Any, device: Device, shape: Any, dtype: str) -> Array:
    """An array whose content is whatever was there. Memory on a GPU is made at its first use."""
    wanted = _checked_shape(shape)
    size = math.prod(wanted) * DTYPES[dtype]
    block: Any = None
    if size:
        block = pool.take(size) if device.backend == "host" else pool_of(device.uuid).take(size)
    return Array(client, device, block, block.offset if block is not None else 0, wanted, row_major(wanted), dtype)


def new_guarded(client: Any, device: Device, shape: Any, dtype: str) -> Array:
    """An array at the beginning of memory on a GPU that it has for itself."""
    wanted = _checked_shape(shape)
    size = math.prod(wanted) * DTYPES[dtype]
    if device.backend == "host":
        raise Unsupported("memory of the host device has no unmapped ranges around it: the interpreter checks each access of a kernel")
    block = pool_of(device.uuid).take_alone(size) if size else None
    return Array(client, device, block, 0, wanted, row_major(wanted), dtype)


def dtype_name(dtype: Any) -> str:
    """The wire's name for a dtype: its own name, NumPy's, or torch's."""
    text = str(dtype) if not isinstance(dtype, str) else dtype
    for name, long in NAMES.items():
        if text in (name, long, f"torch.{long}"):
            return name
    import numpy

    from .numpy import dtype_name as numpy_name

    return numpy_name(numpy.dtype(dtype))[0]


def dtype_of(value: Any) -> str:
    """The dtype of an array that is made of `value`: the value's own where it is an array of a supported one, else f32."""
    if isinstance(value, Array):
        return value._type
    if str(getattr(value, "dtype", "")).startswith("torch."):
        return dtype_name(value.dtype)
    from .numpy import dtype_name as numpy_name
    from .numpy import to_copy

    return numpy_name(to_copy(value, None)[1])[0]


def shape_of(value: Any) -> tuple[int, ...]:
    import numpy

    shape = getattr(value, "shape", None)
    return tuple(shape) if shape is not None else tuple(numpy.shape(value))


def find_device(devices: Sequence[Device], device: Any) -> Device:
    """One of the daemon's devices, by its index or UUID, or as `k.devices` has it. Raises UnknownDevice."""
    uuid = device.uuid if isinstance(device, Device) else device
    if isinstance(uuid, int) and not isinstance(uuid, bool) and 0 <= uuid < len(devices):
        return devices[uuid]
    for one in devices:
        if one.uuid == uuid:
            return one
    known = ", ".join(f"{one.index} ({one.uuid})" for one in devices)
    raise UnknownDevice(f"the daemon has no device {uuid!r}; it has {known}", {"key": "device"})


__all__ = ["Array", "dtype_name", "dtype_of", "find_device", "new", "new_guarded", "row_major", "shape_of"]


class NumberSource(Source):
    """A number's memory: `stage` is where it is copied from, None once it was. Its ids are those of the block's segment."""

    __slots__ = ("block", "dtype", "stage")

    def __init__(self, device: str, dtype: str, data: bytes) -> None:
        super().__init__()
        self.block: DeviceBlock = pool_of(device).take(len(data))
        self.base = self.block.segment.base
        self.dtype = dtype
        self.stage: Any = pool.take(len(data))
        memoryview(self.stage).cast("B")[: len(data)] = data

    def forget(self) -> None:
        self.ids = {}
        self.block.segment.forget()


_made: OrderedDict[tuple[str, str, bytes], NumberSource] = OrderedDict()
_lock = threading.Lock()


def number_on(device: str, dtype: str, value: Any) -> NumberSource:
    """The memory of a number on a GPU, by the GPU's UUID. Raises WrongType or OutOfRange."""
    data = number_bytes(value, dtype)[1]
    key = (device, dtype, data)
    with _lock:
        found = _made.get(key)
        if found is not None:
            _made.move_to_end(key)
            return found
    made = NumberSource(device, dtype, data)
    with _lock:
        made = _made.setdefault(key, made)
        while len(_made) > CACHED:
            _made.popitem(last=False)
    return made


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class ArrayAdapter(Adapter):
    def operand(self, value: Array, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        operands.keep.append(value)
        if value._block is None or not value.size:
            return Operand(value, None, 0, value.shape, None, value._type, self)
        strides = None if value.contiguous else value._strides
        return Operand(value, value._block.segment, value._start, value.shape, strides, value._type, self)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        of: Array = like.value
        return self.operand(new(of._client, of.device, shape, like.dtype), operands)

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        of: Array = like.value
        if of.device.backend == "host":
            return super().number_operand(value, like, operands)
        number = number_on(of.device.uuid, like.dtype, value)
        operands.keep.append(number)
        return Operand(of, number, number.block.offset, (), None, like.dtype, self)

    def on_host(self, value: Array) -> Any:
        value._in_this_process()
        return value


array_adapter = ArrayAdapter()
