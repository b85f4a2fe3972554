"""How an item that takes too long is found: by what its worker tells, with clocks and workers of the test's own."""

from __future__ import annotations

from typing import Any

import pytest
from kops._base import stopwatch
from kops._base.stopwatch import Stopwatch
from kops.ray import _items
from kops.ray._items import Item, Late

LIMIT = 10.0


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Answers:
    """In place of Ray: a reference is what is told."""

    exceptions = _items.ray.exceptions

    def get(self, reference: Any) -> Any:
        if isinstance(reference.told, Exception):
            raise reference.told
        return reference.told


class Answer:
    told: Any = None


class Worker:
    """In place of a member: `asked` are the questions put to it."""

    def __init__(self, *tokens: str) -> None:
        self.doing = {token: Item(i, [], token=token) for i, token in enumerate(tokens)}
        self.asked: list[Answer] = []
        self.actor = self.turns = self

    def remote(self) -> Answer:
        self.asked.append(Answer())
        return self.asked[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(_items, "time", made)
    monkeypatch.setattr(stopwatch, "time", made)
    monkeypatch.setattr(_items, "ray", Answers())
    return made


@pytest.mark.parametrize(
    ("rounds", "found"),
    [
        ([{"of a map before": (3600.0, 0.0), "a": (0.0, 0.0)}], []),  # what is no item of this work
        ([{"a": (0.0, LIMIT + 1), "b": (0.0, 0.0)}], []),  # getting ready has a limit of its own
        ([{"a": (0.0, LIMIT + 1), "b": (0.0, 0.0)}, {"a": (0.0, _items.SETUP_S + 1), "b": (0.0, 0.0)}], ["a"]),
        ([_items.ray.exceptions.RayError("gone")], []),
    ],
    ids=["another map's", "getting ready", "getting ready for too long", "lost"],
)
def test_what_a_worker_tells(clock: Clock, rounds: list[Any], found: list[str]) -> None:
    late, worker = Late(LIMIT), Worker("a", "b")
    member: Any = worker
    late.given(member)
    for told in rounds:
        clock.now += LIMIT
        late.ask([member])
        worker.asked[-1].told = told
        late.told(worker.asked[-1])
        items = [tokens for _, tokens, _ in late.found()]
    assert items == ([found] if found else [])


def test_a_stopwatch_runs_while_a_block_is_open(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 1
    assert watch.seconds == 0
    with watch:
        clock.now += 2
        assert watch.seconds == 2
        with watch.paused():
            clock.now += 4
        with watch:  # the next stage begins before the one before it has ended
            clock.now += 8
        clock.now += 16
    clock.now += 32
    assert watch.seconds == 26
