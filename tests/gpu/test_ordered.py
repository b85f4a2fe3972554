"""Calls on torch CUDA tensors as part of torch's streams: order, batches, sequences, programs, and the daemon's death.

Most tests put a long kernel on the stream first, so that what is wrong in the order shows.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kops
import pytest
from check import DTYPES, assert_add, assert_gemm, assert_square, random
from support.daemon import Daemon

MILLION = 1_048_576


without_waiting = pytest.mark.skipif(not kops.compiled, reason="without the compiled part every call waits")


@pytest.fixture(autouse=True)
def offered(k: Any) -> None:
    if "ordered" not in k.info.features:
        pytest.skip("the daemon offers no ordered calls")


@pytest.fixture
def busy(torch: Any) -> Any:
    """Keeps the current stream busy for some milliseconds."""
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()

    def work(rounds: int = 20) -> None:
        for _ in range(rounds):
            torch.mm(matrix, matrix)

    return work


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_may_change_after_the_call(torch: Any, k: Any, busy: Any, dtype: str) -> None:
    a, b = random(torch, MILLION, dtype=dtype), random(torch, MILLION, dtype=dtype)
    before = a.clone()
    busy()
    c = k.add(a, b)
    a.zero_()
    assert_add(c, before, b)
    assert not bool(a.any())


def test_inputs_may_be_written_just_before(torch: Any, k: Any, busy: Any) -> None:
    a, b = torch.zeros(MILLION, device="cuda"), random(torch, MILLION)
    k.add(a, b)  # registers
    for i in range(20):
        busy(2)
        a.fill_(i)
        assert_add(k.add(a, b), torch.full_like(b, i), b)


@without_waiting
def test_a_call_does_not_wait(torch: Any, k: Any, busy: Any) -> None:
    a = random(torch, MILLION)
    k.square(a)
    torch.cuda.synchronize()
    busy(200)
    event = torch.cuda.Event()
    k.square(a)
    event.record()
    assert not event.query(), "the call came back when the work before it had ended"
    k.synchronize()
    torch.cuda.synchronize()


def test_a_long_chain(torch: Any, k: Any) -> None:
    x, one = torch.zeros(1000, device="cuda"), torch.ones(1000, device="cuda")
    for _ in range(2000):
        x = k.add(x, one)
        x.mul_(1.0)
    assert bool((x == 2000).all())


def test_many_streams(torch: Any, k: Any, busy: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(8)]
    inputs = [random(torch, MILLION) for _ in streams]
    outputs: list[Any] = []
    torch.cuda.synchronize()
    for stream, a in zip(streams, inputs):
        with torch.cuda.stream(stream):
            busy(3)
            c = a
            for _ in range(20):
                c = k.add(c, a)
            outputs.append(c)
    for stream, a, c in zip(streams, inputs, outputs):
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(c, 21 * a, rtol=1e-5, atol=1e-5)


def test_threads_with_streams_of_their_own(torch: Any, k: Any) -> None:
    def work(_: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b = random(torch, 100_000), random(torch, 100_000)
            for _ in range(100):
                assert_add(k.add(a, b), a, b)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


def test_memory_that_the_allocator_reuses(torch: Any, k: Any, busy: Any) -> None:
    """Tensors dropped while their op waits: nothing else may get their memory before it has run."""
    b = random(torch, MILLION)
    results = []
    busy(50)
    for i in range(50):
        a = torch.full((MILLION,), float(i), device="cuda")
        results.append(k.add(a, b))
        del a
        torch.empty(MILLION, device="cuda").fill_(float("nan"))
    for i, c in enumerate(results):
        assert_add(c, torch.full_like(b, float(i)), b)


def test_memory_of_another_stream_is_kept(torch: Any, k: Any, busy: Any) -> None:
    """As `record_stream` does: the tensor was made on one stream and is used on another one."""
    side = torch.cuda.Stream()
    for i in range(20):
        a = torch.full((MILLION,), float(i), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(3)
            c = k.square(a)
        del a
        torch.full((MILLION,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert bool((c == float(i * i)).all())


def test_the_stream_sees_the_result_without_the_client(torch: Any, k: Any, busy: Any) -> None:
    a, b = random(torch, 640, 640), random(torch, 640, 640)
    busy(5)
    c = k.gemm(a, b)
    host = c.cpu()
    assert_gemm(host.cuda(), a, b)


def test_blocking_and_timed_calls_between(torch: Any, k: Any, busy: Any) -> None:
    a, b = random(torch, MILLION), random(torch, MILLION)
    busy(5)
    c = k.add(a, b)
    d = k.add(c, b, blocking=True)
    e, timings = k.square(d, timing=True)
    assert timings.gpu_us is not None
    assert_add(d, c, b)
    assert_square(e, d)


def test_a_batch(torch: Any, k: Any, busy: Any) -> None:
    x, one = torch.zeros(5000, device="cuda"), torch.ones(5000, device="cuda")
    busy(10)
    x.fill_(5)
    with k.batch():
        for _ in range(500):
            k.add(x, one, out=x)
    x.mul_(2)
    assert bool((x == 2 * 505).all())
    k.synchronize()


def test_a_sequence(torch: Any, k: Any, busy: Any) -> None:
    a, b = random(torch, 300, 200), random(torch, 200, 100)
    busy(5)
    with k.sequence():
        c = k.gemm(a, b)
        d = k.add(c, c)
        e = k.square(d)
    assert_gemm(c, a, b)
    assert_add(d, c, c)
    assert_square(e, d)
    (first, second), timings = k.sequence([("square", a), ("add", a, a)], timing=True)
    assert_square(first, a)
    assert_add(second, a, a)
    assert timings.gpu_us is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_program(torch: Any, k: Any, busy: Any, dtype: str) -> None:
    a, b = random(torch, 64, 64, dtype=dtype), random(torch, 64, 64, dtype=dtype)
    with k.program() as p:
        c = k.add(a, b)
        d = k.gemm(c, b)
        e = k.square(c)
    for _ in range(5):
        busy(1)
        a.copy_(random(torch, 64, 64, dtype=dtype))
        p.run()
        assert_add(c, a, b)
        assert_gemm(d, c, b)
        assert_square(e, c)
    x, y = random(torch, 64, 64, dtype=dtype), torch.empty_like(c)
    p.run([(a, x), (c, y)])
    assert_add(y, x, b)
    assert_square(e, y)
    timings = p.run(timing=True, repeat=10)
    assert timings is not None and timings.gpu_us is not None and len(timings.samples) == 10
    p.release()


def test_a_capturing_stream(torch: Any, k: Any) -> None:
    a = random(torch, 1000)
    k.square(a, out=torch.empty_like(a))
    k.synchronize()
    out, graph = torch.empty_like(a), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(kops.Capturing), torch.cuda.graph(graph):
        k.square(a, out=out, where="daemon")
    torch.cuda.synchronize()
    assert_square(k.square(a), a)


@pytest.fixture
def own_daemon(torch: Any) -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.cleanup()


@without_waiting
def test_the_daemons_death_with_many_ops_under_way(torch: Any, own_daemon: Daemon, busy: Any) -> None:
    """The caller's own work goes on, also while it sits in torch.cuda.synchronize(), and the error is told."""
    with kops.connect(own_daemon.socket_path) as k:
        a, out = random(torch, 1000), torch.empty(1000, device="cuda")
        k.square(a, out=out)
        k.synchronize()
        many = threading.Event()
        failed: list[kops.KopsError] = []

        def call() -> None:
            try:
                for i in range(1000):
                    k.square(a, out=out)
                    if i == 100:
                        many.set()
                k.synchronize()
            except kops.KopsError as error:
                failed.append(error)
                many.set()

        busy(400)
        caller = threading.Thread(target=call)
        caller.start()
        many.wait()
        assert not failed
        os.kill(own_daemon.pid, signal.SIGKILL)
        torch.cuda.synchronize()
        caller.join()
        assert isinstance(failed[0], kops.ConnectionLost)
        torch.cuda.synchronize()
    assert bool((torch.ones(10, device="cuda") * 2 == 2).all())
