"""Two GPUs in one daemon that sleeps between requests: every call of the driver is made in the context of its device.

The stand-in driver counts the calls that are not (tests/functional/test_two_gpus.py); a real one refuses some of them,
which the daemon's log tells, and does what it likes with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kops
import pytest
from check import assert_add, assert_gemm, assert_square
from support.daemon import Daemon

MILLION = 1_048_576
ROUNDS = 100


@pytest.fixture(scope="module")
def sleepy(torch: Any) -> Iterator[Daemon]:
    """A daemon that sleeps whenever it can."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with Daemon(config="[server]\nspin_us = 0\n") as running:
        yield running
        log = running.log()
    assert "device_lost" not in log and "cuda_event_refused" not in log, log


@pytest.fixture
def both(sleepy: Daemon) -> Iterator[Any]:
    with kops.connect(sleepy.socket_path) as client:
        yield client


def work(torch: Any, client: Any, device: str) -> None:
    """Blocking, timed and ordered calls, a gemm of cuBLASLt's, and a program, which becomes a graph."""
    with torch.cuda.device(device):
        a, b = (torch.randn(MILLION, device=device) for _ in range(2))
        m = torch.randn(256, 256, device=device)
        with client.program() as program:
            c = client.add(a, b)
            d = client.square(c)
        for _ in range(ROUNDS):
            assert_add(client.add(a, b, blocking=True), a, b)
            e, timings = client.square(a, timing=True)
            assert timings.gpu_us is not None
            assert_square(e, a)
            assert_gemm(client.gemm(m, m), m, m)
            program.run()
            assert_square(d, c)
        program.release()


def test_at_the_same_time_and_in_turn(torch: Any, both: Any) -> None:
    devices = ("cuda:0", "cuda:1")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda device: work(torch, both, device), devices))
    for device in devices * 3:
        work(torch, both, device)


def test_shared_host_memory_goes_through_both(both: Any) -> None:
    gpus = [device.uuid for device in both.devices if device.backend == "cuda"]
    a = both.empty((MILLION,))
    a[:] = 3
    for turn in range(20):
        out = both.square(a, device=gpus[turn % 2])
        assert (out == 9).all()


def test_clients_come_and_go(torch: Any, sleepy: Daemon) -> None:
    def visit(i: int) -> None:
        for _ in range(10):
            with kops.connect(sleepy.socket_path) as client, torch.cuda.device(i):
                a = torch.randn(MILLION, device=f"cuda:{i}")
                assert_square(client.square(a), a)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(visit, (0, 1, 0, 1)))
