"""Every measure, by name. A measure is a function of the context that returns one record or several."""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..context import Context
from ..record import Record


@dataclass(frozen=True)
class Measure:
    name: str
    on_gpu: bool
    run: Callable[[Context], Record | list[Record]]
    mps: bool = False  # the processes share the GPU through MPS
    table: bool = False  # belongs to the table of targets
    seconds: float = 60.0  # after which it is given up


_ALL: dict[str, Measure] = {}


def add(
    name: str,
    run: Callable[..., Record | list[Record]],
    *arguments: Any,
    on_gpu: bool,
    mps: bool = False,
    table: bool = False,
    seconds: float = 60.0,
) -> None:
    """`run` is called with the context and then the arguments."""
    if name in _ALL:
        raise ValueError(f"two measures are called {name}")
    _ALL[name] = Measure(name, on_gpu, lambda context: run(context, *arguments), mps, table, seconds)


def everything() -> dict[str, Measure]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")  # they add themselves
    return _ALL


def select(patterns: Sequence[str]) -> list[Measure]:
    """Those whose name begins with or matches a pattern; all without patterns; `table`: those of the table of targets.
    ValueError when a pattern is void. Those that want MPS come last."""
    known = everything()
    chosen: dict[str, Measure] = {}
    for pattern in patterns or ["*"]:
        if pattern == "table":
            names = [name for name, measure in known.items() if measure.table]
        else:
            names = [name for name in known if name.startswith(pattern) or fnmatch.fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"no measure is called {pattern}; --list shows them")
        chosen.update((name, known[name]) for name in names)
    return sorted(chosen.values(), key=lambda measure: measure.mps)
