"""How an item that takes too long is found: by what its worker tells, with clocks and workers of the test's own."""

from __future__ import annotations

import threading
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


def ask(late: Late, *workers: Any) -> list[Any]:
    return late.ask(workers)


def tell(late: Late, worker: Worker, told: Any) -> list[Any]:
    """What is found after the worker has told that."""
    worker.asked[-1].told = told
    late.told(worker.asked[-1])
    return [(member, tokens) for member, tokens, _ in late.found()]


def test_what_is_no_item_of_this_work_is_not_late(clock: Clock) -> None:
    late, worker = Late(LIMIT), Worker("a")
    member: Any = worker
    late.given(member)
    clock.now += LIMIT
    ask(late, member)
    assert tell(late, worker, {"of a map before": (3600.0, 0.0), "a": (0.0, 0.0)}) == []


def test_getting_ready_has_a_limit_of_its_own(clock: Clock) -> None:
    late, worker = Late(LIMIT), Worker("a", "b")
    member: Any = worker
    late.given(member)
    clock.now += LIMIT
    ask(late, member)
    assert tell(late, worker, {"a": (0.0, LIMIT + 1), "b": (0.0, 0.0)}) == []
    clock.now += LIMIT
    ask(late, member)
    assert tell(late, worker, {"a": (0.0, _items.SETUP_S + 1), "b": (0.0, 0.0)}) == [(worker, ["a"])]


def test_a_worker_that_is_lost_while_it_is_asked(clock: Clock) -> None:
    late, worker = Late(LIMIT), Worker("a")
    member: Any = worker
    late.given(member)
    clock.now += LIMIT
    ask(late, member)
    assert tell(late, worker, _items.ray.exceptions.RayError("gone")) == []


def test_without_a_limit_nobody_is_asked(clock: Clock) -> None:
    late, worker = Late(None), Worker("a")
    member: Any = worker
    late.given(member)
    clock.now += 1e6
    assert ask(late, member) == [] and late.pause(1.0) == 1.0 and list(late.found()) == []


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


def test_the_stopwatch_of_an_item_does_not_run_while_it_waits_for_its_turn() -> None:
    """Of a worker that has two, in the worker's own code."""
    from kops.ray._map import _OneAtATime

    began, goes_on = threading.Event(), threading.Event()

    def first(_arguments: Any, _named: Any) -> None:
        began.set()
        goes_on.wait()

    call, watches = _OneAtATime(first), (Stopwatch(), Stopwatch())

    def run(watch: Stopwatch) -> None:
        with call.lock:
            call((), {}, watch)

    threads = [threading.Thread(target=run, args=(watch,)) for watch in watches]
    threads[0].start()
    began.wait()
    threads[1].start()
    assert watches[0].seconds > 0 and watches[1].seconds == 0
    goes_on.set()
    for thread in threads:
        thread.join()
    assert watches[1].seconds > 0
