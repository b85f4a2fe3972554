"""A page of what ran: the roofline, the table, the slowest shapes, a timeline. One file, without scripts, that needs no other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .._base.errors import BadArgument
from .._clients.client import Client
from ._peaks import Peaks, measure
from ._profile import profile as Profile  # noqa: N812: a class
from ._recorder import Event

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 460, 70, 50
TIMELINE_MOST = 3000  # slices of a timeline
LABELLED = 12  # points of the roofline that have their number
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #1b1b1b; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: .2em .7em; text-align: right; }
th { border-bottom: 2px solid #888; } tr:nth-child(even) td { background: #f4f5f7; } td.l, th.l { text-align: left; }
svg { width: 100%; height: auto; } .note { color: #666; } .bar { background: #cfe0f5; display: inline-block; height: .7em; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #16181c; } tr:nth-child(even) td { background: #1f2329; }
  svg { background: #e9ebee; } .note { color: #999; } .bar { background: #35577f; } }
"""
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


class Row:
    """A row of the statistics, with its place under the roof."""

    def __init__(self, stats: Mapping[str, Any], peaks: Peaks | None) -> None:
        self.op, self.dtype, self.variant = stats["op"], stats["dtype"], stats["variant"]
        self.device, self.count = stats["device"], stats["count"]
        self.shapes = ", ".join("×".join(map(str, shape)) or "scalar" for shape in stats["shapes"])
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
        if reached < 0.3:
            return reached, "latency"
        return reached, "memory" if by_memory >= by_compute else "compute"


def report(
    client: Client, path: str | os.PathLike[str], *, profile: Profile | None = None, peaks: Mapping[str, Peaks] | None = None,
    op: str | None = None,
) -> dict[str, Peaks]:  # fmt: skip
    """Writes a page of what the daemon's statistics have, by `k.stats()`: each op and kernel with its shapes under the roofs of its
    device. Returns the devices' peaks by UUID, to be given to the next report as `peaks`: they are measured where they are
    missing, which takes some seconds of the device. `profile`: a `kops.profiler.profile` whose timeline is added. `op`:
    this op alone."""
    stats = client.stats(op)
    known = dict(peaks or {})
    devices = {device.uuid: device for device in client.devices}
    if not stats["ops"]:
        raise BadArgument("there is nothing to report: no op has run since the daemon's start, or the last reset of its statistics")
    for uuid in {row["device"] for row in stats["ops"]} & devices.keys() - known.keys():
        known[uuid] = measure(client, devices[uuid])
    rows = [Row(row, known.get(row["device"])) for row in stats["ops"] if row["count"]]
    whole = sum(row.total for row in rows)
    for row in rows:
        row.share = row.total / whole if whole else 0.0
    rows.sort(key=lambda row: -row.total)
    Path(path).write_text(page(rows, known, client.info.server, profile.events() if profile is not None else ()), encoding="utf-8")
    return known


# ---- the page ----


def page(rows: Sequence[Row], peaks: Mapping[str, Peaks], server: str, events: Sequence[Event] = ()) -> str:
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>kops report</title><style>{STYLE}</style></head><body>',
        "<h1>What ran on kopsd</h1>",
        f'<p class="note">{escape(server)}, {time.strftime("%Y-%m-%d %H:%M:%S %Z")}</p>',
    ]
    for uuid in dict.fromkeys(row.device for row in rows):
        mine = [row for row in rows if row.device == uuid]
        name = peaks[uuid].name if uuid in peaks else uuid
        parts += [f"<h2>{escape(name)}</h2>", f'<p class="note">{escape(uuid)}</p>']
        if uuid in peaks:
            parts += [_peaks_text(peaks[uuid]), roofline(mine, peaks[uuid])]
        parts.append(_table(mine))
    parts.append(_slowest(rows))
    if events:
        parts += ["<h2>Timeline</h2>", timeline(events)]
    return "\n".join([*parts, "</body></html>\n"])


def _peaks_text(peaks: Peaks) -> str:
    compute = ", ".join(f"{value:,.0f} GFLOP/s in {dtype}" for dtype, value in peaks.gflop_s.items())
    return f"<p>The most that this device reached when it was measured: {peaks.gb_s:,.0f} GB/s; {compute or 'no gemm'}.</p>"


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _table(rows: Sequence[Row]) -> str:
    times = ("total ms", "share", "mean µs", "p50 µs", "p99 µs")
    head = ("op", "shapes", "dtype", "variant", "calls", *times, "GB/s", "GFLOP/s", "of the roof", "bound by")
    left = (0, 1, 2, 3, 13)
    lines = []
    for number, row in enumerate(rows, 1):
        bar = f'<span class="bar" style="width:{60 * row.share:.1f}px"></span> {100 * row.share:.1f} %'
        reached = "" if row.reached is None else f"{100 * row.reached:.0f} %"
        cells = [f"{number}. {escape(row.op)}", *map(escape, (row.shapes, row.dtype, row.variant)), str(row.count)]
        cells += [_number(row.total / 1e3, 3), bar]
        cells += [_number(row.mean), _number(row.p50), _number(row.p99), _number(row.gb_s), _number(row.gflop_s), reached, row.bound]
        lines.append("<tr>" + "".join(f'<td{" class=l" if i in left else ""}>{cell}</td>' for i, cell in enumerate(cells)) + "</tr>")
    heads = "".join(f'<th{" class=l" if i in left else ""}>{name}</th>' for i, name in enumerate(head))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _slowest(rows: Sequence[Row]) -> str:
    """Where the most could be won: time that is above what the roof allows."""
    lost = [(row.total * (1 - min(row.reached, 1)), row) for row in rows if row.reached is not None]
    lost.sort(key=lambda one: -one[0])
    items = "".join(
        f"<li>{escape(row.op)} {escape(row.dtype)} {escape(row.shapes)}: {us / 1e3:,.3f} ms of {row.total / 1e3:,.3f} ms are above the roof"
        f"{' (small work: the launch itself is most of it)' if row.bound == 'latency' else ''}</li>"
        for us, row in lost[:10]
    )
    return f"<h2>Where time could be won</h2><ol>{items}</ol>" if items else ""


# ---- drawings ----


def _svg(body: Iterable[str], height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">{"".join(body)}</svg>'


def _decades(low: float, high: float) -> range:
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def roofline(rows: Sequence[Row], peaks: Peaks) -> str:
    """Williams, Waterman, Patterson, "Roofline" (2009): performance over operations for each byte, both by decades."""
    points = [(number, row) for number, row in enumerate(rows, 1) if row.intensity and row.gflop_s]
    tops = peaks.gflop_s or {"": max((row.gflop_s or 0 for _, row in points), default=1) or 1}
    ridge = [top / peaks.gb_s for top in tops.values()]
    along = [*ridge, *(row.intensity for _, row in points if row.intensity)]
    up = [*(top / 100 for top in tops.values()), *(row.gflop_s for _, row in points if row.gflop_s)]
    xs, ys = _decades(min(along) / 2, max(along) * 4), _decades(min(up), max(tops.values()) * 2)

    def x(intensity: float) -> float:
        return LEFT + (math.log10(intensity) - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - 20)

    def y(gflop_s: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(gflop_s) - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - BOTTOM - 20)

    body = []
    for decade in xs:
        at = x(10.0**decade)
        body.append(f'<line x1="{at:.1f}" y1="20" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        body.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in ys:
        at = y(10.0**decade)
        body.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - 20}" y2="{at:.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    body.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">operations for each byte</text>')
    body.append(f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>')
    for colour, (dtype, top) in zip(COLOURS, tops.items()):
        begin = max(10.0 ** xs[0], 10.0 ** ys[0] / peaks.gb_s)
        path = f"{x(begin):.1f},{y(peaks.gb_s * begin):.1f} {x(top / peaks.gb_s):.1f},{y(top):.1f} {x(10.0 ** xs[-1]):.1f},{y(top):.1f}"
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body.append(f'<text x="{WIDTH - 24}" y="{y(top) - 5:.1f}" text-anchor="end" fill="{colour}">{escape(dtype)}</text>')
    colour_of = dict(zip(tops, COLOURS))
    for number, row in points:
        assert row.intensity and row.gflop_s
        size = 3 + 9 * math.sqrt(row.share)
        place = f'cx="{x(row.intensity):.1f}" cy="{y(row.gflop_s):.1f}"'
        title = escape(f"{number}. {row.op} {row.dtype} {row.shapes}: {row.gflop_s:,.1f} GFLOP/s")
        colour = colour_of.get(row.dtype, "#555")
        body.append(f'<circle {place} r="{size:.1f}" fill="{colour}" fill-opacity=".65"><title>{title}</title></circle>')
        if number <= LABELLED:
            body.append(f'<text x="{x(row.intensity) + size + 2:.1f}" y="{y(row.gflop_s) + 4:.1f}">{number}</text>')
    return _svg(body)


def timeline(events: Sequence[Event]) -> str:
    """The devices' work, a row for each stream; the last slices where there are very many."""
    work = [event for event in events if event.started is not None and event.device][-TIMELINE_MOST:]
    if not work:
        return '<p class="note">No work reached a device.</p>'
    begin, end = min(event.started or 0 for event in work), max(event.ended for event in work)
    rows = list(dict.fromkeys((event.device, event.connection, event.stream) for event in work))
    ops = list(dict.fromkeys(event.op for event in work))
    height = 40 + 22 * len(rows)
    scale = (WIDTH - LEFT - 90) / max(end - begin, 1)
    body = []
    for i, (_, connection, stream) in enumerate(rows):
        body.append(f'<text x="4" y="{34 + 22 * i}">connection {connection}, stream {stream}</text>')
    for event in work:
        lane = rows.index((event.device, event.connection, event.stream))
        busy = int((event.device_us or 0) * 1e3)
        at = max(event.started or 0, event.ended - busy)
        colour = COLOURS[ops.index(event.op) % len(COLOURS)]
        title = escape(f"{event.label}: {(event.ended - at) / 1e3:,.1f} µs")
        left, wide = LEFT + 80 + (at - begin) * scale, max((event.ended - at) * scale, 0.5)
        place = f'x="{left:.2f}" y="{20 + 22 * lane}" width="{wide:.2f}" height="18"'
        body.append(f'<rect {place} fill="{colour}"><title>{title}</title></rect>')
    body.append(f'<text x="{LEFT + 80}" y="{height - 4}">0</text>')
    body.append(f'<text x="{WIDTH - 10}" y="{height - 4}" text-anchor="end">{(end - begin) / 1e6:,.3f} ms</text>')
    legend = "".join(f'<span style="color:{COLOURS[i % len(COLOURS)]}">■</span> {escape(op)} ' for i, op in enumerate(ops))
    hidden = len([event for event in events if event.started is not None and event.device]) - len(work)
    note = f'<p class="note">The last {len(work):,} of {len(work) + hidden:,} pieces of work.</p>' if hidden else ""
    return f"<p>{legend}</p>" + _svg(body, height) + note
