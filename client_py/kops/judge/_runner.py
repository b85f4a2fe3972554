"""What runs a solution on a draw: on a GPU, or in the interpreter."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._bind import Plan
from ._draws import Draw
from ._values import Tensor

__all__ = ["Ran", "Runner"]


class Ran(NamedTuple):
    """What the memory of one draw holds afterwards, and what was there before."""

    outputs: dict[str, Tensor]
    inputs: dict[str, Any]
    poisons: dict[str, Any]


class Runner:
    """Of one solution: its module state begins anew with the runner."""

    how = ""
    device = ""
    multiprocessors: int | None = None
    warnings: tuple[str, ...] = ()
    checked = 0  # launches whose results were right

    def run(self, plan: Plan, draw: Draw, buffers: str, side: str, seed: int) -> Ran:
        """All launches, once. Calls with one name in `buffers` use the same memory for the same plan, as far as that can be. `side`:
        where tensors touch memory that is not mapped, their "end" or their "start". `seed`: of the poison. Raises Stop, Gone."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of everything."""
