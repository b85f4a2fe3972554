"""Counters of kopsd beside ncu's, of the same kernels (tests/gpu/counters_kernels.cu): for tests and for benchmarks."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from . import raw
from .daemon import ROOT, Daemon
from .kernels import compile_source, declare, pointer, scalar

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
# Of less than this no part can be told: percent points, bytes.
LEAST = {"_pct": 0.5, "_bytes": 64 << 10}


def launches() -> dict[str, tuple[int, list[int], list[int]]]:
    """n, grid and block of each kernel."""
    text = SOURCE.with_name("counters_launches.h").read_text()
    found = {}
    for name, *numbers in re.findall(r"^X\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+)\)$", text, re.MULTILINE):
        n, gx, gy, bx, by = map(int, numbers)
        found[name] = n, [gx, gy], [bx, by]
    return found


class NoGpu(Exception):
    """The daemon has none."""


class Counting:
    """A connection with two buffers on the GPU and the kernels."""

    def __init__(self, daemon: Daemon) -> None:
        self.connection = daemon.connect()
        devices = [d for d in self.connection.call("hello")["devices"] if d["backend"] == "cuda"]
        if not devices:
            raise NoGpu("the daemon has no GPU")
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


# ---- ncu ----


class NoNcu(Exception):
    """ncu cannot be asked here; the message says why."""


Figures = dict[str, dict[str, list[float]]]  # of each kernel and key: its executions'


def read(text: str) -> Figures:
    """Of ncu's table, by our keys."""
    found: Figures = defaultdict(lambda: defaultdict(list))
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines:
        raise NoNcu(f"ncu does not work here: {text[-300:]}")
    header, _, *rows = csv.reader(io.StringIO("\n".join(lines)))
    for row in rows:
        named = dict(zip(header, row, strict=True))
        for key, metric in NAMED.items():
            value = float(named[metric].replace(",", "") or "nan") * SCALE.get(key, 1)
            found[named["Kernel Name"].split("(")[0]][key].append(value)
    return found


class Ncu:
    """ncu, and the kernels as a program of its own in the folder."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(map(str, Path("/usr/local").glob("cuda*/bin/ncu")))
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        self.path = shutil.which("ncu") or next(iter(paths), "")
        self.program = folder / "kernels"
        if not self.path or not Path(nvcc).exists():
            raise NoNcu("there is no ncu here, or no nvcc")
        subprocess.run([nvcc, "-O3", "-arch=native", "-o", self.program, SOURCE], check=True)

    def run(self, rounds: int = 1, *options: str) -> Figures:
        metrics = ",".join(NAMED.values())
        settings = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--metrics", metrics]
        command = [self.path, *settings, *options, str(self.program), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NoNcu(f"ncu does not work here: {done.stdout[-300:]} {done.stderr[-300:]}")
        return read(done.stdout)


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


def cells_of(ours: Figures, theirs: Figures) -> list[Cell]:
    return [Cell(kernel, key, tuple(ours[kernel][key]), tuple(theirs[kernel][key])) for kernel in launches() for key in METRICS]


def add(to: Figures, more: Figures) -> None:
    for kernel, figures in more.items():
        for key, values in figures.items():
            to.setdefault(kernel, {}).setdefault(key, []).extend(values)


def as_figures(results: Iterable[tuple[str, dict[str, Any]]]) -> Figures:
    """Of replies, by kernel."""
    return {kernel: {key: [result["values"].get(key, float("nan"))] for key in METRICS} for kernel, result in results}


def ask_both(counting: Counting, ncu: Ncu, rounds: int) -> tuple[Figures, Figures]:
    """In turns: the GPU grows warm meanwhile."""
    ours: Figures = {}
    theirs: Figures = {}
    for _ in range(rounds):
        add(theirs, ncu.run())
        add(ours, as_figures((name, counting.count(name)) for name in launches()))
    return ours, theirs
