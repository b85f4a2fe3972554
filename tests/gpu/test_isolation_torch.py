"""Torch beside kernels in executors of their own: faults as a client library shows them, and memory of every kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from check import assert_add, assert_square, nothing, random
from isolated import HostClient, pid_of, start
from support import backends, proc
from support.daemon import Daemon
from support.kernels import ADD, OTHERS, compile_source, declare, pointer
from workers import MEMORY, Worker, check_memory

pytestmark = pytest.mark.skipif("KOPS_CUDA_DRIVER" in os.environ, reason="the stand-in driver has no torch")
without_waiting = pytest.mark.skipif(not kops.compiled, reason="without the compiled part every call waits")

OF_ADD = "out float* c[n], const float* a[n], const float* b[n], int n"
OF_DOUBLE = "out float* out[n], const float* in[n], int n"
N = 10_001

# Code, and the names that a driver may give to its fault.
FAULTS = {
    "misaligned": ("*(volatile double*)((char*)p + 4) = 1;", {"MISALIGNED_ADDRESS"}),
    "trapped": ('asm volatile("trap;");', {"ILLEGAL_INSTRUCTION", "LAUNCH_FAILED"}),
    "far_away": ("p[1ull << 40] = 1;", {"ILLEGAL_ADDRESS"}),
    "null": ("*(volatile float*)nullptr = p[0];", {"ILLEGAL_ADDRESS"}),
    "executed": ("((void (*)())(unsigned long long)p)();", {"INVALID_PC", "ILLEGAL_INSTRUCTION", "ILLEGAL_ADDRESS", "LAUNCH_FAILED"}),
    "unshared": (
        'asm volatile("st.shared.f32 [%0], %1;" :: "r"(0x7ffffff0u), "f"(1.0f) : "memory");',
        {"ILLEGAL_ADDRESS", "LAUNCH_FAILED", "INVALID_ADDRESS_SPACE", "ILLEGAL_INSTRUCTION"},
    ),
}


@pytest.fixture(scope="module")
def isolated(torch: Any) -> Iterator[Daemon]:
    with start(backends.CUDA) as daemon:
        yield daemon


@pytest.fixture
def culprit(isolated: Daemon) -> Iterator[Any]:
    with kops.connect(isolated.socket_path) as client:
        yield client


@pytest.fixture
def other(isolated: Daemon) -> Iterator[Any]:
    with kops.connect(isolated.socket_path) as client:
        yield client


# ---- faults ----


@pytest.mark.parametrize("name", FAULTS)
def test_every_kind_of_fault_is_a_reply(torch: Any, isolated: Daemon, name: str) -> None:
    code, drivers = FAULTS[name]
    client = HostClient(isolated)
    try:
        client.launch_shared(3)
        source = f'extern "C" __global__ void {name}(float* p) {{ {code} }}'
        module = compile_source(client.connection, source, name)["module"]
        bad = declare(client.connection, module, entry=name, params=[pointer("p", "inout")], grid=[1], block=[1])
        for turn in range(2):
            error = client.fault(bad)
            assert error.detail["driver"].removeprefix("CUDA_ERROR_") in drivers, error
            assert error.detail["kernel"] == name
            client.launch_shared(turn)
            client.square_shared(turn)
    finally:
        client.close()


def test_a_fault_raises_and_all_goes_on(torch: Any, culprit: Any, other: Any) -> None:
    """The same client, kernels, program and arrays; torch on both sides of them."""
    a, b, c = random(torch, N), random(torch, N), nothing(torch, N)
    kept = culprit.array(numpy.arange(5, dtype=numpy.float32))
    add = culprit.kernel(ADD, "add2_kernel", OF_ADD, grid="ceil_div(n, 256)", block=256)
    stray = culprit.kernel(OTHERS, "fault_kernel", "float* p", 1, 1)
    with culprit.program() as program:
        add(c, a, b, N)
        squares = culprit.square(c)
    for _ in range(3):
        program.run(blocking=True)
        with pytest.raises(kops.DeviceFault) as fault:
            stray(c, blocking=True)
        assert fault.value.kernel == "fault_kernel" and fault.value.driver == "CUDA_ERROR_ILLEGAL_ADDRESS"
        out = other.add(a, b, blocking=True)
        assert_add(out, a, b)
        c.fill_(float("nan"))
        add(c, a, b, N, blocking=True)
        assert_add(c, a, b)
        c.fill_(float("nan"))
        squares.fill_(float("nan"))
        program.run(blocking=True)
        assert_add(c, a, b)
        assert_square(squares, c)
        assert numpy.asarray(kept).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    bound = random(torch, N)
    program.run(bind={a: bound}, blocking=True)
    assert_add(c, bound, b)


@without_waiting
def test_a_fault_on_a_stream_is_told_later(torch: Any, culprit: Any, other: Any) -> None:
    """torch's stream goes on, and so does the next ordered call."""
    a, b, c = random(torch, N), random(torch, N), nothing(torch, N)
    add = culprit.kernel(ADD, "add2_kernel", OF_ADD, grid="ceil_div(n, 256)", block=256)
    stray = culprit.kernel(OTHERS, "fault_kernel", "float* p", 1, 1)
    for turn in range(3):
        add(c, a, b, N)
        culprit.synchronize()
        stray(c)
        torch.cuda.synchronize()
        with pytest.raises(kops.DeviceFault):
            culprit.synchronize()
        x = other.add(a, b)
        a.fill_(float(turn))
        add(c, a, b, N)
        total = c + a
        culprit.synchronize()
        assert torch.equal(c, a + b) and torch.equal(total, c + a)
        other.synchronize()
        assert x.isfinite().all()


def test_ordered_work_of_others_keeps_its_order(torch: Any, isolated: Daemon, other: Any) -> None:
    x, one = torch.zeros(1000, device="cuda"), torch.ones(1000, device="cuda")
    culprit = HostClient(isolated)
    try:
        culprit.launch_shared(1)
        bad = culprit.kernel("fault_kernel")
        for turn in range(300):
            x = other.add(x, one)
            x.mul_(1.0)
            if turn % 100 == 50:
                culprit.fault(bad)
        other.synchronize()
        assert bool((x == 300).all())
    finally:
        culprit.close()


# ---- deadlines ----


def test_a_deadline_ends_a_kernel_on_torchs_memory(torch: Any, isolated: Daemon, culprit: Any) -> None:
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    source = 'extern "C" __global__ void count_on(int* n) { for (;;) atomicAdd(n, 1); }'
    kernel = culprit.kernel(source, "count_on", "int* n[1]", 1, 1)
    with pytest.raises(kops.DeadlineExceeded) as late:
        kernel(counter, deadline_ms=100, blocking=True)
    assert late.value.ended
    counted = int(counter[0])
    a = random(torch, 1 << 20)
    for _ in range(20):
        assert_square(culprit.square(a, blocking=True), a)
    assert int(counter[0]) == counted > 0


# ---- executors that are killed ----


@without_waiting
@pytest.mark.parametrize("domain", ["common", "user"])
def test_an_executor_is_killed_under_ordered_calls(torch: Any, isolated: Daemon, culprit: Any, domain: str) -> None:
    """torch's stream does not stand still; lost calls are told, later ones are right."""
    a = random(torch, 1000)
    double = culprit.kernel(OTHERS, "custom_kernel", OF_DOUBLE, grid=4, block=256)
    out = torch.empty_like(a)
    if domain == "user":
        double(out, a, 1000, blocking=True)
    else:
        culprit.square(a, blocking=True)
    with isolated.connect() as control:
        pid = pid_of(control, domain)
        for turn in range(500):
            culprit.square(a, out=out)
            if turn == 100:
                os.kill(pid, signal.SIGKILL)
        torch.cuda.synchronize()
        proc.eventually(lambda: not Path(f"/proc/{pid}").exists(), "it is reaped")
        try:
            culprit.synchronize()
        except kops.KopsError as error:
            assert error.code == "device_lost" and error.detail["daemon"] == "goes_on", error
        out.fill_(float("nan"))
        culprit.square(a, out=out)
        culprit.synchronize()
        assert_square(out, a)
        double(out, a, 1000, blocking=True)
        assert torch.equal(out, 2 * a)


# ---- memory of every kind, in the executor of a user ----


def test_torchs_memory_in_a_domain(torch: Any, isolated: Daemon) -> None:
    with Worker("checker", isolated.socket_path, "11", "12", KOPS_TEST_DOMAIN="1") as worker:
        assert worker.hear() == {"ready": True}
        worker.tell()
        assert worker.hear() == {"done": True}
        worker.finish()


@pytest.mark.parametrize("role", MEMORY)
def test_memory_of_every_kind_in_a_domain(torch: Any, isolated: Daemon, role: str) -> None:
    check_memory(role, isolated.socket_path, KOPS_TEST_DOMAIN="1")


def test_memory_of_every_kind_after_a_fault(torch: Any, isolated: Daemon, culprit: Any) -> None:
    """The new executor opens anew the memory of the old one: torch's memory, the daemon's, shared memory."""
    stray = culprit.kernel(OTHERS, "fault_kernel", "float* p", 1, 1)
    double = culprit.kernel(OTHERS, "custom_kernel", OF_DOUBLE, grid=64, block=256)
    small, large = random(torch, 1000), random(torch, 64 << 20)  # of torch's pools, and an allocation of its own
    shared = culprit.array(numpy.arange(1000, dtype=numpy.float32))
    shared_out = culprit.zeros(1000)
    for _ in range(2):
        with pytest.raises(kops.DeviceFault):
            stray(small, blocking=True)
        for a in (small, large):
            out = torch.full_like(a, float("nan"))
            n = min(a.numel(), 64 * 256)
            double(out, a, n, blocking=True)
            assert torch.equal(out[:n], 2 * a[:n])
            assert_square(culprit.square(a, blocking=True), a)
        shared_out[:] = 0
        double(shared_out, shared, 1000, blocking=True)
        assert (numpy.asarray(shared_out) == 2 * numpy.asarray(shared)).all()
