"""The traces of the nodes as one file for Perfetto, a group of processes for each daemon, written daemon by daemon."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

from ..profiler._chrome import DEVICE_PIDS, Trace
from ..profiler._profile import _to_time_of_day
from ._clocks import Apart
from ._recording import events
from ._trace import Node, Tracing

DEVICES_MOST = 1 << 16  # numbers below DEVICE_PIDS that are devices'
GROUP = 0  # the process that heads a daemon's group: no process has this number


class ClusterTrace(dict[str, Any]):
    """The trace of a piece of work on a cluster: a dictionary with `path` and `nodes`. `print()` shows what is in the file.

    `nodes` has for each daemon its `node`, `daemon` (the process id), `events`, `items`, `dropped` (events and items that had no
    room), `seconds` from the begin of its recording to its end, `clock_us`: how far its times may lie beside those of the driver's machine,
    and `missing`: why something of it is not in the file, empty where all of it is.
    """

    def __str__(self) -> str:
        return "\n".join([f"{self['path']}:", *map(_line, self["nodes"])])


def _line(node: dict[str, Any]) -> str:
    clock = "its clock is not known" if node["clock_us"] is None else f"its clock within {node['clock_us']:.0f} us"
    told = f"{node['node']}: {node['events']} events and {node['items']} items in {node['seconds']:.1f} s, {clock}"
    dropped = f", {node['dropped']} dropped" if node["dropped"] else ""
    return told + dropped + (f"; INCOMPLETE: {node['missing']}" if node["missing"] else "")


class _Numbers:
    """Processes of all nodes have different numbers in the file, those of a daemon one behind the other; arrows, too."""

    def __init__(self) -> None:
        self._next = 1
        self._arrows = 0

    def apply(self, made: list[dict[str, Any]], name: str) -> None:
        """To the events of one daemon's trace."""
        pids = sorted({one["pid"] for one in made}, key=lambda pid: (0, pid) if pid <= DEVICE_PIDS - DEVICES_MOST else (1, -pid))
        numbers = {pid: number for number, pid in enumerate(pids, self._next)}
        self._next += len(pids)
        arrows = 0
        for one in made:
            number = one["pid"] = numbers[one["pid"]]
            if "id" in one:
                arrows = max(arrows, one["id"])
                one["id"] += self._arrows
            elif one["ph"] == "M" and one["name"] == "process_sort_index":
                one["args"] = {"sort_index": number}
            elif one["ph"] == "M" and one["name"] == "process_name":
                one["args"] = {"name": f"{name}: {one['args']['name']}"}
        self._arrows += arrows


def _items(trace: Trace, node: Node) -> int:
    """The rows of the workers' items. How many items they have."""
    count = 0
    for pid, flat in node.items.items():
        rows = sorted(zip(flat[1::4], flat[2::4], flat[0::4], flat[3::4], strict=True))
        slices = ((f"item {index}", begin, end, {} if done else {"failed": True}) for begin, end, index, done in rows)
        trace.add_rows(pid, f"worker {node.numbers[pid]} (pid {pid})", "items", "item", slices)
        count += len(rows)
    return count


def _daemon(node: Node, apart: Apart | None, base: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What is in the file of a daemon, and what is said of it."""
    ahead = apart.middle if apart is not None else 0
    devices = {uuid: name for one in node.taken for uuid, name in one.begun.devices.items()}
    trace = Trace(devices, lambda ns: max(ns + ahead - base, 0) / 1e3)
    found = [event for one in node.taken for event in events(one.parts)]
    first = min((one.begun.at for one in node.taken), default=0)
    until = max((one.until for one in node.taken), default=0)
    said = {
        "node": node.name, "daemon": node.taken[0].begun.daemon if node.taken else 0, "instance": node.instance, "events": len(found),
        "items": 0, "dropped": sum(one.dropped for one in node.taken) + node.unlisted, "seconds": (until - first) / 1e9,
        "clock_us": apart.uncertain / 1e3 if apart is not None else None, "missing": node.missing,
    }  # fmt: skip
    if node.taken:
        head = {name: said[name] for name in ("instance", "events", "dropped", "clock_us", "missing")}
        trace.add_rows(GROUP, f"kopsd (pid {said['daemon']})", "recorded", "recorded", [("recorded", first, until, head)])
    said["items"] = _items(trace, node)
    trace.add_events(found)
    return trace.done(), said


def write(tracing: Tracing) -> ClusterTrace:
    """Writes the file: all of it, or none."""
    apart = {node.instance: tracing.apart(node) for node in tracing.nodes.values()}
    base = tracing.began - max((one.uncertain for one in apart.values() if one is not None), default=0)
    numbers, said = _Numbers(), list[dict[str, Any]]()

    def daemons() -> Iterator[list[dict[str, Any]]]:
        for node in sorted(tracing.nodes.values(), key=lambda node: (node.name, node.taken[0].begun.at if node.taken else 0)):
            made, about = _daemon(node, apart[node.instance], base)
            numbers.apply(made, node.name)
            said.append(about)
            yield made

    path = tracing.path
    beside = f"{path}.{os.getpid()}.part"
    try:
        with gzip.open(beside, "wb") if path.endswith(".gz") else open(beside, "wb") as file:
            file.write(b'{"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"traceEvents":[' % (base + _to_time_of_day()))
            comma = b"\n"
            for made in daemons():
                for one in made:
                    file.write(comma + _text(one))
                    comma = b",\n"
            file.write(b'],\n"otherData":{"kops":%s}}\n' % _text({"nodes": said}))
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
    return ClusterTrace(path=path, nodes=said)


def _text(value: Any) -> bytes:
    """As kops.profiler writes it: Perfetto shows escapes as they are."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
