"""Kernels that are called as PyTorch's and CuPy's own are: with a list of arguments that nobody declared.

The source says what is a pointer and what type a number has. What it does not say plainly is taken from the argument and from the
size that the compiled parameter has. A tensor is its first element's address, whatever its dtype, shape and strides are: the kernel may
use the memory that the tensor lies in as its author likes.
"""

from __future__ import annotations

import contextlib
import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._base.errors import BadArgument, SignatureMismatch, WrongType
from .._base.records import Entry
from .._base.texts import counted
from .._base.twins import DEFAULT_TIMEOUT
from .._calls.launch import plain_view, scalar
from .._source.geometry import Geometry
from .._source.signature import Declared, NotParsed, Param
from .._source.source import parameters_found
from .._tensors.adapters import adapter_of
from .kernels import Code, Kernel, lacks_gpu


def is_number(value: Any) -> bool:
    """Whether an argument is a number: Python's, or one of NumPy's, a structure included."""
    if isinstance(value, numbers.Number):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def flat(value: Any) -> Any:
    """The memory from the first element of a torch tensor or NumPy array to its last one, in one dimension, where the array has gaps,
    repeats elements, or has its dimensions in another order; otherwise the array itself. Memory before the first element, of negative
    strides, is not among it."""
    contiguous = getattr(value, "is_contiguous", None)
    if contiguous is not None:  # torch's
        if contiguous() or not value.numel():
            return value
        size = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride()))
        return value.as_strided((size,), (1,))
    if not _is_numpy(value) or value.flags.c_contiguous or not value.size:
        return value
    if any(stride < 0 or stride % value.itemsize for stride in value.strides):
        raise BadArgument("an array with negative strides, or with strides of no whole elements, cannot be sent: pass a copy")
    size = 1 + sum((n - 1) * stride // value.itemsize for n, stride in zip(value.shape, value.strides))
    return sys.modules["numpy"].lib.stride_tricks.as_strided(value, (size,), (value.itemsize,))


__all__ = ["Form", "Untyped", "launch", "on_stream"]

POINTER = 8  # bytes of a pointer parameter
FORMS_MOST = 256  # forms of arguments that are remembered
_BY_SIZE: Mapping[type, Mapping[int, str]] = {
    bool: {1: "bool"}, int: {1: "i8", 2: "i16", 4: "i32", 8: "i64"}, float: {2: "f16", 4: "f32", 8: "f64"},
}  # fmt: skip


def launch(kernel: Kernel, arguments: Sequence[Any], grid: Any, block: Any, shared: int) -> None:
    """The one place where these kernels are launched: in this process where that is measured to be faster."""
    kernel[grid, block, shared](*arguments, where="auto")


class Form(Kernel):
    """A kernel declared for one form of arguments, whose dtypes are the caller's business."""

    _agrees_with_source = False


class Untyped:
    """An entry of a source, to be called with any arguments. Thread-safe as its client is."""

    def __init__(self, client: Any, code: Code, entry: str, fallback: str | None = None) -> None:
        self.client, self.code, self.entry, self.fallback = client, code, entry, fallback
        self._forms: dict[tuple[Any, ...], Kernel] = {}
        self._parameters: tuple[tuple[Declared | None, int], ...] | None = None

    @property
    def attributes(self) -> Entry:
        """Attributes of the compiled kernel. Compiles it if needed."""
        self.compile()
        return self.code.entry(self.entry)

    def compile(self) -> None:
        """Compiles the source, or finds that it was compiled before."""
        if self.code.compiled is None:
            self.client._drive(self.client._live(), self.code.define, DEFAULT_TIMEOUT)

    @property
    def parameters(self) -> tuple[tuple[Declared | None, int], ...]:
        """What the source says of each parameter, and its bytes as compiled, 0 where nothing is compiled."""
        if self._parameters is None:
            interprets = self.fallback is not None and lacks_gpu(self.client)
            sizes = () if interprets else self.attributes.params
            try:
                found = parameters_found(self.code.scan, self.entry)
            except NotParsed as error:
                if interprets:
                    raise BadArgument(f"the parameters of {self.entry} are not understood: {error}") from None
                found = [None] * len(sizes)
            if sizes and len(found) != len(sizes):
                found = [None] * len(sizes)  # the source was misread
            self._parameters = tuple(zip(found, sizes or [0] * len(found)))
        return self._parameters

    def __call__(self, arguments: Sequence[Any], grid: Any, block: Any, shared: int = 0, stream: Any = None) -> None:
        """Launches it: `shared` in bytes, on the current stream of the arguments' framework, or on `stream`."""
        parameters = self.parameters
        if len(arguments) != len(parameters):
            raise SignatureMismatch(f"{self.entry} takes {counted(len(parameters), 'argument')}, got {len(arguments)}", {"key": "args"})
        values = [_value(self.entry, i, *parameter, value) for i, (parameter, value) in enumerate(zip(parameters, arguments))]
        form = tuple([_kind(value) for value in values])
        kernel = self._forms.get(form) or self._declare(form, values)
        if stream is None:
            launch(kernel, values, grid, block, shared)
        else:
            with on_stream(stream):
                launch(kernel, values, grid, block, shared)

    def _declare(self, form: tuple[Any, ...], values: Sequence[Any]) -> Kernel:
        params: list[Param] = []
        for i, ((found, size), value) in enumerate(zip(self.parameters, values)):
            params.append(_param(self.entry, i, found, size, value, {param.name for param in params}))
        same = next((kernel for kernel in list(self._forms.values()) if list(kernel.params) == params), None)
        if same is None:
            same = Form(self.client, self.code, self.entry, params, Geometry(None, None, 0, None), True, self.fallback)
            same._declare(DEFAULT_TIMEOUT)
        if len(self._forms) >= FORMS_MOST:
            self._forms.clear()
        self._forms[form] = same
        return same


def _kind(value: Any) -> Any:
    """What of an argument decides how its parameter is declared."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return dtype
    if isinstance(value, bytes):
        return len(value)
    interface = getattr(value, "__cuda_array_interface__", None)
    return interface["typestr"] if interface is not None else type(value)


def _what(found: Declared | None, i: int) -> str:
    return f"argument {i + 1}" + (f" (`{found.c}`)" if found is not None else "")


def _value(entry: str, i: int, found: Declared | None, size: int, value: Any) -> Any:
    """An argument as its parameter takes it: an array, a number or None."""
    if value is None:
        pointer = found.param.is_tensor if found is not None else size in (0, POINTER)
        if not pointer:
            raise WrongType(f"{entry}: {_what(found, i)} is a number, not None", {"key": f"args[{i}]"})
        return None
    if found is not None and found.param.is_structure:
        return scalar(entry, i, found.param, value)
    if found is None and size not in (0, POINTER) and not getattr(value, "ndim", 1):
        value = value[()] if hasattr(value, "__setitem__") else value  # a structure by value may be an array without dimensions
    if not is_number(value):
        if found is not None and not found.param.is_tensor:
            raise WrongType(f"{entry}: {_what(found, i)} is a number, not {type(value).__name__}", {"key": f"args[{i}]"})
        if size not in (0, POINTER):
            raise WrongType(f"{entry}: {_what(found, i)} has {size} bytes, so it is no pointer that takes an array", {"key": f"args[{i}]"})
        return flat(plain_view(value))
    if found is not None:
        if not found.param.is_tensor:
            return scalar(entry, i, found.param, value)
        if value == 0:
            return None
        raise WrongType(
            f"{entry}: {_what(found, i)} is a pointer, and an address means nothing to another process: pass the array itself",
            {"key": f"args[{i}]"},
        )
    return _bits(entry, i, size, value)


def _bits(entry: str, i: int, size: int, value: Any) -> Any:
    """A number for a parameter whose type the source does not say plainly. NumPy's numbers have a type of their own; one that no
    dtype stands for, complex or a structure, goes as its bytes."""
    to_bytes = getattr(value, "tobytes", None)
    if to_bytes is None:
        return value
    data = to_bytes()
    if size and len(data) != size:
        raise WrongType(
            f"{entry}: argument {i + 1} is a {value.dtype} of {len(data)} bytes, and the compiled parameter has {size}",
            {"key": f"args[{i}]"},
        )
    if value.dtype.kind in "biuf":
        return value
    if len(data) not in (1, 2, 4, 8):
        return data
    return sys.modules["numpy"].uint64(int.from_bytes(data, sys.byteorder)).astype(f"uint{8 * len(data)}")


def _param(entry: str, i: int, found: Declared | None, size: int, value: Any, names: set[str]) -> Param:
    """How a parameter is declared for such an argument."""
    name = found.param.name if found is not None else f"p{i}"
    while name in names:
        name += "_"
    if found is not None and not found.param.is_tensor:
        return Param(name, "scalar", found.param.dtype, lanes=found.param.lanes)
    if isinstance(value, bytes):
        return Param(name, "scalar", "u8", lanes=len(value))
    if found is None and value is not None and is_number(value):
        return Param(name, "scalar", _dtype_of_number(entry, i, size, value))
    declared = found.param if found is not None else Param(name, "inout", "u8")
    dtype = declared.dtype if value is None else adapter_of(value).layout(value).dtype
    return Param(name, declared.kind, dtype, align=declared.align if dtype == declared.dtype else None, strided=True)


def _dtype_of_number(entry: str, i: int, size: int, value: Any) -> str:
    if hasattr(value, "dtype"):
        from .._tensors.numpy import dtype_name

        return dtype_name(value.dtype)[0]
    kind = bool if isinstance(value, bool) and size == 1 else int if isinstance(value, int) else float
    dtype = _BY_SIZE[kind].get(size)
    if dtype is None or isinstance(value, complex):
        raise WrongType(
            f"{entry}: argument {i + 1} is {value!r}, and the compiled parameter has {size} bytes, of a type that the source does not say "
            f"plainly: pass a number of NumPy's of that size",
            {"key": f"args[{i}]"},
        )
    return dtype


# ---- streams ----


def _handle(stream: Any) -> int:
    """A stream's handle. Raises WrongType."""
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, Numba
        found = getattr(stream, name, None)
        if found is not None:
            return int(getattr(found, "value", found) or 0)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    raise WrongType(f"stream must be a stream of torch's or CuPy's, or a handle, not {type(stream).__name__}", {"key": "stream"})


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Makes a stream the current one of the frameworks that this program has imported, so that a call is ordered on it."""
    handle = _handle(stream)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    with contextlib.ExitStack() as stack:
        if torch is not None and torch.cuda.is_available():
            mine = stream if isinstance(stream, torch.cuda.Stream) else torch.cuda.ExternalStream(handle)
            stack.enter_context(torch.cuda.stream(mine))
        if cupy is not None:
            stack.enter_context(stream if isinstance(stream, cupy.cuda.Stream) else cupy.cuda.ExternalStream(handle))
        yield
