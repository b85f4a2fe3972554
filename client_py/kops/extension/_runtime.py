"""What a compiled extension calls: the table of functions, and the call that a thread is in."""

from __future__ import annotations

import atexit
import ctypes as c
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from .. import BadArgument
from . import _abi, _memory, _numpy, _torch
from ._abi import Definition, Library, Table, Tensor, Value
from ._cuda import Cuda, cuda
from ._kernels import Kernels, SeveralKernels, Type, device_name

_EXCEPTIONS = {
    "TypeError": TypeError, "IndexError": IndexError, "ValueError": ValueError, "NotImplementedError": NotImplementedError,
    "AttributeError": AttributeError, "KeyError": KeyError, "OverflowError": OverflowError, "MemoryError": MemoryError,
}  # fmt: skip


class Call:
    """One call of a function of C++."""

    failure: tuple[BaseException, str] | None = None  # of the last callback that failed, and what C++ was told
    refused: Exception | None = None  # of a function of the CUDA runtime
    scalars: Any = None  # memory of the last number that was returned
    results: Any = None  # and of the last tensors, where they are many

    def __init__(self, kernels: Kernels | SeveralKernels, framework: Any, on_cpu: bool) -> None:
        self.kernels, self.framework = kernels, framework
        self.on_cpu = on_cpu  # tensors in the memory of the CPU are told to be on a GPU: the interpreter launches on them
        self.cuda = Cuda()

    def is_host(self, value: Any) -> bool:
        return not self.on_cpu and self.framework.on_cpu(value)


_thread = threading.local()
_messages: dict[int, Any] = {}  # by thread, the last: one of C++ has no threading.local() that outlives a callback


def _current() -> Call:
    call: Call | None = getattr(_thread, "call", None)
    if call is None:
        raise BadArgument("a thread that C++ has started called torch or CUDA: only the thread that Python calls from may")
    return call


def _guarded(function: Callable[..., Any], failed: int = 1) -> Callable[..., Any]:
    """A callback. It answers `failed` where an exception has become the message that C++ asks for next."""

    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            text = str(error) or type(error).__name__
            call = getattr(_thread, "call", None)
            if call is not None:
                call.failure = error, text
            _messages[threading.get_ident()] = c.create_string_buffer(text.encode("utf-8", "replace"))
            return failed

    return run


def describe(into: Tensor, value: Any, call: Call, host: bool) -> None:
    """Fills what C++ knows of a tensor, and gives C++ a reference."""
    framework = call.framework
    dtype, index, address, sizes, strides, requires_grad = framework.described(value)
    ndim = len(sizes)
    if ndim > _abi.DIMS:
        raise BadArgument(f"a tensor of {ndim} dimensions; an extension takes {_abi.DIMS}")
    device = (0, -1) if host else (1, index)
    flags = _abi.READABLE if host or call.on_cpu else 0
    number = _memory.hold(value, framework, host)
    _abi.DESCRIPTIONS[ndim].pack_into(into, 0, number, dtype, *device, ndim, requires_grad, flags, address, *sizes, *strides)


@lru_cache(maxsize=1024)
def _words(name: bytes) -> list[str]:
    return name.decode().split()


def _op(name: bytes, values: Any, n: int, out: Any, count: Any, scalar: Any) -> int:
    call = _current()
    function, *keywords = _words(name)
    used: list[_memory.Held] = []

    def tensor(number: int) -> Any:
        if not number:
            return None
        used.append(_memory.held(number))
        return used[-1].value

    arguments = [_abi.READERS[(value := values[i]).tag](value, tensor) for i in range(n)]
    device = _device_of(function, arguments)
    if call.on_cpu and device:
        function = "cpu" if function == "cuda" else function
        arguments = [_on_cpu(argument) for argument in arguments]
    plain = n - len(keywords)
    made = call.framework.call(function, arguments[:plain], dict(zip(keywords, arguments[plain:])))
    if device is None:  # as torch: without a device and tensors it is the CPU
        _answer(call, made, all([held.host for held in used]), used, out, count, scalar)
    else:
        _answer(call, made, device == 0, (), out, count, scalar)
    return 0


_CPU = _abi.Device(0, -1)


def _on_cpu(argument: Any) -> Any:
    """The CPU in place of a GPU."""
    if isinstance(argument, _abi.Device):
        return _CPU
    return argument._replace(device=_CPU) if isinstance(argument, _abi.Options) and argument.device is not None else argument


def _device_of(name: str, arguments: Sequence[Any]) -> int | None:
    """The type of the device that a call asks for; None where its result is where its arguments are."""
    if name in ("cpu", "cuda"):
        return int(name == "cuda")
    for argument in arguments:
        kind = type(argument)
        if kind is _abi.Device:
            return int(argument.type)
        if kind is _abi.Options and argument.device is not None:
            return int(argument.device.type)
    return None


def _answer(call: Call, made: Any, host: bool, used: Sequence[_memory.Held], out: Any, count: Any, scalar: Any) -> None:
    """`used`: arguments, of which a result may be one: it stays the host's or not."""
    framework = call.framework
    if made is None:
        return
    if framework.is_tensor(made):
        made = (made,)
    if isinstance(made, (tuple, list)):
        if len(made) > _abi.RESULTS:
            out = call.results = (Tensor * len(made))()
            scalar[0].p = c.addressof(out)
        for i, one in enumerate(made):
            if one is None:  # an undefined tensor
                out[i].id = 0
                continue
            known = [held.host for held in used if held.value is one]
            describe(out[i], one, call, known[-1] if known else host or call.is_host(one))
        count[0] = len(made)
    else:
        call.scalars = []
        _abi.write(scalar[0], made, call.scalars)


@lru_cache(maxsize=1024)
def _types(sizes: tuple[int, ...], kinds: tuple[int, ...], texts: tuple[int, ...]) -> tuple[Type, ...]:
    """Types of a kernel's arguments. Their texts stay where they are, since a library stays loaded."""
    return tuple(Type(c.string_at(text), kind, size) for text, kind, size in zip(texts, kinds, sizes))


def _launch(kernel: bytes, dims: Any, shared: int, stream: int | None, arguments: Any, n: int) -> int:
    call = _current()
    fields = struct.unpack(_abi.ARGUMENT * n, c.string_at(arguments, n * c.sizeof(_abi.Argument)))
    sizes = fields[1::4]
    types = _types(sizes, fields[2::4], fields[3::4])
    data = c.string_at(fields[0], sum(sizes)) if n else b""
    grid, block, attributes = tuple(dims[:3]), tuple(dims[3:6]), call.cuda.take_attributes()
    error = call.kernels.launch(kernel, types, data, grid, block, shared, stream or 0, call.framework.stream, **attributes)
    if error:
        call.cuda.set(error, f"{device_name(kernel.decode())} with a grid of {grid} and blocks of {block}")
    return 0


def _cuda(name: bytes, values: Any, n: int, out: Any) -> int:
    call = _current()
    try:
        return cuda(call, name.decode(), [_abi.read(values[i], lambda number: None) for i in range(n)], out)
    except Exception as error:
        call.refused = error  # C++ may look at no error's number
        raise


def _error() -> int | None:
    message = _messages.get(threading.get_ident())
    return None if message is None else c.addressof(message)


def _table() -> Table:
    """The table, in memory that outlives Python."""
    malloc = c.CDLL(None).malloc
    malloc.restype, malloc.argtypes = c.c_void_p, [c.c_size_t]
    table = Table.from_address(malloc(c.sizeof(Table)))
    table.op, table.release = _abi.OP(_guarded(_op)), _abi.RELEASE(_memory.release)
    table.launch, table.cuda, table.error = _abi.LAUNCH(_guarded(_launch)), _abi.CUDA(_guarded(_cuda, 999)), _abi.ERROR(_error)
    table.retain = _abi.RELEASE(_memory.retain)
    return table


TABLE = _table()


@atexit.register
def _leave() -> None:
    """C++ frees its global tensors when the process ends, and there is no Python then: a function of C that does nothing takes them."""
    TABLE.release = c.cast(c.CDLL(None).labs, _abi.RELEASE)


def load(path: str) -> Library:
    return Library(path, TABLE)


# ---- calls from Python ----


class NoMatch(TypeError):
    """The arguments of a call are not those of a function."""


def positional(definition: Definition, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Sequence[Any]:
    """All arguments in order. Raises NoMatch."""
    parameters = definition.parameters
    if len(arguments) == len(parameters) and not named:
        return arguments
    if len(arguments) > len(parameters):
        raise NoMatch(f"{definition.name}() takes {len(parameters)} arguments, not {len(arguments)}")
    made = list(arguments)
    left = dict(named)
    for parameter in parameters[len(arguments) :]:
        if parameter.name is not None and parameter.name in left:
            made.append(left.pop(parameter.name))
        elif parameter.has_default:
            made.append(parameter.default)
        else:
            raise NoMatch(f"{definition.name}() lacks the argument {parameter.name or len(made) + 1}")
    if left:
        raise NoMatch(f"{definition.name}() has no argument {next(iter(left))!r}")
    return made


def _framework_of(values: Sequence[Any]) -> Any:
    if any(map(_torch.is_tensor, values)):
        return _torch
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,))]
    for framework in (_torch, _numpy):
        if any(map(framework.is_tensor, flat)):
            return framework
    return _torch if "torch" in sys.modules else _numpy


class _Arguments:
    """The values and tensors of a call, as C++ reads them."""

    def __init__(self, call: Call, values: Sequence[Any]) -> None:
        self.call, self.tensors, self.keep = call, [], []  # type: ignore[var-annotated]
        self.values = (Value * max(1, len(values)))()
        try:
            for into, value in zip(self.values, values):
                self._write(into, value)
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Gives back the references that C++ has not taken."""
        for tensor in self.tensors:
            if not tensor.flags & _abi.TAKEN:
                _memory.release(tensor.id, False)

    def _tensor(self, value: Any) -> int:
        made = Tensor()
        describe(made, value, self.call, self.call.is_host(value))
        self.tensors.append(made)
        return len(self.tensors) - 1

    def _write(self, into: Value, value: Any) -> None:
        if self.call.framework.is_tensor(value):
            into.tag, into.i = _abi.TENSOR, self._tensor(value)
            return
        value = _numpy.plain(value)
        if isinstance(value, (list, tuple, range)):
            self._write_list(into, [_numpy.plain(one) for one in value])
        elif value is None or isinstance(value, (int, float, str, complex)):
            _abi.write(into, value, self.keep)
        elif (dtype := next((d for d in (_torch.dtype_of(value), _numpy.dtype_of(value)) if d is not None), None)) is not None:
            _abi.write(into, dtype, self.keep)
        else:
            raise TypeError(f"{type(value).__name__}: an extension takes tensors, numbers, texts, lists of these, dtypes and None")

    def _write_list(self, into: Value, items: Sequence[Any]) -> None:
        kinds = set(map(type, items))
        if kinds <= {int} or kinds == {float}:
            _abi.write(into, items, self.keep)
        elif all(one is None or self.call.framework.is_tensor(one) for one in items):
            _abi.put_list(into, _abi.TENSORS, [-1 if one is None else self._tensor(one) for one in items], self.keep)
        else:
            for item, one in zip(_abi.put_tuple(into, len(items), self.keep), items):
                self._write(item, one)


def _counts_as_gpu(framework: Any, values: Sequence[Any], kernels: Kernels | SeveralKernels) -> bool:
    """Whether tensors of the CPU are told to C++ as a GPU's."""
    return framework is _numpy or (kernels.fallback == "interpret" and not framework.on_gpu(values))


def implementations(definitions: Sequence[Definition], given: Sequence[Any], kernels: Kernels | SeveralKernels) -> Sequence[Definition]:
    """Those for the device of a call. Where tensors of the CPU count as a GPU's, implementations for the CPU come last."""
    framework = _framework_of(given)
    counts = _counts_as_gpu(framework, given, kernels)
    device = "CUDA" if counts or framework.on_gpu(given) else "CPU"
    keys = (device, "CompositeExplicitAutograd", "CompositeImplicitAutograd", "", *(("CPU",) if counts else ()))
    found = [definition for key in keys for definition in definitions if definition.key == key and not definition.is_declaration]
    if not found:
        name = definitions[0].name.partition("@")[0]
        raise NotImplementedError(f"Could not run {name!r} with arguments from the {device!r} backend: it has no implementation for that")
    return found


def invoke(library: Library, definition: Definition, values: Sequence[Any], kernels: Kernels | SeveralKernels, strict: bool = False) -> Any:
    """Calls a function of C++. Raises its exception. `strict`: it takes only arguments of its parameters' own types."""
    framework = _framework_of(values)
    call = Call(kernels, framework, definition.key != "CPU" and _counts_as_gpu(framework, values, kernels))
    made = _Arguments(call, values)
    result = _abi.Result()
    before, _thread.call = getattr(_thread, "call", None), call
    try:
        failed = library.call(definition.number, made.values, made.tensors, result, strict)
        if failed is not None:
            _fail(call, *failed)
        value = _abi.read(result.value, lambda index: _taken(result.out[index].id))
        if call.refused is not None:
            raise call.refused
        call.cuda.check()
        return definition.shaped(framework.returned(value))
    finally:
        made.drop()
        _thread.call = before
        if before is None:
            _memory.forget_released()


def _taken(number: int) -> Any:
    """A result, whose reference was the runtime's."""
    value = _memory.held(number).value
    _memory.release(number)
    return value


def _fail(call: Call, kind: str, message: str) -> NoReturn:
    if call.failure is not None:
        failure, text = call.failure
        if text in message or not isinstance(failure, Exception):
            raise failure
    if kind == "NoMatch":
        raise NoMatch(message)
    raise _EXCEPTIONS.get(kind, RuntimeError)(message)
