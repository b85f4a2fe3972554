"""Calls of a compiled extension: what the compiled part of the package (native/extension.h) asks Python for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .._companions import compiled_part, meet_torch
from . import _abi, _torch
from ._abi import Definition, Parameter
from ._cuda import Cuda, cuda
from ._kernels import Kernels, SeveralKernels, device_name

_native = compiled_part("an extension")
_EXCEPTIONS = {
    "TypeError": TypeError, "IndexError": IndexError, "ValueError": ValueError, "NotImplementedError": NotImplementedError,
    "AttributeError": AttributeError, "KeyError": KeyError, "OverflowError": OverflowError, "MemoryError": MemoryError,
}  # fmt: skip


class Call:
    """What Python has to know of a call of a function of C++."""

    def __init__(self, kernels: Kernels | SeveralKernels, framework: Any, on_cpu: bool) -> None:
        self.kernels, self.framework = kernels, framework
        self.on_cpu = on_cpu  # tensors in the memory of the CPU are told to be on a GPU: the interpreter launches on them
        self.cuda = Cuda()


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


def _arrays() -> Any:
    """What torch's functions are on NumPy's arrays. It takes long to import, and with torch nobody needs it."""
    from . import _numpy

    return _numpy


def _plain(value: Any) -> Any:
    """A number of NumPy's as one of Python's; anything else as it is."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _framework_of(values: Sequence[Any]) -> Any:
    if any(map(_torch.is_tensor, values)):
        return _torch
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,))]
    if any(map(_torch.is_tensor, flat)):
        return _torch
    numpy = sys.modules.get("numpy")
    if "torch" in sys.modules and (numpy is None or not any(isinstance(one, numpy.ndarray) for one in flat)):
        return _torch
    return _arrays()


def _counts_as_gpu(framework: Any, values: Sequence[Any], kernels: Kernels | SeveralKernels) -> bool:
    """Whether tensors of the CPU are told to C++ as a GPU's."""
    return framework is not _torch or (kernels.fallback == "interpret" and not framework.on_gpu(values))


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


# ---- what the compiled part calls ----


def _prepared(framework: Any, name: str) -> tuple[Any, ...]:
    """How an op is called: its function, one for calls with a device or None, whether these take torch's objects, whether one tensor tells
    the device, the type of the device that the name says or -1, the names of the last arguments."""
    function, *keywords = name.split()
    return *framework.prepared(function), {"cpu": 0, "cuda": 1}.get(function, -1), tuple(keywords)


def _choose(values: Sequence[Any], kernels: Kernels | SeveralKernels) -> tuple[Any, bool]:
    framework = _framework_of(values)
    if framework is _torch:
        meet_torch()  # from then on the compiled part knows its tensors
    return framework, _counts_as_gpu(framework, values, kernels)


def _value(given: Any) -> Any:
    """An argument that is no plain object of Python's."""
    plain = _plain(given)
    if type(plain) in (bool, int, float, complex, str):
        return plain
    dtype = _torch.dtype_of(given)
    if dtype is None and "numpy" in sys.modules:
        dtype = _arrays().dtype_of(given)
    if dtype is None:
        raise TypeError(f"{type(given).__name__}: an extension takes tensors, numbers, texts, lists of these, dtypes and None")
    return dtype


def _launch(
    call: Call, kernel: bytes, types: tuple[Any, ...], data: bytes, grid: tuple[int, ...], block: tuple[int, ...], shared: int, stream: int
) -> tuple[Any, ...] | None:
    """Launches a kernel. What the compiled part needs to launch it alone from now on, or None."""
    attributes = call.cuda.take_attributes()
    error, known = call.kernels.launch(kernel, types, data, grid, block, shared, stream, call.framework.stream, **attributes)
    if error:
        call.cuda.set(error, f"{device_name(kernel.decode())} with a grid of {grid} and blocks of {block}")
    return known


def _failure(kind: str, message: str, failure: BaseException | None, text: str | None) -> NoReturn:
    """Raises the exception of C++. `failure`: the last one of Python's under the call, and the text that C++ had of it."""
    if failure is not None and (not isinstance(failure, Exception) or (text is not None and text in message)):
        raise failure
    if kind == "NoMatch":
        raise NoMatch(message)
    raise _EXCEPTIONS.get(kind, RuntimeError)(message)


_native.extension_configure({
    "torch": _torch, "plain": _plain, "dtype": _abi.Dtype, "device": _abi.Device, "format": _abi.Format, "slice": _abi.Slice,
    "option": _abi.options, "value": _value, "prepare": _prepared, "choose": _choose, "call": Call, "launch": _launch, "cuda": cuda,
    "finish": lambda call: call.cuda.check(), "failure": _failure,
})  # fmt: skip


def load(path: str) -> list[Definition]:
    """The functions of a compiled extension, which stays loaded."""
    made = []
    for library, number, name, signature, doc, parameters in _native.extension_open(path):
        known = tuple(Parameter(*one) for one in parameters or ())
        made.append(Definition(library, number, name, signature, doc, known, parameters is None))
    return made


def host_function(definition: Definition, kernels: Kernels | SeveralKernels) -> Any:
    """A function whose `call(values, strict)` runs C++ with all arguments in order; `strict`: only with arguments of its parameters' own
    types. A std::vector of the result is a list as in pybind11, a view of sizes a tuple."""
    shape = 1 if "R = std::vector<" in definition.signature else 2 if "R = c10::ArrayRef<" in definition.signature else 0
    interprets = kernels.fallback == "interpret"
    return _native.HostFunction(definition.library, definition.number, shape, kernels, interprets, definition.key == "CPU")
