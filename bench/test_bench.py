"""The benchmarks themselves: every measure of the table runs (on a stand-in, with counts that mean nothing), a measure that
hangs or dies costs only its own number, and records become a table and figures."""

from __future__ import annotations

import contextlib
import json
import os
import re
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

from kopsbench import calls, context, measures, recorded, runner, user_kernels  # noqa: E402
from kopsbench.measures import gemm_tuned, judging  # noqa: E402
from kopsbench.measures.compile import versus  # noqa: E402
from kopsbench.measures.counters_ncu import of_cells  # noqa: E402
from kopsbench.measures.trace_skew import Found, spans_in  # noqa: E402
from kopsbench.plots import PLOTS  # noqa: E402
from kopsbench.record import Record, Summary, failure, write  # noqa: E402
from kopsbench.targets import ROWS, markdown  # noqa: E402
from support import backends, beside_ncu  # noqa: E402
from support.beside_ncu import Cell  # noqa: E402

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


def record(**more: Any) -> Record:
    given: dict[str, Any] = {"measure": "m", "unit": "us", "better": "lower", "ours": Summary(2.0, 9.0, 1), "peer": Summary(4.0, 5.0, 1)}
    return Record(**{**given, **more})


@pytest.mark.skipif("KOPS_BUILD" not in os.environ, reason="KOPS_BUILD names no build folder")
def test_every_measure_of_the_table_runs(tmp_path: Path) -> None:
    # Solutions take the stand-in so long that they are the tests' of the judge.
    names = [one.name for one in measures.select(["table"]) if one.name != "judge_rate"]
    exactly = [f"{name[:-1]}[{name[-1]}]" for name in names]  # a name alone stands for all that begin with it
    done = run(str(BENCH / "run"), "--smoke", "--out", str(tmp_path), "--file", "r.json", *exactly)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {one["measure"]: one for one in json.loads((tmp_path / "r.json").read_text())}
    assert "noop_rpc_socket_sleep" in records
    for one in records.values():
        # a difference of two; a count of answers in so short a time that a busy machine may give none
        assert one["ours"]["p50"] > 0 or one["measure"].startswith(("cached_reference", "load_")), one
        assert one["measure"] in ROWS or one["measure"].endswith("time_slicing"), "a row of the table has a name"
    n_said = sum(line.startswith("[") for line in done.stderr.splitlines())
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
    before = ("--before", str(Path(os.environ["KOPS_BUILD"]) / "bin" / "kopsd"))
    records = {}
    for file, more, some in (("b.json", before, names[:1]), ("r.json", (), names[1:])):
        options = ("--smoke", "--out", str(tmp_path), "--file", file)
        done = run(str(BENCH / "run"), *options, *more, *(f"neighbours_{name}" for name in some))
        assert done.returncode == 0, done.stdout + done.stderr
        records |= {one["measure"]: one for one in json.loads((tmp_path / file).read_text())}
    assert records["neighbours_nothing"]["detail"]["before"]["n"] > 0, records["neighbours_nothing"]
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


def test_no_measure_begins_after_the_budget() -> None:
    chosen = [measures.Measure("good", False, lambda context: [])]
    (reply,) = (reply for _, reply in runner._run_group(chosen, [sys.executable, "-c", WORKER], {}, time.monotonic() - 1))
    assert "budget" in reply["skipped"]


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
    assert versus("m", [10.0], [1000.0], "load_inline", 100.0, {}, None).met
    assert not versus("m", [10.0], [900.0], "load_inline", 100.0, {}, None).met


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


def test_processes_of_a_measure_import_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = context.Context(BENCH.parent, 1, 1, None).of_children()
    command = [sys.executable, "-c", "import kops, kopsbench.kernel_process, support"]
    assert subprocess.run(command, env=environment, cwd="/").returncode == 0


def test_every_kernel_of_the_tutorials_has_its_source_and_a_wrapper() -> None:
    assert {kernel.name for kernel in user_kernels.KERNELS} == {path.stem for path in user_kernels.EXAMPLES.glob("*.cu")}
    for kernel in user_kernels.KERNELS:
        assert f"void {kernel.entry}(" in kernel.source
        assert f"{kernel.entry}<<<" in kernel.inline and f"{kernel.name}_call(" in kernel.inline
    source = user_kernels.VECTOR_ADD.source
    assert len({source, user_kernels.fresh(source), user_kernels.fresh(source)}) == 3


@on_standin
@pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
def test_a_record_of_a_tutorial_s_kernel_names_its_compiler(tmp_path: Path) -> None:
    done = run(str(BENCH / "run"), "--smoke", "--out", str(tmp_path), "--file", "r.json", "tutorial")
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "r.json").read_text())
    assert {one["measure"] for one in records} == {f"tutorial_{kernel.name}" for kernel in user_kernels.KERNELS}
    for one in records:
        assert re.fullmatch(r"NVRTC \d+\.\d+", one["detail"]["compiler"]) and one["detail"]["arch"].startswith("sm_")
        assert "peer_compiler" not in one["detail"], "the smoke test has no peer"


@on_standin
def test_the_times_of_kernels_are_compared_with_records_of_another_daemon(tmp_path: Path) -> None:
    done = run(str(BENCH / "run"), "--smoke", "--out", str(tmp_path), "--file", "r.json", "truth")
    assert done.returncode == 0, done.stdout + done.stderr
    records = {one["measure"]: one for one in json.loads((tmp_path / "r.json").read_text())}
    for work in ("add_1k", "gemm_f32_64", "kernel_1k"):
        for mode in ("single", "exact", "repeated", "statistics_p50", "statistics_mean"):
            one = records[f"truth_{work}_{mode}"]
            assert one["ours"]["p50"] > 0 and one["peer"]["p50"] > 0 and one["better"] == "same", one
            assert one["detail"]["difference"] == pytest.approx(one["ours"]["p50"] - one["peer"]["p50"], rel=0.05, abs=0.2)
    assert records["truth_kernel_1k_exact"]["detail"]["timer"] == "cupti"
    assert records["truth_kernel_1k_exact"]["peer"]["n"] == 6 and records["truth_program_20_repeated"]["peer"]["n"] == 10
    table = run(str(BENCH / "table"), "--truth", str(tmp_path / "r.json"))
    assert table.returncode == 0 and "a user's vector_add of 1K f32" in table.stdout, table.stderr


def test_shapes_of_tuned_products_are_chosen(tmp_path: Path) -> None:
    def chosen(*names: str) -> list[tuple[int, int, int]]:
        return gemm_tuned.shapes(context.Context(build=tmp_path, calls=1, blocks=1, spin_us=None, shapes=names))

    assert chosen() == gemm_tuned.SHAPES
    assert chosen("16x4096x4096", "64") == [(16, 4096, 4096), (64, 64, 64)]
    with pytest.raises(context.Skipped, match="no shape 65; it has 64, 256"):
        chosen("64", "65")


class Submitting:
    """A client whose calls take 1, 2, … µs."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def submit(self, op: str, *inputs: object, timing: object, **more: object) -> Submitting:
        self.asked.append(timing)
        return self

    def result(self) -> tuple[None, SimpleNamespace]:
        self.done = getattr(self, "done", 0) + 1
        return None, SimpleNamespace(variant="skinny", exec_us=float(self.done), timer="cupti")


def test_pipelined_calls_say_who_has_timed_them() -> None:
    client, used, timers = Submitting(), [], set()
    times = calls.pipelined(client, "gemm", [(1, 2, 3)] * 3, ret_variant=used, timing="exact", ret_timers=timers)
    assert times == [1.0, 2.0, 3.0] and used == ["skinny"] and timers == {"cupti"} and client.asked == ["exact"] * 3


def test_executions_are_told_apart() -> None:
    names = ["kops_gate", "split", "sum", "split", "kops_gate", "sum"]
    ran = [recorded.Ran(i, 1000 * i, 1000 * i + 500, name) for i, name in enumerate(names)]
    assert recorded.executions(reversed(ran), 2) == [1.5, 2.5]
    with pytest.raises(RuntimeError, match="no multiple: split, sum"):
        recorded.executions(ran, 3)


@on_standin
def test_a_trace_is_held_against_the_clock_of_its_kernels(tmp_path: Path) -> None:
    done = run(str(BENCH / "run"), "--smoke", "--out", str(tmp_path), "--file", "r.json", "trace_skew")
    assert done.returncode == 0, done.stdout + done.stderr
    records = {one["measure"]: one for one in json.loads((tmp_path / "r.json").read_text())}
    assert records["trace_skew"]["ours"]["n"] == 5 and 0 <= records["trace_skew_mps_order"]["ours"]["p50"] <= 1


def test_skew_and_order_are_told_from_a_trace() -> None:
    on_gpu = [(0.0, 5.0), (20.0, 25.0), (100.0, 105.0), (120.0, 125.0)]
    found = Found([(b + 1000, e + 1000) for b, e in on_gpu], [(1011.0, 1016.0), (1107.0, 1121.0)], on_gpu, [(10.0, 15.0), (110.0, 115.0)])
    assert found.skews(0) == [1.0, -3.0] and found.skews(1) == [1.0, 6.0] and found.ordered() == 0.5
    trace = {"traceEvents": [{"cat": "kernel", "name": "note_times i64 2", "ts": 2.0, "dur": 1.0}, {"ph": "M", "name": "note_times"}]}
    assert spans_in(trace, "note_times", 1) == [(2.0, 3.0)]
    with pytest.raises(RuntimeError, match="1 of 2 rows"):
        spans_in(trace, "note_times", 2)


@on_standin
def test_the_parts_of_calls_are_added_up(tmp_path: Path) -> None:
    done = run(str(BENCH / "run"), "--smoke", "--out", str(tmp_path), "--file", "r.json", "named_parts")
    assert done.returncode == 0, done.stdout + done.stderr
    records = {one["measure"]: one for one in json.loads((tmp_path / "r.json").read_text())}
    for how in ("c_add", "mps_c_kernel", "python_gemm_1024", "python_kernel_after_torch"):
        one = records[f"named_parts_{how}"]
        assert 0 < one["ours"]["p50"] <= 1 and one["target"] == 0.95 and one["detail"]["gpu_p50_us"] > 0, one


# ---- counters beside ncu's ----


def cell(ours: float, *theirs: float, key: str = "sm_cycles") -> Cell:
    return Cell("add_one", key, (ours,), theirs)


def test_a_figure_is_ncus_within_2_percent_or_the_spreads_of_both() -> None:
    assert cell(102, 100).good and not cell(103, 100).good and not cell(97, 100).good
    assert cell(105, 98, 100, 103).good and not cell(106, 98, 100, 103).good
    # Each median may be off by what its runs differ: 4 apart, with 1 and 3; with 1 and 2.
    assert Cell("add_one", "sm_cycles", (104, 104, 105), (97, 100, 100)).good
    assert not Cell("add_one", "sm_cycles", (104, 104, 105), (98, 100, 100)).good
    assert not Cell("add_one", "sm_cycles", (95, 104, 110), (99, 100, 100)).good  # of ours at most 2 %
    assert not cell(float("nan"), 100).good and not cell(100, float("nan")).good
    assert cell(0.4, 0, key="sm_pct").good and not cell(0.6, 0, key="sm_pct").good
    assert cell(65536, 0, key="dram_read_bytes").good and not cell(65537, 0, key="dram_read_bytes").good
    one = of_cells([cell(100, 100), cell(90, 100)], [cell(100, 100)] * 2)
    assert (one.ours.p50, one.ratio, one.met) == (0.5, 0.5, False)
    assert one.detail["apart"] == ["add_one sm_cycles: 90, ncu 100: -10.0 %, the runs of each 0 and 0 apart"]


def test_ncus_table_is_read_by_our_keys() -> None:
    names = ["Kernel Name", *beside_ncu.NAMED.values()]
    units = ["", *("" for _ in beside_ncu.NAMED)]
    rows = [["add_one(float *)", *("1,000" for _ in beside_ncu.NAMED)], ["add_one(float *)", *("2.5" for _ in beside_ncu.NAMED)]]
    text = "\n".join(",".join(f'"{field}"' for field in line) for line in [names, units, *rows])
    found = beside_ncu.read(f"==PROF== Connected\n{text}\n")
    assert found["add_one"]["sm_pct"] == [1000, 2.5] and found["add_one"]["duration_us"] == [1, 0.0025]
    assert found["add_one"]["launch.static_shared"] == [1000, 2.5]
    with pytest.raises(beside_ncu.NoNcu, match="No kernels"):
        beside_ncu.read("==WARNING== No kernels were profiled.\n")


@on_standin
def test_what_a_report_of_counters_takes(tmp_path: Path) -> None:
    done = run(str(BENCH / "run"), "--smoke", "--out", str(tmp_path), "--file", "r.json", "counters_ncu_report")
    assert done.returncode == 0, done.stdout + done.stderr
    (one,) = json.loads((tmp_path / "r.json").read_text())
    assert one["ours"]["p50"] > 0 and one["detail"]["passes"] == 3, one
