"""What is asked for: the items of a piece of work, and how it is to be done."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import BadArgument
from ._errors import GivenUp
from ._worker import THREADS


@dataclass(eq=False)
class Item:
    """`tries` counts the workers that were lost while they had this item alone, or that worked on it for too long, `losses` the daemons,
    and data in Ray's memory, that went away meanwhile, for whatever reason. A `suspect` was with others when a worker or a daemon was lost:
    it gets a worker for itself, which tells. `faults` counts errors that may be due to an item of another worker: it gets a node for
    itself."""

    index: int
    values: Sequence[Any]  # by position, then by name
    names: Sequence[str] = ()
    tries: int = 0
    losses: int = 0
    faults: int = 0
    suspect: bool = False
    token: str = ""  # of its present turn at a worker, by which the worker tells of it
    note: str = ""  # of who made it


@dataclass
class Plan:
    """How a piece of work is done; the options of `map`."""

    what: str  # the progress bar's title
    total: int | None = None
    ordered: bool = False
    errors: str = "raise"
    tries: int = 3
    timeout: float | None = None
    in_flight: int | None = None
    progress: bool | None = None
    trace: str | os.PathLike[str] | None = None  # the file
    given_up: Callable[[Item, GivenUp], Any] | None = None  # the result of such an item; None: the error is it

    def __post_init__(self) -> None:
        if self.errors not in ("raise", "return"):
            raise BadArgument(f'errors must be "raise" or "return", not {self.errors!r}', {"key": "errors"})
        if self.tries < 1:
            raise BadArgument(f"tries={self.tries}: at least one is needed", {"key": "tries"})
        if self.in_flight is not None and not 1 <= self.in_flight <= THREADS:
            raise BadArgument(f"in_flight={self.in_flight}: a worker has 1 to {THREADS} items at one time", {"key": "in_flight"})
        if self.timeout is not None and not self.timeout > 0:
            raise BadArgument(f"timeout={self.timeout}: seconds that a worker may work on one item, or None", {"key": "timeout"})
        folder = os.path.dirname(os.path.abspath(self.trace)) if self.trace is not None else ""
        if folder and not os.access(folder, os.W_OK):
            raise BadArgument(f"trace={str(self.trace)!r}: {folder} is no folder in which files can be written", {"key": "trace"})
