"""One launch of a kernel, prepared: its arguments as operands and numbers, and what it says to the daemon; or, in a CUDA context of this
process, its arguments as the compiled part takes them. The kernels that users have are in `_kernels`; `Launchable` and `Recordable` are
what launches and recordings need of them.

What is plainly wrong is refused here, before anything is sent, since an ordered call hears of the daemon's error late:
the number and kinds of arguments, dtypes, ranks, layouts and the ranges of numbers. Sizes are checked by the daemon.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._base.compiled import native, pack
from .._base.declarations import DTYPES
from .._base.dtypes import NAMES, OF_ML_DTYPES
from .._base.errors import BadArgument, DtypeMismatch, KopsError, ShapeMismatch, WrongType
from .._base.intervals import Goal
from .._base.results import Profile, Timing, Timings
from .._base.texts import counted
from .._memory.pool import Remote, code_file, garbage
from .._session.link import Call, Link
from .._session.recovery import KERNEL_HAZARD
from .._source.scalars import convert, is_plain, structure
from .._source.signature import Param
from .._tensors.adapters import adapter_of
from .._tensors.operands import Operand, Operands, check_devices, renew
from . import rules
from .contexts import need, on_device, settled, stream_of
from .measure import measure
from .plans import Plan, execute

__all__ = ["plain_view"]


def _is_void(dtype: Any) -> bool:
    """Whether elements are structures, or bytes without a type."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and getattr(dtype, "type", None) is numpy.void


def plain_view(value: Any, param: Any = None, what: str = "an argument") -> Any:
    """An array of complex numbers or structures as one of their parts, which lie side by side in the last dimension; anything else as it
    is. `param`: the parameter that it is for, whose elements those of structures are, too, where they can be."""
    is_complex = getattr(value, "is_complex", None)
    if is_complex is not None:  # torch's
        if not is_complex():
            return value
        parts = sys.modules["torch"].view_as_real(value.conj() if value.is_conj() else value)
        return parts.flatten(-2) if value.dim() and value.is_contiguous() else parts
    dtype: Any = getattr(value, "dtype", None)
    void = _is_void(dtype)
    if (not void and getattr(dtype, "kind", "") != "c") or not hasattr(value, "view"):
        return value
    if dtype.hasobject or not dtype.isnative:
        raise BadArgument(f"{what}: an array of {dtype}, whose elements are objects or bytes in another order, cannot be sent")
    wanted = getattr(param, "lanes", 1)
    if void and wanted not in (1, dtype.itemsize):
        raise DtypeMismatch(f"{what} has structures of {wanted} bytes, and those of the array have {dtype.itemsize}", {"key": param.name})
    part = "uint8" if void else f"float{4 * dtype.itemsize}"
    name = NAMES.get(getattr(param, "dtype", ""), "")
    if void and name and name not in OF_ML_DTYPES and dtype.itemsize % DTYPES[param.dtype] == 0:
        part = name
    try:
        return (value if value.ndim else value.reshape(1)).view(part)
    except (ValueError, TypeError):
        raise BadArgument(f"{what}: an array of {dtype} that is not contiguous cannot be sent: pass a copy") from None


class Recordable:
    """A formula: what a recorder notes for it are launches of the kernels that its arguments need."""

    def _record(self, recorder: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        raise NotImplementedError


class Launchable(Remote):
    """An entry of a source with its parameter list."""

    what = "kernel"
    name: str
    params: tuple[Param, ...]

    def _result(self, arguments: tuple[Any, ...]) -> Any:
        """The result of a call."""
        raise NotImplementedError

    def _fast(
        self, link: Any, arguments: tuple[Any, ...], given: Any, blocking: bool | None, timing: Timing, timeout: Any,
        sent: int | None = None,
    ) -> Any:  # fmt: skip
        """The launch by the extension, with a geometry or a packed one; NotImplemented where it cannot."""
        return NotImplemented


def _refusal(kind: type[KopsError], kernel: str, index: int, param: Param, why: str, **detail: Any) -> KopsError:
    return kind(f"{kernel}: argument {index + 1} ({param.name}) {why}", {"key": f"args[{index}]", **detail})


def scalar(kernel: str, index: int, param: Param, value: Any) -> int | float | bool | bytes:
    """A number, or a structure's bytes, as its parameter wants it."""
    if param.lanes > 1:
        return structure(param.dtype, param.lanes, value, f"{kernel}: argument {index + 1} ({param.name})", f"args[{index}]")
    if is_plain(param.dtype, value):  # texts for errors take longer than all else
        return value  # type: ignore[no-any-return]
    return convert(param.dtype, value, f"{kernel}: argument {index + 1} ({param.name})", f"args[{index}]")


def _operand(kernel: str, index: int, param: Param, value: Any, operands: Operands) -> Operand:
    if isinstance(value, (int, float, complex, str, bytes)):
        why = f"is a pointer to {param.dtype}: pass a tensor, or None for a null pointer"
        raise _refusal(WrongType, kernel, index, param, why)
    adapter = adapter_of(value)
    if not adapter.plain:
        return adapter.operand(value, operands, output=param.kind != "in")
    if param.kind != "in":
        raise _refusal(WrongType, kernel, index, param, f"is written: pass an array, not {type(value).__name__}")
    return adapter.convert(value, param.dtype, operands)


def tensor(kernel: str, index: int, param: Param, value: Any, operands: Operands) -> Operand:
    """A tensor as its parameter wants it."""
    operand = _operand(kernel, index, param, plain_view(value, param, f"{kernel}: argument {index + 1}"), operands)
    if operand.dtype != param.dtype:
        raise _refusal(DtypeMismatch, kernel, index, param, f"is of {param.dtype}, but the tensor of {operand.dtype}")
    rank = len(param.shape) if param.shape is not None else param.rank
    if rank is not None and len(operand.shape) != rank:
        why = f"has {counted(rank, 'dimension')}, but the tensor {len(operand.shape)}"
        raise _refusal(ShapeMismatch, kernel, index, param, why)
    if operand.strides is not None and not param.strided:
        why = "is not contiguous: pass a copy, or declare it with kops.Param(…, strided=True)"
        raise _refusal(BadArgument, kernel, index, param, why)
    return operand


class Launch:
    """One `launch`."""

    method = "launch"

    def __init__(
        self, kernel: Launchable, arguments: Sequence[Any], geometry: Mapping[str, Any], options: dict[str, Any],
        operands: Operands | None = None,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.op = kernel.name
        self.names = (kernel.name,)
        self.geometry = geometry
        self.options = options
        self.operands = operands if operands is not None else Operands()
        self.given = tuple(arguments)
        self.arguments: list[Any] = []
        self.inputs: list[Operand] = []
        for i, (param, value) in enumerate(zip(kernel.params, arguments, strict=True)):
            if param.kind == "scalar":
                self.arguments.append(scalar(self.op, i, param, value))
            elif value is None:
                self.arguments.append(None)
            else:
                operand = tensor(self.op, i, param, value, self.operands)
                self.arguments.append(operand)
                self.inputs.append(operand)
        check_devices(self.inputs, [])

    def params(self, key: int) -> dict[str, Any]:
        kernel = self.kernel.at(key)
        args = [argument.wire(key) if isinstance(argument, Operand) else argument for argument in self.arguments]
        return {"kernel": kernel, "args": args, **self.geometry, **self.options}

    def step(self, place: Callable[[Operand], int]) -> dict[str, Any]:
        """As one of a sequence; the kernel itself stands for its id."""
        args = [place(argument) if isinstance(argument, Operand) else argument for argument in self.arguments]
        return {"kernel": self.kernel, "args": args, **self.geometry}

    def renew(self, key: int) -> None:
        for operand in self.inputs:
            renew(operand)

    @property
    def hazard(self) -> str | None:
        return KERNEL_HAZARD

    @property
    def result(self) -> Any:
        return self.kernel._result(self.given)


def run(connection: Link, request: Launch, timing: Timing, retry: bool = True) -> Plan:
    """Launches: what the kernel returns, or its Timings when they are asked for."""
    sent = time.monotonic_ns()
    reply = yield from execute(connection, request, retry)
    return Timings.of(reply, sent) if timing else request.result


def profile(connection: Link, request: Launch, goal: Goal, watch: bool = True, counters: str | None = None) -> Plan:
    """Launches repeatedly: a Profile. `counters`: with these caches."""
    measured = yield from measure(connection, request, goal, watch, counters)
    return Profile(
        op=request.op,
        dtype=request.inputs[0].dtype if request.inputs else "",
        shapes=tuple(tuple(operand.shape) for operand in request.inputs),
        bytes=sum(rules.operand_bytes(operand.shape, operand.dtype) for operand in request.inputs),
        operations=None,
        **measured,
    )


# Launches in a CUDA context of this process. The daemon compiles; its binary is loaded here once, and every launch is checked by the
# daemon's own rules, which the compiled part of the package has.


CODE_FEATURE = "code"


def define_here(connection: Link, kernel: Any) -> Plan:
    """Has the kernel's code handed out, where this process has it not yet: a native.Here."""
    need(connection, kernel.name, CODE_FEATURE)
    module = yield from kernel.code.define(connection)
    compiled, entry = kernel.code.compiled, kernel.code.entry(kernel.name)
    declaration = pack(kernel.declaration(module))
    described = (entry.name, entry.lowered, entry.offsets, entry.params, declaration)
    if native.kept(compiled.key):
        return native.Here(compiled.key, -1, 0, *described)
    with code_file(compiled.image_bytes) as fd:
        reply = yield Call("code", {"module": module, "fd": 0, "nfds": 1}, (fd,))
        return native.Here(compiled.key, fd, reply["bytes"], *described)


def image(connection: Link, code: Any) -> Plan:
    """The binary of a module, as its device loads it. The daemon refuses where it hands none out."""
    module = yield from code.define(connection)
    with code_file(code.compiled.image_bytes) as fd:
        reply = yield Call("code", {"module": module, "fd": 0, "nfds": 1}, (fd,))
        return os.pread(fd, reply["bytes"], 0)


def _array(kernel: str, index: int, param: Any, value: Any) -> Any:
    """A device array as the extension takes it."""
    if not param.is_tensor:
        return scalar(kernel, index, param, value)
    if value is None:
        return None
    if isinstance(value, (int, float, complex, str, bytes)):
        raise WrongType(
            f"{kernel}: argument {index + 1} ({param.name}) is a pointer to {param.dtype}: pass a tensor, or None for a null pointer",
            {"key": f"args[{index}]"},
        )
    adapter = adapter_of(value)
    if adapter.plain or not on_device(value):
        raise WrongType(
            f"{kernel}: argument {index + 1} ({param.name}) is not in device memory, where a launch here finds it: pass a CUDA tensor, "
            'or launch with where="daemon", which copies arrays',
            {"key": f"args[{index}]"},
        )
    return adapter.layout(value, staged=False)


def launch_here(here: Any, kernel: Any, arguments: tuple[Any, ...], geometry: Mapping[str, Any] | None, timed: bool) -> Any:
    """Puts it on the caller's stream. None; with `timed` microseconds, when it has ended."""
    made = here.launch(arguments, geometry, None, timed)
    if made is not NotImplemented:
        return made
    stream = stream_of(arguments)
    # Kept until the launch.
    arguments = tuple(
        settled(f"{kernel.name}: {param.name}", plain_view(value, param, param.name), param.kind != "in") if param.is_tensor else value
        for param, value in zip(kernel.params, arguments)
    )
    given = tuple(_array(kernel.name, i, param, value) for i, (param, value) in enumerate(zip(kernel.params, arguments)))
    return here.launch(given, geometry, stream, timed)


def tell_launched(connection: Any, kernel: Any) -> None:
    """Tells the daemon of the kernel's launches here since the last time, for its statistics: without waiting, and as far as
    the connection knows the module."""
    module = None if connection is None else kernel.code.ids.get(connection.key)
    if module is None or kernel._here is None or not connection.alive:
        return
    params = kernel._here.tell(module)
    if params is not None:
        connection.tell("launched", params)


def leave_word(kernel: Any) -> None:
    """The same for a kernel that is dropped, with the connection's next request."""
    for key, module in kernel.code.ids.copy().items():
        connection = garbage.get(key)
        if connection is not None and (params := kernel._here.tell(module)) is not None:
            connection.garbage.append(("launched", params))
