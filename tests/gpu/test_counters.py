"""Counters on a GPU: the same figures as ncu's for the same kernels, and what a report takes. Needs no torch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import raw
from support.beside_ncu import LAUNCH, METRICS, Cell, Counting, Figures, Ncu, NoGpu, NoNcu, ask_both, cells_of, launches
from support.daemon import Daemon
from support.kernels import compile_source, declare, pointer

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
        try:
            one = Counting(daemon)
            one.op(1024)
        except NoGpu as e:
            pytest.skip(str(e))
        except raw.RpcError as e:
            if e.code in ("unsupported", "permission_denied", "device_error"):
                pytest.skip(e.message)
            raise
        one.compile()
        yield one
        one.connection.close()


@pytest.fixture(scope="module")
def by_both(counting: Counting, tmp_path_factory: pytest.TempPathFactory) -> tuple[Figures, Figures]:
    try:
        return ask_both(counting, Ncu(tmp_path_factory.mktemp("ncu")), ROUNDS)
    except NoNcu as e:
        pytest.skip(str(e))


@pytest.mark.parametrize("name", launches())
def test_as_ncu(counting: Counting, by_both: tuple[Figures, Figures], name: str) -> None:
    launch = counting.count(name)["launch"]
    cells = [Cell(name, key, (launch[key],), tuple(by_both[1][name][f"launch.{key}"])) for key in LAUNCH]
    wrong = [str(cell) for cell in cells if not cell.good]
    for cell in (cell for cell in cells_of(*by_both) if cell.kernel == name):
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
