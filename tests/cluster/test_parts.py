"""The parts of `kops.ray` that need no cluster: statistics added up, the progress line, items that take too long, outcomes of items, traces
of nodes made one. Clocks, workers and nodes are the tests' own."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kops
import kops.ray
import pytest
from kops._base import intervals
from kops._base.intervals import Stopwatch
from kops.ray import _trace, _work, _worker
from kops.ray._stats import Gathered, Snapshot, since
from kops.ray._trace import Apart, Node, Taken, Tracing
from kops.ray._work import Item, Late
from kops.ray._worker import COLUMNS, Begun, Outcome, Part, Recording, Worker
from support import chrome_trace

# ---- statistics and progress ----


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
    monkeypatch.setattr(_work, "EVERY_S", 0.0)
    progress = _work.Progress("gemm", 3, None)
    progress.step(2, 0)
    progress.step(2, 1)
    progress.close(2)
    lines = sys.stderr.getvalue().split("\x1b[K\r")  # type: ignore[attr-defined]
    assert lines[0].startswith("gemm: 1/3, ") and lines[1].endswith("workers 2, again 1") and lines[-1] == "\n"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    quiet = _work.Progress("gemm", 3, None)
    quiet.step(1, 0)
    quiet.close(1)
    assert sys.stderr.getvalue() == "", "no terminal, no line"
    asked = _work.Progress("gemm", None, True)
    asked.step(1, 0)
    asked.close(1)
    assert sys.stderr.getvalue().startswith("gemm: 1, ") and sys.stderr.getvalue().count("\n") == 1


# ---- items that take too long ----

LIMIT = 10.0


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Answers:
    """In place of Ray: a reference is what is told."""

    exceptions = _work.ray.exceptions

    def get(self, reference: Any) -> Any:
        if isinstance(reference.told, Exception):
            raise reference.told
        return reference.told


class Answer:
    told: Any = None


class Member:
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
    monkeypatch.setattr(_work, "time", made)
    monkeypatch.setattr(intervals, "time", made)
    monkeypatch.setattr(_work, "ray", Answers())
    return made


@pytest.mark.parametrize(
    ("rounds", "found"),
    [
        ([{"of a map before": (3600.0, 0.0), "a": (0.0, 0.0)}], []),  # what is no item of this work
        ([{"a": (0.0, LIMIT + 1), "b": (0.0, 0.0)}], []),  # getting ready has a limit of its own
        ([{"a": (0.0, LIMIT + 1), "b": (0.0, 0.0)}, {"a": (0.0, _work.SETUP_S + 1), "b": (0.0, 0.0)}], ["a"]),
        ([_work.ray.exceptions.RayError("gone")], []),
    ],
    ids=["another map's", "getting ready", "getting ready for too long", "lost"],
)
def test_what_a_worker_tells(clock: Clock, rounds: list[Any], found: list[str]) -> None:
    late, worker = Late(LIMIT), Member("a", "b")
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


# ---- outcomes of items ----


class Call:
    """What a worker calls: raises what it is given, one by one, then returns."""

    lock = contextlib.nullcontext()

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)

    def __call__(self, *arguments: Any) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def outcome_of(*errors: BaseException) -> Outcome:
    worker = Worker(0)
    client: Any = SimpleNamespace(instance="1", close=lambda: None)
    worker._client, worker._told = client, time.monotonic()
    call = Call(*errors)
    worker._ready = lambda turn, job, what: (client, call)  # type: ignore[method-assign]
    return worker.run("token", "job", [], [])


def test_errors_that_may_be_anothers() -> None:
    assert outcome_of(kops.DeviceFault("it faulted", {"suspects": 2})).kind == "beside"
    assert outcome_of(kops.DeviceLost("lost", {"daemon": "goes_on"})).kind == "beside"
    assert outcome_of(kops.DeviceFault("it faulted", {})).kind == "failed"
    assert outcome_of(kops.DeviceLost("lost", {})).kind == "lost"
    assert outcome_of(kops.JobTimeout("it hung", {"daemon": "goes_on"})).kind == "failed"


def held_back(seconds: float, quota: str = "faults") -> kops.QuotaExceeded:
    return kops.QuotaExceeded("kernels are refused", {"quota": quota, "retry_after_ms": int(seconds * 1000)})


def test_an_item_waits_where_others_faulted(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(_worker.time, "sleep", slept.append)
    outcome = outcome_of(held_back(60), held_back(120))
    assert (outcome.kind, outcome.value, outcome.held_s) == ("done", "done", 180) and slept == [60, 120]
    slept.clear()
    assert outcome_of(held_back(60), *[held_back(500)] * 2).kind == "failed" and slept == [60, 500]
    assert outcome_of(held_back(1, "inflight")).kind == "failed" and slept == [60, 500]


# ---- traces ----

MS = 1_000_000
KINDS: list[Any] = [
    {"kind": 1, "what": "run", "op": "add", "ops": 1, "device": "GPU-a", "variant": "v", "dtype": "f32", "shapes": [[4], [4], [4]]}
]
CLIENTS: list[Any] = [{"client": 7, "pid": 50, "uid": 0, "name": "", "comm": "python"}]


def rows(*begins: int) -> array[int]:
    """Calls of a millisecond each, that long after the recording's begin."""
    each = ([1, 7, i, 0, at, at + 1, at + 2, at + MS, MS // 2, 1, 0, 0, 0] for i, at in enumerate(begins))
    return array("Q", itertools.chain.from_iterable(each))


def a_node(name: str, clock: int, *begins: int) -> Node:
    """Whose own clock says `clock` when the driver's says 0. Its process ids are those of the others."""
    made = Node(name, f"instance of {name}")
    part = Part(clock + 5 * MS, clock + 100 * MS, 0, "", KINDS, CLIENTS, rows(*begins))
    made.taken.append(Taken(Begun(made.instance, 40, clock + 5 * MS, {"GPU-a": "A GPU"}), [part]))
    made.clocks.append(Apart(-clock - MS, -clock + MS))
    for i, at in enumerate(begins):
        made.item(50, 3, i, (clock + 5 * MS + at, clock + 5 * MS + at + 2 * MS), True)
    return made


def written(path: Path, *nodes: Node) -> tuple[Any, list[dict[str, Any]]]:
    tracing = Tracing(path)
    tracing.began, tracing.nodes = 0, {one.instance: one for one in nodes}
    said = _trace.write(tracing)
    events = chrome_trace.load(path)["traceEvents"]
    chrome_trace.check(events)
    return said, events


def test_clocks_that_are_far_apart_are_one_axis(tmp_path: Path) -> None:
    """The second node's machine was started years before."""
    said, events = written(tmp_path / "t.json", a_node("a", 10 * MS, 10 * MS, 30 * MS), a_node("b", 10**17, 20 * MS, 40 * MS))
    calls = sorted((one["ts"], one["pid"]) for one in events if one.get("cat") == "call" and one["ph"] == "X")
    assert [ts for ts, _ in calls] == [16000.0, 26000.0, 36000.0, 46000.0], "5 ms after the begin, and 1 ms that is not certain"
    assert calls[0][1] == calls[2][1] != calls[1][1] == calls[3][1]
    assert [one["clock_us"] for one in said["nodes"]] == [1000.0, 1000.0] and [one["events"] for one in said["nodes"]] == [2, 2]


def test_numbers_that_two_nodes_have_are_two(tmp_path: Path) -> None:
    _, events = written(tmp_path / "t.json", a_node("a", 0, 0), a_node("b", 0, 0))
    names = {one["args"]["name"]: one["pid"] for one in events if one["name"] == "process_name"}
    order = [name for name, _ in sorted(names.items(), key=lambda one: one[1])]
    group = ["kopsd (pid 40)", "worker 3 (pid 50)", "A GPU (GPU-a)"]
    assert order == [f"{node}: {name}" for node in "ab" for name in group]
    assert all(one["args"]["sort_index"] == one["pid"] for one in events if one["name"] == "process_sort_index")
    assert len({one["id"] for one in events if one["ph"] == "s"}) == 2


def test_a_recording_is_bounded_and_says_what_it_left_out() -> None:
    made = Recording.__new__(Recording)
    made._room, made._lost, made._part = 3, 0, Part()
    made._taking = _worker.threading.Lock()

    def reply(*begins: int) -> dict[str, Any]:
        each = [list(rows(at)) for at in begins]
        return {"events": each, "kinds": KINDS, "clients": CLIENTS, "origin_ns": 1000, "now_ns": 5, "dropped": 10}

    made._keep(reply(1, 2))
    first = made.take()
    assert first.count == 2 and first.dropped == 10 and first.until == 1005 and made.take().count == 0
    made._keep(reply(3, 4, 5))
    made._end("gone")
    second = made.take()
    assert second.count == 1 and second.dropped == 12 and second.why == "gone" and len(second.rows) == COLUMNS
    assert [event.received for event in _worker.events([first, second])] == [1001, 1002, 1003]


def test_items_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trace, "ITEMS", 2)
    made = Node("a", "a")
    for i in range(5):
        made.item(i % 2, 0, i, (0, 1), True)
    assert sum(map(len, made.items.values())) == 8 and made.unlisted == 3


def test_what_is_known_of_a_clock() -> None:
    """It is 100 behind the driver's, and gains 10."""
    begin = _trace.narrowed([_trace.seen(1000, 905, 1010), _trace.seen(1020, 921, 1022)])
    assert begin == Apart(99, 101) and begin.middle == 100 and begin.uncertain == 1
    end = _trace.seen(5000, 4912, 5004)
    assert _trace.over([begin, end]) == Apart(88, 101), "at no time was it less or more"
    assert _trace.narrowed([Apart(0, 1), Apart(5, 6)]) == Apart(5, 6), "a clock that was set"


def test_a_node_of_which_nothing_is_known(tmp_path: Path) -> None:
    lost = Node("b", "b", missing="it was lost before its recording began")
    said, _ = written(tmp_path / "t.json", a_node("a", 0, 0), lost)
    assert [one["missing"] for one in said["nodes"]] == ["", lost.missing]
    assert "b: 0 events and 0 items in 0.0 s, its clock is not known; INCOMPLETE: it was lost" in str(said)


def test_a_file_that_cannot_be_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "no space")

    monkeypatch.setattr(_trace, "_daemon", full)
    with pytest.raises(OSError, match="no space"):
        written(tmp_path / "t.json", a_node("a", 0, 0))
    assert list(tmp_path.iterdir()) == []
