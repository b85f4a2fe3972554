"""The parts of `kops.ray` that need no cluster: statistics added up, the progress line, errors as bytes, and how an item that takes too
long is found, by what its worker tells, with clocks and workers of the test's own."""

from __future__ import annotations

import io
import sys
import threading
from concurrent.futures import Future
from typing import Any

import kops
import kops.ray
import pytest
from kops._base import stopwatch
from kops._base.stopwatch import Stopwatch
from kops.ray import _items, _travel
from kops.ray._items import Item, Late
from kops.ray._stats import Gathered, Snapshot, since


def row(op: str, count: int, mean: float, **more: Any) -> dict[str, Any]:
    return {
        "op": op, "uid": 0, "device": "host", "variant": "simd", "dtype": "f32", "shapes": [[4]], "count": count, "errors": 0,
        "bytes": 1000, "exec_us": {"mean": mean, "p50": mean, "p99": 2 * mean}, **more,
    }  # fmt: skip


def test_what_was_done_since() -> None:
    before = [row("add", 10, 2.0), row("gone", 1, 1.0)]
    after = [row("add", 30, 4.0), row("square", 5, 1.0), row("gone", 1, 1.0)]
    made = {one["op"]: one for one in since(before, after)}
    assert set(made) == {"add", "square"}, "what did nothing is left out"
    assert made["add"]["count"] == 20 and made["add"]["exec_us"] == {"mean": 5.0}, "(30 · 4 − 10 · 2) / 20"
    assert made["square"]["exec_us"]["p99"] == 2.0
    assert since([row("add", 10, 2.0)], [row("add", 3, 1.0)])[0]["count"] == 3, "somebody reset the statistics"
    failed = since([row("add", 10, 2.0)], [row("add", 10, 2.0, errors=2)])
    assert failed[0]["errors"] == 2 and "exec_us" not in failed[0]


def gathered() -> Gathered:
    made = Gathered()
    made.take("a", Snapshot("1", 1.0, [row("add", 10, 2.0)]))
    made.begin()
    made.take("a", Snapshot("1", 5.0, [row("add", 20, 2.0)]))
    made.take("a", Snapshot("1", 4.0, [row("add", 15, 2.0)]))  # an older word that comes later
    made.take("b", Snapshot("2", 9.0, []))
    made.take("b", Snapshot("2", 10.0, [row("add", 30, 4.0), row("square", 1, 1000.0)]))
    for instance in "1", "2", "2":
        made.count(instance)
    made.lose("2")
    return made


def test_statistics_of_nodes_are_added_up() -> None:
    stats = gathered().stats()
    assert stats["nodes"] == [{"node": "a", "items": 1, "lost": False}, {"node": "b", "items": 2, "lost": True}]
    lines = [line.split() for line in stats.table().splitlines()]
    assert lines[0][-4:] == ["a", "ms", "b", "ms"]
    assert lines[1] == ["square", "4", "f32", "1", "0", "1.00", "87.7", "1000", "0.00", "-", "-", "1.00"]
    assert lines[2] == ["add", "4", "f32", "40", "0", "0.14", "12.3", "3.50", "0.29", "-", "0.02", "0.12"]
    by_node = stats.table(sort_by="node", group_by="node").splitlines()
    assert by_node[0].startswith("node  calls") and [line.split()[:2] for line in by_node[1:]] == [["a", "10"], ["b", "31"]]
    assert stats.table(limit=1).endswith("and 1 more")
    assert "b: 2 items, lost" in str(stats)
    for wrong in ({"sort_by": "p99"}, {"group_by": "user"}):
        with pytest.raises(kops.BadArgument):
            stats.table(**wrong)
    assert kops.ray.ClusterStats(nodes=[], ops=[]).table() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(_items, "EVERY_S", 0.0)
    progress = _items.Progress("gemm", 3, None)
    progress.step(2, 0)
    progress.step(2, 1)
    progress.close(2)
    lines = sys.stderr.getvalue().split("\x1b[K\r")  # type: ignore[attr-defined]
    assert lines[0].startswith("gemm: 1/3, ") and lines[1].endswith("workers 2, again 1") and lines[-1] == "\n"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    quiet = _items.Progress("gemm", 3, None)
    quiet.step(1, 0)
    quiet.close(1)
    assert sys.stderr.getvalue() == "", "no terminal, no line"
    asked = _items.Progress("gemm", None, True)
    asked.step(1, 0)
    asked.close(1)
    assert sys.stderr.getvalue().startswith("gemm: 1, ") and sys.stderr.getvalue().count("\n") == 1


def test_errors_as_bytes() -> None:
    made, text = _travel.packed(kops.OutOfRange("too much", {"key": "n"}))
    error = _travel.unpacked(made, text, 7, "a")
    assert isinstance(error, kops.OutOfRange) and error.detail == {"key": "n"} and error.kops_item == 7  # type: ignore[attr-defined]
    strange = _travel.unpacked(b"no pickle", "Traceback …\nOwn: what happened", 7, "a")
    assert isinstance(strange, kops.KopsError) and str(strange) == "Own: what happened" and strange.detail["node"] == "a"


def test_a_verdict_that_is_missing_because_the_daemon_went_is_another_workers() -> None:
    from kops import judge
    from kops.ray._judge import _Court, _Job

    class Client:
        place = None
        devices = ()
        gone = False

        def ping(self) -> None:
            if self.gone:
                raise kops.ConnectionLost("it went")

    def fails(rng: Any) -> dict[str, Any]:
        raise ValueError("no inputs")

    task = judge.Task("t", lambda **given: None, fails)
    client: Any = Client()
    court = _Job({}).caller(client, False)
    assert isinstance(court, _Court)
    court._tasks["0"] = task
    try:
        solution = judge.Solution("", [judge.Launch("f", "out float* out[1]")])
        verdict = court(("0", [], solution), {}, Stopwatch())
        assert verdict.kind == "no_verdict" and "no inputs" in verdict.text, "the task's own fault"
        client.gone = True
        with pytest.raises(kops.ConnectionLost, match="no inputs"):
            court(("0", [], solution), {}, Stopwatch())
    finally:
        court.close()
    client.gone = False  # the next daemon answers
    with pytest.raises(kops.ConnectionLost, match="went away"):
        court(("0", [], solution), {}, Stopwatch())
    court = _Job({}).caller(client, False)
    court._tasks["0"] = task
    waiting: Future[Any] = Future()

    def submit(*how: Any) -> Future[Any]:
        court.close()
        waiting.cancel()
        return waiting

    court._judge.submit = submit
    with pytest.raises(kops.ConnectionLost, match="went away"):
        court(("0", [], solution), {}, Stopwatch())


# ---- items that take too long ----

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
