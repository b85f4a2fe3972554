"""Loops over several arrays at once: NumPy's broadcasting of their strides, with as few dimensions as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NARROW = 2**31  # sizes and offsets below it need 32 bits


class Loop(NamedTuple):
    """`strides` has those of each array, in elements, for each of `sizes`; the last dimension is the innermost."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def narrow(self) -> bool:
        """Whether 32 bits hold every index and offset."""
        count = 1
        for size in self.sizes:
            count *= size
        furthest = (sum((n - 1) * s for n, s in zip(self.sizes, strides)) for strides in self.strides)
        return count < NARROW and all(reach < NARROW for reach in furthest) and all(s < NARROW for one in self.strides for s in one)

    def dense(self, array: int) -> bool:
        """Whether an array's elements lie one after the other in the loop's order."""
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides[array])):
            if stride != step:
                return False
            step *= size
        return True


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    result, step = [], 1
    for size in reversed(shape):
        result.append(step)
        step *= size
    return tuple(reversed(result))


def broadcast_strides(shape: Sequence[int], strides: Sequence[int] | None, to: Sequence[int]) -> tuple[int, ...]:
    """An array's strides in a larger shape: 0 where it is repeated."""
    own = row_major(shape) if strides is None else strides
    repeated = [0 if n == 1 else s for n, s in zip(shape, own)]
    return (0,) * (len(to) - len(shape)) + tuple(repeated)


def loop(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> Loop:
    """Without dimensions of one element, and with neighbours as one where all arrays step through both alike."""
    kept: list[tuple[int, tuple[int, ...]]] = []
    for i, size in enumerate(sizes):
        steps = tuple(one[i] for one in strides)
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1][1], steps)):
            kept[-1] = (kept[-1][0] * size, steps)
        else:
            kept.append((size, steps))
    return Loop(tuple(size for size, _ in kept), tuple(tuple(steps[a] for _, steps in kept) for a in range(len(strides))))
