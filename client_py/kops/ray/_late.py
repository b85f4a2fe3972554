"""Which items take longer than they may. A worker tells how long it has worked on each of its items: of several that it has, the driver
cannot know which it is at. It is asked as seldom as possible, and never waited for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ._pool import Member
from ._ray import ray

SETUP_S = 60.0  # that a worker may take to get ready for the work, if that is more than what an item may take
SILENT_S = 10.0  # a worker that tells nothing for so long is busy with what lets no other of its threads run
SOON_S = 0.05


class Late:
    """`limit`: the seconds that a worker may work on an item; None: as long as it likes."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._due: dict[Member, float] = {}  # of workers that have items: when they are to be asked next
        self._asked: dict[Any, Member] = {}  # by the references of the answers
        self._heard: dict[Member, float] = {}  # of those: when the question was put, or an item has ended since
        self._found: list[tuple[Member, list[str], str]] = []

    def given(self, member: Member) -> None:
        """An item was given to the worker. None of its items is late before it has had one for as long as an item may take."""
        if self._limit is not None and member not in self._heard:
            self._due.setdefault(member, time.monotonic() + self._limit)

    def ask(self, members: Iterable[Member]) -> list[Any]:
        """Asks those that are to be asked now. The references to wait for, which `told` takes."""
        if self._limit is None:
            return []
        now, present = time.monotonic(), set(members)
        self._due = {member: due for member, due in self._due.items() if member in present and member.doing}
        self._asked = {reference: member for reference, member in self._asked.items() if member in present}
        self._heard = {member: at for member, at in self._heard.items() if member in present}
        for member, due in list(self._due.items()):
            if due <= now:
                del self._due[member]
                self._asked[member.actor.turns.remote()] = member
                self._heard[member] = now
        return list(self._asked)

    def pause(self, longest: float) -> float:
        """How long may be waited for before somebody is to be asked."""
        return max(0.0, min([longest, *(due - time.monotonic() for due in self._due.values())]))

    def ended(self, member: Member) -> None:
        """An item has ended at the worker."""
        if member in self._heard:
            self._heard[member] = time.monotonic()

    def told(self, reference: Any) -> None:
        """A worker has answered."""
        if self._limit is None or reference not in self._asked:
            return
        member = self._asked.pop(reference)
        del self._heard[member]
        try:
            turns: Mapping[str, tuple[float, float]] = ray.get(reference)
        except ray.exceptions.RayError:  # where the worker is lost its items tell that, too
            self._due[member] = time.monotonic() + SILENT_S
            return
        setup = max(self._limit, SETUP_S)
        own = {item.token for item in member.doing.values()}
        turns = {token: seconds for token, seconds in turns.items() if token in own}
        late = [token for token, seconds in turns.items() if seconds[0] > self._limit]
        slow = [token for token, seconds in turns.items() if seconds[1] > setup]
        if late:
            self._found.append((member, late, f"it took longer than {self._limit:g} s (timeout)"))
        elif slow:
            self._found.append((member, slow, f"its worker was not ready for it within {setup:g} s"))
        longest = max((seconds[0] for seconds in turns.values()), default=0.0)
        self._due[member] = time.monotonic() + max(self._limit - longest, SOON_S)

    def found(self) -> Iterator[tuple[Member, list[str], str]]:
        """Workers that hold late items, the tokens of these, and why they are late. No tokens: the worker does not tell."""
        found, self._found = self._found, []
        yield from found
        if self._limit is None:
            return
        silent = max(self._limit, SILENT_S)
        for member, heard in list(self._heard.items()):
            if member.doing and time.monotonic() - heard > silent:
                yield member, [], f"it took longer than {self._limit:g} s (timeout), and its worker answered nothing"
