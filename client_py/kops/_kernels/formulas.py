"""Formulas over arrays, which are compiled for each form in which they are called: elementwise kernels and reductions, after what both
have. Of the arrays and numbers of a call these are dtypes, the shape that they broadcast to, and arrays for results. A formula may be
several kernels: one request of the daemon, or launches here, one after the other on the caller's stream.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import operator
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from .._base.declarations import KERNEL_LIMITS
from .._base.errors import BadArgument, Capturing, CompileFailed, LimitExceeded, ShapeMismatch, Unsupported, WrongType
from .._base.texts import counted
from .._calls import contexts
from .._calls.contexts import checked_place
from .._calls.launch import CODE_FEATURE, Recordable
from .._calls.plans import Plan
from .._calls.rules import broadcast
from .._memory.exports import allocations
from .._session.link import Link
from .._source import elementwise, reduction
from .._source.elementwise import Argument, Form, Text, entry_of
from .._source.formulas import Declared, Loop, Types, broadcast_strides, compute_type, loop, names_in, operands, packed, row_major
from .._source.geometry import Geometry
from .._source.reduction import BLOCKS, FEW, SMALL, THREADS, Formulas, Split
from .._source.signature import Param
from .._source.types import C_NAMES
from .._tensors.adapters import adapter_of, array
from .._tensors.operands import Layout, Operand, Operands
from .kernels import AsyncKernel, BaseKernel, Code, Kernel, checked_fallback, lacks_gpu, launches_none, refuse_interpreted

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
        if _daemons(options, ANYWHERE) or not contexts.offered(client._live(), CODE_FEATURE):
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
        return [operand.value for operand in made], [operand.layout for operand in made], [operand.adapter for operand in made]

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

    def _take_options(self, options: dict[str, Any]) -> None:
        """Takes the options of a call that mean nothing in the interpreter. Raises Unsupported for those that cannot be."""
        if options.get("timing"):
            refuse_interpreted(self.name, "the interpreter has no times")
        if options.get("where") is not None:
            checked_place(options["where"])
        for key in [key for key in options if key not in ("axis", "keepdims")]:
            del options[key]

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
        if self.fallback is not None and lacks_gpu(self._client):
            self._take_options(options)
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
        if self.fallback is not None and launches_none(await self._client._live()):
            self._take_options(options)
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


# Elementwise kernels


PLANS = 256  # layouts that are kept
PLACEHOLDER = "T"  # the type of all operands of a short form


class _Plan(NamedTuple):
    """What calls with the same layouts have in common: the kernel, its sizes and strides, the results' shape and dtypes, and which inputs
    it gets."""

    kernel: Any
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    inputs: tuple[int, ...]


def _declared(inputs: str, outputs: str | None, operation: str | None, what: str) -> tuple[tuple[Declared, ...], tuple[Declared, ...], str]:
    """Inputs, outputs and the formula, of the short form or the full one."""
    if outputs is None and operation is None:
        names = names_in(inputs)
        if not names:
            raise BadArgument(f"{what}: `{inputs}` names no operand", {"key": "expression"})
        out = next(name for name in ("out", "result", "kops_out") if name not in names)
        made = tuple(Declared(name, PLACEHOLDER, None) for name in names)
        return made, (Declared(out, PLACEHOLDER, None),), f"{out} = {inputs}"
    if outputs is None or operation is None:
        raise BadArgument(
            f"{what}: give an expression, \"x * y + z\", or inputs, outputs and a formula, \"T x, T y\", \"T out\", \"out = x * y\""
        )
    given, made = operands(inputs, what, raw=True), operands(outputs, what)
    if not made:
        raise BadArgument(f"{what}: a formula needs at least one output", {"key": "outputs"})
    both = {one.name for one in given} & {one.name for one in made}
    if both:
        raise BadArgument(f"{what}: {', '.join(sorted(both))} is an input and an output: give the same array for both in a call instead")
    return given, made, operation


class BaseElementwise(BaseFormula):
    """What `Elementwise` and `AsyncElementwise` are. The kernel in statistics is `name` + "_kernel"."""

    def __init__(
        self, client: Any, inputs: str, outputs: str | None, operation: str | None, name: str, prelude: str, options: Iterable[str],
        device: Any, arch: str | None, fallback: str | None,
    ) -> None:  # fmt: skip
        super().__init__(client, name, inputs if operation is None else operation, options, device, arch, fallback)
        self.inputs, self.outputs, formula = _declared(inputs, outputs, operation, name)
        count = len(self.inputs) + len(self.outputs)
        if count > KERNEL_LIMITS["tensors"]:
            raise LimitExceeded(
                f"{name}: {count} operands; a kernel has at most {KERNEL_LIMITS['tensors']}",
                {"limit": KERNEL_LIMITS["tensors"], "value": count},
            )
        self._text = Text(name, prelude, formula)
        self._plans: dict[Any, _Plan] = {}

    def _prepare(self, values: Sequence[Any], out: Any, staged: bool = True, **how: Any) -> Prepared:
        given = Given(self.name, self.inputs, values, staged)
        outputs, layouts = ([], None) if out is None else given.given_outputs(self.outputs, out)
        same = _same([None if one.raw else layout for one, layout in zip(self.inputs, given.layouts)], layouts or ())
        key = (given.key, layouts and layouts_key(layouts), tuple(same.items()))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(given, layouts, same)
        adapters: list[Any] = [None] * len(outputs)
        if out is None:
            made = [given.allocate(plan.shape, dtype) for dtype in plan.dtypes]
            outputs, adapters = [operand.value for operand in made], [operand.adapter for operand in made]
        arguments = [given.values[i] for i in plan.inputs]
        return Prepared(((plan.kernel, *arguments, *outputs, *plan.sizes),), outputs, adapters)

    def _plan(self, given: Given, layouts: Sequence[Layout] | None, same: dict[int, int]) -> _Plan:
        """What calls with such layouts have in common. `layouts` are those of out=, if there is one."""
        shape, types = given.shape, given.types
        if layouts is None:
            if not given.broadcasts and any(operand.raw for operand in self.inputs):
                raise WrongType(f"{self.name}: raw operands tell no shape: give out=, or an operand that is not raw", {"key": "out"})
            layouts = [Layout(types.dtype(operand), shape, None, None) for operand in self.outputs]
        else:
            shape = shape if given.broadcasts else tuple(layouts[0].shape)
            given.check_outputs(self.outputs, layouts, shape)
        inputs = tuple(i for i in range(len(self.inputs)) if i not in same)
        whole = [operand.raw for operand in self.inputs]
        arrays = [layout for i in inputs if (layout := given.layouts[i]) is not None and not whole[i]] + list(layouts)
        strides = [broadcast_strides(layout.shape, layout.strides, shape) for layout in arrays]
        form, sizes = self._form(given, layouts, same, loop(shape, strides))
        numbers = (math.prod(shape), *packed(sizes, form.narrow))
        return _Plan(self._of(form), numbers, shape, tuple(layout.dtype for layout in layouts), inputs)

    def _form(self, given: Given, layouts: Sequence[Layout], same: dict[int, int], steps: Loop) -> tuple[Form, list[int]]:
        """What the kernel is generated for, and the sizes and strides that it takes."""
        inputs = [i for i in range(len(self.inputs)) if i not in same]
        arguments, at, sizes = [], 0, list(steps.sizes[1:])
        for i in inputs:
            operand, layout = self.inputs[i], given.layouts[i]
            if operand.raw and (layout is None or layout.strides is not None):
                raise BadArgument(f"{self.name}: {operand.name} is raw: pass a contiguous array", {"key": operand.name})
            if layout is None:
                arguments.append(Argument(operand, "scalar", given.types.dtype(operand)))
                continue
            if operand.raw:
                arguments.append(Argument(operand, "raw", layout.dtype))
                continue
            arguments.append(Argument(operand, "in", layout.dtype, steps.dense(at)))
            sizes += () if steps.dense(at) else steps.strides[at]
            at += 1
        for i, (operand, layout) in enumerate(zip(self.outputs, layouts)):
            kind = "inout" if i in same.values() else "out"
            arguments.append(Argument(operand, kind, layout.dtype, steps.dense(at)))
            sizes += () if steps.dense(at) else steps.strides[at]
            at += 1
        flat = all(argument.dense for argument in arguments)
        merged = tuple((self.inputs[i], len(inputs) + place) for i, place in same.items())
        form = Form(tuple(arguments), merged, tuple(given.types.names.items()), 0 if flat else len(steps.sizes), flat or steps.narrow)
        self._check_params(len(elementwise.params(form)))
        return form, [] if flat else sizes

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plans": {}}

    def _of(self, form: Form) -> Any:
        found = self._kernels.get(form)
        if found is None:
            geometry = Geometry(elementwise.grid(form), elementwise.BLOCK, 0, None)
            found = self._kernel(form, elementwise.source(self._text, form), entry_of(self.name), elementwise.params(form), geometry)
        return found


class Elementwise(BaseElementwise, Formula):
    """A formula over arrays. Made by `Client.elementwise`; call it with its operands."""


class AsyncElementwise(BaseElementwise, AsyncFormula):
    """As `Elementwise`, with `await`. Made by `AsyncClient.elementwise`."""


def _same(inputs: Sequence[Layout | None], outputs: Sequence[Layout]) -> dict[int, int]:
    """Inputs that are exactly an output, which is then read and written."""
    places = {layout: i for i, layout in enumerate(outputs) if layout.address is not None and 0 not in layout.shape}
    return {i: places[layout] for i, layout in enumerate(inputs) if layout is not None and layout in places}


# Reductions: formulas that make one number of many, along all axes or some

UNSAID: Any = object()
PARTIAL = "kops_partial"


class _Loops(NamedTuple):
    """The loops over results and over the numbers of one; both have the strides of the inputs' arrays, `kept` also the output's."""

    kept: Loop
    reduced: Loop

    @property
    def narrow(self) -> bool:
        both = [kept + reduced for kept, reduced in zip(self.kept.strides, self.reduced.strides)]
        return Loop(self.kept.sizes + self.reduced.sizes, tuple(both)).narrow and self.kept.narrow


def axes_of(axis: Any, rank: int, what: str) -> tuple[int, ...]:
    """The axes that are reduced, of an array of that rank. None: all."""
    if axis is None:
        return tuple(range(rank))
    try:
        given = [operator.index(one) for one in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    except TypeError:
        raise BadArgument(f"{what}: axis must be None, a whole number or several, not {axis!r}", {"key": "axis"}) from None
    result = [one + rank if one < 0 else one for one in given]
    if any(not 0 <= one < rank for one in result) or len(set(result)) != len(result):
        raise BadArgument(f"{what}: axis={axis!r} for operands of {rank} dimensions", {"key": "axis"})
    return tuple(result)


class BaseReduction(BaseFormula):
    """What `Reduction` and `AsyncReduction` are. The kernel in statistics is `name` + "_kernel"."""

    def __init__(
        self, client: Any, map: str, reduce: str, post: str, identity: Any, inputs: str | None, output: str | None,
        accumulate: str | None, axis: Any, name: str, prelude: str, options: Iterable[str], device: Any, arch: str | None,
        fallback: str | None,
    ) -> None:  # fmt: skip
        super().__init__(client, name, f"{map}; {reduce}; {post}", options, device, arch, fallback)
        self.inputs = _inputs(map, inputs, name)
        self.outputs = operands(output, name) if output is not None else (Declared("out", PLACEHOLDER, None),)
        if len(self.outputs) != 1:
            raise BadArgument(f"{name}: a reduction has one output, not {len(self.outputs)}", {"key": "output"})
        if self.outputs[0].name in {one.name for one in self.inputs}:
            raise BadArgument(f"{name}: {self.outputs[0].name} is an input and the output", {"key": "output"})
        self._accumulate = None if accumulate is None else operands(f"{accumulate} x", name)[0].dtype
        if accumulate is not None and self._accumulate not in C_NAMES:
            raise BadArgument(f"{name}: accumulate={accumulate!r} is a type, such as \"float\" or \"int64\"", {"key": "accumulate"})
        self._axis = axis
        self._formulas = Formulas(name, prelude, map, reduce, post, _literal(identity, name))

    def _how(self, options: dict[str, Any]) -> dict[str, Any]:
        return {key: options.pop(key) for key in ("axis", "keepdims") if key in options}

    def _prepare(
        self, values: Sequence[Any], out: Any, staged: bool = True, axis: Any = UNSAID, keepdims: bool = False, **how: Any
    ) -> Prepared:
        given = Given(self.name, self.inputs, values, staged)
        reduced = axes_of(self._axis if axis is UNSAID else axis, len(given.shape), self.name)
        kept = [i for i in range(len(given.shape)) if i not in reduced]
        shape = tuple(given.shape[i] for i in kept)
        seen = tuple(1 if i in reduced else n for i, n in enumerate(given.shape)) if keepdims else shape
        outputs, (layout,), adapters = given.outputs(self.outputs, out, seen)
        if keepdims:
            layout = layout._replace(shape=shape, strides=None if layout.strides is None else tuple(layout.strides[i] for i in kept))
        loops = self._loops(given, layout, kept, sorted(reduced))
        length, results = math.prod(given.shape[i] for i in reduced), math.prod(shape)
        how_split = reduction.split(results, length, _neighbours(loops))
        counts = (results, length, how_split.chunk, length)
        arguments, numbers = self._arguments(given), given.values
        types = tuple(given.types.names.items())
        accumulator = self._accumulator(layout.dtype)
        if how_split.parts == 1:
            last = Argument(self.outputs[0], "out", layout.dtype, loops.kept.dense(-1))
            given_all = (*numbers, outputs[0])
            step = self._step(self._formulas, (*arguments, last), accumulator, types, loops, how_split, given_all, counts, False)
            return Prepared((step,), outputs, adapters)
        parts = given.allocate((how_split.parts, results), accumulator)
        partial = Argument(Declared(PARTIAL, None, accumulator), "out", accumulator)
        given_all = (*numbers, parts.value)
        first = self._step(self._formulas, (*arguments, partial), accumulator, types, loops, how_split, given_all, counts, True)
        second = self._combine(parts.value, outputs[0], layout, accumulator, types, how_split.parts, results, length)
        return Prepared((first, second), outputs, adapters)

    def _combine(
        self, parts: Any, out: Any, layout: Layout, accumulator: str, types: Any, count: int, results: int, length: int
    ) -> tuple[Any, ...]:
        """The kernel that makes results of their parts."""
        own = row_major(layout.shape) if layout.strides is None else layout.strides
        kept = loop((*layout.shape,), (row_major(layout.shape), own))
        loops = _Loops(kept, loop((count,), ((results,), (0,))))
        read = Argument(Declared(PARTIAL, None, accumulator), "in", accumulator)
        last = Argument(self.outputs[0], "out", layout.dtype, kept.dense(-1))
        how = Split(results >= BLOCKS or count <= FEW, SMALL if count <= SMALL * 8 else THREADS, 1, count)
        how = how._replace(block=THREADS) if how.threads else how
        formulas = self._formulas._replace(map=PARTIAL)
        return self._step(formulas, (read, last), accumulator, types, loops, how, (parts, out), (results, count, count, length), False)

    def _loops(self, given: Given, out: Layout, kept: Sequence[int], reduced: Sequence[int]) -> _Loops:
        arrays = [broadcast_strides(one.shape, one.strides, given.shape) for one in given.layouts if one is not None]
        own = row_major(out.shape) if out.strides is None else out.strides
        outer = [tuple(strides[i] for i in kept) for strides in arrays]
        inner = [tuple(strides[i] for i in reduced) for strides in arrays]
        nothing = (0,) * len(reduced)
        return _Loops(
            loop([given.shape[i] for i in kept], [*outer, own]), loop([given.shape[i] for i in reduced], [*inner, nothing])
        )  # fmt: skip

    def _arguments(self, given: Given) -> tuple[Argument, ...]:
        return tuple(
            Argument(operand, "scalar", given.types.dtype(operand)) if layout is None else Argument(operand, "in", layout.dtype)
            for operand, layout in zip(self.inputs, given.layouts)
        )

    def _accumulator(self, dtype: str) -> str:
        """The dtype that is computed with: of halves f32, else that of the result."""
        if self._accumulate is not None:
            return self._accumulate if compute_type(self._accumulate) != "float" else "f32"
        return "f32" if compute_type(dtype) == "float" else dtype

    def _step(
        self, formulas: Formulas, arguments: tuple[Argument, ...], accumulator: str, types: Any, loops: _Loops, how: Split,
        values: Sequence[Any], counts: Sequence[int], partial: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        """A kernel with its arguments."""
        kept, reduced = loops
        loop_counts = len(kept.sizes), len(reduced.sizes)
        form = reduction.Form(arguments, accumulator, types, *loop_counts, loops.narrow, how.threads, how.block, partial)
        sizes = [*kept.sizes[1:], *reduced.sizes[1:]]
        for i in range(sum(a.kind == "in" for a in arguments)):
            sizes += [*kept.strides[i], *reduced.strides[i]]
        if not arguments[-1].dense:
            sizes += kept.strides[-1]
        self._check_params(len(reduction.params(form)))
        return (self._of(form, formulas), *values, *counts, *packed(sizes, form.narrow))

    def _of(self, form: reduction.Form, formulas: Formulas) -> Any:
        key = form, formulas.map
        found = self._kernels.get(key)
        if found is None:
            geometry = Geometry(reduction.grid(form), form.block, 0, None)
            found = self._kernel(key, reduction.source(formulas, form), entry_of(self.name), reduction.params(form), geometry)
        return found


class Reduction(BaseReduction, Formula):
    """A reduction. Made by `Client.reduce`; call it with its operands, `axis=` and `keepdims=`."""


class AsyncReduction(BaseReduction, AsyncFormula):
    """As `Reduction`, with `await`. Made by `AsyncClient.reduce`."""


def _inputs(map: str, inputs: str | None, what: str) -> tuple[Declared, ...]:
    found = operands(inputs, what) if inputs is not None else tuple(Declared(name, PLACEHOLDER, None) for name in names_in(map))
    if not found:
        raise BadArgument(f"{what}: `{map}` names no operand", {"key": "map"})
    return found


def _literal(identity: Any, what: str) -> str:
    """The number that changes nothing, in C++."""
    if isinstance(identity, str) and identity.strip():
        return identity
    if isinstance(identity, bool):
        return "true" if identity else "false"
    if isinstance(identity, int):
        return str(identity) if identity > -(2**63) else "(-9223372036854775807ll - 1)"
    if isinstance(identity, float):
        if math.isfinite(identity):
            return repr(identity)
        return "NAN" if math.isnan(identity) else "INFINITY" if identity > 0 else "-INFINITY"
    raise BadArgument(
        f"{what}: identity must be the number that changes nothing, 0 for sums, or an expression such as \"-INFINITY\", not {identity!r}",
        {"key": "identity"},
    )


def _neighbours(loops: _Loops) -> bool:
    """Whether numbers that lie side by side are of different results, so that neighbouring threads should compute them."""
    kept, reduced = loops
    inputs = range(len(kept.strides) - 1)
    across = [bool(kept.sizes) and kept.sizes[-1] >= FEW and kept.strides[i][-1] == 1 for i in inputs]
    along = [bool(reduced.sizes) and reduced.strides[i][-1] == 1 for i in inputs]
    return any(across) and not any(along)
