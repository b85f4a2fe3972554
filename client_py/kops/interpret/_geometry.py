"""Grid, block and cluster: one to three numbers or expressions each, checked as the daemon checks them against a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import InterpretError
from ._expressions import evaluate

_LIMITS = {"block": (1024, 1024, 64), "grid": (2**31 - 1, 65535, 65535), "cluster": (16, 16, 16)}
_TOGETHER = {"block": 1024, "cluster": 16}


def dimensions(value: Any, names: Mapping[str, Any], what: str, lowest: int = 1) -> tuple[int, int, int]:
    """One to three dimensions of a grid or block, checked against what a device allows."""
    items = list(value) if isinstance(value, (tuple, list)) else [value]
    if not 1 <= len(items) <= 3:
        raise InterpretError(f"{what} has {len(items)} dimensions; 1 to 3 are possible", "launch")
    result = [evaluate(item, names, f"{what}[{i}]") for i, item in enumerate(items)]
    for i, length in enumerate(result):
        if not lowest <= length <= _LIMITS[what][i]:
            raise InterpretError(f"{what}[{i}] is {length}; {lowest} to {_LIMITS[what][i]} are possible", "launch")
    x, y, z = (result + [1, 1])[:3]
    if what in _TOGETHER and x * y * z > _TOGETHER[what]:
        raise InterpretError(f"a {what} of {x} * {y} * {z}; at most {_TOGETHER[what]} are possible", "launch")
    return x, y, z


def one_block(grid: tuple[int, int, int]) -> None:
    """Refuses what a cooperative kernel needs and is not here."""
    if grid[0] * grid[1] * grid[2] > 1:
        raise InterpretError(
            f"a cooperative kernel with a grid of {grid[0]} * {grid[1]} * {grid[2]}: blocks run one after another here, and would wait "
            "for each other for ever; interpret it with one block, or run it on a GPU",
            "launch",
        )


def cluster_of(value: Any, names: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
    """Checks a cluster, which a grid is a multiple of."""
    for i, (whole, part) in enumerate(zip(grid, dimensions(value, names, "cluster"))):
        if whole % part:
            raise InterpretError(f"grid[{i}] is {whole}, which is no multiple of the cluster's {part}", "launch")
