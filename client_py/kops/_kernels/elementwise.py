"""Elementwise kernels of users: a formula over arrays, compiled for each form in which it is called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._base.declarations import KERNEL_LIMITS
from .._base.errors import BadArgument, LimitExceeded, WrongType
from .._source import elementwise as text
from .._source.elementwise import Argument, Form, Text
from .._source.formulas import Declared, Loop, broadcast_strides, loop, names_in, operands, packed
from .._source.geometry import Geometry
from .._tensors.operands import Layout
from .formulas import AsyncFormula, BaseFormula, Formula, Given, Prepared, layouts_key

PLANS = 256  # layouts that are kept
PLACEHOLDER = "T"  # the type of all operands of the short form


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
        self._check_params(len(text.params(form)))
        return form, [] if flat else sizes

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plans": {}}

    def _of(self, form: Form) -> Any:
        found = self._kernels.get(form)
        if found is None:
            geometry = Geometry(text.grid(form), text.BLOCK, 0, None)
            found = self._kernel(form, text.source(self._text, form), text.entry_of(self.name), text.params(form), geometry)
        return found


class Elementwise(BaseElementwise, Formula):
    """A formula over arrays. Made by `Client.elementwise`; call it with its operands."""


class AsyncElementwise(BaseElementwise, AsyncFormula):
    """As `Elementwise`, with `await`. Made by `AsyncClient.elementwise`."""


def _same(inputs: Sequence[Layout | None], outputs: Sequence[Layout]) -> dict[int, int]:
    """Inputs that are exactly an output, which is then read and written."""
    places = {layout: i for i, layout in enumerate(outputs) if layout.address is not None and 0 not in layout.shape}
    return {i: places[layout] for i, layout in enumerate(inputs) if layout is not None and layout in places}
