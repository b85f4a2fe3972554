"""Workers with a GPU each, which share their node's daemon: some of the stand-in driver's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import kops.ray
import numpy as np
import pytest
from kops._base.records import Device
from kops.ray import _worker
from machines import Machines, meet, standin, wait_for
from support import backends, chrome_trace
from support.daemon import Daemon
from support.kernels import ADD

WHY_NOT = backends.missing(backends.STANDIN)
only_with_standin = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
only_with_nvrtc = pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
GPUS, STANDINS = 2, 4  # of the node; those that the stand-in driver has in other tests


@pytest.fixture(scope="module")
def node(cluster: Machines) -> Iterator[Machines]:
    """One machine with GPUs, which CUDA counts in another order than the daemon that is started there."""
    cluster.fill(0)
    with cluster.gpus(standin(GPUS), num_cpus=8, num_gpus=GPUS):
        yield cluster


@pytest.fixture(scope="module")
def on_gpus(node: Machines) -> Iterator[kops.ray.Pool]:
    """For the first tests of the module: the others have workers of their own."""
    with kops.ray.Pool() as made:
        wait_for(made, GPUS)
        yield made


def met(k: kops.Client, folder: str, i: int) -> tuple[Any, ...]:
    """Where a worker is, once all of them run at one time."""
    meet(folder, GPUS, i)
    y, timings = k.square(np.full(3, i, "f4"), timing=True)
    return list(y), timings.device, k.info.pid, os.environ["CUDA_VISIBLE_DEVICES"], [device.uuid for device in k.devices]


@only_with_standin
def test_each_worker_has_a_gpu_and_all_share_the_daemon(node: Machines, on_gpus: kops.ray.Pool, tmp_path: Path) -> None:
    results = dict(kops.ray.map(met, [(str(tmp_path / "met"), i) for i in range(GPUS)], in_flight=1, pool=on_gpus))
    assert [results[i][0] for i in range(GPUS)] == [[i * i] * 3 for i in range(GPUS)]
    uuids = {result[1] for result in results.values()}
    assert len(uuids) == GPUS and all(uuid.startswith("GPU-") for uuid in uuids)
    assert len({result[2] for result in results.values()}) == 1, "one daemon, though all asked for one at a time"
    assert {result[3] for result in results.values()} == {str(i) for i in range(GPUS)}
    assert all(uuids <= set(result[4]) for result in results.values()), "which was started by a worker that sees one GPU"


@only_with_standin
@only_with_nvrtc
def test_kernels_run_on_the_workers_gpu(node: Machines, on_gpus: kops.ray.Pool, tmp_path: Path) -> None:
    """Also those that a function declares, with its client and without one, and one that was declared for a device of the driver's."""
    kern = kops.kernel(
        ADD, "add2_kernel", "out float* c[n], const float* a[n], const float* b[n], int n", grid=4, block=32, device=0
    )
    blocks = [(np.full(16, i, "f4"), np.ones(16, "f4"), 16) for i in range(24)]
    run = kops.ray.map(kern, blocks, pool=on_gpus, trace=tmp_path / "trace.json")
    for i, c in run:
        np.testing.assert_array_equal(c, np.full(16, i + 1, "f4"))
    events = chrome_trace.load(tmp_path / "trace.json")["traceEvents"]
    assert run.trace is not None and [node["missing"] for node in run.trace["nodes"]] == [""], "one worker records for all of the node"
    assert chrome_trace.check(events).categories["call"] == chrome_trace.check(events).categories["device"] == 24
    rows = [row for row in run.stats()["ops"] if row["op"] == "add2_kernel"]
    assert sum(row["count"] for row in rows) == 24
    declared = {worker.uuid for worker in on_gpus.workers}
    assert len(declared) == GPUS and {row["device"] for row in rows} <= declared

    def inside(k: kops.Client, folder: str, i: int) -> Any:
        meet(folder, GPUS, i)
        signature = "out float* c[n], const float* a[n], const float* b[n], int n"
        made = [one(ADD, "add2_kernel", signature, grid=4, block=32) for one in (k.kernel, kops.kernel)]
        arguments = np.empty(16, "f4"), np.full(16, i, "f4"), np.ones(16, "f4"), 16
        return {kern(*arguments, timing=True).device for kern in made}, k.own_device.uuid

    places = dict(kops.ray.map(inside, [(str(tmp_path / "kernels"), i) for i in range(GPUS)], in_flight=1, pool=on_gpus))
    assert all(ran == {own} for ran, own in places.values()) and {own for _, own in places.values()} == declared


@only_with_standin
def test_recordings_and_measurements_run_there_too(on_gpus: kops.ray.Pool) -> None:
    def record(k: kops.Client, i: int) -> Any:
        x = k.array(np.full(8, i, "f4"))
        with k.sequence(timing=True) as s:
            y = k.square(x)
        with k.program() as p:
            z = k.add(x, x)
        p.run()
        profile = k.profile("square", x, repeat=2)
        pending = k.submit("square", x, timing=True).result()
        return k.own_device.uuid, s.timings.device, profile.device, pending[1].device, y[0], z[0]

    for i, (own, *ran, y, z) in kops.ray.map(record, range(16), pool=on_gpus):
        assert ran == [own] * 3 and y == i * i and z == 2 * i


@only_with_standin
def test_parts_of_a_gpu(node: Machines, on_gpus: kops.ray.Pool) -> None:
    on_gpus.close()
    with kops.ray.Pool(gpus=0.5) as pool:
        wait_for(pool, 2 * GPUS)
        assert len({worker.uuid for worker in pool.workers}) == GPUS


@only_with_standin
def test_without_a_gpu_of_its_own_a_worker_leaves_those_of_others_alone(node: Machines) -> None:
    def where(k: kops.Client, i: int) -> Any:
        return k.square(np.ones(3, "f4"), timing=True)[1].device

    assert {device for _, device in kops.ray.map(where, range(4), gpus=0)} == {"host"}
    kern = kops.kernel(ADD, "add2_kernel", "out float* c[n], const float* a[n], const float* b[n], int n", grid=4, block=32)
    block = (np.ones(4, "f4"), np.ones(4, "f4"), 4)
    with pytest.raises(kops.Unsupported, match="gpus=1"):
        list(kops.ray.map(kern, [block], gpus=0))


def uuid_of(ordinal: int) -> str:
    """By the driver, in a process that sees all."""
    program = f"from kops._memory.driver import Driver; print(Driver().uuid({ordinal}))"
    env = {**os.environ, **standin(STANDINS)}
    return subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True, check=True).stdout.strip()


@only_with_standin
def test_gpus_that_the_nodes_process_sees_in_another_order(node: Machines, tmp_path: Path) -> None:
    """Ray's numbers are CUDA's; the daemon counts those that it sees."""
    env = standin(STANDINS, CUDA_VISIBLE_DEVICES="3,1")
    other = node.node(env, num_cpus=2, num_gpus=2, resources={"other": 2})
    try:
        with kops.ray.Pool(2, resources={"other": 1}) as pool:
            wait_for(pool, 2)
            results = kops.ray.map(lambda k, i: (os.environ["CUDA_VISIBLE_DEVICES"], k.own_device.uuid), range(40), pool=pool)
            assert dict(value for _, value in results).items() <= {"3": uuid_of(3), "1": uuid_of(1)}.items()
            assert {worker.uuid for worker in pool.workers} == {uuid_of(3), uuid_of(1)}
    finally:
        node.remove(other)


@only_with_standin
def test_a_daemon_that_does_not_see_the_workers_gpu_is_told(node: Machines) -> None:
    env = standin(GPUS)
    with Daemon(config=backends.config(backends.STANDIN), env={**env, "CUDA_VISIBLE_DEVICES": "1"}) as daemon:
        how = {"env_vars": {"KOPS_SOCKET": daemon.socket_path}}
        with kops.ray.Pool(GPUS, runtime_env=how) as pool:
            assert len(list(kops.ray.map(lambda k, i: i, range(8), pool=pool))) == 8, "the one worker whose GPU it sees does all"
            assert len(pool.workers) == 1
    with Daemon(config=backends.config(backends.HOST)) as daemon:
        with pytest.raises(kops.ray.WorkersFailed, match="Ray gave GPU . to this worker, and .* has no GPU"):
            list(kops.ray.map(lambda k, i: i, range(8), runtime_env={"env_vars": {"KOPS_SOCKET": daemon.socket_path}}))


def device(index: int, uuid: str, backend: str = "cuda") -> Device:
    return Device(index, "G", uuid, backend)


def test_the_device_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    host, a, b = device(0, "host", "host"), device(1, "GPU-aa"), device(2, "GPU-bb")
    assert _worker.device_of([], [host], "it") is None
    assert _worker.device_of([], [a, host], "it") is host
    assert _worker.device_of(["GPU-b"], [host, a, b], "it") is b
    with pytest.raises(kops.UnknownDevice, match="does not see GPU-cc"):
        _worker.device_of(["GPU-cc"], [host, a, b], "it")
    with pytest.raises(kops.KopsError, match="neither a number"):
        _worker.device_of(["first"], [host, a, b], "it")


def test_the_nodes_environment_shows_all_of_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for own, whole in (("2", "3,2,1"), (None, None)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if own is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
        monkeypatch.setattr(_worker, "_of_the_raylet", lambda whole=whole: whole)
        with _worker.node_environment():
            assert os.environ.get("CUDA_VISIBLE_DEVICES") == whole
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == own
