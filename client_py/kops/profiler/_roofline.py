"""Where everything of a roofline lies, for the page and for the picture.

Williams, Waterman, Patterson, "Roofline" (2009): performance over operations for each byte, both by decades. Lengths are pixels
of a frame of WIDTH × HEIGHT, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ._peaks import Peaks
from ._rows import Row

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 70, 30, 20, 50
LETTER, LINE = 7.5, 13.0  # room for a character of 12 pixels, for a line of them
PIECE = 4.0  # of a line that rises, as a box
LABELLED = 12  # points that have their number
COLOURS = 6  # that there are; a later dtype has those of an earlier one
AWAY = ((1, 0), (0, -1), (-1, 0), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))  # where a number may be beside its point

Line = tuple[tuple[float, float], tuple[float, float]]  # of places: operations for each byte, 10^9 operations a second


@dataclass(frozen=True)
class Roof:
    """What the device reached with a dtype, from where memory is no longer the limit. A label stands at the right end."""

    dtype: str
    colour: int
    line: Line
    label: tuple[float, float]  # its right end, on the base line


@dataclass(frozen=True)
class Point:
    """A row. `number` is its place in the table; one that finds room has a `label`, by its centre."""

    number: int
    row: Row
    colour: int | None  # of its dtype's roof; None: there is none
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
        self.slope: Line = ((begin, peaks.gb_s * begin), (highest / peaks.gb_s, highest))  # what memory allows
        taken: list[Box] = []
        self.roofs = list(self._place_roofs(tops, peaks.gb_s, taken))
        colours = {roof.dtype: roof.colour for roof in self.roofs}
        self.points: list[Point] = []
        circles = [(self.x(a), self.y(b), 3 + 9 * math.sqrt(row.share)) for _, row, a, b in drawn if a and b]
        taken += [Box(x - r, y - r, x + r, y + r) for x, y, r in circles]
        for line in (self.slope, *(roof.line for roof in self.roofs)):  # which would strike a number through
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
