"""Counters on a GPU: the same figures as ncu's for the same kernels, and what a report takes. Needs no torch."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import raw
from support.daemon import Daemon
from support.kernels import compile_source, declare, pointer, scalar

HERE = Path(__file__).parent
FLOATS = 32 << 20
ROUNDS = 3
METRICS = {
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "dram_read_bytes": "dram__bytes_read.sum",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions": "smsp__inst_executed.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
# These depend on what else is in the caches and on the clocks of that moment, and no two tools leave the same: they are
# printed, and told apart from the others, which have to be the same.
OF_THE_MOMENT = {
    "sm_pct", "memory_pct", "dram_pct", "l2_pct", "l1_pct", "l2_hit_pct", "l1_hit_pct", "dram_read_bytes", "issue_pct",
    "occupancy_pct", "bank_conflicts",
}  # fmt: skip
LAUNCH = {  # ncu's name, and where the reply has it
    "launch__shared_mem_per_block_static": "static_shared",
    "sm__maximum_warps_per_active_cycle_pct": "occupancy_pct",
}
PART, POINTS, BYTES = 0.02, 1.0, 256 << 10  # how far apart: of the value, in percent points, in bytes and events
BOUND = {"copy_large": "memory", "multiply_add": "compute", "follow": "latency", "tensor_cores": "compute"}


def launches() -> dict[str, tuple[int, list[int], list[int]]]:
    text = (HERE / "counters_launches.h").read_text()
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
        source = (HERE / "counters_kernels.cu").read_text()
        module = compile_source(self.connection, source, *launches())["module"]
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
def by_ncu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The median of the rounds of each metric, by kernel."""
    paths = [*sorted(map(str, Path("/usr/local").glob("cuda*/bin/ncu")))]
    ncu, nvcc = shutil.which("ncu") or next(iter(paths), None), shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if ncu is None or not Path(nvcc).exists():
        pytest.skip("there is no ncu here, or no nvcc")
    program = tmp_path_factory.mktemp("ncu") / "kernels"
    subprocess.run([nvcc, "-O3", "-arch=native", "-o", program, HERE / "counters_kernels.cu"], check=True)
    metrics = ",".join([*METRICS.values(), *LAUNCH])
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--metrics", metrics, str(program)]
    run = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith('"')]
    if run.returncode or not lines:
        pytest.skip(f"ncu does not work here: {run.stdout[-300:]} {run.stderr[-300:]}")
    header, _, *rows = csv.reader(io.StringIO("\n".join(lines)))
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        named = dict(zip(header, row, strict=True))
        kernel = found.setdefault(named["Kernel Name"].split("(")[0], {})
        for metric in [*METRICS.values(), *LAUNCH]:
            kernel.setdefault(metric, []).append(float(named[metric].replace(",", "") or "nan"))
    return {name: {metric: statistics.median(values) for metric, values in of.items()} for name, of in found.items()}


def close_enough(key: str, ours: float, theirs: float) -> bool:
    slack = POINTS if key.endswith("_pct") else BYTES if key.endswith("_bytes") else 0
    return abs(ours - theirs) <= max(slack, PART * max(abs(ours), abs(theirs)))


@pytest.mark.parametrize("name", launches())
def test_as_ncu(counting: Counting, by_ncu: dict[str, dict[str, float]], name: str) -> None:
    rounds = [counting.count(name) for _ in range(ROUNDS)]
    theirs = by_ncu[name]
    wrong = []
    for key, metric in METRICS.items():
        ours = statistics.median(result["values"].get(key, float("nan")) for result in rounds)
        good = close_enough(key, ours, theirs[metric])
        print(f"{name} {key}: {ours:.6g} ncu {theirs[metric]:.6g}{'' if good else '  <--'}", file=sys.stderr)
        if not good and key not in OF_THE_MOMENT:
            wrong.append(f"{key}: {ours:.6g}, ncu says {theirs[metric]:.6g}")
    for metric, key in LAUNCH.items():
        ours = rounds[0]["launch"][key]
        if not close_enough(key, ours, theirs[metric]):
            wrong.append(f"launch.{key}: {ours}, ncu says {theirs[metric]}")
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
    cold, warm = counting.count("add_one"), counting.count("add_one", cache="warm")
    assert cold["values"]["dram_read_bytes"] > 4 << 20
    if warm["values"]["dram_read_bytes"] > cold["values"]["dram_read_bytes"] / 2:
        pytest.skip("this GPU's profiler empties the caches when a pass begins")


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
    config = "[executors]\ncounters_privileged = true\nsandbox = auto\n"
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
