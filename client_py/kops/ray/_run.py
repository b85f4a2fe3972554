"""A piece of work as its caller sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._merge import ClusterTrace
from ._stats import ClusterStats
from ._work import Work


class Run(Iterator[tuple[int, Any]]):
    """Work that is under way: an iterator of `(index, result)`, in the order in which they end, or with `ordered=True` in that of the
    items.

    The workers begin when the first result is asked for. `close()`, or the end of a `with` block, ends the work early; so does an
    error, or Ctrl-C. `stats()` tells what the nodes' daemons did for it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._results = work.results()

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> tuple[int, Any]:
        return next(self._results)

    def close(self) -> None:
        """Ends the work; a pool of its own ends with it. Of a given pool the workers end the items that they have."""
        self._results.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def retried(self) -> int:
        """The items that were given to a worker once more: one was lost, or a kernel that ran beside theirs faulted."""
        return self._work.retried

    @property
    def trace(self) -> ClusterTrace | None:
        """What is in the file that `trace=` named, once the work has ended."""
        return self._work.trace

    def stats(self) -> ClusterStats:
        """What the nodes' daemons did since the work began, added up. While it is under way a daemon's part is some seconds old."""
        return self._work.stats()
