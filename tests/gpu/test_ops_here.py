"""The daemon's ops in torch's own context and in its graphs: values against float64, order, ends."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from conformance import reference
from support import backends
from support.daemon import Daemon

import kops  # isort: skip

DTYPES = ("float32", "float64", "float16", "bfloat16")
SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


@pytest.fixture(autouse=True)
def handed_out(k: Any) -> None:
    if "images" not in k.info.features:
        pytest.skip("this daemon hands out no code")


def runs(k: Any) -> int:
    """Executions by the daemon."""
    return sum(row["count"] for row in k.stats()["ops"] if row["variant"] != "here")


def wide(tensor: Any) -> Any:
    return tensor.detach().double().cpu().numpy().copy()


def check(op: str, dtype: str, got: Any, inputs: list[Any], before: Any = None, **attrs: Any) -> None:
    ref, scale = reference.REFERENCES[op]([wide(one) for one in inputs], None if before is None else before, attrs)
    shape = numpy.broadcast_shapes(*(tuple(one.shape) for one in inputs)) if op != "gemm" else ref.shape
    allowed = reference.tolerance(declared(op), SHORT[dtype], attrs)
    reference.check(wide(got), numpy.broadcast_to(ref, shape), numpy.broadcast_to(scale, shape), allowed)


def declared(op: str) -> Any:
    return json.loads((Path(__file__).resolve().parents[2] / "proto" / "ops" / f"{op}.json").read_text())


def layouts(torch: Any, dtype: str, rng: random.Random, *shape: int) -> Any:
    """A random tensor of the shape: dense, sliced, transposed, or at an odd address."""
    kind, made = rng.randrange(5), getattr(torch, dtype)
    if kind == 0:
        return torch.randn(shape, device="cuda").to(made)
    if kind == 1:  # every other element of the last dimension
        return torch.randn((*shape[:-1], 2 * shape[-1]), device="cuda").to(made)[..., ::2]
    if kind == 2:
        return torch.randn(shape[::-1], device="cuda").to(made).permute(*reversed(range(len(shape))))
    if kind == 3:  # a window
        return torch.randn([n + 3 for n in shape], device="cuda").to(made)[tuple(slice(1, n + 1) for n in shape)]
    count = 1
    for n in shape:
        count *= n
    return torch.randn(count + 1, device="cuda").to(made)[1:].view(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_values(torch: Any, k: Any, dtype: str) -> None:
    rng, before = random.Random(len(dtype)), runs(k)
    for shape in [(1,), (7,), (1000,), (3, 5), (64, 64), (33, 1, 17), (2, 3, 4, 5), (129, 257), (1 << 20,)]:
        for _ in range(3):
            a, b = layouts(torch, dtype, rng, *shape), layouts(torch, dtype, rng, *shape)
            part = layouts(torch, dtype, rng, *[n if rng.random() < 0.6 else 1 for n in shape])
            check("add", dtype, k.add(a, b, where="here"), [a, b])
            check("add", dtype, k.add(part, a, where="here"), [part, a])
            check("square", dtype, k.square(a, where="here"), [a])
            check("copy", dtype, k.copy(b, where="here"), [b])
            into = layouts(torch, dtype, rng, *shape)
            assert k.add(a, part, out=into, where="here") is into
            check("add", dtype, into, [a, part])
            same = a.clone()
            k.square(same, out=same, where="here")
            check("square", dtype, same, [a])
    assert runs(k) == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_values(torch: Any, k: Any, dtype: str) -> None:
    rng, before = random.Random(7), runs(k)
    for m, n, p in [(1, 1, 1), (5, 7, 3), (64, 64, 64), (130, 127, 129), (256, 512, 96), (1000, 17, 333), (3, 1025, 2)]:
        for trans_a in (False, True):
            for trans_b in (False, True):
                a = layouts(torch, dtype, rng, *((p, m) if trans_a else (m, p)))
                b = layouts(torch, dtype, rng, *((n, p) if trans_b else (p, n)))
                attrs = {"trans_a": trans_a, "trans_b": trans_b, "alpha": rng.choice((1.0, -0.5))}
                check("gemm", dtype, k.gemm(a, b, **attrs, where="here"), [a, b], **attrs)
                out = layouts(torch, dtype, rng, m, n)
                old = wide(out)
                k.gemm(a, b, **attrs, beta=0.75, out=out, where="here")
                check("gemm", dtype, out, [a, b], old, **attrs, beta=0.75)
    a, b = layouts(torch, dtype, rng, 3, 1, 40, 50), layouts(torch, dtype, rng, 2, 50, 60)
    check("gemm", dtype, k.gemm(a, b, where="here"), [a, b])
    v = layouts(torch, dtype, rng, 50)
    torch.testing.assert_close(k.gemm(a, v, where="here"), a @ v, rtol=2e-2, atol=0.3)
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
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.fill_(3)
        k.square(x, out=y, where="here")
        x.zero_()
        assert not stream.query(), "nothing was waited for"
    stream.synchronize()
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
    stream = torch.cuda.Stream()
    x.normal_()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.replay()
    stream.synchronize()
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
    x, w, out = (torch.randn(64, 64, device="cuda", dtype=torch.float64) for _ in range(3))
    client.square(x)  # the daemon has the memory
    client.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixed(torch, client, x, w, out)
    graph.replay()
    torch.testing.assert_close(out, want(torch, x, w))
    client.close()
    x.normal_()
    graph.replay()
    torch.testing.assert_close(out, want(torch, x, w))
    os.kill(own.pid, signal.SIGKILL)
    time.sleep(1)
    del client
    x.normal_()
    graph.replay()
    torch.testing.assert_close(out, want(torch, x, w))


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
