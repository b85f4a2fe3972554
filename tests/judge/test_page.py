"""Verdicts as text, as a page, and what strangers write in both; comparing without any kernel."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import kops
import numpy as np
import pytest
from kops import judge
from kops.judge import _draws, _values, _verdict
from material import task

EVIL = "<script>alert(1)</script>\x1b[2J\u202e"
TIME = judge.Time(
    "n=1", judge.Measured(10.0, 9.0, 11.0, 8), judge.Measured(5.0, 4.5, 5.5, 8), judge.Measured(20.0, 19.0, 21.0, 8), 2.0, 1.9, 2.1, 12.0,
    "cupti", 1000, 100.0, 0.5, "memory", {"dram_pct": 50.0},
)  # fmt: skip
VERDICTS = [
    judge.Verdict("right", task="t", solution="fast", how="gpu", device="GPU", time=TIME, cases=("n=1",), launches=9),
    judge.Verdict("wrong", EVIL, "t", EVIL, worst=judge.Worst("value", "out", (1,), math.nan, 2.0, "n=1", 0, 1, 2), warnings=(EVIL,)),
    judge.Verdict("faulted", "f", fault=judge.Fault("k", "block (0,0,0): boom", "race", (0, 0, 0), (1, 0, 0), 3)),
    judge.Verdict("not_compiled", "no", log=EVIL + "\nline\n" * 40),
]


class Tags(HTMLParser):
    """Every element is closed, and there is none that runs anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br", "rect", "line", "!doctype") or tag in ("line", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page(tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    _verdict.write(VERDICTS, path)
    text = path.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text.replace('<meta charset="utf-8">', "").replace('<meta name="viewport" content="width=device-width">', ""))
    assert not tags.open and "script" not in tags.seen and {"svg", "table", "details"} <= tags.seen
    assert "\x1b" not in text and "1 of 4 solutions are right" in text and "20.0 µs" in text
    VERDICTS[0].page(tmp_path / "one.htm")
    with pytest.raises(kops.BadArgument, match="html"):
        VERDICTS[0].page(tmp_path / "p.png")


def test_the_text() -> None:
    for verdict in VERDICTS:
        assert "\x1b" not in str(verdict) and "\u202e" not in str(verdict)
        assert judge.Verdict.of(verdict.json()).json() == verdict.json()
        json.loads(verdict.json(), parse_constant=pytest.fail)
    assert "2.00 × the baseline's speed" in str(VERDICTS[0]) and "50 % of the roof, bound by memory" in str(VERDICTS[0])
    assert "more lines" in str(VERDICTS[3])
    lines = _verdict.summary(list(reversed(VERDICTS))).splitlines()
    assert lines[1].startswith("fast") and len(lines) == 5


@pytest.mark.parametrize("bad", ["{}", '{"kind": "splendid"}', "[]", "3"])
def test_what_is_no_verdict(bad: str) -> None:
    with pytest.raises(kops.BadArgument):
        judge.Verdict.of(bad)


def test_members_of_a_newer_version_are_left_out() -> None:
    made = judge.Verdict.of('{"kind": "right", "colour": "blue", "time": {"case": "n=1", "warmth": 3}}')
    assert made.right and made.time is not None and made.time.case == "n=1"


@pytest.mark.parametrize("bad", ["[]", "{}", '{"source": "", "launches": 3}', '{"source": "", "launches": [{"grid": 1}]}',
                                 '{"source": "", "launches": [], "colour": 1}', '{"source": "", "launches": [3]}'])  # fmt: skip
def test_what_is_no_solution(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(bad, encoding="utf-8")
    with pytest.raises(kops.BadArgument):
        judge.load_solution(path)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "s.cu"
    path.write_text('\n /* kops.solution {"launches": [{"entry": "k", "signature": "int n", "grid": [1, "n"]}]} */\ncode', encoding="utf-8")
    made = judge.load_solution(path)
    assert made.name == "s" and made.launches[0].grid == (1, "n") and made.source.endswith("code")
    for text, why in (("code", "does not begin"), ("/* kops.solution { */", "no JSON"), ("\ud800", "UTF-8")):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        with pytest.raises(kops.BadArgument, match=why):
            judge.load_solution(path)
    with pytest.raises(kops.BadArgument):
        judge.load_solution(tmp_path)
    tasks = tmp_path / "tasks.py"
    tasks.write_text("from kops import judge\ntasks = [judge.Task(n, abs, dict) for n in 'ab']\n", encoding="utf-8")
    assert judge.load_task(f"{tasks}:b").name == "b" and list(judge.load_tasks(tasks)) == ["a", "b"]
    for name, why in ((f"{tasks}:c", "no task 'c'"), (str(tasks), "several"), (str(tmp_path / "x.py"), "no such file")):
        with pytest.raises(kops.BadArgument, match=why):
            judge.load_task(name)
    tasks.write_text("raise RuntimeError('no')", encoding="utf-8")
    with pytest.raises(kops.BadArgument, match="RuntimeError: no"):
        judge.load_task(tasks)


def worst(dtype: str, expected: Any, got: Any, tolerance: Any = None, **more: Any) -> Any:
    values = np.asarray(expected)
    scale = float(np.sqrt(np.mean(np.square(values, dtype="f8")))) if values.size else 0.0
    one = _draws.Expected("c", dtype, values, scale=scale, **more)
    kept = "f64" if dtype in _values.FLOATS else dtype
    return _draws.compare(task(tolerance=tolerance), one, _values.Tensor(kept, np.asarray(got)), judge.Case(n=1), 0)


def test_the_tolerance_at_its_edge() -> None:
    loose = judge.Tolerance(rtol=0.1, atol=1.0, precision=math.inf)
    assert worst("f64", [10.0], [12.0], loose) is None
    assert worst("f64", [10.0], [12.001], loose).got == 12.001
    assert worst("i64", [2**62], [2**62 + 1]).wrong == 1  # float64 would not tell
    assert worst("i64", [2**62], [2**62]) is None
    assert worst("i32", [100], [109], judge.Tolerance(atol=9)) is None and worst("i32", [100], [110], judge.Tolerance(atol=9)) is not None
    assert worst("u64", [2**64 - 1], np.array([0], "u8")) is not None
    assert worst("f32", np.zeros((0,)), np.zeros((0,))) is None and worst("f32", np.float64(2.0), np.float64(3.0)).index == ()


def test_precision_counts_what_the_reference_is_off() -> None:
    values = np.linspace(1, 2, 1000)
    off = values + 3e-5
    assert worst("f32", values, off).why == "precision"
    assert worst("f32", values, off, noise=1e-5) is None
    assert worst("f32", values, off, judge.Tolerance(precision=1), noise=1e-5).why == "precision"


def test_eight_bits() -> None:
    """Against torch, which has the same formats."""
    torch = pytest.importorskip("torch")
    bits = np.arange(256, dtype="u1")
    for dtype, its in (("f8_e4m3", torch.float8_e4m3fn), ("f8_e5m2", torch.float8_e5m2)):
        wanted = torch.from_numpy(bits.copy()).view(its).to(torch.float64).numpy()
        assert np.array_equal(_values.floats_of(_values.Tensor(dtype, bits)), wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "u64", "bool", "f8_e4m3"])
@pytest.mark.parametrize("nan", [True, False])
def test_poison(dtype: str, nan: bool) -> None:
    one, other = (_values.poison(dtype, (1000, 70), np.random.default_rng(seed), nan) for seed in (1, 2))
    assert one.shape == (1000, 70) and one.dtype == _values.bits_dtype(dtype) and one.tobytes() != other.tobytes()
    assert len(np.unique(one.view(f"u{one.itemsize}"))) > 60
    if nan and dtype in ("f16", "bf16", "f32", "f64"):
        assert np.isnan(_values.floats_of(_values.Tensor(dtype, one))).all()
    if dtype == "bool":
        assert one.min() > 1
