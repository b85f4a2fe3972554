"""Every measure, by name. A measure is a function of the context that returns one record or several."""

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
    run: Callable[[Context], Record | list[Record]]
    mps: bool = False  # the processes share the GPU through MPS
    table: bool = False  # belongs to the table of targets
    seconds: float = 60.0  # after which it is given up


_ALL: dict[str, Measure] = {}


def add(
    name: str,
    run: Callable[[Context], Record | list[Record]],
    *,
    on_gpu: bool,
    mps: bool = False,
    table: bool = False,
    seconds: float = 60.0,
) -> None:
    if name in _ALL:
        raise ValueError(f"two measures are called {name}")
    _ALL[name] = Measure(name, on_gpu, run, mps, table, seconds)


def everything() -> dict[str, Measure]:
    from . import (  # noqa: F401 - they add themselves
        arrays,
        blocking,
        clients,
        codec,
        compile,
        compile_node,
        counters_ncu,
        durations,
        elementwise,
        gemm,
        gemm_heads,
        gemm_hopper,
        gemm_tuned,
        here,
        host,
        isolation_calls,
        isolation_costs,
        isolation_harm,
        isolation_share,
        isolation_storm,
        judging,
        launches,
        layouts,
        linear,
        load,
        named_parts,
        neighbours,
        noop,
        ordered,
        peers,
        priority,
        programs,
        ray_scaling,
        recovery,
        reference,
        remote_cache,
        resources,
        scaled_gemm,
        shared,
        timing,
        timing_off,
        timing_python,
        torch_ops,
        trace,
        trace_skew,
        truth,
        tune_bystander,
        tutorial,
        wheel,
    )

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
    ours_and_peer = rounds(context, [ours, *([peer] if peer else [])], calls=calls, warmup=warmup)
    return ours_and_peer[0], ours_and_peer[1] if peer else []


def rounds(
    context: Context,
    sides: Sequence[Callable[[int], Iterable[float]]],
    *,
    calls: int | None = None,
    warmup: int | None = None,
) -> list[list[float]]:
    """The same for any number of sides: the samples of each."""
    total = calls or context.calls
    block = max(1, -(-total // context.blocks))
    first = block if warmup is None else warmup
    samples: list[list[float]] = [[] for _ in sides]
    for side in sides:
        if first:
            list(side(first))
    while len(samples[0]) < total:
        for side, its in zip(sides, samples, strict=True):
            # The first calls after a turn find cold caches and, without MPS, a GPU that belongs to the other process.
            list(side(2))
            its += side(block)
    return samples
