"""One launch of a kernel, prepared: its arguments as operands and numbers, and what it says to the daemon. The kernels that users have
are in `_kernels`; `Launchable` and `Recordable` are what launches and recordings need of them.

What is plainly wrong is refused here, before anything is sent, since an ordered call hears of the daemon's error late:
the number and kinds of arguments, dtypes, ranks, layouts and the ranges of numbers. Sizes are checked by the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._base.errors import BadArgument, DtypeMismatch, KopsError, ShapeMismatch, WrongType
from .._base.intervals import Goal
from .._base.results import Profile, Timing, Timings
from .._base.texts import counted
from .._base.views import plain_view
from .._memory.pool import Remote
from .._session.link import Link
from .._session.recovery import KERNEL_HAZARD
from .._source.scalars import convert, is_plain, structure
from .._source.signature import Param
from .._tensors.adapters import adapter_of
from .._tensors.operands import Operand, Operands, check_devices, renew
from . import rules
from .measure import measure
from .plans import Plan, execute


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
