"""The report as a picture: the roofline of each device with a line for each number, by matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import BadArgument, Unsupported
from ._peaks import Peaks
from ._roofline import FRAME, HEIGHT, WIDTH, Point, Roofline
from ._rows import Row

PALETTE = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
REST = "#6b7280"
INCH, DPI = 100, 200  # pixels of a frame to an inch, of the picture
TITLE, KEY = 34, 16  # pixels above each frame, of a line below it
KEY_MOST = 120  # characters of a line
POINT = 72 / INCH  # what matplotlib measures text and lines in, to a pixel


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
        """At a place of the frame."""
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
