"""The figures that the records give: latencies beside their peers, ordered ops, many clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .svg import FAINT, INK, OURS, PEER, TARGET, Drawing, nice, ticks

Records = Mapping[str, Mapping[str, Any]]
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 920, 250, 60, 74, 15, 16


@dataclass(frozen=True)
class Row:
    """Bars of one line: name, value and color of each; where the target is, if anywhere."""

    label: str
    bars: Sequence[tuple[str, float, str]]
    target: float | None = None


def microseconds(record: Mapping[str, Any], side: str) -> float:
    value = float(record[side]["p50"])
    return 1e6 / value if record["unit"] == "calls/s" else value


def row_of(label: str, record: Mapping[str, Any]) -> Row:
    bars = [("kopsd", microseconds(record, "ours"), OURS)]
    target = record["target"]
    if record["peer"]:
        peer = microseconds(record, "peer")
        bars.append((record["peer"].get("name", "peer").replace("_", " "), peer, PEER))
    if target is not None and not record["detail"].get("target_bounds"):
        target = peer * target if record["better"] == "lower" else peer / target
    elif "p99" in record["detail"].get("target_bounds", ""):
        target = None
    return Row(label, bars, target)


def bar_chart(title: str, note: str, rows: Sequence[Row], *, logarithmic: bool) -> str:
    height = TOP + sum(len(row.bars) * BAR + GAP for row in rows) + 40
    drawing = Drawing(WIDTH, height, title)
    drawing.legend(16, 48, [("kopsd", OURS), ("peer", PEER), ("target", TARGET)])
    drawing.words(WIDTH - 16, 48, note, anchor="end", fill="#57606a")
    values = [value for row in rows for _, value, _ in row.bars] + [row.target for row in rows if row.target]
    at, marks = scale(values, logarithmic)
    for mark in marks:
        drawing.line([(at(mark), TOP - 8), (at(mark), height - 30)], FAINT)
        drawing.words(at(mark), height - 14, f"{nice(mark)} µs", anchor="middle", fill="#57606a")
    y = float(TOP)
    for row in rows:
        drawing.words(16, y + len(row.bars) * BAR / 2 + 4, row.label)
        for i, (name, value, color) in enumerate(row.bars):
            top = y + i * BAR
            drawing.box(LEFT, top, at(value) - LEFT, BAR - 2, color)
            text = f"{nice(value)} µs" if i == 0 else f"{nice(value)} µs · {name}"
            drawing.words(at(value) + 5, top + BAR - 4, text, size=11)
        if row.target:
            drawing.line([(at(row.target), y - 3), (at(row.target), y + len(row.bars) * BAR + 1)], TARGET, 2)
        y += len(row.bars) * BAR + GAP
    return drawing.text()


def scale(values: Sequence[float], logarithmic: bool) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies, and which ones to mark."""
    room = WIDTH - LEFT - RIGHT - 210  # to the right of the longest bar there are words
    if not logarithmic:
        marks = ticks(max(values))
        return (lambda value: LEFT + room * value / marks[-1]), marks
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return (
        lambda value: LEFT + room * (math.log10(value) - low) / (high - low),
        [10.0**power for power in range(low, high + 1)],
    )


LATENCIES = {
    "noop_rpc_shm": "no-op RPC, shared memory (C)",
    "noop_rpc_socket_spin": "no-op RPC, socket, all poll (C)",
    "noop_rpc_socket_sleep": "no-op RPC, socket, all sleep (C)",
    "blocking_tiny_add_c_shm": "blocking tiny add (C)",
    "blocking_tiny_add_python": "blocking tiny add (Python)",
    "blocking_tiny_add_python_vs_grpc": "blocking tiny add (Python)",
    "blocking_tiny_add_python_vs_queue": "blocking tiny add (Python)",
    "program_20_c_vs_graph": "program of 20 tiny adds (C)",
    "program_20_python_vs_graph": "program of 20 tiny adds (Python)",
    "program_20_python_vs_eager": "program of 20 tiny adds (Python)",
}
ORDERED = {
    "ordered_add_c_batch": "ordered add in a batch (C)",
    "ordered_add_c_own": "ordered add on its own (C)",
    "ordered_add_python_batch": "ordered add in a batch (Python)",
    "ordered_add_python_own": "ordered add on its own (Python)",
    "ordered_chain_c": "kernel, ordered add, kernel (C)",
    "ordered_chain_python": "op, ordered add, op (Python)",
}


def rows_of(records: Records, labels: Mapping[str, str]) -> list[Row]:
    return [row_of(label, records[name]) for name, label in labels.items() if name in records]


def device(records: Records, labels: Mapping[str, str]) -> str:
    """A GPU when one of them ran there."""
    names = [str(records[name]["device"]) for name in labels if name in records]
    return next((name for name in names if "threads" not in name), names[0])


def latency(records: Records) -> str | None:
    rows = rows_of(records, LATENCIES)
    title = "One blocking call: median latency (logarithmic scale)"
    return bar_chart(title, device(records, LATENCIES), rows, logarithmic=True) if rows else None


def ordered(records: Records) -> str | None:
    rows = rows_of(records, ORDERED)
    title = "Asynchronous calls in a row: median time of each"
    return bar_chart(title, device(records, ORDERED), rows, logarithmic=False) if rows else None


def clients(records: Records) -> str | None:
    """Total rate and fairness by number of clients."""
    found = records.get("clients_64_rate")
    if not found:
        return None
    by = found["detail"]["by_clients"]
    drawing = Drawing(WIDTH, 380, "Tiny blocking adds of many clients: total rate and fairness")
    drawing.legend(16, 48, [("calls a second, all clients", OURS), ("Jain's index", TARGET)])
    drawing.words(WIDTH - 16, 48, str(found["device"]), anchor="end", fill="#57606a")
    left, right, top, bottom = 80, WIDTH - 60, 76, 330
    marks = ticks(max(one["total_per_s"] for one in by.values()))
    for mark in marks:
        y = bottom - (bottom - top) * mark / marks[-1]
        drawing.line([(left, y), (right, y)], FAINT)
        drawing.words(left - 8, y + 4, nice(mark), anchor="end", fill=OURS)
    for index in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.words(right + 8, bottom - (bottom - top) * index + 4, f"{index:g}", fill=TARGET)
    width = (right - left) / len(by)
    fairness = []
    for i, (count, one) in enumerate(by.items()):
        middle = left + width * (i + 0.5)
        height = (bottom - top) * one["total_per_s"] / marks[-1]
        drawing.box(middle - width / 5, bottom - height, width * 2 / 5, height, OURS)
        drawing.words(middle, bottom - height / 2, nice(one["total_per_s"]), anchor="middle", fill="#ffffff")
        drawing.words(middle, bottom + 20, f"{count} client{'s' if count != '1' else ''}", anchor="middle")
        drawing.words(middle, bottom + 36, f"{nice(one['p50_us'])} µs, p99 {nice(one['p99_us'])} µs", anchor="middle", size=11)
        fairness.append((middle, bottom - (bottom - top) * one["jain"]))
    drawing.line(fairness, TARGET, 2)
    for x, y in fairness:
        drawing.dot(x, y, TARGET)
    drawing.line([(left, bottom), (right, bottom)], INK)
    return drawing.text()


PLOTS: dict[str, Callable[[Records], str | None]] = {"latency": latency, "ordered": ordered, "clients": clients}
