"""`trace=` of `kops.ray.map`: what the daemons of the nodes do, in one file."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import kops
import kops.ray
import numpy as np
import pytest
from machines import Machines, meet, wait_for
from support import chrome_trace, perfetto

N = 40


def add(k: kops.Client, i: int) -> int:
    return int(k.add(np.full(64, i, "f4"), np.ones(64, "f4"))[0])


def met(k: kops.Client, folder: str, i: int) -> int:
    """All nodes have an item, before one can have all of them."""
    meet(folder, 3, i)
    return add(k, i)


class Shown:
    """A file: its processes by their names, and their slices."""

    def __init__(self, path: Path) -> None:
        made = chrome_trace.load(path)
        self.events, self.about = made["traceEvents"], made["otherData"]["kops"]
        self.checked = chrome_trace.check(self.events)
        self.names = {one["pid"]: one["args"]["name"] for one in self.events if one["name"] == "process_name"}
        self.path = path

    def slices(self, cat: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["ph"] == "X" and one["cat"] == cat]

    def of(self, one: dict[str, Any]) -> str:
        """The node of a slice."""
        return str(self.names[one["pid"]]).partition(": ")[0]


def test_all_of_the_nodes_is_in_one_file(machines: Machines, tmp_path: Path) -> None:
    """Also the first call of each."""
    run = kops.ray.map(met, [(str(tmp_path / "met"), i) for i in range(N)], in_flight=1, trace=tmp_path / "trace.json")
    assert dict(run) == {i: i + 1 for i in range(N)}
    shown = Shown(tmp_path / "trace.json")
    assert run.trace is not None and run.trace["nodes"] == shown.about["nodes"] and len(run.trace["nodes"]) == 3
    assert all(not node["missing"] and not node["dropped"] and node["events"] for node in run.trace["nodes"]), str(run.trace)
    assert sum(node["items"] for node in run.trace["nodes"]) == sum(node["events"] for node in run.trace["nodes"]) == N
    nodes = {node["node"]: node for node in run.trace["nodes"]}
    calls, items = shown.slices("call"), shown.slices("item")
    assert Counter(map(shown.of, calls)) == {name: node["events"] for name, node in nodes.items()}
    assert sorted(one["name"] for one in items) == sorted(f"item {i}" for i in range(N))
    for call in calls:
        assert call["name"].startswith("add ")
        around = [one for one in items if one["pid"] == call["pid"] and one["ts"] <= call["ts"] and _end(call) <= _end(one) + 0.002]
        assert len(around) == 1, "each call is in the item that made it, on the row of that worker's process"
    heads = {shown.of(one): one for one in shown.slices("recorded")}
    assert set(heads) == set(nodes)
    assert all(heads[shown.of(one)]["ts"] <= one["ts"] for one in calls) and str(run.trace).count("INCOMPLETE") == 0


def _end(one: dict[str, Any]) -> float:
    return float(one["ts"] + one["dur"])


def test_nodes_of_one_machine_have_one_clock(machines: Machines, tmp_path: Path) -> None:
    """What is measured of a clock is true: here the clocks are the same."""
    run = kops.ray.map(met, [(str(tmp_path / "clocks"), i) for i in range(4)], in_flight=1, trace=tmp_path / "t.json.gz")
    assert len(list(run)) == 4
    tracing = run._work._tracing
    assert tracing is not None and len(tracing.nodes) == 3
    for node in tracing.nodes.values():
        assert len(node.clocks) == 2, "at the begin and at the end"
        assert all(one.least <= 0 <= one.most for one in node.clocks)
    if perfetto.IS_HERE:
        with perfetto.TraceProcessor(tmp_path / "t.json.gz") as made:
            assert made.value("select count(*) from slice where category = 'item'") == 4
            assert made.value("select count(distinct upid) from process where name like '%kopsd (pid%'") == 3


def test_a_worker_that_is_lost_takes_little_of_the_trace_with_it(machines: Machines, tmp_path: Path) -> None:
    """Its successor records the same daemon."""
    once = tmp_path / "once"

    def ends(k: kops.Client, i: int) -> int:
        made = add(k, i)
        if i == 5 and not once.exists():
            once.touch()
            os._exit(1)
        return made

    with kops.ray.Pool(1) as pool:
        run = kops.ray.map(ends, range(N), pool=pool, in_flight=1, trace=tmp_path / "trace.json")
        assert dict(run) == {i: i + 1 for i in range(N)}
    shown = Shown(tmp_path / "trace.json")
    assert run.trace is not None and any("worker that recorded it was lost" in node["missing"] for node in run.trace["nodes"])
    assert {one["name"] for one in shown.slices("item")} == {f"item {i}" for i in range(N)}
    assert len(shown.slices("call")) >= N - 5, "all after the loss"


def test_work_that_is_left_early_has_a_trace(machines: Machines, tmp_path: Path) -> None:
    with kops.ray.Pool(1) as pool:
        for again in range(2):
            run = kops.ray.map(add, range(1000), pool=pool, trace=tmp_path / f"{again}.json")
            next(run)
            run.close()
            assert run.trace is not None and len(Shown(tmp_path / f"{again}.json").slices("call")) >= 1
            assert sorted(os.listdir(tmp_path)) == [f"{i}.json" for i in range(again + 1)], "nothing else is left there"


def test_where_no_file_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(kops.BadArgument, match="no folder in which files can be written"):
        kops.ray.map(add, range(3), trace=tmp_path / "nowhere" / "trace.json")


def test_a_node_that_is_lost_is_missing_and_said_to_be(machines: Machines, tmp_path: Path) -> None:
    with kops.ray.Pool() as pool:
        wait_for(pool, 3)
        victim = next(w for w in pool.workers if w.node_id == machines.nodes[0].node_id)
        others = [w.node for w in pool.workers if w is not victim]
        run = kops.ray.map(met, [(str(tmp_path / "lost"), i) for i in range(N)], pool=pool, in_flight=1, trace=tmp_path / "t.json")
        results = dict([next(run) for _ in range(8)])
        machines.kill(machines.nodes[0], victim.daemon)
        results.update(run)
    assert results == {i: i + 1 for i in range(N)}
    assert run.trace is not None
    nodes = {node["node"]: node for node in run.trace["nodes"]}
    assert nodes[victim.node]["missing"] and not any(nodes[name]["missing"] for name in others)
    assert f"{victim.node}: " in str(run.trace) and str(run.trace).count("INCOMPLETE") == 1
    shown = Shown(tmp_path / "t.json")
    calls = Counter(map(shown.of, shown.slices("call")))
    assert all(calls[name] == nodes[name]["items"] > 0 for name in others)
