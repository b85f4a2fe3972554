"""Items that get a node for themselves: their errors may be due to what ran beside them, in the process that has the GPUs of the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from ._plan import Item
from ._pool import Member


class Alone:
    """One of them at a time. Its node gets no other item from when it is wanted, so that what is there ends, until it has ended."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self._node: str | None = None  # which is kept for it
        self._doing: Item | None = None

    def next(self, able: Sequence[Member], ready: Sequence[Member]) -> Iterator[tuple[Member, Item]]:
        """The next item, and the worker that is to have it, if it is time. `able`: those of the workers that may be given items."""
        under_way = {_node_of(member): 0 for member in ready}
        for member in ready:
            under_way[_node_of(member)] += len(member.doing)
            if self._doing is not None and any(item is self._doing for item in member.doing.values()):
                return
        self._doing = None
        if not self.items or self._node not in under_way:
            self._node = None
        if not self.items or not able:
            return
        if self._node is None:
            self._node = min(map(_node_of, able), key=lambda node: under_way[node])
        free = next((member for member in able if _node_of(member) == self._node), None)
        if free is not None and not under_way[self._node]:
            self._doing = self.items.popleft()
            yield free, self._doing

    def allows(self, member: Member) -> bool:
        """Whether the worker may be given other items."""
        return _node_of(member) != self._node


def _node_of(member: Member) -> str:
    return member.info.node_id if member.info is not None else ""
