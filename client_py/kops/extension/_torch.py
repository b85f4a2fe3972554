"""torch's functions that host code calls, by torch itself."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from .. import Unsupported
from . import _abi, _memory
from ._abi import Device, Dtype, Format, Options, Slice

_DTYPES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32 bfloat16 "
    "quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64"
).split()
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


def _torch() -> Any:
    return sys.modules["torch"]


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_cpu(value: Any) -> bool:
    return bool(value.is_cpu)


def on_gpu(values: Sequence[Any]) -> bool:
    """Whether a call with these arguments is one for a GPU."""
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,)) if is_tensor(one)]
    return any(one.is_cuda for one in flat) or (not flat and bool(_torch().cuda.is_available()))


def of_buffer(memory: Any) -> Any:
    """Memory of C++ as a tensor of bytes."""
    return _torch().frombuffer(memory, dtype=_torch().uint8)


@cache
def _number_of(dtype: Any) -> int:
    return _DTYPES.index(str(dtype).rpartition(".")[2])


def dtype_number(value: Any) -> int:
    return _number_of(value.dtype)


def dtype_of(value: Any) -> Dtype | Device | None:
    """A dtype or device as an argument of a call; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.dtype):
        return Dtype(_number_of(value))
    if isinstance(value, torch.device):
        return Device(0 if value.type == "cpu" else 1, -1 if value.index is None else value.index)
    return None


def described(value: Any) -> tuple[int, int, int, Sequence[int], Sequence[int], bool]:
    """Dtype, index of the device, address, sizes, strides in elements, whether it requires a gradient."""
    if value.layout is not _torch().strided:
        raise Unsupported("a sparse tensor: pass a dense one")
    return _number_of(value.dtype), max(value.get_device(), 0), value.data_ptr(), value.shape, value.stride(), value.requires_grad


def storage(value: Any) -> tuple[int, int]:
    """Address and bytes of the memory that a tensor is a part of."""
    found = value.untyped_storage()
    return found.data_ptr(), found.nbytes()


def whole_dtype(value: Any, size: int) -> str:
    """The name of the dtype of a tensor that fills its storage, in the order of its elements; empty for others."""
    plain = value.nbytes == size and value.is_contiguous() and not value.requires_grad
    return _DTYPES[dtype_number(value)] if plain else ""


def bytes_of(value: Any, start: int, size: int) -> Any:
    """Bytes of a tensor's storage, as a tensor in the same memory."""
    torch = _torch()
    made = torch.empty(0, dtype=torch.uint8, device=value.device)
    return made.set_(value.untyped_storage(), start, (size,), (1,))


def viewed(data: Any, dtype: str) -> Any:
    """Bytes as elements of a dtype; as they are where that is not possible."""
    wanted = getattr(_torch(), dtype)
    size = wanted.itemsize
    if size == 1 or data.storage_offset() % size:
        return data.view(wanted) if size == 1 else data
    return data[: len(data) // size * size].view(wanted)


def new_bytes(size: int) -> Any:
    torch = _torch()
    return torch.zeros(size, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    torch = _torch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _on_gpu() -> bool:
    return bool(_torch().cuda.is_available())


def stream() -> int:
    torch = _torch()
    return int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())) if torch.cuda.is_initialized() else 0


def properties() -> Any:
    """What is known of the device."""
    return _torch().cuda.get_device_properties(current_device()) if _on_gpu() else None


def current_device() -> int:
    return int(_torch().cuda.current_device()) if _on_gpu() else 0


def device_count() -> int:
    return int(_torch().cuda.device_count()) or 1


def set_device(index: int) -> None:
    if _on_gpu():
        _torch().cuda.set_device(index)


def library_function(library: str, name: str) -> int:
    """The address of a function of one of CUDA's libraries, as torch has loaded it; 0 without."""
    if not _on_gpu():
        return 0
    loaded = ctypes.CDLL(None)
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if f"lib{library.removeprefix('lib')}" in line}
    for path in sorted(paths):
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.cast(getattr(ctypes.CDLL(path), name), ctypes.c_void_p).value or 0
    return 0


def blas_handle() -> int:
    return int(_torch().cuda.current_blas_handle()) if _on_gpu() else 0


# ---- functions ----


def _device(device: Device | None) -> Any:
    if device is None:
        return None
    torch = _torch()
    if device.type != 1:
        return torch.device({13: "meta"}.get(device.type, "cpu"))
    return torch.device("cuda", device.number) if device.number >= 0 else torch.device("cuda")


@lru_cache(typed=True)
def converted(value: Any) -> Any:
    """The number of a dtype, device or format as torch's object; anything else as it is."""
    if isinstance(value, Device):
        return _device(value)
    names = _DTYPES if isinstance(value, Dtype) else _FORMATS if isinstance(value, Format) else None
    return value if names is None else getattr(_torch(), names[value])


def returned(value: Any) -> Any:
    """A result of C++: numbers of dtypes and devices are torch's objects."""
    return converted(value) if isinstance(value, (Dtype, Device)) else value


@lru_cache(maxsize=256)
def options(bits: int, requires_grad: float, more: int) -> tuple[dict[str, Any], bool, bool]:
    """Keywords of torch's for options, whether a gradient is wanted, whether they have a device."""
    given = _abi.options(bits, requires_grad, more)
    return _of_options(given), given.requires_grad, given.device is not None


def _of_options(options: Options) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if options.dtype is not None:
        made["dtype"] = converted(Dtype(options.dtype))
    if options.device is not None:
        made["device"] = _device(options.device)
    if options.format is not None:
        made["memory_format"] = converted(Format(options.format))
    return made


def _position(item: Any) -> Any:
    return slice(*item) if isinstance(item, Slice) else Ellipsis if isinstance(item, str) else item


def _to(self: Any, *wanted: Any, options: Any = None, **named: Any) -> Any:
    keywords = {} if options is None else _of_options(options)
    keywords |= {key: converted(value) for key, value in named.items() if value is not None}
    plain = [converted(one) for one in wanted if one is not None and not isinstance(one, Format)]
    for one in wanted:
        if isinstance(one, Format):
            keywords["memory_format"] = converted(one)
    return self.to(*plain, **keywords)


def _index(self: Any, *items: Any) -> Any:
    return self[tuple(_position(item) for item in items)]


def _index_put(self: Any, *given: Any) -> Any:
    value, accumulate, *items = given
    if accumulate:
        return self.index_put_(tuple(items), value, accumulate)
    self[tuple(_position(item) for item in items)] = value
    return self


def _from_blob(address: int, sizes: Any, strides: Any = None, options: Any = None) -> Any:
    """Memory of C++ as a tensor, which does not own it."""
    torch = _torch()
    dtype = torch.get_default_dtype() if options is None or options.dtype is None else converted(Dtype(options.dtype))
    steps = strides or [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    count = 1 + sum((size - 1) * step for size, step in zip(sizes, steps)) if math.prod(sizes) else 0
    size = count * dtype.itemsize
    if not size:
        return torch.empty(sizes, dtype=dtype)
    place = _memory.find(address, inside=True)
    if place is None:
        flat = of_buffer((ctypes.c_uint8 * size).from_address(address))
    else:
        flat = bytes_of(place.value, place.offset, size)
    return flat[:size].view(dtype).as_strided(tuple(sizes), tuple(steps))


def _grad_mode(enabled: bool | None = None) -> bool:
    """Whether torch recorded gradients. From now on it does as asked."""
    before = bool(_torch().is_grad_enabled())
    if enabled is not None:
        _torch().set_grad_enabled(enabled)
    return before


@cache
def _text() -> Any:
    """A function with the text that torch prints for a tensor in C++."""
    return _torch().jit.CompilationUnit("def text(x: Tensor) -> str:\n  return str(x)\n").text


def _new(data: Any, sizes: Any, options: Any = None) -> Any:
    made = _torch().tensor(list(data), **({} if options is None else _of_options(options))).reshape(tuple(sizes))
    return made.requires_grad_(options is not None and options.requires_grad)


# Functions that are none of ATen's, or are called in another way there.
_OWN: dict[str, Callable[..., Any]] = {
    "to": _to, "index": _index, "index_put_": _index_put, "from_blob": _from_blob, "tensor": _new, "grad": lambda self: self.grad,
    "cpu": lambda self: self.cpu(), "cuda": lambda self: self.to(_device(Device(1, -1))),
    "storage_offset": lambda self: self.storage_offset(), "storage_bytes": lambda self: storage(self)[1],
    "requires_grad_": lambda self, wanted=True: self.requires_grad_(wanted),
    "text": lambda self: _text()(self.detach()), "grad_mode": _grad_mode,
    "deterministic": lambda: bool(_torch().are_deterministic_algorithms_enabled()),
    "manual_seed": lambda seed: _torch().manual_seed(seed) and None,
    "pin_memory": lambda self, *_: self, "is_pinned": lambda self, *_: self.is_pinned(),
}  # fmt: skip
# Functions that torch's own binding runs as C++ does, and sooner, where the call gives a device: else torch's default may be another. Those
# with `_like` always have one.
_MADE_SOONER = ("empty", "ones", "zeros")
_MORE = ("bitwise_not", "contiguous", "detach", "item", "neg", "scalar_tensor")


@cache
def _allowed() -> frozenset[str]:
    """Functions that extensions may call: those that the headers declare. Nothing else of torch is reached by a name."""
    from . import headers

    return frozenset(op.name for op in headers.ops()) | frozenset(_MORE)


@cache
def _function(name: str, is_sooner: bool = False) -> Any:
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if name not in _allowed() and plain not in _allowed():
        raise Unsupported(f"{name}() of torch is not among the functions that an extension may call")
    found = getattr(_torch()._C._VariableFunctions if is_sooner else _torch().ops.aten, name, None)
    if found is None:
        raise Unsupported(f"this torch has no function {name}()")
    return found


def prepared(name: str) -> tuple[Callable[..., Any], Callable[..., Any] | None, bool, bool]:
    """A function of torch's by its name: itself, a sooner one for calls with a device, whether these take torch's dtypes, devices and
    formats, and whether it always has a device. Raises Unsupported for one that is not declared."""
    own = _OWN.get(name)
    if own is not None:
        return own, None, False, False
    plain = name.removesuffix("_like")
    return _function(name), _function(name, True) if plain in _MADE_SOONER else None, True, plain != name
