"""The form of a result: one record a measure, a list of records a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

Better = Literal["lower", "higher", "same"]  # same: the target bounds how far ours may be from the peer's, in the unit
Statistic = Literal["p50", "p99", "max"]


@dataclass
class Summary:
    """Percentiles of samples, in the record's unit. p99 is the slow tail, whichever way better lies."""

    p50: float
    p99: float
    n: int
    name: str | None = None
    max: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def summarise(samples: Iterable[float], name: str | None = None) -> Summary:
    """Of durations in microseconds."""
    ordered = sorted(samples)
    return Summary(quantile(ordered, 0.50), quantile(ordered, 0.99), len(ordered), name, ordered[-1])


def merge(rounds: Sequence[Summary], name: str | None = None) -> Summary:
    """Several rounds of one measure: medians of their percentiles."""
    p50, p99 = (median(getattr(one, which) for one in rounds) for which in ("p50", "p99"))
    return Summary(p50, p99, sum(one.n for one in rounds), name)


def summarise_rate(samples_us: Iterable[float], work: float, name: str | None = None) -> Summary:
    """Of rates: `work` (bytes or operations) a duration, in billions a second."""
    times = summarise(samples_us, name)
    return Summary(work / times.p50 * 1e-3, work / times.p99 * 1e-3, times.n, name)


@dataclass
class Record:
    measure: str
    unit: str
    better: Better
    ours: Summary
    peer: Summary | None
    detail: dict[str, Any] = field(default_factory=dict)
    target: float | None = None
    absolute: bool = False  # the target bounds our own number, not the ratio
    statistic: Statistic = "p50"  # which of ours an absolute target bounds

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's, medians."""
        return self.ours.p50 / self.peer.p50 if self.peer and self.peer.p50 else None

    @property
    def bounded(self) -> float | None:
        """The target bounds our own number, the ratio, or how much more ours is than the peer's where they are to be the same."""
        mine = getattr(self.ours, self.statistic)
        if self.better != "same":
            return float(mine) if self.absolute else self.ratio
        return float(mine - getattr(self.peer, self.statistic)) if self.peer else None

    @property
    def met(self) -> bool | None:
        value = self.bounded
        if self.target is None or value is None or math.isnan(value):
            return None
        if self.better == "same":
            return abs(value) <= self.target
        return value <= self.target if self.better == "lower" else value >= self.target

    @property
    def _bounds(self) -> dict[str, Any]:
        if self.better == "same":
            return {"target_bounds": f"difference.{self.statistic}", "difference": self.bounded}
        return {"target_bounds": f"ours.{self.statistic}"} if self.absolute else {}

    def as_json(self, context: dict[str, Any]) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "unit": self.unit,
            "ours": self.ours.as_json(),
            "peer": self.peer.as_json() if self.peer else None,
            "ratio": self.ratio,
            "better": self.better,
            "target": self.target,
            "met": self.met,
            **context,
            "detail": {**self._bounds, **self.detail},
        }


def failure(measure: str, error: str, context: dict[str, Any]) -> dict[str, Any]:
    """The record of a measure that brought no number."""
    nothing = dict.fromkeys(("unit", "ours", "peer", "ratio", "better", "target", "met"))
    return {"measure": measure, **nothing, **context, "detail": {}, "error": error}


def significant(value: Any, digits: int = 4) -> Any:
    """Rounds every float inside to significant digits: more would only pretend precision."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: significant(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [significant(item, digits) for item in value]
    return value


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """In one step: who reads it, or ends this program, never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(significant(record), ensure_ascii=False) for record in records)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    os.replace(fresh, path)


def load(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Records by name, in the order of the files: of each measure the latest that has a number."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for record in json.loads(path.read_text(encoding="utf-8")):
            before = found.get(record["measure"])
            if before is None or (not record.get("error"), record["date"]) >= (not before.get("error"), before["date"]):
                found[record["measure"]] = record
    return found
