"""Faults of kernels, on a node whose workers share a process on its GPUs: which item's they are, and what becomes of the others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import kops
import kops.ray
import numpy as np
import pytest
from machines import Machines, standin, wait_for
from standin_cuda import Control
from support import backends, proc
from support.kernels import HOSTILE, OTHERS

WHY_NOT = backends.missing(backends.STANDIN)
only_with_standin = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
only_with_nvrtc = pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
GPUS = 3
LONG_US = 500_000


@pytest.fixture
def control(cluster: Machines, tmp_path: Path) -> Iterator[Control]:
    """Of one machine with GPUs, whose daemon has executors."""
    made = Control()
    cluster.fill(0)
    env = standin(GPUS, KOPSD_EXECUTORS_ISOLATE="user", KOPSD_EXECUTORS_FAULTS="0", **made.env)
    with cluster.gpus(env, num_cpus=8, num_gpus=GPUS):
        yield made


def work(k: kops.Client, folder: str, i: int) -> int:
    """Item 0 faults; the others add 1, the first of them for a while."""
    began = time.monotonic_ns()
    try:
        if i == 0:
            k.kernel(OTHERS, "fault_kernel", "float* p[1]", grid=1, block=1)(np.zeros(1, "f4"))
        runs = np.zeros(1, "u4")
        k.kernel(HOSTILE, "run_for", "unsigned* runs[1], int us", grid=1, block=1)(runs, LONG_US if i < GPUS else 1)
        return int(runs[0])
    finally:
        with open(f"{folder}/{i}", "a") as file:
            file.write(f"{began} {time.monotonic_ns()}\n")


@contextlib.contextmanager
def all_at_one_time(control: Control) -> Iterator[None]:
    """The first kernels begin when each worker has one."""
    def wait() -> None:
        proc.eventually(lambda: control.waiting("kernel") == GPUS, lambda: f"{control.waiting('kernel')} kernels wait")
        gate.open()

    with control.gate("kernel") as gate:
        opener = threading.Thread(target=wait)
        opener.start()
        yield
        opener.join()


@only_with_standin
@only_with_nvrtc
def test_a_fault_is_its_items_alone(control: Control, tmp_path: Path) -> None:
    """Those that it may have been run again, each with the node for itself."""
    warm, folder = tmp_path / "warm", tmp_path / "spans"
    warm.mkdir(), folder.mkdir()
    with kops.ray.Pool() as pool:
        wait_for(pool, GPUS)
        assert set(dict(kops.ray.map(work, [(str(warm), GPUS + i) for i in range(3 * GPUS)], pool=pool, in_flight=1)).values()) == {1}
        run = kops.ray.map(work, [(str(folder), i) for i in range(20)], pool=pool, errors="return", in_flight=1)
        with all_at_one_time(control):
            results = dict(run)
    fault = results.pop(0)
    assert isinstance(fault, kops.DeviceFault) and "suspects" not in fault.detail, fault
    assert results == {i: 1 for i in range(1, 20)} and run.retried == GPUS
    spans = {i: [tuple(map(int, line.split())) for line in (folder / str(i)).read_text().splitlines()] for i in range(20)}
    assert [len(spans[i]) for i in range(20)] == [2] * GPUS + [1] * (20 - GPUS)
    for i in range(GPUS):
        begun, ended = spans[i][1]
        beside = [j for j in spans for one in spans[j] if one != spans[i][1] and one[0] < ended and begun < one[1]]
        assert not beside, f"item {i} was not alone, but beside {beside}"


@only_with_standin
@only_with_nvrtc
def test_one_error_ends_the_work(control: Control, tmp_path: Path) -> None:
    """It is that of the item which is to blame, whichever ended first."""
    with kops.ray.Pool() as pool:
        wait_for(pool, GPUS)
        (tmp_path / "warm").mkdir()
        dict(kops.ray.map(work, [(str(tmp_path / "warm"), GPUS + i) for i in range(3 * GPUS)], pool=pool, in_flight=1))
        with all_at_one_time(control), pytest.raises(kops.DeviceFault) as caught:
            dict(kops.ray.map(work, [(str(tmp_path), i) for i in range(GPUS)], pool=pool, in_flight=1, tries=1))
        assert caught.value.kops_item == 0  # type: ignore[attr-defined]
