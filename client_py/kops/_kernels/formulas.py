"""The arrays and numbers that a formula is called with: dtypes, the shape that they broadcast to, and arrays for results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._base.errors import BadArgument, CompileFailed, ShapeMismatch, WrongType
from .._base.texts import counted
from .._calls.plans import Plan
from .._calls.rules import broadcast
from .._session.connection import Peer
from .._source.formulas import Declared, Types
from .._tensors.adapters import adapter_of
from .._tensors.operands import Layout, Operand, Operands
from .code import Code


class Given:
    """The inputs of one call. `layouts` has None for a number."""

    def __init__(self, what: str, declared: Sequence[Declared], values: Sequence[Any], staged: bool = True) -> None:
        if len(values) != len(declared):
            names = ", ".join(operand.name for operand in declared)
            raise BadArgument(f"{what} takes {counted(len(declared), 'operand')} ({names}), got {len(values)}")
        self.what, self.declared, self.staged = what, declared, staged
        self.types = Types(what)
        self.values: list[Any] = []
        self.layouts: list[Layout | None] = []
        self._like: Any = None
        alone = all(adapter_of(value).number for value in values)
        for operand, value in zip(declared, values):
            adapter = adapter_of(value)
            if alone and hasattr(value, "dtype"):  # NumPy's numbers have one, like arrays
                value, adapter = _array(value, operand)
            if adapter.number:
                self.values.append(value)
                self.layouts.append(None)
                continue
            if adapter.plain:
                value, adapter = _array(value, operand)
            elif not staged:
                value = adapter.on_host(value)
            self.values.append(value)
            self.layouts.append(adapter.layout(value, staged))
            if self._like is None:
                self._like = value, adapter
        for operand, layout in zip(declared, self.layouts):
            if layout is not None:
                self.types.take(operand, layout.dtype)
        self.shape = broadcast(*(layout.shape for layout in self.layouts if layout is not None)) if self._like is not None else ()

    def outputs(self, declared: Sequence[Declared], out: Any, shape: tuple[int, ...]) -> tuple[list[Any], list[Layout], list[Any]]:
        """The arrays of the results, given or new ones, their layouts, and what turns each into what the caller gets."""
        if out is None:
            return self._new(declared, shape)
        given = tuple(out) if isinstance(out, (tuple, list)) and len(declared) != 1 else (out,)
        if len(given) != len(declared):
            raise BadArgument(f"{self.what} has {counted(len(declared), 'result')}, but out= {len(given)}", {"key": "out"})
        layouts = []
        for operand, value in zip(declared, given):
            adapter = adapter_of(value)
            if adapter.plain:
                raise WrongType(f"{self.what}: out must be an array, not {type(value).__name__}", {"key": "out"})
            layout = adapter.layout(value, self.staged)
            self.types.take(operand, layout.dtype)
            if tuple(layout.shape) != tuple(shape):
                raise ShapeMismatch(f"{self.what}: {operand.name} has shape {tuple(shape)}, but out= {tuple(layout.shape)}", {"key": "out"})
            layouts.append(layout)
        return list(given), layouts, [None] * len(given)

    def _new(self, declared: Sequence[Declared], shape: tuple[int, ...]) -> tuple[list[Any], list[Layout], list[Any]]:
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


def _array(value: Any, operand: Declared) -> tuple[Any, Any]:
    """A list as an array."""
    from .._tensors.arrays import array

    made = array(value, operand.dtype)
    return made, adapter_of(made)


def results(values: Sequence[Any], adapters: Sequence[Any]) -> Any:
    """What the caller gets: one array, or a tuple."""
    made = tuple(value if adapter is None else adapter.result(value) for value, adapter in zip(values, adapters))
    return made[0] if len(made) == 1 else made


class FormulaCode(Code):
    """A source around a user's formula, which errors of the compiler show."""

    def __init__(self, source: str, entry: str, shown: str, options: Sequence[str], name: str, device: Any, arch: str | None) -> None:
        super().__init__(source, entry, options, None, f"{name}.cu", arch, device)
        self._shown = shown

    def define(self, connection: Peer) -> Plan:
        try:
            return (yield from super().define(connection))
        except CompileFailed as error:
            raise CompileFailed(f"{self._shown}: {error.message}", error.detail, error.code) from None

