"""The rows of a report: what ran, and how far it is from what its device can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._peaks import Peaks, is_of_peaks

LATENCY = 0.3  # of the roof; who reaches less is held up by neither memory nor arithmetic

NOISE = 1.05  # of the roof: a larger rate comes from a cache


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
