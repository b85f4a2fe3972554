"""The daemon's ops in torch's own context and in its graphs: values against float64, order, ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from check import DTYPES, aside, assert_add, assert_gemm, assert_square, random
from support import backends
from support.daemon import Daemon

import kops  # isort: skip


@pytest.fixture(autouse=True)
def handed_out(k: Any) -> None:
    if "images" not in k.info.features:
        pytest.skip("this daemon hands out no code")


def runs(k: Any) -> int:
    """Executions by the daemon."""
    return sum(row["count"] for row in k.stats()["ops"] if row["variant"] != "here")


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(torch: Any, k: Any, dtype: str) -> None:
    """As the daemon's results; those of contiguous memory are tests/conformance's."""
    whole, before = random(torch, 259, 257, dtype=dtype), runs(k)
    for a in (whole.t(), whole[::2, 1::3], whole[1:, 1:], whole.flatten()[1:1001].view(10, 100)):
        into = random(torch, *reversed(a.shape), dtype=dtype).t()
        assert k.add(a, a[:1], out=into, where="here") is into
        assert_add(into, a, a[:1])
        assert_square(k.square(a, where="here"), a)
        assert torch.equal(k.copy(a, where="here"), a)
        assert_gemm(k.gemm(a, a, trans_b=True, where="here"), a, a.t())
    assert runs(k) == before


def test_variants_and_times(torch: Any, k: Any) -> None:
    a = torch.randn(2048, 2048, device="cuda")
    _, timings = k.gemm(a, a, where="here", timing=True)
    assert timings.variant == "tiled" and timings.timer == "events" and timings.gpu_us > 1
    there = k.profile("gemm", a, a, variant="tiled", repeat=10).min
    best = min(k.gemm(a, a, where="here", timing=True)[1].gpu_us for _ in range(10))
    assert best == pytest.approx(there, rel=0.15)
    assert k.square(a, where="here", timing=True)[1].variant == "vector"
    assert k.square(a.t(), where="here", timing=True)[1].variant == "tiles"
    assert torch.equal(k.square(a, variant="strided", where="here"), a * a)


def test_order_on_a_stream(torch: Any, k: Any) -> None:
    x, y = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    k.square(x, out=y, where="here")
    with aside(torch) as stream:
        x.fill_(3)
        k.square(x, out=y, where="here")
        x.zero_()
        assert not stream.query(), "nothing was waited for"
    assert bool((y == 9).all())


def mixed(torch: Any, k: Any, x: Any, w: Any, into: Any) -> None:
    y = k.add(k.gemm(x, w), torch.tanh(x))
    k.gemm(y, w, trans_b=True, out=into)
    k.add(k.square(into), k.copy(x[0]), out=into)


def want(torch: Any, x: Any, w: Any) -> Any:
    y = x @ w + torch.tanh(x)
    return (y @ w.t()).square() + x[0]


def test_graphs(torch: Any, k: Any) -> None:
    x, w, out = (torch.randn(96, 96, device="cuda", dtype=torch.float64) for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    before = runs(k)
    with torch.cuda.graph(graph):
        mixed(torch, k, x, w, out)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, want(torch, x, w))
    x.normal_()
    with aside(torch):
        graph.replay()
    torch.testing.assert_close(out, want(torch, x, w))
    assert runs(k) == before, "the daemon ran none of them"


@pytest.fixture
def own() -> Iterator[Daemon]:
    """A daemon of the test's own."""
    running = Daemon(config=backends.config(backends.CUDA))
    yield running
    running.cleanup()


def test_a_graph_outlives_its_client_and_the_daemon(torch: Any, own: Daemon) -> None:
    client = kops.connect(own.socket_path)
    if "code" not in client.info.features:
        pytest.skip("this daemon compiles no kernels")
    x, w, out, scaled = (torch.randn(64, 64, device="cuda", dtype=torch.float64) for _ in range(4))
    source = 'extern "C" __global__ void scale(double* y, const double* x) { y[threadIdx.x] = 3 * x[threadIdx.x]; }'
    kernel = client.kernel(source, "scale", "out double* y[64], const double* x[64]", grid=1, block=64)
    client.square(x)  # the daemon has the memory
    client.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixed(torch, client, x, w, out)
        kernel(scaled[0], out[0])

    def check() -> None:
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, want(torch, x, w))
        assert torch.equal(scaled[0], 3 * out[0])

    check()
    client.close()
    del kernel
    check()
    os.kill(own.pid, signal.SIGKILL)
    time.sleep(1)
    del client
    check()


def test_wrong_calls_spoil_no_capture(torch: Any, k: Any) -> None:
    x, y = torch.randn(10, device="cuda"), torch.zeros(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for wrong in (
            lambda: k.add(x, y[:3]), lambda: k.square(x[:5], out=x[1:6]), lambda: k.square(x, where="daemon"), lambda: k.gemm(x, 2.0),
        ):  # fmt: skip
            with pytest.raises(kops.KopsError):
                wrong()
        k.add(x, x, out=y)
    graph.replay()
    assert torch.equal(y, x + x)


def test_auto(torch: Any, k: Any) -> None:
    x = torch.randn(64, 64, device="cuda")
    torch.testing.assert_close(k.square(x, where="auto"), x * x)
    torch.testing.assert_close(k.gemm(x, x, where="auto"), x @ x, rtol=1e-4, atol=1e-3)
    k.synchronize()
