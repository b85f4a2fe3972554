"""Peaks of devices, measured with the daemon's own ops; how far each row of a report is from that; and where everything of a roofline
lies, for the page and for the picture.

Williams, Waterman, Patterson, "Roofline" (2009): performance over operations for each byte, both by decades. Lengths are pixels
of a frame of WIDTH × HEIGHT, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from .. import Client, Device, KopsError

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
