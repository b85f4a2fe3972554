"""The report: a page whose numbers are those of the statistics."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from kops.profiler import Peaks, profile, report
from kops.profiler._report import Row, page, roofline
from test_daemon import Daemon, backends

PEAKS = Peaks("GPU-1", "a <GPU>", 4000.0, {"f32": 50_000.0, "f16": 800_000.0})
VOID = {"meta", "br", "hr", "img", "link"}


@pytest.fixture
def real() -> Iterator[Daemon]:
    with Daemon(config=backends.config(backends.HOST)) as running:
        yield running


def row(op: str = "add", **more: Any) -> dict[str, Any]:
    times = {key: 10.0 for key in ("min", "mean", "p50", "p90", "p99", "p999", "max")}
    made = {"op": op, "dtype": "f32", "variant": "v", "device": "GPU-1", "count": 100, "shapes": [[1000]] * 3, "exec_us": times}
    return {**made, "bytes": 12_000_000, "operations": 1_000_000, **more}


class Page(HTMLParser):
    """Checks that elements close, and collects cells and headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert not {"src", "href", "onclick"} & {name for name, _ in attrs}, "it needs nothing else"
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_where_work_lies_under_the_roof() -> None:
    memory, latency = Row(row(bytes=36_000_000), PEAKS), Row(row(bytes=12_000), PEAKS)
    compute = Row(row("gemm", bytes=1_000_000, operations=450_000_000), PEAKS)
    assert (memory.bound, latency.bound, compute.bound) == ("memory", "latency", "compute")
    assert memory.reached == pytest.approx(3600 / 4000) and compute.reached == pytest.approx(45_000 / 50_000)
    assert memory.total == 1000.0 and memory.gb_s == pytest.approx(3600)
    unknown = Row({**row(), "exec_us": None, "bytes": None}, PEAKS)
    assert unknown.reached is None and unknown.bound == "" and unknown.total == 0
    assert Row(row(), None).reached is None


def test_the_roofline_stays_in_its_frame() -> None:
    rows = [Row(row("gemm", bytes=10**i, operations=10**j), PEAKS) for i in range(3, 9) for j in range(3, 11)]
    (drawing,) = svgs(roofline(rows, PEAKS))
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    circles = [e for e in drawing if e.tag == "circle"]
    assert len(circles) == len(rows)
    for circle in circles:
        assert 0 < float(circle.attrib["cx"]) < width and float(circle.attrib["cy"]) < height
    for line in drawing.iter("polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height
    assert len(svgs(roofline([], PEAKS))) == 1


def test_names_are_no_markup() -> None:
    text = page([Row(row("<script>alert(1)</script>", shapes=[[]]), PEAKS)], {"GPU-1": PEAKS}, "kopsd <0>")
    assert "<script" not in text and "a &lt;GPU&gt;" in text
    assert Page(text).cells[1][0] == "1. <script>alert(1)</script>"


def test_a_report_of_a_daemon(real: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with kops.connect(real.socket_path, timeout=120) as k:
        with pytest.raises(kops.BadArgument, match="nothing to report"):
            report(k, path)
        a = k.array(numpy.ones((256, 256), "float32"))
        with profile(socket=real.socket_path) as p:
            for _ in range(5):
                k.add(a, a)
            k.gemm(a, a)
        peaks = {"host": Peaks("host", "this processor", 20.0, {"f32": 100.0})}
        assert report(k, path, profile=p, peaks=peaks) == peaks
        text = path.read_text(encoding="utf-8")
        table = Page(text).cells
        calls = {cells[0].partition(" ")[2]: cells for cells in table[1:]}
        assert set(calls) == {"add", "gemm"} and calls["add"][4] == "5" and calls["add"][1] == ", ".join(["256×256"] * 3)
        roof, timeline = svgs(text)
        assert len(list(timeline.iter("rect"))) == 6 and len(list(roof.iter("circle"))) == 2
        assert "this processor" in text and "20 GB/s" in text
        kops.report(k, path, op="gemm", peaks=peaks)
        assert [cells[0] for cells in Page(path.read_text(encoding="utf-8")).cells[1:]] == ["1. gemm"]


def test_peaks_are_measured(real: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kops.profiler._peaks.HOST", (1 << 20, 128))
    with kops.connect(real.socket_path, timeout=120) as k:
        k.square(numpy.ones(10, "float32"))
        (found,) = report(k, tmp_path / "report.html").values()
    assert found.device == "host" and found.gb_s > 0.1 and found.gflop_s.keys() == {"f32", "f64", "f16"}
    assert all(value > 0.01 for value in found.gflop_s.values())
