"""Grid, block and the like of kernels' launches. The daemon's events have none of them: this process knows what it asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from .. import Entry
from .._companions import BaseKernel
from ._recorder import Event


@dataclass(frozen=True)
class Launched:
    """What the sizes of one launch are made of. `sizes`: `grid`, `block` and `shared` as the launch gave them, or as the kernel declares
    them, numbers and expressions. `tensors`: the parameters in the order of an event's shapes. `values`: the integers of expressions by
    parameter, None for a null pointer. `entry`: the compiled kernel, where this process knows it."""

    kernel: str
    sizes: Mapping[str, Any]
    tensors: tuple[str, ...] = ()
    values: Mapping[str, int | None] | None = None
    entry: Entry | None = None

    def arguments(self, event: Event, multiprocessors: int) -> dict[str, Any]:
        """By torch's names, those that are known. `multiprocessors`: of the event's device, 0 where they are not known."""
        if event.op != self.kernel or event.ops != 1 or event.what == "compile":
            return {}
        names = self._names(event, multiprocessors)
        made: dict[str, Any] = {name: _numbers(self.sizes.get(name), names, name) for name in ("grid", "block")}
        if self.entry is not None:
            made["registers per thread"] = self.entry.registers or None
            dynamic = _numbers(self.sizes.get("shared", 0), names, "shared")
            made["shared memory"] = None if dynamic is None else self.entry.shared_bytes + dynamic[0]
        return {name: value for name, value in made.items() if value is not None}

    def _names(self, event: Event, multiprocessors: int) -> dict[str, Any]:
        """What expressions may name; a text is for what they cannot use."""
        shapes: tuple[Any, ...] = event.shapes if len(event.shapes) == len(self.tensors) else ("",) * len(self.tensors)
        return {"multiprocessors": multiprocessors or "", **dict(zip(self.tensors, shapes)), **(self.values or {})}


def _numbers(value: Any, names: Mapping[str, Any], what: str) -> list[int] | None:
    """One to three sizes as three numbers; None where one of them is not known."""
    if value is None:
        return None
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, str) for item in items):
        from ..interpret import InterpretError  # wants NumPy, which a profile does without
        from ..interpret._expressions import evaluate

        try:
            items = [evaluate(item, names, what) for item in items]
        except InterpretError:
            return None
    return [*items, 1, 1][:3]


def launched(kernel: BaseKernel, own: Mapping[str, Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Launched:
    """Of a call of the kernel; `own`: the sizes that this launch had of its own. Keeps none of the arrays."""
    given = {name: size for name, size in {**kernel._geometry.declared, **own}.items() if name in ("grid", "block", "shared")}
    compiled = kernel.code.compiled
    entry = next((one for one in compiled.entries if one.name == kernel.name), None) if compiled is not None else None
    if not any(isinstance(size, str) for value in given.values() for size in (value if isinstance(value, list) else [value])):
        return Launched(kernel.name, given, entry=entry)
    passed = {**named, **dict(zip(kernel._places, arguments))}
    tensors = [param for param in kernel.params if param.is_tensor]
    values: dict[str, int | None] = {
        param.name: int(value)
        for param in kernel.params
        if not param.is_tensor and param.dtype[0] in "iub" and isinstance(value := passed.get(param.name), Integral)
    }
    values.update((param.name, None) for param in tensors if passed.get(param.name) is None)
    order = (*(p.name for p in tensors if p.kind == "in"), *(p.name for p in tensors if p.kind != "in"))
    return Launched(kernel.name, given, order, values, entry)
