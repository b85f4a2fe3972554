"""The report: a page, and a picture, whose numbers are those of the statistics."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from built import Daemon, backends, daemon_of
from kops._tensors.numpy import BITS, bits_of, numbers_of
from kops.profiler import Peaks, profile, report
from kops.profiler.__main__ import main, read_peaks
from kops.profiler._recorder import Event
from kops.profiler._report import Roofline, Row, page, rows_of, timeline

PEAKS = Peaks("GPU-1", "a <GPU>", 4000.0, {"f32": 50_000.0, "f16": 800_000.0})
VOID = {"meta", "br", "hr", "img", "link"}


@pytest.fixture
def real() -> Iterator[Daemon]:
    with daemon_of(backends.HOST) as running:
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
    cached = Row(row(bytes=80_000_000), PEAKS)
    assert cached.reached == pytest.approx(2) and cached.bound == "cache" and cached.above_the_roof == 0
    shown = page([cached, memory], {"GPU-1": PEAKS}, "kopsd 0")
    assert [cells[12] for cells in Page(shown).cells] == ["of the roof", "> 100 %", "90 %"] and "came from a cache" in shown
    assert "came from a cache" not in page([memory], {"GPU-1": PEAKS}, "kopsd 0")
    assert memory.p50
    skewed = row(bytes=36_000_000)
    skewed["exec_us"] = {**skewed["exec_us"], "mean": 3 * memory.p50}
    lost = Row(skewed, PEAKS).above_the_roof
    assert lost == pytest.approx(memory.count * (3 - 0.9) * memory.p50), "the slow executions are above the roof, too"
    unknown = Row({**row(), "exec_us": None, "bytes": None}, PEAKS)
    assert unknown.reached is None and unknown.bound == "" and unknown.total == 0
    assert Row(row(), None).reached is None


def test_no_line_strikes_a_number_through() -> None:
    """Points on the slope, on the roof, and where both meet."""
    rows = [Row(row("gemm", bytes=1_000, operations=int(1_000 * i), exec_us={"p50": us, "mean": us, "p99": us}), PEAKS)
            for i, us in ((1.0, 0.00025), (4.0, 0.00025), (12.5, 0.00025), (125.0, 0.0025), (1250.0, 0.025))]  # fmt: skip
    plot = Roofline(rows, PEAKS)
    places = [[(plot.x(a), plot.y(b)) for a, b in line] for line in (plot.slope, *(roof.line for roof in plot.roofs))]
    for point in plot.points:
        assert point.label
        for (left, top), (right, bottom) in places:
            for step in range(1001):
                x, y = left + (right - left) * step / 1000, top + (bottom - top) * step / 1000
                assert abs(x - point.label[0]) > 3 or abs(y - point.label[1]) > 5, point


def test_what_cannot_be_drawn_is_said() -> None:
    """A kernel of a user declares no operations. Names are no markup."""
    rows = rows_of([row(), row("mine", operations=None), row("failed", count=0)], {"GPU-1": PEAKS})
    assert [r.op for r in rows] == ["add", "mine"] and sum(r.share for r in rows) == pytest.approx(1)
    text = page(rows, {"GPU-1": PEAKS}, "kopsd 0")
    assert "Not drawn: 1 of the table" in text and text.count("<circle") == 1
    assert "Not drawn" not in page(rows[:1], {"GPU-1": PEAKS}, "kopsd 0")
    assert "<circle" not in page(rows, {}, "kopsd 0") and len(Page(page(rows, {}, "kopsd 0")).cells) == 3
    text = page([Row(row("<script>alert(1)</script>", shapes=[[]]), PEAKS)], {"GPU-1": PEAKS}, "kopsd <0>")
    assert "<script" not in text and "a &lt;GPU&gt;" in text
    assert Page(text).cells[1][0] == "1. <script>alert(1)</script>"


def test_no_advice_on_the_measuring_of_peaks() -> None:
    """A later report has that work among its rows."""
    shapes = {"add": [[1 << 27]] * 3, "gemm": [[8192, 8192]] * 3, "scaled_gemm": [[8192, 8192]] * 2, "square": [[1 << 27]] * 2}
    for op, sizes in shapes.items():
        shown = page(rows_of([row(op, shapes=sizes)], {"GPU-1": PEAKS}), {"GPU-1": PEAKS}, "kopsd 0")
        assert ("time could be won" in shown) == (op == "square") and len(Page(shown).cells) == 2
    assert "time could be won" in page(rows_of([row()], {"GPU-1": PEAKS}), {"GPU-1": PEAKS}, "kopsd 0")


def test_a_timeline_is_bounded() -> None:
    def event(connection: int, at: int) -> Event:
        return Event(
            what="run", op="add", ops=1, device="host", variant="v", dtype="f32", shapes=((4,),), pid=1, uid=1, client="", comm="",
            connection=connection, call=at, stream=0, received=at, ready=at, started=at, ended=at + 10, busy_us=None,
            executions=1, failed=False,
        )  # fmt: skip

    text = timeline([event(i % 200, 100 * i) for i in range(10_000)])
    (drawing,) = svgs(text)
    assert len(list(drawing.iter("text"))) == 100 + 2 and "The last 1,500 of 10,000 pieces" in text
    assert "connection 199, stream 0" in text and "connection 99," not in text
    (drawing,) = svgs(timeline([event(0, 100 * i) for i in range(10_000)]))
    assert len(list(drawing.iter("rect"))) == 3000


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
    monkeypatch.setattr("kops.profiler._report.HOST", (1 << 20, 128))
    with kops.connect(real.socket_path, timeout=120) as k:
        k.square(numpy.ones(10, "float32"))
        (found,) = report(k, tmp_path / "report.html").values()
        measured = rows_of([row for row in k.stats()["ops"] if row["op"] in ("gemm", "scaled_gemm")], {"host": found})
    assert found.device == "host" and found.gb_s > 0.1
    assert found.gflop_s.keys() == {"f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2"}
    assert all(value > 0.01 for value in found.gflop_s.values())
    assert {row.dtype for row in measured} >= found.gflop_s.keys(), "the daemon was asked for each"
    plot = Roofline(measured, found)
    assert {roof.dtype for roof in plot.roofs} == found.gflop_s.keys() and all(point.colour is not None for point in plot.points)


def test_bits_of_results(real: Daemon) -> None:
    """In the pool's memory, and copied; and products of 8 bits."""
    bits = BITS["bf16"]
    a, wanted = (bits_of(numpy.array(values, "float32"), "bf16") for values in ([1.5, -2, 3], [2.25, 4, 9]))
    with kops.connect(real.socket_path, timeout=120) as k:
        for place in (lambda value: k.array(value).view(bits), numpy.copy):
            out = place(numpy.zeros_like(a)).view(bits)
            k.square(place(a).view(bits), out=out)
            assert out.tolist() == wanted.tolist()
        a, b = (bits_of(numpy.array(values, "float32"), "f8_e4m3") for values in ([[1.5, -2]], [[4, 0.5]]))
        out, one = numpy.zeros((1, 1), "uint16").view(bits), numpy.ones((), "float32")
        k.scaled_gemm(a, b, one, one, out=out, trans_b=True)
    assert out.tolist() == bits_of(numpy.array([[5]], "float32"), "bf16").tolist()


@pytest.mark.parametrize(
    ("dtype", "known"),
    [("f8_e4m3", {0x38: 1.0, 0x7E: 448.0, 0x01: 2.0**-9, 0xC2: -2.5}), ("f8_e5m2", {0x3C: 1.0, 0x7B: 57344.0, 0x01: 2.0**-16, 0xC1: -2.5})],
)
def test_bits_of_8_bits(dtype: str, known: dict[int, float]) -> None:
    numbers = numbers_of(dtype)
    assert {byte: numbers[byte] for byte in known} == known
    finite = numpy.array([byte for byte in range(256) if numpy.isfinite(numbers[byte]) and byte != 128], "uint8")
    assert len(finite) == {"f8_e4m3": 253, "f8_e5m2": 247}[dtype]
    assert bits_of(numbers[finite].astype("float32"), dtype).tolist() == finite.tolist(), "each number has its own byte"
    assert bits_of(numpy.array([1.03, -2.4, 0], "float32"), dtype).tolist() == [next(iter(known)), [*known][3], 0]


def test_a_picture(real: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib here (pip install matplotlib)")
    from matplotlib.image import imread

    path, plain = tmp_path / "report.png", tmp_path / "plain.png"
    peaks = {"host": Peaks("host", "this $processor$", 20.0, {"f32": 100.0})}
    with kops.connect(real.socket_path, timeout=120) as k:
        a = k.array(numpy.ones((256, 256), "float32"))
        k.add(a, a)
        report(k, plain, peaks=peaks)
        k.gemm(a, a)
        assert report(k, path, peaks=peaks) == peaks
    image, other = imread(path), imread(plain)
    assert image.shape[1] == 1720 and 30 < image.shape[0] - other.shape[0] < 34, "a line of text for each number"
    blue = (image[..., 2] > 0.6) & (image[..., 0] < 0.5)
    assert blue.sum() > 500, "points and a roof of their colour"
    assert (image[:10, :, :3] == 1).all() and (image[:, :10, :3] == 1).all(), "nothing is cut"


def test_no_matplotlib(real: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with kops.connect(real.socket_path, timeout=120) as k:
        with pytest.raises(kops.Unsupported, match="pip install matplotlib"):
            report(k, tmp_path / "report.png")
        with pytest.raises(kops.BadArgument, match="report.pdf"):
            report(k, tmp_path / "report.pdf")
    assert not list(tmp_path.iterdir())


def test_the_command(real: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, peaks = tmp_path / "report.html", tmp_path / "peaks.json"
    monkeypatch.setattr("kops.profiler._report.HOST", (1 << 20, 128))
    wanted = ["--socket", real.socket_path, "-o", str(path), "--peaks", str(peaks)]
    assert main(wanted) == 1 and "nothing to report" in capsys.readouterr().err and not peaks.exists()
    with kops.connect(real.socket_path, timeout=120) as k:
        k.square(numpy.ones(10, "float32"))
    assert main(wanted) == 0 and "the peaks of host were measured" in capsys.readouterr().out
    measured = peaks.read_text(encoding="utf-8")
    assert main([*wanted, "--op", "square", "--device", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(path), "measured": []}
    assert peaks.read_text(encoding="utf-8") == measured and read_peaks(peaks)["host"].gb_s > 0.1
    assert [cells[0] for cells in Page(path.read_text(encoding="utf-8")).cells[1:]] == ["1. square"]
    for wrong in ("[1]", '{"host": 3}', "{", '{"host": {"name": "x", "gb_s": "fast", "gflop_s": {}}}'):
        peaks.write_text(wrong, encoding="utf-8")
        assert main(wanted) == 1 and "peaks.json has no peaks" in capsys.readouterr().err, wrong
    peaks.write_text(measured, encoding="utf-8")
    for more, code, status in (
        (["--device", "7"], "unknown_device", 1), (["-o", str(tmp_path / "no" / "r.html")], "os_error", 1),
        (["--socket", str(tmp_path / "nobody")], "connect_failed", 3),
    ):  # fmt: skip
        assert main([*wanted, "--json", *more]) == status
        assert json.loads(capsys.readouterr().err)["error"]["code"] == code


def test_numbers_and_labels_touch_nothing() -> None:
    """Points on each other, roofs that are nearly one."""
    close = Peaks("GPU-1", "close", 4000.0, {"f32": 50_000.0, "f16": 50_001.0, "f64": 49_999.0})
    rows = [Row(row("gemm", bytes=1_000_000 + i, operations=1_000_000), close) for i in range(20)]
    plot = Roofline(rows, close)
    labels = [point.label for point in plot.points if point.label]
    assert 4 <= len(labels) <= 12 and len(set(labels)) == len(labels)
    for i, (x, y) in enumerate(labels):
        assert all(abs(x - other_x) >= 7 or abs(y - other_y) >= 13 for other_x, other_y in labels[:i])
        assert all(abs(x - point.x) > point.radius or abs(y - point.y) > point.radius for point in plot.points)
    heights = [roof.label[1] for roof in plot.roofs]
    assert [roof.dtype for roof in plot.roofs] == ["f64", "f32", "f16"], "the lowest first"
    assert all(one - other >= 13 for one, other in zip(heights, heights[1:], strict=False)) and min(heights) > 13
    alone = Roofline([Row(row("gemm"), close)], close)
    assert all(point.label for point in alone.points)
