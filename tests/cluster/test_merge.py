"""Traces of nodes made one, without nodes: clocks that are far apart, numbers that are taken twice, limits."""

from __future__ import annotations

import itertools
from array import array
from pathlib import Path
from typing import Any

import pytest
from kops.ray import _trace, _worker
from kops.ray._trace import Apart, Node, Taken, Tracing
from kops.ray._worker import COLUMNS, Begun, Part, Recording
from support import chrome_trace

MS = 1_000_000
KINDS: list[Any] = [
    {"kind": 1, "what": "run", "op": "add", "ops": 1, "device": "GPU-a", "variant": "v", "dtype": "f32", "shapes": [[4], [4], [4]]}
]
CLIENTS: list[Any] = [{"client": 7, "pid": 50, "uid": 0, "name": "", "comm": "python"}]


def rows(*begins: int) -> array[int]:
    """Calls of a millisecond each, that long after the recording's begin."""
    each = ([1, 7, i, 0, at, at + 1, at + 2, at + MS, MS // 2, 1, 0, 0, 0] for i, at in enumerate(begins))
    return array("Q", itertools.chain.from_iterable(each))


def node(name: str, clock: int, *begins: int) -> Node:
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
    said, events = written(tmp_path / "t.json", node("a", 10 * MS, 10 * MS, 30 * MS), node("b", 10**17, 20 * MS, 40 * MS))
    calls = sorted((one["ts"], one["pid"]) for one in events if one.get("cat") == "call" and one["ph"] == "X")
    assert [ts for ts, _ in calls] == [16000.0, 26000.0, 36000.0, 46000.0], "5 ms after the begin, and 1 ms that is not certain"
    assert calls[0][1] == calls[2][1] != calls[1][1] == calls[3][1]
    assert [one["clock_us"] for one in said["nodes"]] == [1000.0, 1000.0] and [one["events"] for one in said["nodes"]] == [2, 2]


def test_numbers_that_two_nodes_have_are_two(tmp_path: Path) -> None:
    _, events = written(tmp_path / "t.json", node("a", 0, 0), node("b", 0, 0))
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
    said, _ = written(tmp_path / "t.json", node("a", 0, 0), lost)
    assert [one["missing"] for one in said["nodes"]] == ["", lost.missing]
    assert "b: 0 events and 0 items in 0.0 s, its clock is not known; INCOMPLETE: it was lost" in str(said)


def test_a_file_that_cannot_be_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "no space")

    monkeypatch.setattr(_trace, "_daemon", full)
    with pytest.raises(OSError, match="no space"):
        written(tmp_path / "t.json", node("a", 0, 0))
    assert list(tmp_path.iterdir()) == []
