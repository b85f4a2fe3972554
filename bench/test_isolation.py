"""The measures of isolation run on a stand-in for a GPU: harm is done, those beside it notice none of it, and what they would
notice is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "client_py"), str(BENCH.parent / "tests")]

from kopsbench.isolation.bystander import Tally  # noqa: E402
from kopsbench.isolation.culprit import schedule  # noqa: E402
from kopsbench.isolation.scene import Heard  # noqa: E402
from kopsbench.measures.isolation_share import jain  # noqa: E402
from kopsbench.record import Summary, merge  # noqa: E402
from support import backends  # noqa: E402

MS = 1e-3


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    if "KOPS_BUILD" not in os.environ:
        pytest.skip("KOPS_BUILD names no build folder")
    if backends.missing(backends.STANDIN) or backends.nvrtc() is None:
        pytest.skip("no stand-in driver, or no NVRTC")
    folder = tmp_path_factory.mktemp("isolation")
    command = [sys.executable, str(BENCH / "run"), "--smoke", "--out", str(folder), "--file", "r.json", "isolation"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    table = subprocess.run([sys.executable, str(BENCH / "table"), "--isolation", str(folder / "r.json")], capture_output=True, text=True)
    assert table.returncode == 0 and "fault next good" in table.stdout, table.stderr
    return {one["measure"]: one for one in json.loads((folder / "r.json").read_text())}


def test_both_daemons_are_measured(records: dict[str, dict[str, Any]]) -> None:
    names = ("tiny_add_c", "tiny_add_python", "ordered_own", "ordered_chain", "program_20_c", "op_kernel_op", "clients_64_rate")
    for name in (*names, "2_cores_tiny_add_c", "mps_ordered_own", "costs_ready", "costs_rss"):
        one = records[f"isolation_{name}"]
        assert one["ours"]["p50"] > 0 and one["peer"]["p50"] > 0, one
        assert one["ours"]["max"] >= one["ours"]["p50"], one


@pytest.mark.parametrize("name", ["fault", "fault_no_spare", "hang", "mps_fault", "mps_hang"])
def test_harm_is_done_and_others_have_none(records: dict[str, dict[str, Any]], name: str) -> None:
    trouble, good = records[f"isolation_{name}_trouble"], records[f"isolation_{name}_next_good"]
    assert trouble["ours"]["p50"] == 0 and trouble["met"], trouble
    assert trouble["detail"]["calls_of_others"] > 0 and good["ours"]["n"] == 2
    counts = trouble["detail"]["executors"]
    # On a busy machine a deadline may come before its kernel begins.
    assert counts["replaced"] >= 1 and counts["jobs_ended" if "hang" in name else "faults"] >= 1, counts


def test_storms(records: dict[str, dict[str, Any]]) -> None:
    storm = records["isolation_storm_trouble"]
    assert storm["ours"]["p50"] == 0 and storm["detail"]["executors"]["faults"] >= 4, storm
    assert records["isolation_storm_descriptors"]["ours"]["p50"] <= 0, records["isolation_storm_descriptors"]
    if os.getuid() == 0:
        refused = records["isolation_budget_stalled"]["detail"]["replies_to_culprits"]
        assert refused["fault: quota_exceeded"] > 0, refused
        assert records["isolation_share_equal_jain"]["ours"]["p50"] > 0.5, records["isolation_share_equal_jain"]


# ---- how waits are counted ----


def test_a_wait_lasts_until_a_right_answer() -> None:
    tally = Tally(5000.0)
    tally.note(0 * MS, 1 * MS, True)
    tally.note(2 * MS, 3 * MS, False)
    tally.note_error(4 * MS, "device_lost: it is")
    tally.note(8 * MS, 9 * MS, True)
    tally.note(10 * MS, 12 * MS, True)
    tally.calls = 5
    said = tally.report()
    assert (said["errors"], said["wrong"], said["first_error"]) == (1, 1, "device_lost: it is")
    assert said["longest_us"] == pytest.approx(7000) and said["stalled_us"] == pytest.approx(7000)
    assert said["us"] == pytest.approx([1000, 1000, 1000, 2000])


def test_everything_that_others_notice_is_trouble() -> None:
    heard = Heard()
    said = {"calls": 9, "errors": 0, "wrong": 0, "first_error": "", "longest_us": 1.0, "stalled_us": 50.0, "elapsed_us": 100.0, "us": [1.0]}
    heard.add("c", said)
    assert heard.trouble == 0 and heard.stalled_of_all() == 50
    heard.add("kernel", {**said, "errors": 2, "wrong": 1, "first_error": "timeout"})
    heard.reconnects = 1
    assert heard.trouble == 4 and heard.first_errors == ["kernel: timeout"]
    assert heard.waits_us == [1.0] and heard.kernel_waits_us == [1.0]


def test_c_and_python_tell_the_same(tmp_path: Path) -> None:
    """Both clients that work answer the same orders with the same keys."""
    if "KOPS_BUILD" not in os.environ:
        pytest.skip("KOPS_BUILD names no build folder")
    from support.daemon import Daemon

    program = Path(os.environ["KOPS_BUILD"]) / "bin" / "bench_bystander"
    with Daemon("--backend", "host") as daemon:
        commands = [
            [str(program), "--socket", daemon.socket_path, "--device", "host"],
            [sys.executable, "-m", "kopsbench.isolation.bystander", "shared", daemon.socket_path, "host", "5000"],
        ]
        paths = [str(BENCH), str(BENCH.parent / "client_py"), str(BENCH.parent / "tests")]
        said = []
        for command in commands:
            done = subprocess.run(
                command, input="mark\nreport\n", capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            )
            assert done.returncode == 0, done.stderr
            ready, marked, report = (json.loads(line) for line in done.stdout.splitlines())
            assert ready == {"ready": True} and marked == {}
            said.append(report)
    assert said[0].keys() == said[1].keys() == Tally(1.0).report().keys()
    assert all(one["errors"] == one["wrong"] == 0 and one["calls"] >= 0 for one in said)


def test_hangs_lie_evenly_among_faults() -> None:
    plan = list(schedule(10, 4))
    assert plan.count("fault") == 10 and plan.count("hang") == 4
    assert "hang" in plan[:5] and "hang" in plan[-5:]
    assert list(schedule(0, 2)) == ["hang", "hang"] and list(schedule(2, 0)) == ["fault", "fault"]
    endless = schedule(None, None)
    assert [next(endless) for _ in range(5)].count("hang") == 1


def test_jains_index() -> None:
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1) and jain([3.0, 0.0, 0.0]) == pytest.approx(1 / 3) and jain([0.0]) == 0


def test_rounds_are_merged() -> None:
    merged = merge([Summary(1.0, 5.0, 10, max=9.0), Summary(2.0, 6.0, 10, max=7.0), Summary(9.0, 7.0, 10, max=8.0)], "it")
    assert merged == Summary(2.0, 6.0, 30, "it", 9.0)
