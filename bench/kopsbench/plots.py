"""The figures that the records give, as SVG with nothing to install: latencies beside their peers, ordered ops, many clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

Records = Mapping[str, Mapping[str, Any]]
INK, FAINT, GREY, PAPER = "#1f2328", "#d0d7de", "#57606a", "#ffffff"
OURS, PEER, TARGET = "#0969da", "#9aa4af", "#cf222e"
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 920, 250, 60, 74, 15, 16


class Drawing:
    """Origin at the upper left, y downwards, in pixels."""

    def __init__(self, height: float, title: str, note: str, legend: Sequence[tuple[str, str]]) -> None:
        self.height = height
        self.parts: list[str] = []
        self.box(0, 0, WIDTH, height, PAPER)
        self.words(16, 26, title, size=16, weight="bold")
        x = 16.0
        for name, color in legend:
            self.box(x, 48 - 9, 12, 10, color)
            self.words(x + 17, 48, name)
            x += 30 + 6.6 * len(name)
        self.words(WIDTH - 16, 48, note, anchor="end", fill=GREY)

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}" fill="{fill}"/>')

    def line(self, points: Sequence[tuple[float, float]], stroke: str, width: float = 1.0) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width}"/>')

    def dot(self, x: float, y: float, fill: str) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.0" fill="{fill}"/>')

    def words(
        self, x: float, y: float, text: str, *, size: float = 12, anchor: str = "start", fill: str = INK, weight: str = "normal"
    ) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
            f' font-weight="{weight}">{escape(text)}</text>'
        )

    def text(self) -> str:
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{self.height:.0f}"'
            f' viewBox="0 0 {WIDTH:.0f} {self.height:.0f}" font-family="system-ui, sans-serif">\n{body}\n</svg>\n'
        )


def nice(value: float) -> str:
    """Three digits, with k and M for thousands and millions."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ticks(most: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to no less than `most`."""
    step = 10.0 ** len(str(int(most)))
    step *= next((part for part in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most / (step * part) <= about), 1.0)
    return [step * i for i in range(int(most / step) + 2)]


# ---- bars: medians beside their peers ----

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


def microseconds(record: Mapping[str, Any], side: str) -> float:
    value = float(record[side]["p50"])
    return 1e6 / value if record["unit"] == "calls/s" else value


def row_of(label: str, record: Mapping[str, Any]) -> tuple[str, list[tuple[str, float, str]], float | None]:
    """A line's label, its bars: name, value and color of each, and where the target is, if anywhere."""
    bars = [("", microseconds(record, "ours"), OURS)]
    target, bounds = record["target"], record["detail"].get("target_bounds", "")
    if record["peer"]:
        bars.append((" · " + record["peer"].get("name", "peer").replace("_", " "), microseconds(record, "peer"), PEER))
    if target is not None and not bounds:
        target = bars[-1][1] * target if record["better"] == "lower" else bars[-1][1] / target
    return label, bars, None if "p99" in bounds else target


def bar_chart(records: Records, labels: Mapping[str, str], title: str, *, logarithmic: bool) -> str | None:
    rows = [row_of(label, records[name]) for name, label in labels.items() if name in records]
    if not rows:
        return None
    devices = [str(records[name]["device"]) for name in labels if name in records]
    device = next((name for name in devices if "threads" not in name), devices[0])  # a GPU when one of them ran there
    height = TOP + sum(len(bars) * BAR + GAP for _, bars, _ in rows) + 40
    drawing = Drawing(height, title, device, [("kopsd", OURS), ("peer", PEER), ("target", TARGET)])
    values = [value for _, bars, _ in rows for _, value, _ in bars] + [target for _, _, target in rows if target]
    at, marks = scale(values, logarithmic)
    for mark in marks:
        drawing.line([(at(mark), TOP - 8), (at(mark), height - 30)], FAINT)
        drawing.words(at(mark), height - 14, f"{nice(mark)} µs", anchor="middle", fill=GREY)
    y = float(TOP)
    for label, bars, target in rows:
        drawing.words(16, y + len(bars) * BAR / 2 + 4, label)
        for i, (name, value, color) in enumerate(bars):
            top = y + i * BAR
            drawing.box(LEFT, top, at(value) - LEFT, BAR - 2, color)
            drawing.words(at(value) + 5, top + BAR - 4, f"{nice(value)} µs{name}", size=11)
        if target:
            drawing.line([(at(target), y - 3), (at(target), y + len(bars) * BAR + 1)], TARGET, 2)
        y += len(bars) * BAR + GAP
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


def latency(records: Records) -> str | None:
    return bar_chart(records, LATENCIES, "One blocking call: median latency (logarithmic scale)", logarithmic=True)


def ordered(records: Records) -> str | None:
    return bar_chart(records, ORDERED, "Asynchronous calls in a row: median time of each", logarithmic=False)


# ---- many clients ----


def clients(records: Records) -> str | None:
    """Total rate and fairness by number of clients."""
    found = records.get("clients_64_rate")
    if not found:
        return None
    by = found["detail"]["by_clients"]
    legend = [("calls a second, all clients", OURS), ("Jain's index", TARGET)]
    drawing = Drawing(380, "Tiny blocking adds of many clients: total rate and fairness", str(found["device"]), legend)
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
