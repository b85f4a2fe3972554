"""The arrays and numbers that a formula is called with: dtypes, the shape that they broadcast to, and arrays for results; and calls of
formulas that are several kernels: one request of the daemon, or launches here, one after the other on the caller's stream."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from .._base.declarations import KERNEL_LIMITS
from .._base.errors import BadArgument, Capturing, CompileFailed, LimitExceeded, ShapeMismatch, Unsupported, WrongType
from .._base.texts import counted
from .._calls import contexts
from .._calls.contexts import checked_place
from .._calls.launch import Recordable
from .._calls.plans import Plan
from .._calls.rules import broadcast
from .._memory.exports import allocations
from .._session.link import Link
from .._source.formulas import Declared, Types
from .._source.geometry import Geometry
from .._source.signature import Param
from .._tensors.adapters import adapter_of, array
from .._tensors.operands import Layout, Operand, Operands
from . import here
from .code import Code, launches_none
from .kernels import AsyncKernel, BaseKernel, Kernel, checked_fallback, refuse_interpreted

ANYWHERE = ("timeout", "blocking")  # options that a launch on a captured stream may have


def launch(client: Any, name: str, steps: Sequence[tuple[Any, ...]], where: str | None, options: dict[str, Any]) -> Any:
    """Launches the kernels, each with its arguments, where one kernel would be launched. The Timings, with `timing`."""
    arguments = tuple(value for _, *given in steps for value in given)
    if where is None and client.where != "daemon" and not _daemons(options, ("timeout", "timing")) and options.get("timing") != "exact":
        where = client._usual_place(arguments)
    if where == "auto":
        where = steps[0][0]._chosen(arguments)
    if where is None and _captured(client, arguments, options):
        where = "here"
    if where is not None and contexts.checked_place(where) == "here":
        return _launch_here(name, steps, arguments, options)
    contexts.refuse_capture(arguments)
    answer = client.sequence(steps, **options)
    return answer[1] if options.get("timing") else None


def _daemons(options: dict[str, Any], anywhere: tuple[str, ...]) -> bool:
    """Whether there are options that the daemon alone has."""
    return any(value is not None and value is not False and value != 0 for key, value in options.items() if key not in anywhere)


def _captured(client: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the launches become nodes of a graph. Raises Capturing where they cannot."""
    try:
        contexts.refuse_capture(arguments)
    except Capturing:
        if _daemons(options, ANYWHERE) or not contexts.offered(client._live(), here.FEATURE):
            raise
        return True
    return False


def _launch_here(name: str, steps: Sequence[tuple[Any, ...]], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Launches here. What one kernel leaves for the next one lies in an array of the caller's framework. torch reuses its memory in the
    order of the stream; of other frameworks that is not known, so the stream is waited for while the array is there."""
    stream = contexts.stream_of(arguments)
    if any(contexts.stream_of(given) != stream for _, *given in steps):
        raise BadArgument(f"{name}: the arrays are of frameworks with different current streams: give arrays of one, or leave out where=")
    torch = sys.modules.get("torch")
    other = next((one for one in arguments if contexts.on_device(one) and (torch is None or not isinstance(one, torch.Tensor))), None)
    if other is not None and allocations.driver.capturing(stream):
        raise Capturing(f"{name} is {len(steps)} kernels for these shapes: a graph can have it with tensors of torch's alone")
    try:
        timings = [kernel(*given, where="here", **options) for kernel, *given in steps]
    finally:
        if other is not None:
            allocations.driver.synchronize(int(other.__cuda_array_interface__["data"][0]), stream)
    if not options.get("timing"):
        return None
    return dataclasses.replace(timings[-1], gpu_us=sum(one.gpu_us for one in timings), sent_ns=timings[0].sent_ns)


class Given:
    """The inputs of one call. `layouts` has None for a number. What follows from the layouts is found when it is first asked for."""

    def __init__(self, what: str, declared: Sequence[Declared], values: Sequence[Any], staged: bool = True) -> None:
        if len(values) != len(declared):
            names = ", ".join(operand.name for operand in declared)
            raise BadArgument(f"{what} takes {counted(len(declared), 'operand')} ({names}), got {len(values)}")
        self.what, self.declared, self.staged = what, declared, staged
        self.values: list[Any] = list(values)
        self.layouts: list[Layout | None] = [None] * len(values)
        self._like: Any = None
        lists = []
        for i, value in enumerate(values):
            adapter = adapter_of(value)
            if adapter.plain:
                lists += [] if adapter.number else [i]
            else:
                self._take(i, value if staged else adapter.on_host(value), adapter)
        if lists:
            self._convert(lists)
        if self._like is None:  # NumPy's numbers have a dtype, like arrays
            self._convert([i for i, value in enumerate(values) if hasattr(value, "dtype")])

    def _take(self, i: int, value: Any, adapter: Any) -> None:
        self.values[i], self.layouts[i] = value, adapter.layout(value, self.staged)
        if self._like is None:
            self._like = value, adapter

    def _convert(self, places: Sequence[int]) -> None:
        """Lists and NumPy's numbers as arrays, of the dtype of the first array of their type."""
        for i in places:
            operand, placeholder = self.declared[i], self.declared[i].placeholder
            others = zip(self.declared, self.layouts)
            known = next((at.dtype for one, at in others if at is not None and placeholder and one.placeholder == placeholder), None)
            made = array(self.values[i], operand.dtype or known)
            self._take(i, made, adapter_of(made))

    @cached_property
    def types(self) -> Types:
        """The dtypes of the placeholders. Raises DtypeMismatch."""
        made = Types(self.what)
        for operand, layout in zip(self.declared, self.layouts):
            if layout is not None:
                made.take(operand, layout.dtype)
        return made

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """What the arrays broadcast to. Raises ShapeMismatch."""
        shapes = [layout.shape for layout in self.broadcasts]
        return broadcast(*shapes) if shapes else ()

    @property
    def broadcasts(self) -> list[Layout]:
        """The arrays that each element of a result has elements of."""
        return [layout for one, layout in zip(self.declared, self.layouts) if layout is not None and not one.raw]

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides on kernels and their sizes and strides."""
        return layouts_key(self.layouts)

    def given_outputs(self, declared: Sequence[Declared], out: Any) -> tuple[list[Any], list[Layout]]:
        """The arrays of `out=`, and their layouts."""
        given = list(out) if isinstance(out, (tuple, list)) and len(declared) != 1 else [out]
        if len(given) != len(declared):
            raise BadArgument(f"{self.what} has {counted(len(declared), 'result')}, but out= {len(given)}", {"key": "out"})
        adapters = [adapter_of(value) for value in given]
        for value, adapter in zip(given, adapters):
            if adapter.plain:
                raise WrongType(f"{self.what}: out must be an array, not {type(value).__name__}", {"key": "out"})
        return given, [adapter.layout(value, self.staged) for value, adapter in zip(given, adapters)]

    def check_outputs(self, declared: Sequence[Declared], layouts: Sequence[Layout], shape: tuple[int, ...]) -> None:
        """Raises DtypeMismatch or ShapeMismatch for arrays of `out=`."""
        for operand, layout in zip(declared, layouts):
            self.types.take(operand, layout.dtype)
            if tuple(layout.shape) != tuple(shape):
                raise ShapeMismatch(f"{self.what}: {operand.name} has shape {tuple(shape)}, but out= {tuple(layout.shape)}", {"key": "out"})

    def outputs(self, declared: Sequence[Declared], out: Any, shape: tuple[int, ...]) -> tuple[list[Any], list[Layout], list[Any]]:
        """The arrays of the results, given or new ones, their layouts, and what turns each into what the caller gets."""
        if out is not None:
            given, layouts = self.given_outputs(declared, out)
            self.check_outputs(declared, layouts, shape)
            return given, layouts, [None] * len(given)
        made = [self.allocate(shape, self.types.dtype(operand)) for operand in declared]
        layouts = [Layout(operand.dtype, tuple(operand.shape), operand.strides, None) for operand in made]
        return [operand.value for operand in made], layouts, [operand.adapter for operand in made]

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Operand:
        """A new array where the first of the inputs is."""
        if self._like is None:
            raise WrongType(f"{self.what}: no operand is an array, so nothing tells where the result is to be: pass one, or give out=")
        value, adapter = self._like
        made: Operand = adapter.allocate(Operand(value, None, 0, (), None, dtype, adapter), shape, Operands())
        return made


def layouts_key(layouts: Iterable[Layout | None]) -> tuple[Any, ...]:
    """Dtypes, shapes and strides, without addresses."""
    return tuple(layout and layout[:3] for layout in layouts)


class FormulaCode(Code):
    """A source around a user's formula, which errors of the compiler show."""

    def __init__(self, source: str, entry: str, shown: str, options: Sequence[str], name: str, device: Any, arch: str | None) -> None:
        super().__init__(source, entry, options, None, f"{name}.cu", arch, device)
        self._shown = shown

    def define(self, connection: Link) -> Plan:
        try:
            return (yield from super().define(connection))
        except CompileFailed as error:
            raise CompileFailed(f"{self._shown}: {error.message}", error.detail, error.code) from None


class Prepared(NamedTuple):
    """A call: kernels with their arguments, of which the last one writes the results."""

    steps: tuple[tuple[Any, ...], ...]
    outputs: list[Any]
    adapters: list[Any]

    @property
    def result(self) -> Any:
        made = tuple(value if adapter is None else adapter.result(value) for value, adapter in zip(self.outputs, self.adapters))
        return made[0] if len(made) == 1 else made


class BaseFormula(Recordable):
    """Kernels of users' formulas, made for the forms in which they are called."""

    _kernel_type: type[BaseKernel]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]

    def __init__(
        self, client: Any, name: str, shown: str, options: Iterable[str], device: Any, arch: str | None, fallback: str | None
    ) -> None:
        if not name.isidentifier() or not name.isascii():
            raise BadArgument(f"{name!r} is no name for a kernel: letters, digits and underscores", {"key": "name"})
        self.name = name
        self._client = client
        self._shown = f"{name} (`{shown}`)"
        self._options, self._device, self._arch = tuple(options), device, arch
        self.fallback = checked_fallback(fallback)
        self._kernels: dict[Any, Any] = {}

    def _prepare(self, values: Sequence[Any], out: Any, staged: bool = True, **how: Any) -> Prepared:
        """The kernels for these arguments; `how` is what the caller says of shapes."""
        raise NotImplementedError

    def _how(self, options: dict[str, Any]) -> dict[str, Any]:
        """Takes what is for `_prepare` from a call's options."""
        return {}

    def _kernel(self, form: Any, source: str, entry: str, params: Sequence[Param], geometry: Geometry) -> Any:
        """A new kernel for a form; another thread may have been faster."""
        code = FormulaCode(source, entry, self._shown, self._options, self.name, self._device, self._arch)
        made = self._kernel_type(self._client, code, entry, params, geometry, False, self.fallback)
        made._outs = tuple(i for i, param in enumerate(params) if param.kind in ("out", "inout"))
        return self._kernels.setdefault(form, made)

    def _check_params(self, count: int) -> None:
        if count > KERNEL_LIMITS["params"]:
            raise LimitExceeded(
                f"{self.name}: so many dimensions of arrays that are not contiguous need {count} parameters; a kernel has at most "
                f"{KERNEL_LIMITS['params']}. Pass contiguous copies of some",
                {"limit": KERNEL_LIMITS["params"], "value": count},
            )

    def interpret(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """Runs it on the CPU, in this process, as `Kernel.interpret` does a kernel."""
        prepared = self._prepare(values, out, False, **self._how(options))
        for kernel, *arguments in prepared.steps:
            kernel.interpret(*arguments, **options)
        return prepared.result

    def _interprets(self, connection: Link, options: dict[str, Any]) -> bool:
        """Whether a call runs in the interpreter; takes the options that mean nothing there."""
        if self.fallback is None or not launches_none(connection):
            return False
        if options.get("timing"):
            refuse_interpreted(self.name, "the interpreter has no times")
        if options.get("where") is not None:
            checked_place(options["where"])
        for key in [key for key in options if key not in ("axis", "keepdims")]:
            del options[key]
        return True

    def _record(self, recorder: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        out = options.pop("out", None)
        prepared = self._prepare(values, out, **self._how(options))
        recorder.refuse(self.name, options)
        for kernel, *arguments in prepared.steps:
            recorder.launch(kernel, *arguments)
        return recorder.guarded(prepared.result) if out is None else prepared.result

    def _one(self, prepared: Prepared) -> tuple[Any, ...]:
        """The only kernel of a call, to be measured."""
        if len(prepared.steps) > 1:
            raise Unsupported(
                f"{self.name} is {len(prepared.steps)} kernels for these shapes: record it in a program, and measure that by "
                "p.run(timing=True, warmup=3, repeat=20)"
            )
        return prepared.steps[0]

    def profile(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As `Kernel.profile`."""
        kernel, *arguments = self._one(self._prepare(values, out, **self._how(options)))
        return kernel.profile(*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, where its kernels are made anew."""
        return {**self.__dict__, "_kernels": {}}

    def __repr__(self) -> str:
        given, made = (", ".join(f"{one.placeholder or one.dtype} {one.name}" for one in some) for some in (self.inputs, self.outputs))
        return f"<kops.{type(self).__name__} {self.name}({given}) -> {made}>"


class Formula(BaseFormula):
    """With a synchronous client."""

    _kernel_type = Kernel

    def __call__(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """The results, one array or a tuple: new arrays where the first array is, or those of `out`. Operands are arrays, which are
        broadcast, and numbers. The options are those of a kernel's call; with `timing` the result is `(results, Timings)`."""
        recorder = self._client._recorder()
        if recorder is not None:
            return self._record(recorder, values, {"out": out, **options})
        if self.fallback is not None and self._interprets(self._client._live(), options):
            return self.interpret(*values, out=out, **options)
        prepared = self._prepare(values, out, **self._how(options))
        if len(prepared.steps) > 1:
            timings = launch(self._client, self.name, prepared.steps, options.pop("where", None), options)
        else:
            kernel, *arguments = prepared.steps[0]
            timings = kernel(*arguments, **options)
        return (prepared.result, timings) if options.get("timing") else prepared.result

    def submit(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As `Kernel.submit`: a `Pending` of the results."""
        pending = None
        for kernel, *arguments in self._prepare(values, out, **self._how(options)).steps:
            pending = kernel.submit(*arguments, **options)
        return pending


class AsyncFormula(BaseFormula):
    """With an asyncio client."""

    _kernel_type = AsyncKernel

    async def __call__(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As that of a synchronous client."""
        if self.fallback is not None and self._interprets(await self._client._live(), options):
            return await asyncio.to_thread(self.interpret, *values, out=out, **options)
        prepared = self._prepare(values, out, **self._how(options))
        if len(prepared.steps) > 1:
            async with self._client.sequence(**options) as sequence:
                for step in prepared.steps:
                    sequence.launch(*step)
            return (prepared.result, sequence.timings) if options.get("timing") else prepared.result
        kernel, *arguments = prepared.steps[0]
        timings = await kernel(*arguments, **options)
        return (prepared.result, timings) if options.get("timing") else prepared.result
