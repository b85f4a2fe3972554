"""Counters on a GPU: the same figures as ncu's for the same kernels (counters_kernels.cu), and what a report takes. Needs no torch."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support import raw
from support.daemon import ROOT, Daemon
from support.kernels import compile_source, declare, pointer, scalar

SOURCE = ROOT / "tests/gpu/counters_kernels.cu"
FLOATS = 32 << 20
METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "sm_cycles": "sm__cycles_elapsed.max",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions": "smsp__inst_executed.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
SCALE = {"duration_us": 1e-3}  # ncu's base unit is another
LAUNCH = {  # of the reply's `launch`
    "static_shared": "launch__shared_mem_per_block_static",
    "occupancy_pct": "sm__maximum_warps_per_active_cycle_pct",
}
NAMED = {**METRICS, **{f"launch.{key}": metric for key, metric in LAUNCH.items()}}
PART = 0.02
# Of less than this no part can be told: percent points, bytes. In some runs something else moves as much.
LEAST = {"_pct": 0.5, "_bytes": 128 << 10}


def launches() -> dict[str, tuple[int, list[int], list[int]]]:
    """n, grid and block of each kernel."""
    text = SOURCE.with_name("counters_launches.h").read_text()
    found = {}
    for name, *numbers in re.findall(r"^X\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+)\)$", text, re.MULTILINE):
        n, gx, gy, bx, by = map(int, numbers)
        found[name] = n, [gx, gy], [bx, by]
    return found


class Counting:
    """A connection with two buffers on the GPU and the kernels."""

    def __init__(self, daemon: Daemon) -> None:
        self.connection = daemon.connect()
        devices = [d for d in self.connection.call("hello")["devices"] if d["backend"] == "cuda"]
        if not devices:
            pytest.skip("the daemon has no GPU")
        self.device = devices[0]
        size = 4 * FLOATS
        buffers = [self.connection.call("alloc", {"size": size, "device": self.device["uuid"]})["buffer"] for _ in range(2)]
        self.views = [raw.tensor(buffer, [FLOATS]) for buffer in buffers]
        self.kernels: dict[str, int] = {}

    def compile(self) -> None:
        module = compile_source(self.connection, SOURCE.read_text(), *launches())["module"]
        params = [pointer("out", "out"), pointer("in", "in"), scalar("n", "i32")]
        for name, (_, grid, block) in launches().items():
            self.kernels[name] = declare(self.connection, module, entry=name, params=params, grid=grid, block=block)

    def count(self, name: str, **more: Any) -> dict[str, Any]:
        n = launches()[name][0]
        result: dict[str, Any] = self.connection.call("counters", {"kernel": self.kernels[name], "args": [*self.views, n], **more})
        return result

    def op(self, n: int) -> dict[str, Any]:
        views = [{**view, "shape": [n]} for view in self.views]
        result: dict[str, Any] = self.connection.call("counters", {"op": "square", "in": [views[1]], "out": [views[0]]})
        return result


Figures = dict[str, dict[str, list[float]]]  # of each kernel and key: its executions'


# ---- the comparison ----


@dataclass(frozen=True)
class Cell:
    """One figure of one kernel by both."""

    kernel: str
    key: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def spreads(self) -> tuple[float, float]:
        """Of our runs, and of ncu's."""
        return max(self.ours) - min(self.ours), max(self.theirs) - min(self.theirs)

    @property
    def good(self) -> bool:
        """The medians are no farther apart than 2 %, or than our runs and ncu's are together: each median may be off by as much as its
        runs differ. Ours count as 2 % at most: what makes them differ by more is no excuse."""
        theirs = median(self.theirs)
        least = next((least for suffix, least in LEAST.items() if self.key.endswith(suffix)), 0)
        ours_apart, theirs_apart = self.spreads
        return abs(median(self.ours) - theirs) <= max(PART * abs(theirs), min(ours_apart, PART * abs(theirs)) + theirs_apart, least)

    def __str__(self) -> str:
        ours, theirs = median(self.ours), median(self.theirs)
        apart = f"{100 * (ours / theirs - 1):+.1f} %" if theirs else "-"
        spreads = "{:.3g} and {:.3g}".format(*self.spreads)
        return f"{self.kernel} {self.key}: {ours:.6g}, ncu {theirs:.6g}: {apart}, the runs of each {spreads} apart"


# ---- the tests ----

ROUNDS = 4
# Where the two differ for a reason (H100, ours beside ncu's): kernel and figures. They are printed.
APART = {
    # ncu gives the kernel its memory again before each pass, and what is left of that in the cache is written back while
    # the kernel runs: -54 % of 2.4 MB, -11 %, -3 %. Where ncu starts the program anew instead (--replay-mode
    # application), it counts less than we do: -85 %, -26 %, -4 %.
    "block_sums": {"dram_write_bytes"},
    "far_apart": {"dram_write_bytes", "dram_pct"},
    "transpose_conflicts": {"dram_write_bytes"},
    "transpose_padded": {"dram_write_bytes", "l2_hit_pct"},
    "copy_large": {"l2_hit_pct"},  # 50.3 % and not 51.4 %
    # Its arrays find another L1 cache after the driver's copies, which restore and flush, than after itself: 50 % hits
    # and not 47 %; all that depends on it is some 5 to 18 % off.
    "in_local_memory": set(METRICS) - {"tensor_pct", "instructions", "bank_conflicts"},
    # 5 us, 3 % less of them than in ncu's runs, which are 3 % apart; L1, L2 and the schedulers are busy for 4 to 12 % less or
    # more; of what the L2 cache answers the runs differ. On an H200 3 % fewer warps were busy once.
    "add_one": {
        "duration_us", "sm_cycles", "sm_pct", "memory_pct", "dram_pct", "l1_pct", "l2_pct", "l2_hit_pct", "issue_pct", "occupancy_pct",
    },
    # It writes nothing: 384 bytes. In some of ncu's runs something writes 256 KiB beside it.
    "follow": {"l2_hit_pct", "dram_write_bytes"},
    # It writes 2 KiB in 2 ms: in some of our runs something writes 128 KiB beside it, which is 60 MB/s. Of the little that
    # the L2 cache answers, ncu's own runs are 33 points apart.
    "tensor_cores": {"dram_write_bytes", "l2_hit_pct"},
}
# It has a few hundred accesses to memory in 685 us; of what the L2 cache answers ncu's own runs are 23 % apart.
APART["multiply_add"] = {"l2_hit_pct"}
# On an H200 it takes 3.5 % less time here than under ncu, probably because less is written back while it runs (see above).
APART["transpose_padded"] |= {"duration_us", "sm_cycles", "sm_pct", "l2_pct"}
APART["block_sums"] |= {"l2_pct"}  # 42 % and not 40 %: ncu's other mode has 41 %
APART["transpose_padded"] |= {"bank_conflicts"}  # it has none of its own: 45 and 43 thousand cycles of 10 M instructions on an H200
BOUND = {"copy_large": "memory", "multiply_add": "compute", "follow": "latency", "tensor_cores": "compute"}


@pytest.fixture(scope="module")
def counting() -> Iterator[Counting]:
    with Daemon() as daemon:
        one = Counting(daemon)
        try:
            one.op(1024)
        except raw.RpcError as e:
            if e.code in ("unsupported", "permission_denied", "device_error"):
                pytest.skip(e.message)
            raise
        one.compile()
        yield one
        one.connection.close()


@pytest.fixture(scope="module")
def by_both(counting: Counting, tmp_path_factory: pytest.TempPathFactory) -> tuple[Figures, Figures]:
    """Ours and ncu's, of the kernels in a program of its own; in turns, since the GPU grows warm meanwhile."""
    ncu = shutil.which("ncu") or next(iter(sorted(map(str, Path("/usr/local").glob("cuda*/bin/ncu")))), "")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not ncu or not Path(nvcc).exists():
        pytest.skip("there is no ncu here, or no nvcc")
    program = str(tmp_path_factory.mktemp("ncu") / "kernels")
    subprocess.run([nvcc, "-O3", "-arch=native", "-o", program, SOURCE], check=True)
    settings = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(NAMED.values())]
    ours: Figures = defaultdict(lambda: defaultdict(list))
    theirs: Figures = defaultdict(lambda: defaultdict(list))
    for _ in range(ROUNDS):
        done = subprocess.run([ncu, *settings, program, "1"], capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
        if done.returncode or not lines:
            pytest.skip(f"ncu does not work here: {done.stdout[-300:]} {done.stderr[-300:]}")
        header, _, *rows = csv.reader(lines)
        for row in rows:
            named = dict(zip(header, row, strict=True))
            for key, metric in NAMED.items():
                value = float(named[metric].replace(",", "") or "nan") * SCALE.get(key, 1)
                theirs[named["Kernel Name"].split("(")[0]][key].append(value)
        for name in launches():
            values = counting.count(name)["values"]
            for key in METRICS:
                ours[name][key].append(values.get(key, float("nan")))
    return ours, theirs


@pytest.mark.parametrize("name", launches())
def test_as_ncu(counting: Counting, by_both: tuple[Figures, Figures], name: str) -> None:
    launch = counting.count(name)["launch"]
    cells = [Cell(name, key, (launch[key],), tuple(by_both[1][name][f"launch.{key}"])) for key in LAUNCH]
    wrong = [str(cell) for cell in cells if not cell.good]
    for cell in (Cell(name, key, *(tuple(figures[name][key]) for figures in by_both)) for key in METRICS):
        print(f"{cell}{'' if cell.good else '  <--'}", file=sys.stderr)
        if not cell.good and cell.key not in APART.get(name, ()):
            wrong.append(str(cell))
    assert not wrong, wrong


@pytest.mark.parametrize(("name", "verdict"), BOUND.items())
def test_verdicts(counting: Counting, name: str, verdict: str) -> None:
    result = counting.count(name)
    assert result["verdict"] == verdict, result
    print(f"{name}: {result['verdict']}: {result['why']}", file=sys.stderr)


def test_what_a_report_takes(counting: Counting) -> None:
    counting.op(1 << 20)
    began = time.perf_counter()
    counting.op(1 << 20)
    seconds = time.perf_counter() - began
    print(f"a report after the first: {seconds:.3f} s", file=sys.stderr)
    assert seconds < 3


def test_spills_are_seen(counting: Counting) -> None:
    assert counting.count("in_local_memory")["launch"]["local_bytes"] >= 256
    assert counting.count("add_one")["launch"]["local_bytes"] == 0


def test_warm_and_cold(counting: Counting) -> None:
    cold, warm = counting.count("add_one")["values"], counting.count("add_one", cache="warm")["values"]
    print(f"add_one, cold and warm: {cold}, {warm}", file=sys.stderr)
    assert cold["dram_read_bytes"] >= 4 << 20, "it reads 4 MiB"
    assert warm["dram_read_bytes"] < cold["dram_read_bytes"] / 20
    assert warm["l2_hit_pct"] > cold["l2_hit_pct"] + 20
    assert warm["duration_us"] < cold["duration_us"]


def test_a_kernel_that_never_ends(counting: Counting) -> None:
    source = 'extern "C" __global__ void spin(volatile float *p) { while (p[0] == 0) ; }'
    module = compile_source(counting.connection, source, "spin")["module"]
    kernel = declare(counting.connection, module, entry="spin", params=[pointer("p", "inout")], grid=[1], block=[1])
    error = counting.connection.error("counters", {"kernel": kernel, "args": [counting.views[0]], "deadline_ms": 30000})
    assert error.code == "job_timeout", error
    counting.op(1024)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has the privilege")
def test_by_a_privilege(tmp_path: Path) -> None:
    """As where the driver lets only administrators read counters, whatever this one does: CUPTI works in a process that enabled
    its profiler before, on a thread with the capability, and no thread of CUPTI's or the driver's has kept it."""
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 1\n")
    config = "[executors]\ncounters_privileged = true\n"
    with Daemon(config=config, env={"KOPS_STANDIN_PARAMETERS": str(tmp_path / "params")}) as daemon:
        one = Counting(daemon)
        try:
            one.op(1024)
        except raw.RpcError as e:
            if e.code in ("unsupported", "device_error") or (e.code == "permission_denied" and "state=used" not in daemon.log()):
                pytest.skip(f"{e.message}: {daemon.log()}")
            raise
        assert "event=counters_privilege state=used" in daemon.log(), daemon.log()
        one.compile()
        for name in ("add_one", "add_one"):
            assert one.count(name)["values"]["instructions"] > 0
        assert daemon.log().count("event=counters_privilege state=used") == 3, daemon.log()
        began = time.perf_counter()
        one.op(1 << 20)
        print(f"a report by a privilege: {time.perf_counter() - began:.3f} s", file=sys.stderr)
        one.connection.close()
