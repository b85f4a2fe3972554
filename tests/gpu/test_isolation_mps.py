"""Under MPS the common executor and the clients share the GPU; executors of users are outside of it, so that their end takes
nobody along."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isolated import HostClient, pid_of, start
from support import backends
from support.daemon import ROOT, Daemon
from support.raw import tensor
from workers import Worker

sys.path.append(str(ROOT / "bench"))

from kopsbench.mps import NoMps, mps

pytestmark = pytest.mark.skipif("KOPS_CUDA_DRIVER" in os.environ, reason="the stand-in driver has no MPS")
ROUNDS = 120  # of the clients that work


@pytest.fixture(scope="module")
def pipes(torch: Any) -> Iterator[dict[str, str]]:
    try:
        with mps() as environment:
            yield environment
    except NoMps as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def isolated(pipes: dict[str, str]) -> Iterator[Daemon]:
    # An MPS server has clients of one user.
    with start(backends.CUDA, "user", 1, "user = none\n", **pipes) as daemon:
        yield daemon


def pipe_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((v.partition(b"=")[2].decode() for v in variables if v.startswith(b"CUDA_MPS_PIPE_DIRECTORY=")), "")


def test_only_the_common_executor_uses_it(isolated: Daemon, pipes: dict[str, str]) -> None:
    client = HostClient(isolated)
    try:
        client.square_shared(3)
        client.launch_shared(4)
        assert pipe_of(pid_of(client.connection, "common")) == pipes["CUDA_MPS_PIPE_DIRECTORY"]
        assert not Path(pipe_of(pid_of(client.connection, "user")), "control").exists()
        assert any(device.get("mps") for device in client.connection.call("hello")["devices"])
    finally:
        client.close()


def test_faults_and_endless_kernels_do_not_reach_its_clients(isolated: Daemon, pipes: dict[str, str]) -> None:
    """Two processes of torch under MPS, and one whose kernels have an executor of their own."""
    culprit = HostClient(isolated)
    workers = [Worker("checker", isolated.socket_path, str(seed), str(ROUNDS), **pipes) for seed in range(2)]
    try:
        culprit.launch_shared(1)
        bad, spin = culprit.kernel("fault_kernel"), culprit.kernel("spin_forever")
        common = pid_of(culprit.connection, "common")
        for worker in workers:
            assert worker.hear() == {"ready": True}
        for worker in workers:
            worker.tell()
        for number in range(3):
            culprit.fault(bad)
            culprit.launch_shared(number)
            late = culprit.launch_error(spin, culprit.scratch, deadline_ms=100)
            assert late.code == "deadline_exceeded" and late.detail["ended"] is True
            culprit.launch_shared(number)
        for worker in workers:
            assert worker.hear() == {"done": True}
            worker.finish()
        culprit.square_shared(7)
        assert pid_of(culprit.connection, "common") == common
    finally:
        for worker in workers:
            worker.__exit__()
        culprit.close()


def test_its_end_is_mps_business(torch: Any, pipes: dict[str, str]) -> None:
    """An op that does not end costs the common executor. MPS ends it, so that clients of MPS keep their contexts."""
    with start(backends.CUDA, "user", 1, "user = none\n", KOPSD_SERVER_JOB_TIMEOUT_S="4", **pipes) as daemon:
        client = HostClient(daemon)
        worker = Worker("checker", daemon.socket_path, "5", str(ROUNDS), **pipes)
        try:
            client.square_shared(2)
            common = pid_of(client.connection, "common")
            assert worker.hear() == {"ready": True}
            worker.tell()
            buffer, long = client.scratch["buffer"], 1 << 40
            a, b = (tensor(buffer, shape, strides=[0, 0]) for shape in ([1, long], [long, 1]))
            error = client.connection.run_error("gemm", [a, b], [tensor(buffer, [1, 1], offset=4)])
            if error.code != "job_timeout":
                pytest.skip(f"there is no op that does not end: {error}")
            assert error.detail["daemon"] == "goes_on", error
            client.square_shared(3)
            assert pid_of(client.connection, "common") != common
            assert worker.hear() == {"done": True}
            worker.finish()
            log = daemon.log()
            assert "event=mps_terminate_client" in log and "event=executor_killed" not in log, log
        finally:
            worker.__exit__()
            client.close()
