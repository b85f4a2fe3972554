"""The report in a browser: what is seen of it, in light and dark, in wide and narrow windows."""

from __future__ import annotations

import random
from typing import Any

import browser
import pytest
from kops.profiler import Peaks
from kops.profiler._recorder import Event
from kops.profiler._report import page, rows_of

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason=browser.WHY_NOT)
PEAKS = {
    "GPU-1": Peaks("GPU-1", "NVIDIA H200", 4300.0, {"f32": 52_000.0, "f64": 51_000.0, "f16": 790_000.0}),
    "host": Peaks("host", "a processor", 25.0, {"f32": 140.0, "f64": 70.0}),
}
# Boxes of what is drawn, in pixels, of each drawing: the drawing, its points, its texts, its lines.
DRAWINGS = """
[...document.querySelectorAll("svg")].map(svg => {
    const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
    const all = name => [...svg.querySelectorAll(name)].map(e => ({box: box(e), text: e.textContent, over: e.classList.contains("over")}));
    return {box: box(svg), circles: all("circle"), texts: all("text"), lines: all("polyline"), grid: all("line"), rects: all("rect")};
})
"""
# Elements whose text is wider than they are, where nothing lets one scroll to the rest. Drawings are looked at by their boxes.
CUT = """
[...document.querySelectorAll("body *")].filter(e => !e.closest("svg") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
    && getComputedStyle(e).overflowX !== "auto" && getComputedStyle(e).display !== "inline").map(e => e.outerHTML.slice(0, 200))
"""
# The luminance of the text and of what is behind it, by WCAG 2.1, of everything that has text of its own.
CONTRAST = """
(() => {
    const rgb = c => c.match(/[\\d.]+/g).map(Number);
    const light = c => rgb(c).slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (rgb(c).length === 3 || rgb(c)[3] > 0) return c; } return "rgb(255, 255, 255)"; };
    const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    return [...document.querySelectorAll("body *")].filter(e => own(e) && e.tagName !== "title").map(e => {
        const style = getComputedStyle(e), ink = light(e.closest("svg") ? style.fill : style.color), paper = light(behind(e));
        return [(Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05), e.outerHTML.slice(0, 120)];
    }).filter(one => one[0] < 3);
})()
"""


def row(device: str, op: str, dtype: str, shapes: list[list[int]], us: float, size: int, work: int | None) -> dict[str, Any]:
    times = {"mean": us * 1.1, "p50": us, "p99": us * 3}
    return {
        "op": op, "dtype": dtype, "variant": "cublaslt", "device": device, "count": 1000, "shapes": shapes, "exec_us": times,
        "bytes": size, "operations": work,
    }  # fmt: skip


def stats() -> list[dict[str, Any]]:
    """Many points on and beside each other; names that are long, and that are markup."""
    chance = random.Random(1)
    rows = []
    for side in (64, 128, 512, 1024, 4096, 8192):
        for dtype, size in (("f32", 4), ("f64", 8), ("f16", 2), ("bf16", 2)):
            work, moved = 2 * side**3, 3 * side * side * size
            us = max(2.0, work / 40e6 * chance.uniform(1, 4))
            rows.append(row("GPU-1", "gemm", dtype, [[side, side]] * 3, us, moved, work))
        rows.append(row("host", "add", "f32", [[side, side]] * 3, side * side / 2e3, 12 * side * side, side * side))
    rows.append(row("GPU-1", "a_kernel_with_quite_a_long_name_" * 3, "f32", [[10**9], [10**9], []], 900.0, 8 * 10**9, None))
    rows.append(row("GPU-1", "<b onmouseover=alert(1)>&amp;</b><script>alert(1)</script>", "f32", [[7]], 9.0, 70, 7))
    return rows


def events() -> list[Event]:
    def event(i: int) -> Event:
        at = 10**15 + 1000 * i
        return Event(
            what="run", op=("add", "gemm", "square")[i % 3], ops=1, device="GPU-1", variant="v", dtype="f32", shapes=((4,),), pid=1, uid=1,
            client="", comm="", connection=10**6 + i % 7, call=i, stream=10 ** (i % 7), received=at, ready=at, started=at, ended=at + 900,
            busy_us=None, executions=1, failed=False,
        )  # fmt: skip

    return [event(i) for i in range(400)]


EXPRESSIONS = {
    "drawings": DRAWINGS, "cut": CUT, "contrast": CONTRAST,
    "requests": "performance.getEntriesByType('resource').map(e => e.name)",
    "foreign": "document.querySelectorAll('script, link, img, iframe').length",
    "text": "document.body.innerText",
    "fits": "document.documentElement.scrollWidth <= window.innerWidth",
    "scrolled": "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length",
    "letters": "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)",
    "title": "document.querySelector('circle title').textContent",
    "paper": "getComputedStyle(document.body).backgroundColor",
}  # fmt: skip


@pytest.fixture(scope="module")
def windows() -> dict[str, Any]:
    """A page that has everything, in windows of several kinds."""
    shown = page(rows_of(stats(), PEAKS), PEAKS, "kopsd 1.0", events())
    wide, less_wide, narrow = browser.look(shown, EXPRESSIONS, 1280, 1200, 390)
    (dark,) = browser.look(shown, EXPRESSIONS, 1280, dark=True)
    return {"light": wide, "less wide": less_wide, "narrow": narrow, "dark": dark}


@pytest.fixture(params=["light", "less wide", "narrow", "dark"])
def window(request: pytest.FixtureRequest, windows: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, Any] = windows[request.param]
    return seen


def inside(inner: list[float], outer: list[float], slack: float = 0.6) -> bool:
    return all(a >= b - slack for a, b in zip(inner[:2], outer[:2])) and all(a <= b + slack for a, b in zip(inner[2:], outer[2:]))


def meet(one: list[float], other: list[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_it_needs_nothing(window: dict[str, Any]) -> None:
    assert window["requests"] == [] and window["foreign"] == 0
    assert "<script>alert(1)</script>" in window["text"], "a name is shown as it is"
    assert window["title"].startswith("1. gemm f16 8192×8192, 8192×8192, 8192×8192: "), "what a point is"


def test_everything_is_within_its_drawing(window: dict[str, Any]) -> None:
    gpu, host, timeline = window["drawings"]
    assert len(gpu["circles"]) == 6 * 4 + 1 and len(host["circles"]) == 6 and len(timeline["rects"]) == 400
    for drawing in (gpu, host, timeline):
        for part in ("circles", "texts", "lines", "rects"):
            for drawn in drawing[part]:
                assert inside(drawn["box"], drawing["box"]), drawn
    for drawing in (gpu, host):
        left, top, right, bottom = zip(*(line["box"] for line in drawing["grid"]))
        frame = [min(left), min(top), max(right), max(bottom)]
        for circle in drawing["circles"]:
            x, y = sum(circle["box"][::2]) / 2, sum(circle["box"][1::2]) / 2
            assert frame[0] < x < frame[2] and frame[1] < y < frame[3], circle
        assert all(inside(line["box"], frame, slack=2) for line in drawing["lines"])


def test_texts_do_not_lie_on_each_other(window: dict[str, Any]) -> None:
    for drawing in window["drawings"]:
        texts = drawing["texts"]
        assert texts
        for i, one in enumerate(texts):
            # A box has room above and below its letters.
            for other in texts[:i]:
                boxes = [[left, top + 2, right, bottom - 3] for left, top, right, bottom in (one["box"], other["box"])]
                assert not meet(*boxes), (one, other)
            if one["over"]:
                left, top, right, bottom = one["box"]
                touched = [circle for circle in drawing["circles"] if meet([left + 1, top + 3, right - 1, bottom - 3], circle["box"])]
                assert not touched, (one, touched)
        names = [text for text in texts if text["text"].startswith("connection")]
        for name in names:
            assert not any(meet(name["box"], slice_["box"]) for slice_ in drawing["rects"]), name


def test_nothing_is_cut(windows: dict[str, Any]) -> None:
    for name, window in windows.items():
        assert window["fits"] and window["cut"] == [], "only parts of the page scroll sideways"
        assert name == "narrow" or window["scrolled"] == 0, "a window of 1200 pixels shows each column"


def test_everything_can_be_read(windows: dict[str, Any]) -> None:
    for window in windows.values():
        assert window["contrast"] == [] and min(window["letters"]) > 8, "of the drawings' letters, in pixels"
    assert windows["light"]["paper"] != windows["dark"]["paper"]
