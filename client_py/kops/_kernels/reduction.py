"""Reductions of users: formulas that make one number of many, along all axes or some."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._base.errors import BadArgument
from .._source import reduction as text
from .._source.elementwise import Argument, entry_of
from .._source.formulas import Declared, Loop, broadcast_strides, compute_type, loop, names_in, operands, packed, row_major
from .._source.geometry import Geometry
from .._source.reduction import Form, Formulas
from .._source.types import C_NAMES
from .._tensors.operands import Layout
from .formulas import AsyncFormula, BaseFormula, Formula, Given, Prepared

PLACEHOLDER = "T"
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
        how_split = text.split(results, length, _neighbours(loops))
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
        how = text.Split(results >= text.BLOCKS or count <= text.FEW, text.SMALL if count <= text.SMALL * 8 else text.THREADS, 1, count)
        how = how._replace(block=text.THREADS) if how.threads else how
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
        self, formulas: Formulas, arguments: tuple[Argument, ...], accumulator: str, types: Any, loops: _Loops, how: text.Split,
        values: Sequence[Any], counts: Sequence[int], partial: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        """A kernel with its arguments."""
        kept, reduced = loops
        form = Form(arguments, accumulator, types, len(kept.sizes), len(reduced.sizes), loops.narrow, how.threads, how.block, partial)
        sizes = [*kept.sizes[1:], *reduced.sizes[1:]]
        for i in range(sum(a.kind == "in" for a in arguments)):
            sizes += [*kept.strides[i], *reduced.strides[i]]
        if not arguments[-1].dense:
            sizes += kept.strides[-1]
        self._check_params(len(text.params(form)))
        return (self._of(form, formulas), *values, *counts, *packed(sizes, form.narrow))

    def _of(self, form: Form, formulas: Formulas) -> Any:
        key = form, formulas.map
        found = self._kernels.get(key)
        if found is None:
            geometry = Geometry(text.grid(form), form.block, 0, None)
            found = self._kernel(key, text.source(formulas, form), entry_of(self.name), text.params(form), geometry)
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
    across = [bool(kept.sizes) and kept.sizes[-1] >= text.FEW and kept.strides[i][-1] == 1 for i in inputs]
    along = [bool(reduced.sizes) and reduced.strides[i][-1] == 1 for i in inputs]
    return any(across) and not any(along)

