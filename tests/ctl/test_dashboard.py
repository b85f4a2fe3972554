"""The Grafana dashboard asks for what the daemon has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Ctl
from support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "kopsd.json").read_text(encoding="utf-8"))


def declared() -> dict[str, tuple[str, set[str]]]:
    """{name: (type, labels)} of the protocol's declarations."""
    metrics = json.loads((ROOT / "proto" / "metrics.json").read_text(encoding="utf-8"))["metrics"]
    return {m["name"]: (m["type"], set(m["labels"])) for m in metrics}


METRICS = {**declared(), "kopsd_up": ("gauge", set())}


def queries() -> Iterator[tuple[str, str, str]]:
    """(where, expression, legend) of everything that is asked."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"], annotation["textFormat"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"], ""


def uses(expression: str) -> Iterator[tuple[str, str, str]]:
    """(metric, part of a histogram, the function that it is given to) of an expression."""
    for match in re.finditer(r"(\w*)\(?(kopsd_\w+)", expression):
        name, part = match[2], ""
        for suffix in ("_bucket", "_sum", "_count"):
            if name not in METRICS and name.endswith(suffix):
                name, part = name[: -len(suffix)], suffix
        yield name, part, match[1]


@pytest.mark.parametrize(("where", "expression", "legend"), queries())
def test_it_asks_for_what_there_is(where: str, expression: str, legend: str) -> None:
    names = list(uses(expression))
    assert names and expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
    labels = {"instance", "le"}
    for name, part, function in names:
        assert name in METRICS, f"the daemon has no {name}"
        kind, its_labels = METRICS[name]
        labels |= its_labels
        assert bool(part) == (kind == "histogram"), f"{name} is a {kind}"
        if kind != "gauge":
            assert function in ("rate", "increase", "label_values"), f"{name} is a {kind}, only its growth says something"
        else:
            assert function not in ("rate", "increase"), f"{name} is a gauge"
    asked = set(re.findall(r"{{(\w+)}}", legend))
    for group in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expression):
        asked |= set(group.split(", "))
    asked |= set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
    assert asked <= labels, f"no label {asked - labels}"


def test_the_daemon_has_what_is_declared() -> None:
    with Daemon("--backend", "host") as daemon:
        text = Ctl(daemon.socket_path)("metrics").stdout
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    assert types.pop("kopsd_up", "gauge") == "gauge"
    assert types == {name: kind for name, (kind, _) in declared().items()}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
        assert set(re.findall(r'(\w+)="', labels)) <= METRICS[name][1], name


def test_what_matters_is_shown() -> None:
    """Not every metric, but none of those that tell that something is wrong."""
    shown = {name for _, expression, _ in queries() for name, _, _ in uses(expression)}
    assert {n for n in METRICS if re.search(r"error|fault|refus|turned_away|lost|failure|up$|start_time|state", n)} <= shown


def test_its_variables_are_declared() -> None:
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD).replace("$__", "")))
    assert {v["name"] for v in DASHBOARD["templating"]["list"]} >= used
