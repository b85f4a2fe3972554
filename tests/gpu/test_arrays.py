"""`kops.Array`: memory of the daemon's on a real GPU, used by processes with and without CUDA.

What needs no torch also runs on the stand-in driver, with KOPS_CUDA_DRIVER.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from standin_cuda.control import Control
from support import backends
from support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
DTYPES = ("f32", "f64", "f16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool")


@pytest.fixture(scope="module")
def control(backend: str) -> Control | None:
    """Of the stand-in driver."""
    return Control() if backend == backends.STANDIN else None


@pytest.fixture(scope="module")
def machine(backend: str, control: Control | None) -> Iterator[Daemon]:
    if (why := backends.missing(backend)) is not None:
        pytest.skip(why)
    with Daemon(config=backends.config(backend), env=control.env if control else {}) as running:
        yield running


@pytest.fixture
def client(machine: Daemon) -> Iterator[Any]:
    with kops.connect(machine.socket_path, timeout=300) as made:
        yield made
        gc.collect()
        made.trim()


def numbers(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return (numpy.random.default_rng().standard_normal(shape) * 50).astype(dtype)


WITHOUT_CUDA = """
import numpy, sys
import kops

with kops.connect(sys.argv[1], timeout=300) as k:
    x = numpy.random.default_rng().standard_normal((512, 512)).astype("float32")
    a = k.array(x, device=0)
    assert a.device.backend == "cuda", a.device
    b, timings = k.add(a, 1.5, timing=True)
    assert timings.h2d_us is None and numpy.array_equal(b.get(), x + numpy.float32(1.5))
    with k.program() as p:
        c = k.square(b)
        d = k.add(c, a)
    p.run()
    assert numpy.array_equal(d.get(), (x + numpy.float32(1.5)) ** 2 + x)
    assert numpy.array_equal(numpy.asarray(k.gemm(a, a)[:3, ::7]), k.gemm(a, a).get()[:3, ::7])
    assert not hasattr(a, "__cuda_array_interface__")
    got = [one.get(blocking=False, stream=7) for one in (a, b, c, d)]
    assert numpy.array_equal(got[0].result(), x)
loaded = open("/proc/self/maps").read()
assert "libcuda" not in loaded, "this process has loaded CUDA"
print("good")
"""


def test_a_process_without_cuda(machine: Daemon) -> None:
    env = {key: value for key, value in os.environ.items() if key != "KOPS_CUDA_DRIVER"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "client_py"), env.get("PYTHONPATH", "")])
    for native in ("0", env.get("KOPS_NATIVE", "0")):
        command = [sys.executable, "-c", WITHOUT_CUDA, machine.socket_path]
        done = subprocess.run(command, env={**env, "KOPS_NATIVE": native}, capture_output=True, text=True, check=False)
        assert done.stdout == "good\n", done.stderr


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_of_every_dtype_and_layout(client: Any, dtype: str) -> None:
    from kops._base.dtypes import NAMES

    value = numbers(131, 67, 5, dtype=NAMES[dtype])
    a = client.array(value, device=0)
    assert numpy.array_equal(a.get(), value)
    for key in (slice(None), slice(3, 90), (slice(None), slice(1, 60, 2)), (5, ..., 2), (slice(None, None, 3), 4)):
        assert numpy.array_equal(a[key].get(), value[key])
        shared = client.array(value[key], NAMES[dtype])
        b = client.zeros(value.shape, NAMES[dtype], device=0)
        b[key] = shared
        expected = numpy.zeros_like(value)
        expected[key] = value[key]
        assert numpy.array_equal(b.get(), expected)
    assert numpy.array_equal(client.copy(a.T).get(), value.T) and numpy.array_equal(client.copy(a[1:, ::2]).get(), value[1:, ::2])
    assert client.copy(a, timing=True)[1].variant == "vector"


def test_products_without_a_pause_have_exact_times(client: Any, backend: str) -> None:
    """20 ms each on a H100: CUPTI has the records when the stream pauses, the first of them long after its product."""
    if backend != backends.CUDA:
        pytest.skip("the stand-in driver loads no CUPTI here; tests/functional/test_exact_times.py")
    n = 8192
    a, out = client.zeros((n, n), "f32", device=0), client.empty((n, n), "f32", device=0)
    client.gemm(a, a, out=out, timing="exact")
    sent = [client.submit("gemm", a, a, out=out, timing="exact") for _ in range(40)]
    times = [pending.result()[1] for pending in sent]
    if times[0].timer != "cupti":
        pytest.skip("there is no CUPTI")
    assert all(t.timer == "cupti" and t.gpu_us is not None and t.gpu_us > 0 for t in times), [t.gpu_us for t in times]


def test_contiguous_copies_are_one_transfer(client: Any, backend: str) -> None:
    bytes_ = 256 * MIB if backend == backends.CUDA else MIB
    host, back = client.array(numbers(bytes_ // 4)), client.empty(bytes_ // 4)
    a = client.empty(host.shape, device=0)
    for timing in (True, "exact"):
        for source, out in ((host, a), (a, back)):
            _, timings = client.copy(source, out=out, timing=timing)
            assert timings.variant == "transfer" and timings.h2d_us is None and timings.d2h_us is None and timings.gpu_us > 0
            print(f"{timings.gpu_us:.1f} us, {bytes_ / timings.gpu_us / 1e3:.1f} GB/s by {timings.timer}")
        assert numpy.array_equal(host, back)
        back[:] = 0
    profile = client.profile("copy", host, out=a, repeat=20)
    assert profile.variant == "transfer" and len(profile.samples) == 20


def test_copies_go_on_beside_work(client: Any, control: Control | None) -> None:
    """A GPU's products are long; the stand-in's wait at a gate."""
    side, works = (192, 4) if control else (8192, 8)
    m = client.array(numbers(side, side), device=0)
    out = client.empty((side, side), device=0)
    a, host = client.array(numbers(MIB // 4), device=0), client.empty(MIB // 4)
    a.get(host)  # its memory is registered now
    with control.gate("kernel") if control else nullcontext():
        running = [client.submit("gemm", m, m, out=out, stream=1) for _ in range(works)]
        a.get(host, blocking=False, stream=2).result()
        assert not running[-1].done(), "the copy waited for the products"
    for one in running:
        one.result()
    assert numpy.array_equal(host, a.get())


def test_contents_outlive_the_daemon(backend: str) -> None:
    if (why := backends.missing(backend)) is not None:
        pytest.skip(why)
    value = numbers(1000, 1000)
    first = Daemon(config=backends.config(backend))
    try:
        with kops.connect(first.socket_path, timeout=300, reconnect_timeout=120) as k:
            a = k.array(value, device=0)
            b = k.add(a, 3.0)
            first.process.kill()
            first.process.wait()
            with Daemon(config=backends.config(backend), socket_path=first.socket_path):
                assert numpy.array_equal(a.get(), value) and numpy.array_equal(b.get(), value + numpy.float32(3))
                assert numpy.array_equal(k.add(b, 3.0).get(), value + numpy.float32(3) + numpy.float32(3))
    finally:
        first.cleanup()


def test_memory_is_given_back(torch: Any, client: Any) -> None:
    free = torch.cuda.mem_get_info()[0]
    arrays = [client.zeros(256 * MIB // 4, device=0) for _ in range(4)]
    made = [client.square(one) for one in arrays]
    assert torch.cuda.mem_get_info()[0] < free - 1900 * MIB
    for one in made:
        one.__cuda_array_interface__  # noqa: B018 - mapped here, too
    del arrays, made, one
    gc.collect()
    client.trim()
    assert torch.cuda.mem_get_info()[0] > free - 128 * MIB


# With torch in the process


def test_torch_sees_the_same_memory(torch: Any, client: Any) -> None:
    value = numbers(64, 48)
    a = client.array(value, device=0)
    for view in (torch.as_tensor(a, device="cuda"), torch.from_dlpack(a)):
        assert view.is_cuda and numpy.array_equal(view.cpu().numpy(), value)
        view.add_(1)
        torch.cuda.synchronize()
        value += 1
        assert numpy.array_equal(a.get(), value), "it is no copy"
    part = torch.from_dlpack(a[3:10, ::2].T)
    assert part.shape == (24, 7) and numpy.array_equal(part.cpu().numpy(), value[3:10, ::2].T)
    for dtype in ("int8", "int64", "float64", "float16", "uint8", "bool"):
        other = client.array(numbers(100, dtype=dtype), device=0)
        assert torch.equal(torch.from_dlpack(other).cpu(), torch.from_numpy(other.get())), dtype


def test_ops_take_torchs_view_of_an_array(torch: Any, client: Any) -> None:
    value = numbers(1000)
    a = client.array(value, device=0)
    view = torch.from_dlpack(a)
    assert torch.equal(client.add(view, view).cpu(), torch.from_numpy(value + value))
    assert client.square(view, out=a, blocking=True) is a
    assert numpy.array_equal(a.get(), value * value)
    mixed = client.add(torch.ones(1000, device="cuda"), a)
    client.synchronize()
    assert numpy.array_equal(mixed.cpu().numpy(), a.get() + 1)
    a.set(torch.full((1000,), 3.0, device="cuda"))
    assert (a.get() == 3).all() and (client.array(torch.zeros(5, device="cuda"), device=0).get() == 0).all()


def test_a_torch_view_keeps_the_memory(torch: Any, client: Any) -> None:
    view = torch.from_dlpack(client.array(numpy.full(MIB, 7, "float32"), device=0))
    gc.collect()
    client.trim()
    client.zeros(MIB, device=0)
    assert bool((view == 7).all())


def test_kernels_take_arrays(client: Any, backend: str) -> None:
    if backend != backends.CUDA or backends.nvrtc() is None:
        pytest.skip("no compiler, or no GPU")
    source = """extern "C" __global__ void scale(float* y, const float* x, float f, int n)
    { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = f * x[i]; }"""
    kern = client.kernel(source, "scale", "out float* y[n], const float* x[n], float f, int n", grid="ceil_div(n, 256)", block=256)
    x = numbers(100_000)
    a, y = client.array(x, device=0), client.empty(100_000, device=0)
    assert kern(y, a, 2.0, x.size) is y and numpy.array_equal(y.get(), x * 2)
    f = client.elementwise("x * y + 1")
    made = f(a, y)
    assert type(made) is type(a) and numpy.allclose(made.get(), x * (2 * x) + 1, rtol=1e-5)
    total = client.reduce("x", "a + b", identity=0)(client.array(numpy.ones(100_000, "float32"), device=0))
    assert float(total.get()) == 100_000
