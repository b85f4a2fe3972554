"""Elementwise kernels of users: a formula over arrays, compiled for each form in which it is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._base.declarations import KERNEL_LIMITS
from .._base.errors import BadArgument, LimitExceeded
from .._calls.launchable import Recordable
from .._source import elementwise as text
from .._source.elementwise import Argument, Form, Text
from .._source.formulas import Declared, names_in, operands, packed
from .._source.geometry import Geometry
from .._source.layouts import Loop, broadcast_strides, loop
from .._tensors.operands import Layout
from .formulas import FormulaCode, Given, results
from .kernels import AsyncKernel, BaseKernel, Kernel

PLACEHOLDER = "T"  # the type of all operands of the short form


class Prepared(NamedTuple):
    """A call: the kernel, its arguments, and the results."""

    kernel: Any
    arguments: tuple[Any, ...]
    outputs: list[Any]
    adapters: list[Any]

    @property
    def result(self) -> Any:
        return results(self.outputs, self.adapters)


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
    given, made = operands(inputs, what), operands(outputs, what)
    if not made:
        raise BadArgument(f"{what}: a formula needs at least one output", {"key": "outputs"})
    both = {one.name for one in given} & {one.name for one in made}
    if both:
        raise BadArgument(f"{what}: {', '.join(sorted(both))} is an input and an output: give the same array for both in a call instead")
    return given, made, operation


class BaseElementwise(Recordable):
    """What `Elementwise` and `AsyncElementwise` are. `name` is that of the kernel in statistics, `name` + "_kernel"."""

    _kernel_type: type[BaseKernel]

    def __init__(
        self, client: Any, inputs: str, outputs: str | None, operation: str | None, name: str, prelude: str, options: Iterable[str],
        device: Any, arch: str | None, **how: Any,
    ) -> None:  # fmt: skip
        if not name.isidentifier() or not name.isascii():
            raise BadArgument(f"{name!r} is no name for a kernel: letters, digits and underscores", {"key": "name"})
        self.name = name
        self.inputs, self.outputs, formula = _declared(inputs, outputs, operation, name)
        if len(self.inputs) + len(self.outputs) > KERNEL_LIMITS["tensors"]:
            raise LimitExceeded(
                f"{name}: {len(self.inputs) + len(self.outputs)} operands; a kernel has at most {KERNEL_LIMITS['tensors']}",
                {"limit": KERNEL_LIMITS["tensors"], "value": len(self.inputs) + len(self.outputs)},
            )
        self._client = client
        self._text = Text(name, prelude, formula)
        self._shown = f"{name} (`{inputs if operation is None else operation}`)"
        self._options, self._device, self._arch, self._how = tuple(options), device, arch, how
        self._kernels: dict[Form, Any] = {}

    def _prepare(self, values: Sequence[Any], out: Any, staged: bool = True) -> Prepared:
        """The kernel for these arguments, and its arguments."""
        given = Given(self.name, self.inputs, values, staged)
        shape = given.shape
        if out is not None and all(layout is None for layout in given.layouts):
            shape = _shape_of(out)
        outputs, layouts, adapters = given.outputs(self.outputs, out, shape)
        same = _same(given.layouts, layouts)
        arrays = [(layout, i) for i, layout in enumerate(given.layouts) if layout is not None and i not in same]
        strides = [broadcast_strides(layout.shape, layout.strides, shape) for layout, _ in arrays]
        strides += [broadcast_strides(layout.shape, layout.strides, shape) for layout in layouts]
        form, sizes = self._form(given, layouts, same, loop(shape, strides))
        count = 1
        for n in shape:
            count *= n
        arguments = [value for i, value in enumerate(given.values) if i not in same] + outputs
        return Prepared(self._kernel(form), (*arguments, count, *packed(sizes, form.narrow)), outputs, adapters)

    def _form(self, given: Given, layouts: Sequence[Layout], same: dict[int, int], steps: Loop) -> tuple[Form, list[int]]:
        """What the kernel is generated for, and the sizes and strides that it takes."""
        inputs = [i for i in range(len(self.inputs)) if i not in same]
        arguments, at, sizes = [], 0, list(steps.sizes[1:])
        for i in inputs:
            operand, layout = self.inputs[i], given.layouts[i]
            if layout is None:
                arguments.append(Argument(operand, "scalar", given.types.dtype(operand)))
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
        if len(text.params(form)) > KERNEL_LIMITS["params"]:
            raise LimitExceeded(
                f"{self.name}: so many dimensions of arrays that are not contiguous need {len(text.params(form))} parameters; a kernel has "
                f"at most {KERNEL_LIMITS['params']}. Pass contiguous copies of some",
                {"limit": KERNEL_LIMITS["params"], "value": len(text.params(form))},
            )
        return form, [] if flat else sizes

    def _kernel(self, form: Form) -> Any:
        found = self._kernels.get(form)
        if found is None:
            entry = text.entry_of(self.name)
            code = FormulaCode(text.source(self._text, form), entry, self._shown, self._options, self.name, self._device, self._arch)
            geometry = Geometry(text.grid(form), text.BLOCK, 0, None)
            made = self._kernel_type(self._client, code, entry, text.params(form), geometry, **self._how)
            made._outs = tuple(i for i, argument in enumerate(form.arguments) if argument.kind in ("out", "inout"))
            found = self._kernels.setdefault(form, made)
        return found

    def interpret(self, *values: Any, out: Any = None, **how: Any) -> Any:
        """Runs the formula on the CPU, in this process, as `Kernel.interpret` does a kernel."""
        prepared = self._prepare(values, out, False)
        prepared.kernel.interpret(*prepared.arguments, **how)
        return prepared.result

    def _record(self, recorder: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        prepared = self._prepare(values, options.pop("out", None))
        recorder.launch(prepared.kernel, *prepared.arguments, **options)
        return recorder.guarded(prepared.result) if prepared.adapters[0] is not None else prepared.result

    def __getstate__(self) -> dict[str, Any]:
        """For another process, where its kernels are made anew."""
        return {**self.__dict__, "_kernels": {}}

    def __repr__(self) -> str:
        given, made = (", ".join(f"{one.placeholder or one.dtype} {one.name}" for one in some) for some in (self.inputs, self.outputs))
        return f"<kops.{type(self).__name__} {self.name}({given}) -> {made}>"


class Elementwise(BaseElementwise):
    """A formula over arrays. Made by `Client.elementwise`; call it with its operands."""

    _kernel_type = Kernel

    def __call__(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """The results, one array or a tuple: new arrays where the first array is, or those of `out`. Operands are arrays, which are
        broadcast, and numbers. The options are those of a kernel's call; with `timing` the result is `(results, Timings)`."""
        recorder = self._client._recorder()
        if recorder is not None:
            recorder.refuse(self.name, options)
            return self._record(recorder, values, {"out": out, **options})
        prepared = self._prepare(values, out)
        answer = prepared.kernel(*prepared.arguments, **options)
        return (prepared.result, answer) if options.get("timing") else prepared.result

    def profile(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As `Kernel.profile`."""
        prepared = self._prepare(values, out)
        return prepared.kernel.profile(*prepared.arguments, **options)

    def submit(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As `Kernel.submit`: a `Pending` of the results."""
        prepared = self._prepare(values, out)
        return prepared.kernel.submit(*prepared.arguments, **options)


class AsyncElementwise(BaseElementwise):
    """As `Elementwise`, with `await`. Made by `AsyncClient.elementwise`."""

    _kernel_type = AsyncKernel

    async def __call__(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As `Elementwise`'s."""
        prepared = self._prepare(values, out)
        answer = await prepared.kernel(*prepared.arguments, **options)
        return (prepared.result, answer) if options.get("timing") else prepared.result

    async def profile(self, *values: Any, out: Any = None, **options: Any) -> Any:
        """As `Kernel.profile`."""
        prepared = self._prepare(values, out)
        return await prepared.kernel.profile(*prepared.arguments, **options)


def _shape_of(out: Any) -> tuple[int, ...]:
    first = out[0] if isinstance(out, (tuple, list)) and out else out
    return tuple(getattr(first, "shape", ()))


def _same(inputs: Sequence[Layout | None], outputs: Sequence[Layout]) -> dict[int, int]:
    """Inputs that are exactly an output, which is then read and written."""
    places = {layout: i for i, layout in enumerate(outputs) if layout.address is not None and 0 not in layout.shape}
    return {i: places[layout] for i, layout in enumerate(inputs) if layout is not None and layout in places}
