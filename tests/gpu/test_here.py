"""Kernels that the daemon compiles and torch's own context runs: results, graphs, faults."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import kops
import pytest
from check import aside

SOURCE = """
template <typename T> __global__ void axpy(T *y, const T *x, float a, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = T(float(y[i]) + a * float(x[i]));
}
extern "C" __global__ void scaled(float *out, const float *in, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * in[i];
}
extern "C" __global__ void shared_sum(float *out, const float *in, int n)
{
    extern __shared__ float part[];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x; i++) part[0] += part[i];
        out[0] = part[0];
    }
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) paired(int *out) { out[blockIdx.x] = blockIdx.x; }
"""


@pytest.fixture
def scaled(k: Any) -> Any:
    if "code" not in k.info.features:
        pytest.skip("this daemon hands out no code")
    return k.kernel(SOURCE, "scaled", "out float* out[n], const float* in[n], float a, int n", grid="ceil_div(n, 256)", block=256)


def launches(k: Any) -> int:
    count: int = k.stats()["kernels"]["launches"]
    return count


def test_results_on_torch_s_streams(torch: Any, k: Any, scaled: Any) -> None:
    before = launches(k)
    for n in (1, 1000, 3_000_001):
        x, y = torch.randn(n, device="cuda"), torch.full((n,), float("nan"), device="cuda")
        assert scaled(y, x, 2.5, n, where="here") is y
        assert torch.equal(y, 2.5 * x)
    with aside(torch) as stream:
        x.fill_(3)
        scaled(y, x, 2.0, n, where="here")
        x.zero_()
        assert not stream.query(), "nothing was waited for"
    assert bool((y == 6).all()) and launches(k) == before


def test_calls_by_turns_and_what_differs_from_them(torch: Any, k: Any, scaled: Any) -> None:
    """Calls that were made before are not checked anew; every other one is."""
    n = 10_000
    x = torch.randn(n, device="cuda")
    outs = [torch.empty_like(x) for _ in range(6)]
    for turn in range(3):
        for i, out in enumerate(outs[: 2 + 2 * turn]):
            scaled(out, x, float(i), n, where="here")
        assert all(torch.equal(out, i * x) for i, out in enumerate(outs[: 2 + 2 * turn]))
    for other in ((outs[0], x[:-1], 0.0, n), (outs[0], x, 0.0, n + 1), (outs[0].int(), x, 0.0, n), (x, x, 0.0, n)):
        with pytest.raises((kops.ShapeMismatch, kops.DtypeMismatch, kops.Overlap)):
            scaled(*other, where="here")
    address = outs[1].data_ptr()
    del outs[1]
    half = torch.full((n // 2,), 7.0, device="cuda")  # likely where the freed one was
    assert scaled(half, x[: n // 2], 3.0, n // 2, where="here") is half and torch.equal(half, 3 * x[: n // 2])
    if half.data_ptr() == address:
        with pytest.raises(kops.ShapeMismatch):
            scaled(half, x, 1.0, n, where="here")


def test_templates_shared_memory_and_clusters(torch: Any, k: Any, scaled: Any) -> None:
    axpy = k.kernel(SOURCE, "axpy<float>", "inout float* y[n], const float* x[n], float a, int n", grid=64, block=128)
    x, y = torch.randn(100_003, device="cuda"), torch.randn(100_003, device="cuda")
    want = (y.double() + 0.5 * x.double()).float()
    axpy(y, x, 0.5, x.numel(), where="here")
    assert torch.allclose(y, want, rtol=1e-6, atol=1e-6)
    total = k.kernel(SOURCE, "shared_sum", "out float* out[1], const float* in[n], int n", grid=1, block=1024, shared=150_000)
    out = torch.zeros(1, device="cuda")
    total(out, x, x.numel(), where="here")
    assert float(out) == pytest.approx(float(x.double().sum()), abs=1e-2)
    if torch.cuda.get_device_capability() >= (9, 0):
        pairs = torch.full((8,), -1, dtype=torch.int32, device="cuda")
        k.kernel(SOURCE, "paired", "out int* out[8]", grid=8, block=32)(pairs, where="here")
        assert pairs.tolist() == list(range(8))


def test_times_are_between_events(torch: Any, k: Any, scaled: Any) -> None:
    n = 1 << 26
    x, y = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
    here = min(scaled(y, x, 2.0, n, where="here", timing=True).gpu_us for _ in range(10))
    there = scaled.profile(y, x, 2.0, n, repeat=10).min
    assert here == pytest.approx(there, rel=0.1), (here, there)


def test_statistics_have_launches_here(torch: Any, k: Any, scaled: Any) -> None:
    """Counts are exact; times are those of the launches that were timed, while others run and while another stream is captured."""
    n = 1 << 24
    x, y = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
    scaled(y, x, 2.0, n, where="here")
    captured, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    for _ in range(99):
        scaled(y, x, 2.0, n, where="here")
    z = torch.empty(64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=captured):
        for _ in range(100):
            scaled(z, x, 2.0, 64, where="here")
        k.stats()  # reads a time
    graph.replay()
    torch.cuda.synchronize()
    rows = {row["shapes"][-1][0]: row for row in k.stats()["ops"] if row["variant"] == "here" and row["op"] == "scaled"}
    assert rows[n]["count"] == 100 and rows[64]["count"] >= 100 and torch.equal(z, 2 * x[:64])
    there = scaled.profile(y, x, 2.0, n, repeat=10).median
    assert there * 0.9 <= rows[n]["exec_us"]["p50"] <= there * 1.2 + 10, (rows[n]["exec_us"], there)


def test_auto_is_here_where_contexts_alternate(torch: Any, k: Any, scaled: Any) -> None:
    x, y = torch.randn(64, device="cuda"), torch.empty(64, device="cuda")
    place = scaled.place(y, x, 2.0, 64)
    print(place, file=sys.stderr)
    assert place.where == "here" and place.here_us < place.daemon_us
    scaled(y, x, 2.0, 64, where="auto")
    assert torch.equal(y, 2 * x)


def test_graphs(torch: Any, k: Any, scaled: Any) -> None:
    x, y, z = (torch.zeros(1000, device="cuda") for _ in range(3))
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        scaled(y, x, 2.0, 1000)
        z.copy_(y + 1)
    with torch.cuda.graph(other):
        scaled(x, z, 1.0, 1000)
    assert float(y.sum()) == 0
    for _ in range(3):
        graph.replay()
        assert torch.equal(z, 2 * x + 1)
    other.replay()
    with aside(torch):
        graph.replay()
    assert bool((z == 2 * 8 + 1).all())


def test_a_fault_is_the_caller_s_own(torch: Any, daemon: Any, k: Any, scaled: Any) -> None:
    """In a process of its own, whose context it breaks."""
    program = f"""
import torch, kops
k = kops.connect({daemon.socket_path!r})
bad = k.kernel('extern "C" __global__ void bad(float *x) {{ *(float *)16 = 1; }}', "bad", "inout float* x", grid=1, block=1)
x = torch.zeros(1, device="cuda")
bad(x, where="here")
try:
    torch.cuda.synchronize()
except Exception as error:
    assert "illegal" in str(error) or "misaligned" in str(error), error
    print("its own")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert "its own" in done.stdout, done.stderr
    x, y = torch.ones(10, device="cuda"), torch.zeros(10, device="cuda")
    scaled(y, x, 2.0, 10)
    k.synchronize()
    assert bool((y == 2).all())
