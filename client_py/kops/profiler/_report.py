"""A report of what ran: as a page with the rooflines, the table, the slowest shapes and a timeline, one file without scripts that needs no
other; or as a picture of the rooflines, by matplotlib. Before that peaks of devices, measured with
the daemon's own ops, how far each row of a report is from that, and where everything of a roofline lies.

Williams, Waterman, Patterson, "Roofline" (2009): performance over operations for each byte, both by decades. Lengths are pixels
of a frame of WIDTH × HEIGHT, y downwards.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import NormalDist
from typing import Any

from .. import BadArgument, Client, Device, KopsError, Unsupported
from ._profile import profile as Profile
from ._recorder import Event

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "float32"}  # gemm's dtypes, and the dtypes that values are made in
DTYPES_OF_8_BITS = ("f8_e4m3", "f8_e5m2")  # dtypes of scaled_gemm's `a`; tensor cores take e5m2 with e4m3, not with itself
HOST, GPU = (1 << 24, 1024), (1 << 27, 8192)  # elements of a vector beyond every cache, side of a matrix
ROUNDS = 10


@dataclass(frozen=True)
class Peaks:
    """The most that was reached on a device: 10^9 bytes a second by `add` of f32 vectors, 10^9 floating-point operations a second by
    `gemm`, with 8-bit floats by `scaled_gemm`, by dtype. What the hardware could do in theory is more."""

    device: str
    name: str
    gb_s: float
    gflop_s: Mapping[str, float] = field(default_factory=dict)


def measure(client: Client, device: Device) -> Peaks:
    """Some seconds of work on the device, on copies of host memory. Needs NumPy."""
    found = ((dtype, gflop_s(client, device, dtype)) for dtype in (*DTYPES, *DTYPES_OF_8_BITS))
    return Peaks(device.uuid, device.name, gb_s(client, device), {dtype: top for dtype, top in found if top is not None})


def is_of_peaks(op: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether a row of the statistics has what is run to measure: work of exactly these sizes is at the roof by definition."""
    size = tuple(shapes[0]) if shapes else ()
    if op == "add":
        return size in {(vector,) for vector, _ in (HOST, GPU)}
    return op in ("gemm", "scaled_gemm") and size in {(side, side) for _, side in (HOST, GPU)}


def gb_s(client: Client, device: Device) -> float:
    """The roof of memory."""
    from .._companions import numpy

    vectors = [numpy.ones((HOST if device.backend == "host" else GPU)[0], "float32") for _ in range(3)]
    best = _best(client, "add", vectors, device)
    return float(best.bytes / best.min / 1e3)


def gflop_s(client: Client, device: Device, dtype: str) -> float | None:
    """The roof of arithmetic with a dtype, by its name on the wire. None: the daemon's products have it not, or nothing counts their
    work."""
    op = "scaled_gemm" if dtype in DTYPES_OF_8_BITS else "gemm"
    if dtype not in (*DTYPES, *DTYPES_OF_8_BITS) or op not in client.ops or dtype not in client.ops[op].dtypes:
        return None
    side = (HOST if device.backend == "host" else GPU)[1]
    operands, attrs = _products_of_8_bits(dtype, side) if op == "scaled_gemm" else (_products(dtype, side), {})
    made = _best(client, op, operands, device, **attrs)
    return made.operations / made.min / 1e3 if made.gflop_s is not None and made.min else None


# Operands are normal numbers: zeros would take less power, and so run at higher clocks.


def _products(dtype: str, side: int) -> list[Any]:
    from .._companions import bits_of, numpy

    a, b = (numpy.random.default_rng(seed).standard_normal((side, side)).astype(DTYPES[dtype]) for seed in (1, 2))
    operands = [a, b, numpy.empty_like(a)]
    return [bits_of(one, dtype) for one in operands] if dtype == "bf16" else operands


def _products_of_8_bits(dtype: str, side: int) -> tuple[list[Any], dict[str, Any]]:
    from .._companions import BITS, bits_of, numpy

    # As many numbers as there are bytes, all equally probable.
    normal = numpy.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)], "float32")

    def drawn(of: str, seed: int) -> Any:
        bytes_of = numpy.random.default_rng(seed).integers(0, 256, (side, side), "uint8")
        return bits_of(normal, of)[bytes_of].view(BITS[of])

    one = numpy.ones((), "float32")
    operands = [drawn(dtype, 1), drawn("f8_e4m3", 2), one, one, numpy.empty((side, side), "uint16").view(BITS["bf16"])]
    return operands, {"trans_b": True, "precision": "medium"}  # as tensor cores like it


def _best(client: Client, op: str, operands: list[Any], device: Device, **attrs: Any) -> Any:
    *inputs, out = (client.array(operand).view(type(operand)) for operand in operands)
    made = client.profile(op, *inputs, out=out, device=device, warmup=2, repeat=ROUNDS, conditions=False, **attrs)
    if not made.min:
        raise KopsError(f"{op} on {device.uuid} was not timed")
    return made


# Rows

LATENCY = 0.3  # fraction of the roof; work below it is bound by neither memory nor arithmetic
NOISE = 1.05  # fraction of the roof; a larger rate comes from a cache


class Row:
    """A row of the statistics, with its place under the roof."""

    def __init__(self, stats: Mapping[str, Any], peaks: Peaks | None) -> None:
        self.op, self.dtype, self.variant = stats["op"], stats["dtype"], stats["variant"]
        self.device, self.count = stats["device"], stats["count"]
        self.shapes = ", ".join("×".join(map(str, shape)) or "scalar" for shape in stats["shapes"])
        self.is_of_peaks = is_of_peaks(self.op, stats["shapes"])
        spread = stats.get("exec_us") or {}
        self.mean, self.p50, self.p99 = (spread.get(key) for key in ("mean", "p50", "p99"))
        self.total = self.count * self.mean if self.mean else 0.0
        self.share = 0.0
        size, work = stats.get("bytes"), stats.get("operations")
        self.gb_s = size / self.p50 / 1e3 if size and self.p50 else None
        self.gflop_s = work / self.p50 / 1e3 if work and self.p50 else None
        self.intensity = work / size if work and size else None
        self.reached, self.bound = self._judge(peaks)

    def _judge(self, peaks: Peaks | None) -> tuple[float | None, str]:
        """Which part of the roof it reaches, and which roof that is."""
        if peaks is None or not self.gb_s:
            return None, ""
        by_memory = self.gb_s / peaks.gb_s
        top = peaks.gflop_s.get(self.dtype)
        by_compute = self.gflop_s / top if self.gflop_s and top else 0.0
        reached = max(by_memory, by_compute)
        if by_memory > NOISE and by_memory >= by_compute:
            return reached, "cache"
        if reached < LATENCY:
            return reached, "latency"
        return reached, "memory" if by_memory >= by_compute else "compute"

    @property
    def above_the_roof(self) -> float | None:
        """Microseconds of the total that the roof does not ask for; None: the roof is not known."""
        if self.reached is None or not self.p50:
            return None
        above: float = max(self.total - self.count * self.p50 * self.reached, 0.0)  # an execution at the roof takes p50 * reached
        return above


def rows_of(stats: Sequence[Mapping[str, Any]], peaks: Mapping[str, Peaks]) -> list[Row]:
    """A row for each row of the statistics that has run, with its share of all of them, the longest total first."""
    rows = [Row(row, peaks.get(row["device"])) for row in stats if row["count"]]
    whole = sum(row.total for row in rows)
    for row in rows:
        row.share = row.total / whole if whole else 0.0
    rows.sort(key=lambda row: -row.total)
    return rows


# Places

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 70, 30, 20, 50
LETTER, LINE = 7.5, 13.0  # room for a character of 12 pixels, for a line of them
PIECE = 4.0  # pixels of a box along a rising line
LABELLED = 12  # points that are numbered
COLOURS = 6  # number of colours; later dtypes use them again
AWAY = ((1, 0), (0, -1), (-1, 0), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))  # directions in which a number may stand beside its point

Line = tuple[tuple[float, float], tuple[float, float]]  # two places: operations for each byte, 10^9 operations a second


@dataclass(frozen=True)
class Roof:
    """The device's peak with a dtype, from where memory is no longer the limit. A label stands at the right end."""

    dtype: str
    colour: int
    line: Line
    label: tuple[float, float]  # right end of the line, at the height of its baseline


@dataclass(frozen=True)
class Point:
    """A row. `number` is its place in the table; one that finds room has a `label`, by its centre."""

    number: int
    row: Row
    colour: int | None  # colour of its dtype's roof; None: there is no such roof
    intensity: float
    gflop_s: float
    x: float
    y: float
    radius: float
    label: tuple[float, float] | None


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom

    def is_within(self, other: Box) -> bool:
        return self.left >= other.left and self.right <= other.right and self.top >= other.top and self.bottom <= other.bottom


FRAME = Box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)


def _decades(low: float, high: float) -> range:
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


class Roofline:
    """`rows`: those of one device, in the order of its table."""

    def __init__(self, rows: Sequence[Row], peaks: Peaks) -> None:
        drawn = [(number, row, row.intensity, row.gflop_s) for number, row in enumerate(rows, 1) if row.intensity and row.gflop_s]
        self.missing = len(rows) - len(drawn)
        tops = dict(peaks.gflop_s) or {"": max((gflop_s for *_, gflop_s in drawn if gflop_s), default=1.0)}
        along = [*(top / peaks.gb_s for top in tops.values()), *(intensity for _, _, intensity, _ in drawn if intensity)]
        up = [*(top / 100 for top in tops.values()), *(gflop_s for *_, gflop_s in drawn if gflop_s)]
        self.xs, self.ys = _decades(min(along) / 2, max(along) * 4), _decades(min(up), max(*tops.values(), *up) * 4)
        highest = max(tops.values())
        begin = max(10.0 ** self.xs[0], 10.0 ** self.ys[0] / peaks.gb_s)
        self.slope: Line = ((begin, peaks.gb_s * begin), (highest / peaks.gb_s, highest))  # the roof of memory
        taken: list[Box] = []
        self.roofs = list(self._place_roofs(tops, peaks.gb_s, taken))
        colours = {roof.dtype: roof.colour for roof in self.roofs}
        self.points: list[Point] = []
        circles = [(self.x(a), self.y(b), 3 + 9 * math.sqrt(row.share)) for _, row, a, b in drawn if a and b]
        taken += [Box(x - r, y - r, x + r, y + r) for x, y, r in circles]
        for line in (self.slope, *(roof.line for roof in self.roofs)):  # lines would strike a number through
            taken += self._along(line)
        for (number, row, intensity, gflop_s), (x, y, radius) in zip(drawn, circles):
            assert intensity and gflop_s
            label = _beside(x, y, radius, str(number), taken) if len(self.points) < LABELLED else None
            self.points.append(Point(number, row, colours.get(row.dtype), intensity, gflop_s, x, y, radius, label))

    def x(self, intensity: float) -> float:
        return FRAME.left + (math.log10(intensity) - self.xs[0]) / (self.xs[-1] - self.xs[0]) * (FRAME.right - FRAME.left)

    def y(self, gflop_s: float) -> float:
        return FRAME.bottom - (math.log10(gflop_s) - self.ys[0]) / (self.ys[-1] - self.ys[0]) * (FRAME.bottom - FRAME.top)

    def _along(self, line: Line) -> Iterator[Box]:
        (left, top), (right, bottom) = ((self.x(a), self.y(b)) for a, b in line)
        steps = max(1, round(abs(right - left) / PIECE)) if top != bottom else 1
        for i in range(steps):
            x, until = (left + (right - left) * j / steps for j in (i, i + 1))
            y, there = (top + (bottom - top) * j / steps for j in (i, i + 1))
            yield Box(x, min(y, there) - 1, until, max(y, there) + 1)

    def _place_roofs(self, tops: dict[str, float], gb_s: float, taken: list[Box]) -> Iterator[Roof]:
        """The labels of roofs that are close to each other are above each other, the lowest roof's first."""
        highest = math.inf
        colours = {dtype: colour % COLOURS for colour, dtype in enumerate(tops)}
        for dtype, top in sorted(tops.items(), key=lambda roof: roof[1]):
            base = min(self.y(top) - 5, highest - LINE)
            highest = base
            right = FRAME.right - 4
            taken.append(Box(right - LETTER * len(dtype), base - LINE, right, base))
            yield Roof(dtype, colours[dtype], ((top / gb_s, top), (10.0 ** self.xs[-1], top)), (right, base))


def _beside(x: float, y: float, radius: float, text: str, taken: list[Box]) -> tuple[float, float] | None:
    """The centre of a text that touches nothing else; None: there is no room around."""
    wide, high = LETTER * len(text) / 2, LINE / 2
    for distance in (2.0, 8.0, 16.0):
        for right, down in AWAY:
            at_x, at_y = x + right * (radius + distance + wide), y + down * (radius + distance + high)
            box = Box(at_x - wide, at_y - high, at_x + wide, at_y + high)
            if box.is_within(FRAME) and not any(box.meets(other) for other in taken):
                taken.append(box)
                return at_x, at_y
    return None


TIMELINE_MOST = 3000  # slices of a timeline
LANES_MOST = 100  # rows of a timeline
LANE = 22
SLOWEST, LEAST = 10, 1.0  # rows, and microseconds, that are worth a line
STYLE = """
:root { --text: #1b1b1b; --back: #fff; --stripe: #f4f5f7; --note: #5c6370; --bar: #cfe0f5; --grid: #ddd; --rest: #6b7280;
  --c0: #1f77b4; --c1: #d62728; --c2: #2ca02c; --c3: #9467bd; --c4: #ff7f0e; --c5: #8c564b; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --back: #16181c; --stripe: #1f2329; --note: #9aa1ab; --bar: #35577f;
  --grid: #383d45; --rest: #9aa1ab; --c0: #5aa9e6; --c1: #ff6b6b; --c2: #58c658; --c3: #b794f4; --c4: #ffa94d; --c5: #c8917f; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 84em; padding: 0 1em; color: var(--text);
  background: var(--back); overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table { width: 100%; font-size: 14px; line-height: 1.35; }
td, th { padding: .2em .4em; text-align: right; white-space: nowrap; overflow-wrap: normal; } td.l, th.l { text-align: left; }
th { white-space: normal; } td.op { white-space: normal; overflow-wrap: anywhere; min-width: 6em; }
td.shapes { white-space: normal; min-width: 6em; } th { border-bottom: 2px solid #888; vertical-align: bottom; }
tr:nth-child(even) td { background: var(--stripe); } .note { color: var(--note); }
.bar { background: var(--bar); display: inline-block; height: .7em; }
svg { display: block; width: 100%; min-width: 620px; height: auto; } svg text { fill: var(--text); }
svg text.over { paint-order: stroke; stroke: var(--back); stroke-width: 3px; } .grid { stroke: var(--grid); }
"""


def document(title: str, parts: Iterable[str], more: str = "") -> str:
    """A page of these parts. `more`: rules beside STYLE."""
    head = '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    style = f"<title>{title}</title><style>{STYLE}{more}</style></head><body>"
    return "\n".join(["<!doctype html>", head, style, *parts, "</body></html>\n"])


def grid(heads: Iterable[str | tuple[str, str]], rows: Iterable[Iterable[str | tuple[str, str]]]) -> str:
    """A table. A cell is a text, or a class and a text; "l" begins at the left."""

    def line(cells: Iterable[str | tuple[str, str]], tag: str) -> str:
        made = (f"<{tag}>{one}</{tag}>" if isinstance(one, str) else f'<{tag} class="{one[0]}">{one[1]}</{tag}>' for one in cells)
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table><thead>{line(heads, "th")}</thead><tbody>{body}</tbody></table></div>'


def page(rows: Sequence[Row], peaks: Mapping[str, Peaks], server: str, events: Sequence[Event] = ()) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    parts = ["<h1>What ran on kopsd</h1>", f'<p class="note">{escape(server)}, {stamp}</p>']
    for uuid in dict.fromkeys(row.device for row in rows):
        mine = [row for row in rows if row.device == uuid]
        name = peaks[uuid].name if uuid in peaks else uuid
        parts += [f"<h2>{escape(name)}</h2>", f'<p class="note">{escape(uuid)}</p>']
        if uuid in peaks:
            tops, plot = peaks[uuid], Roofline(mine, peaks[uuid])
            best = escape(", ".join(f"{value:,.0f} GFLOP/s in {dtype}" for dtype, value in tops.gflop_s.items())) or "no gemm"
            parts += [f"<p>The most that this device reached when it was measured: {tops.gb_s:,.0f} GB/s; {best}.</p>", roofline(plot)]
            if plot.missing:
                parts[-1] += f'<p class="note">Not drawn: {plot.missing} of the table, whose operations or time are not known.</p>'
        parts.append(_table(mine))
    parts.append(_slowest(rows))
    if events:
        parts += ["<h2>Timeline</h2>", timeline(events)]
    return document("kops report", parts)


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _table(rows: Sequence[Row]) -> str:
    times = ("total ms", "share", "mean µs", "p50 µs", "p99 µs")
    head = ("op", "shapes", "dtype", "variant", "calls", *times, "GB/s", "GFLOP/s", "of the roof", "bound by")
    classes = {0: "l op", 1: "l shapes", 2: "l", 3: "l", 13: "l"}

    def classed(cells: Iterable[str]) -> list[str | tuple[str, str]]:
        return [(classes[i], cell) if i in classes else cell for i, cell in enumerate(cells)]

    lines = []
    for number, row in enumerate(rows, 1):
        bar = f'<span class="bar" style="width:{40 * row.share:.1f}px"></span> {100 * row.share:.1f} %'
        reached = "" if row.reached is None else f"{100 * min(row.reached, 1):.0f} %" if row.reached <= NOISE else "> 100 %"
        cells = [f"{number}. {escape(row.op)}", *map(escape, (row.shapes, row.dtype, row.variant)), str(row.count)]
        cells += [_number(row.total / 1e3, 3), bar]
        cells += [_number(row.mean), _number(row.p50), _number(row.p99), _number(row.gb_s), _number(row.gflop_s), reached, row.bound]
        lines.append(classed(cells))
    note = "Rates and the part of the roof are those of p50; totals and shares are of all executions, by their mean."
    if any(row.reached and row.reached > NOISE for row in rows):
        note += " Above 100 %: the operands came from a cache, which is faster than memory, or the clocks were higher than when measured."
    return f'<p class="note">{note}</p>{grid(classed(head), lines)}'


def _slowest(rows: Sequence[Row]) -> str:
    """Where the most could be won: time that is above what the roof allows."""
    lost = [(row.above_the_roof, row) for row in rows if not row.is_of_peaks and row.above_the_roof and row.above_the_roof >= LEAST]
    lost.sort(key=lambda one: -one[0])
    items = "".join(
        f"<li>{escape(row.op)} {escape(row.dtype)} {escape(row.shapes)}: {us / 1e3:,.3f} ms of {row.total / 1e3:,.3f} ms are above the roof"
        f"{' (small work: the launch itself is most of it)' if row.bound == 'latency' else ''}</li>"
        for us, row in lost[:SLOWEST]
    )
    return f"<h2>Where time could be won</h2><ol>{items}</ol>" if items else ""


# Drawings


def _svg(body: Iterable[str], height: float = HEIGHT) -> str:
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">{"".join(body)}</svg>'
    return f'<div class="wide">{drawing}</div>'


def _colour(number: int | None) -> str:
    return "var(--rest)" if number is None else f"var(--c{number % COLOURS})"


def roofline(plot: Roofline) -> str:
    body = []
    for decade in plot.xs:
        at = plot.x(10.0**decade)
        body.append(f'<line class="grid" x1="{at:.1f}" y1="{FRAME.top}" x2="{at:.1f}" y2="{FRAME.bottom}"/>')
        body.append(f'<text x="{at:.1f}" y="{FRAME.bottom + 16}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in plot.ys:
        at = plot.y(10.0**decade)
        body.append(f'<line class="grid" x1="{FRAME.left}" y1="{at:.1f}" x2="{FRAME.right}" y2="{at:.1f}"/>')
        body.append(f'<text x="{FRAME.left - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    body.append(f'<text x="{(FRAME.left + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">operations for each byte</text>')
    body.append(f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>')
    for line, colour in ((plot.slope, None), *((roof.line, roof.colour) for roof in plot.roofs)):
        path = " ".join(f"{plot.x(a):.1f},{plot.y(b):.1f}" for a, b in line)
        body.append(f'<polyline points="{path}" fill="none" style="stroke:{_colour(colour)}" stroke-width="2"/>')
    for roof in plot.roofs:
        place = f'x="{roof.label[0]:.1f}" y="{roof.label[1]:.1f}"'
        body.append(f'<text class="over" {place} text-anchor="end" style="fill:{_colour(roof.colour)}">{escape(roof.dtype)}</text>')
    for point in plot.points:
        row = point.row
        title = escape(f"{point.number}. {row.op} {row.dtype} {row.shapes}: {point.gflop_s:,.1f} GFLOP/s")
        place = f'cx="{point.x:.1f}" cy="{point.y:.1f}" r="{point.radius:.1f}"'
        body.append(f'<circle {place} style="fill:{_colour(point.colour)}" fill-opacity=".65"><title>{title}</title></circle>')
        if point.label is not None:
            x, y = point.label
            body.append(f'<text class="over" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{point.number}</text>')
    return _svg(body)


def _lane(event: Event) -> tuple[str, int, int]:
    return event.device, event.connection, event.stream


def timeline(events: Sequence[Event]) -> str:
    """The devices' work, a row for each stream; the last slices where there are very many."""
    whole = [event for event in events if event.started is not None and event.device]
    work = whole[-TIMELINE_MOST:]
    if not work:
        return '<p class="note">No work reached a device.</p>'
    lanes = {lane: i for i, lane in enumerate(list(dict.fromkeys(map(_lane, reversed(work))))[:LANES_MOST][::-1])}
    work = [event for event in work if _lane(event) in lanes]
    begin, end = min(event.started or 0 for event in work), max(event.ended for event in work)
    ops = list(dict.fromkeys(event.op for event in work))
    names = [f"connection {connection}, stream {stream}" for _, connection, stream in lanes]
    left = 12 + LETTER * max(map(len, names))
    scale = (WIDTH - left - 10) / max(end - begin, 1)
    height = 40 + LANE * len(lanes)
    body = [f'<text x="4" y="{34 + LANE * i}">{name}</text>' for i, name in enumerate(names)]
    for event in work:
        at, until = event.on_device or (event.ended, event.ended)
        title = escape(f"{event.label}: {(until - at) / 1e3:,.1f} µs")
        x, wide = left + (at - begin) * scale, max((until - at) * scale, 0.5)
        place = f'x="{x:.2f}" y="{20 + LANE * lanes[_lane(event)]}" width="{wide:.2f}" height="18"'
        body.append(f'<rect {place} style="fill:{_colour(ops.index(event.op))}"><title>{title}</title></rect>')
    body.append(f'<text x="{left:.1f}" y="{height - 4}">0</text>')
    body.append(f'<text x="{WIDTH - 10}" y="{height - 4}" text-anchor="end">{(end - begin) / 1e6:,.3f} ms</text>')
    legend = "".join(f'<span style="color:{_colour(i)}">■</span> {escape(op)} ' for i, op in enumerate(ops))
    hidden = len(whole) - len(work)
    note = f'<p class="note">The last {len(work):,} of {len(whole):,} pieces of work.</p>' if hidden else ""
    return f"<p>{legend}</p>" + _svg(body, height) + note


# As a picture

PALETTE = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
REST = "#6b7280"
INCH, DPI = 100, 200  # pixels of a frame to an inch, of the picture
TITLE, KEY = 34, 16  # pixels above each frame, of a line below it
KEY_MOST = 120  # characters of a line
POINT = 72 / INCH  # matplotlib's unit for text and lines, to a pixel


def figure_class() -> Any:
    """matplotlib's, without its windows."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("a report as a picture needs matplotlib: pip install matplotlib; or write one to a .html file") from None
    return Figure


def picture(path: str | os.PathLike[str], rows: Sequence[Row], peaks: Mapping[str, Peaks], server: str) -> None:
    """Draws the devices below each other."""
    uuids = [uuid for uuid in dict.fromkeys(row.device for row in rows) if uuid in peaks]
    if not uuids:
        raise BadArgument("there is no roofline to draw: the peaks of no device that worked are known; write the report to a .html file")
    plots = [Roofline([row for row in rows if row.device == uuid], peaks[uuid]) for uuid in uuids]
    high = sum(_height(plot) for plot in plots)
    figure = figure_class()(figsize=(WIDTH / INCH, high / INCH), dpi=DPI)
    top = 0
    for uuid, plot in zip(uuids, plots):
        bottom, wide, tall = top + TITLE + FRAME.bottom, FRAME.right - FRAME.left, FRAME.bottom - FRAME.top
        axes = figure.add_axes((FRAME.left / WIDTH, 1 - bottom / high, wide / WIDTH, tall / high))
        axes.set_title(f"{peaks[uuid].name}\n{server}, {peaks[uuid].gb_s:,.0f} GB/s", fontsize=11 * POINT, parse_math=False)
        _draw(axes, plot)
        for i, point in enumerate(_numbered(plot), 1):
            y = 1 - (top + TITLE + HEIGHT + KEY * i - 6) / high
            figure.text(FRAME.left / WIDTH, y, _key(point), fontsize=11 * POINT, parse_math=False)
        top += _height(plot)
    figure.savefig(path, format="png")


def _numbered(plot: Roofline) -> list[Point]:
    return [point for point in plot.points if point.label is not None]


def _height(plot: Roofline) -> int:
    return TITLE + HEIGHT + KEY * len(_numbered(plot))


def _key(point: Point) -> str:
    row = point.row
    text = f"{point.number}. {row.op} {row.dtype} {row.shapes}: {point.gflop_s:,.1f} GFLOP/s, {100 * row.share:.1f} % of the time"
    return text if len(text) <= KEY_MOST else text[: KEY_MOST - 1] + "…"


def _draw(axes: Any, plot: Roofline) -> None:
    from matplotlib.patheffects import withStroke

    small = 12 * POINT
    axes.set(xscale="log", yscale="log", xlim=(10.0 ** plot.xs[0], 10.0 ** plot.xs[-1]), ylim=(10.0 ** plot.ys[0], 10.0 ** plot.ys[-1]))
    axes.set_xlabel("operations for each byte", fontsize=small)
    axes.set_ylabel("GFLOP/s", fontsize=small)
    axes.tick_params(labelsize=small)
    axes.grid(color="#ddd")
    axes.set_axisbelow(True)

    def write(at: tuple[float, float], text: str, **how: Any) -> None:
        """Writes at a place of the frame."""
        place = ((at[0] - FRAME.left) / (FRAME.right - FRAME.left), (FRAME.bottom - at[1]) / (FRAME.bottom - FRAME.top))
        made = axes.text(*place, text, transform=axes.transAxes, fontsize=small, parse_math=False, zorder=4, **how)
        made.set_path_effects([withStroke(linewidth=3 * POINT, foreground="white")])

    axes.plot(*zip(*plot.slope), color=REST, linewidth=2 * POINT)
    for roof in plot.roofs:
        axes.plot(*zip(*roof.line), color=PALETTE[roof.colour], linewidth=2 * POINT)
        write(roof.label, roof.dtype, ha="right", va="baseline", color=PALETTE[roof.colour])
    for point in plot.points:
        colour = REST if point.colour is None else PALETTE[point.colour]
        area = (2 * point.radius * POINT) ** 2
        axes.scatter([point.intensity], [point.gflop_s], s=area, color=colour, alpha=0.65, linewidths=0, zorder=3)
        if point.label is not None:
            write(point.label, str(point.number), ha="center", va="center")


def report(
    client: Client, path: str | os.PathLike[str], *, profile: Profile | None = None, peaks: Mapping[str, Peaks] | None = None,
    op: str | None = None, device: Device | str | int | None = None,
) -> dict[str, Peaks]:  # fmt: skip
    """Writes what the daemon's statistics have, by `k.stats()`: each op and kernel with its shapes under the roofs of its device.
    `path` ends in `.html` for a page, or in `.png` for a picture of the rooflines alone, which needs matplotlib. Returns the
    devices' peaks by UUID, to be given to the next report as `peaks`: they are measured where they are missing, which takes some
    seconds of the device and adds to its statistics. `profile`: a `kops.profiler.profile` whose timeline is added to a page. `op`,
    `device`: what ran of this op, or there, alone."""
    kind = Path(path).suffix.lower()
    if kind not in (".html", ".htm", ".png"):
        raise BadArgument(f"a report is a page, .html, or a picture, .png; not {os.fspath(path)!r}")
    if kind == ".png":
        figure_class()  # before seconds are spent
    stats = [row for row in client.stats(op, device=device)["ops"] if row["count"]]
    if not stats:
        what = "nothing" if op is None and device is None else "nothing of this op and device"
        raise BadArgument(f"there is nothing to report: {what} has run since the daemon's start, or the last reset of its statistics")
    known = dict(peaks or {})
    devices = {device.uuid: device for device in client.devices}
    for uuid in {row["device"] for row in stats} & devices.keys() - known.keys():
        known[uuid] = measure(client, devices[uuid])
    rows = rows_of(stats, known)
    server: Any = client.info.server
    if kind == ".png":
        picture(path, rows, known, server)
    else:
        Path(path).write_text(page(rows, known, server, profile.events() if profile is not None else ()), encoding="utf-8")
    return known
