"""Every measure, by name. A measure is a function of the context that returns one record."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..context import Context
from ..record import Record


@dataclass(frozen=True)
class Measure:
    name: str
    on_gpu: bool
    run: Callable[[Context], Record]


_ALL: dict[str, Measure] = {}


def add(name: str, run: Callable[[Context], Record], *, on_gpu: bool) -> None:
    if name in _ALL:
        raise ValueError(f"two measures are called {name}")
    _ALL[name] = Measure(name, on_gpu, run)


def select(patterns: Sequence[str]) -> list[Measure]:
    """Those whose name begins with or matches a pattern; all without patterns. ValueError when a pattern is void."""
    from . import elementwise, gemm, host, noop, resources, tiny  # noqa: F401 - they add themselves

    if not patterns:
        return list(_ALL.values())
    chosen: dict[str, Measure] = {}
    for pattern in patterns:
        names = [name for name in _ALL if name.startswith(pattern) or fnmatch.fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"no measure is called {pattern}; --list shows them")
        chosen.update((name, _ALL[name]) for name in names)
    return list(chosen.values())


def alternate(
    context: Context,
    ours: Callable[[int], Iterable[float]],
    peer: Callable[[int], Iterable[float]] | None,
    *,
    calls: int | None = None,
    warmup: int | None = None,
) -> tuple[list[float], list[float]]:
    """Samples of both sides in turns of blocks. `ours(n)` and `peer(n)` return n durations in microseconds.

    Blocks and not single calls: two processes that take turns on one GPU pay a context switch at every turn."""
    total = calls or context.calls
    block = max(1, -(-total // context.blocks))
    first = block if warmup is None else warmup
    our_samples: list[float] = []
    peer_samples: list[float] = []
    for side in (ours, peer):
        if side is not None and first:
            list(side(first))
    while len(our_samples) < total:
        # The first calls after a turn find cold caches and, without MPS, a GPU that belongs to the other process.
        list(ours(2))
        our_samples += ours(block)
        if peer is not None:
            list(peer(2))
            peer_samples += peer(block)
    return our_samples, peer_samples
