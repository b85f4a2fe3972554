"""A strict reader of Prometheus' text format, version 0.0.4: everything that a scraper may refuse is an error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HEAD = re.compile(rf"# (HELP|TYPE) ({NAME}) (.*)")
SAMPLE = re.compile(rf"({NAME})(\{{(.*)\}})? ([^ ]+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|$)')
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
SUFFIXES = ("_bucket", "_sum", "_count")

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    name: str
    help: str
    type: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        return self.samples[self.name + suffix, frozenset(labels.items())]

    def labels(self) -> set[tuple[str, ...]]:
        """The label names of its samples."""
        return {tuple(sorted(k for k, _ in labels)) for _, labels in self.samples}


def parse_labels(text: str) -> Labels:
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"bad labels: {text[at:]!r}"
        pairs.append((match[1], re.sub(r'\\[\\"n]', lambda m: ESCAPES[m[0]], match[2])))
        at = match.end()
    assert not text.endswith(","), text
    assert len({k for k, _ in pairs}) == len(pairs), f"a label twice: {text}"
    return frozenset(pairs)


def check_histogram(family: Family) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name == family.name + "_bucket":
            bound = dict(labels)["le"]
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((float(bound), value))
    for rest, buckets in series.items():
        bounds, counts = [b for b, _ in buckets], [c for _, c in buckets]
        assert bounds == sorted(set(bounds)) and bounds[-1] == math.inf, (family.name, rest)
        assert counts == sorted(counts), f"not cumulative: {family.name} {rest}"
        assert family.samples[family.name + "_count", rest] == counts[-1]
        assert family.samples[family.name + "_sum", rest] >= 0
    assert len(family.samples) == sum(len(b) + 2 for b in series.values()), "series without buckets"


def parse(text: str) -> dict[str, Family]:
    assert text.endswith("\n") and "\r" not in text
    families: dict[str, Family] = {}
    family = None
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            match = HEAD.fullmatch(line)
            assert match, line
            kind, name, rest = match.groups()
            if kind == "HELP":
                assert name not in families, f"twice: {name}"
                assert rest and not re.search(r"\\(?![\\n])", rest)
                family = families[name] = Family(name, rest)
            else:
                assert family and family.name == name and not family.samples and not family.type, line
                assert rest in ("counter", "gauge", "histogram"), line
                family.type = rest
            continue
        match = SAMPLE.fullmatch(line)
        assert match and family and family.type, line
        name, _, labels, value = match.groups()
        names = [family.name + s for s in SUFFIXES] if family.type == "histogram" else [family.name]
        assert name in names, f"{name} among {family.name}"
        key = (name, parse_labels(labels or ""))
        assert key not in family.samples, f"twice: {line}"
        family.samples[key] = float(value)
        assert not math.isnan(family.samples[key]), line
    for family in families.values():
        if family.type == "histogram":
            check_histogram(family)
    return families


def never_fell(before: dict[str, Family], after: dict[str, Family]) -> None:
    """No counter, nor any part of a histogram, is smaller than it was, and none has gone."""
    for family in before.values():
        for key, value in family.samples.items():
            if family.type in ("counter", "histogram"):
                assert after[family.name].samples[key] >= value, key
