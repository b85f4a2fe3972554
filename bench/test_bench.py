"""The benchmarks themselves: every measure of the table runs (on a stand-in, with counts that mean nothing), a measure that
hangs or dies costs only its own number, and records become a table and figures."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "client_py"), str(BENCH.parent / "tests")]

from kopsbench import context, measures, runner, user_kernels  # noqa: E402
from kopsbench.harm import Heard, Tally  # noqa: E402
from kopsbench.measures import judging, many  # noqa: E402
from kopsbench.measures.compile import versus  # noqa: E402
from kopsbench.plots import PLOTS  # noqa: E402
from kopsbench.record import Record, Summary, failure, merge, write  # noqa: E402
from kopsbench.targets import ROWS, markdown  # noqa: E402
from support import backends  # noqa: E402

# Answers `good` at once and `slow` never; ends on `bad`.
WORKER = """
import os, sys, time
fd = int(sys.argv[sys.argv.index("--worker") + 1])
for line in sys.stdin:
    name = line.strip()
    if name == "slow":
        time.sleep(1000)
    if name == "bad":
        os._exit(3)
    os.write(fd, b'{"records": []}\\n')
os.write(fd, b"{}\\n")
"""

LACKING = backends.missing(backends.STANDIN) if "KOPS_BUILD" in os.environ else "KOPS_BUILD names no build folder"
on_standin = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=os.environ)


def smoke(folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    """The records of measures that are tried out, by name; they are in r.json, too."""
    done = run(str(BENCH / "run"), "--smoke", "--out", str(folder), "--file", "r.json", *names)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "outcomes").write_text(done.stderr)
    return {one["measure"]: one for one in json.loads((folder / "r.json").read_text())}


def record(**more: Any) -> Record:
    given: dict[str, Any] = {"measure": "m", "unit": "us", "better": "lower", "ours": Summary(2.0, 9.0, 1), "peer": Summary(4.0, 5.0, 1)}
    return Record(**{**given, **more})


@pytest.mark.skipif("KOPS_BUILD" not in os.environ, reason="KOPS_BUILD names no build folder")
def test_every_measure_of_the_table_runs(tmp_path: Path) -> None:
    # Solutions take the stand-in so long that they are the tests' of the judge.
    names = [one.name for one in measures.select(["table"]) if one.name != "judge_rate"]
    exactly = [f"{name[:-1]}[{name[-1]}]" for name in names]  # a name alone stands for all that begin with it
    records = smoke(tmp_path, *exactly)
    assert "noop_rpc_socket_sleep" in records
    for one in records.values():
        # a difference of two; a count of answers in so short a time that a busy machine may give none
        assert one["ours"]["p50"] > 0 or one["measure"].startswith(("cached_reference", "load_")), one
        assert one["measure"] in ROWS or one["measure"].endswith("time_slicing"), "a row of the table has a name"
    n_said = sum(line.startswith("[") for line in (tmp_path / "outcomes").read_text().splitlines())
    assert n_said == len(names), "every measure has an outcome"
    table = run(str(BENCH / "table"), str(tmp_path / "r.json"))
    assert table.returncode == 0 and "C no-op RPC, shared memory" in table.stdout, table.stderr
    drawn = run(str(BENCH / "plot"), str(tmp_path / "r.json"), "--out", str(tmp_path))
    assert drawn.returncode == 0, drawn.stderr
    for picture in tmp_path.glob("*.svg"):
        assert xml.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.skipif("KOPS_BUILD" not in os.environ, reason="KOPS_BUILD names no build folder")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become two users")
def test_a_user_works_beside_another_that_does_its_worst(tmp_path: Path) -> None:
    names = ("nothing", "stats_x16", *(["bombs"] if backends.nvrtc() else []), "share")
    # The daemon is named: it is another program than that of the build folder, as far as bench/run knows.
    named = ("--daemon", str(Path(os.environ["KOPS_BUILD"]) / "bin" / "kopsd"))
    records = smoke(tmp_path, *named, *(f"neighbours_{name}" for name in names))
    rates = records["neighbours_share"]["detail"]
    assert rates["a_per_s"] > rates["b_per_s"] / 4, "one connection gets about as much as 64 of another user"
    for name in names[:-1]:
        one = records[f"neighbours_{name}"]
        assert one["ours"]["n"] > 0, one
        assert one["detail"]["wrong"] == 0 and not one["detail"]["failures"], one
        assert name == "nothing" or one["detail"]["attacker"], one
    table = run(str(BENCH / "table"), "--neighbours", str(tmp_path / "r.json"))
    assert table.returncode == 0 and "16 connections" in table.stdout, table.stderr


def test_a_measure_that_hangs_or_dies_costs_only_its_own_number() -> None:
    names = ["good", "slow", "bad", "good"]
    chosen = [measures.Measure(name, False, lambda context: [], seconds=0.5 if name == "slow" else 60) for name in names]
    command = [sys.executable, "-c", WORKER]
    replies = [reply for _, reply in runner._run_group(chosen, command, {}, time.monotonic() + 600)]
    assert replies[0] == {"records": []} and replies[3] == {"records": []}
    assert "no answer" in replies[1]["error"] and "status 3" in replies[2]["error"]
    late = [reply for _, reply in runner._run_group(chosen, command, {}, time.monotonic() - 1)]
    assert all("budget" in reply["skipped"] for reply in late), "no measure begins after the budget"


def test_targets_bound_what_they_say() -> None:
    assert record(target=0.5).met and not record(target=0.4).met
    assert record(better="higher", target=0.5).met and not record(better="higher", target=0.6).met
    assert record(target=2.0, absolute=True).met and not record(target=1.9, absolute=True).met
    assert not record(target=8.0, absolute=True, statistic="p99").met
    assert record(better="same", target=2.0).met and not record(better="same", target=1.9).met
    assert record(better="same", target=2.0, peer=None).met is None
    assert record().met is None and record(peer=None, target=3.0).met is None


def test_a_failed_measure_is_a_row_and_no_bar(tmp_path: Path) -> None:
    context = {"device": "d", "commit": "c", "date": "2026-01-01", "command": "x"}
    records = {"noop_rpc_shm": failure("noop_rpc_shm", "Boom: no | luck", context)}
    assert "failed: Boom: no \\| luck" in markdown(records)
    write(tmp_path / "r.json", records.values())
    drawn = run(str(BENCH / "plot"), str(tmp_path / "r.json"), "--out", str(tmp_path))
    assert drawn.returncode == 1 and not list(tmp_path.glob("*.svg"))
    assert all(draw({}) is None for draw in PLOTS.values())


def test_a_peer_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_kernels.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(user_kernels.shutil, "which", lambda program: None if program == "ninja" else f"/bin/{program}")
    user_kernels.load_inline_missing.cache_clear()
    lacking = user_kernels.load_inline_missing()
    user_kernels.load_inline_missing.cache_clear()
    assert lacking is not None and "ninja" in lacking
    alone = versus("m", [10.0], [], "load_inline", 100.0, {"measured": "it"}, lacking)
    assert alone.ratio is None and alone.met is None and "ninja" in alone.as_json({})["detail"]["no_peer"]
    assert versus("m", [10.0], [1000.0], "load_inline", 100.0, {"measured": "it"}, None).met
    assert not versus("m", [10.0], [900.0], "load_inline", 100.0, {"measured": "it"}, None).met


def test_a_peer_that_fails_costs_only_its_own_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise subprocess.CalledProcessError(1, ["python3"], stderr=b"no module")

    for name, stub in {
        "Scene": lambda *_, **__: contextlib.nullcontext(SimpleNamespace()), "load_inline_missing": lambda: None, "inline_rate": fails,
        "judged": lambda *_, **__: ([SimpleNamespace(right=True)] * 3, 1.5),
    }.items():  # fmt: skip
        monkeypatch.setattr(judging, name, stub)
    (alone,) = judging.run_rate(context.Context(BENCH.parent, 1, 1, None))
    assert alone.ours is not None and alone.ours.p50 == 2.0 and "no module" in alone.detail["no_peer"]


def test_every_example_is_a_kernel_whose_source_can_be_made_anew() -> None:
    assert {kernel.name for kernel in user_kernels.KERNELS} == {path.stem for path in user_kernels.EXAMPLES.glob("*.cu")}
    assert all(f"void {kernel.entry}(" in kernel.source for kernel in user_kernels.KERNELS)
    source = user_kernels.VECTOR_ADD.source
    assert len({source, user_kernels.fresh(source), user_kernels.fresh(source)}) == 3


# ---- harm, and what others notice of it ----


@on_standin
@pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
def test_harm_is_done_and_others_have_none(tmp_path: Path) -> None:
    """Not hangs, which must begin before their deadlines: a busy machine may be too slow."""
    records = smoke(tmp_path, "isolation_fault")
    for name in ("fault", "fault_no_spare"):
        trouble = records[f"isolation_{name}_trouble"]
        assert trouble["ours"]["p50"] == 0 and trouble["met"] and trouble["detail"]["calls_of_others"] > 0, trouble
        assert trouble["detail"]["executors"]["faults"] >= 1 and records[f"isolation_{name}_next_good"]["ours"]["n"] == 2
    table = run(str(BENCH / "table"), "--isolation", str(tmp_path / "r.json"))
    assert table.returncode == 0 and "until the next good reply" in table.stdout, table.stderr


def test_a_wait_lasts_until_a_right_answer() -> None:
    tally, ms = Tally(5000.0), 1e-3
    tally.note(0 * ms, 1 * ms, True)
    tally.note(2 * ms, 3 * ms, False)
    tally.note_error(4 * ms, "device_lost: it is")
    tally.note(8 * ms, 9 * ms, True)
    tally.note(10 * ms, 12 * ms, True)
    said = tally.report()
    assert (said["errors"], said["wrong"], said["first_error"]) == (1, 1, "device_lost: it is")
    assert said["longest_us"] == pytest.approx(7000) and said["stalled_us"] == pytest.approx(7000)
    assert said["us"] == pytest.approx([1000, 1000, 1000, 2000])


def test_everything_that_others_notice_is_trouble() -> None:
    heard = Heard()
    said = {"calls": 9, "errors": 0, "wrong": 0, "first_error": "", "longest_us": 1.0, "stalled_us": 50.0, "elapsed_us": 100.0, "us": [1.0]}
    heard.add("shared", said)
    assert heard.trouble == 0 and heard.stalled_percent() == 50
    heard.add("kernel", {**said, "errors": 2, "wrong": 1, "first_error": "timeout"})
    heard.reconnects = 1
    assert heard.trouble == 4 and heard.detail()["first_errors"] == ["kernel: timeout"]
    assert heard.waits_us(of_kernels=False) == [1.0] and heard.waits_us(of_kernels=True) == [1.0]


def test_numbers_out_of_numbers() -> None:
    jain = many.jain
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1) and jain([3.0, 0.0, 0.0]) == pytest.approx(1 / 3) and jain([0.0]) == 0
    merged = merge([Summary(1.0, 5.0, 10), Summary(2.0, 6.0, 10), Summary(9.0, 7.0, 10)], "it")
    assert merged == Summary(2.0, 6.0, 30, "it")
