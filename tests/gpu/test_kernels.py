"""Kernels that users bring, on a GPU: right results, in every form of a call, and clear errors."""

from __future__ import annotations

from typing import Any

import kernel_sources as sources
import kops
import numpy as np
import pytest
from check import assert_add, assert_square, nothing, random
from support.daemon import Daemon

ADD = "out float* c[n], const float* a[n], const float* b[n], int n"
VECTOR = {"grid": "ceil_div(n, 256)", "block": 256}


@pytest.fixture(autouse=True)
def only_where_kernels_are_served(k: Any) -> None:
    if not k.info.kernels or not k.info.kernels.get("allowed", False):
        pytest.skip("this daemon runs no kernels of users: there is no NVRTC, or no sandbox for it")


@pytest.fixture
def add(k: Any) -> Any:
    return k.kernel(sources.FIVE, "add2_kernel", ADD, **VECTOR)


# ---- what a launch may ask for ----


@pytest.mark.parametrize("n", [1000, 12_289, 40_000])
def test_shared_memory_beyond_48_kilobytes(torch: Any, k: Any, n: int) -> None:
    most = getattr(torch.cuda.get_device_properties(0), "shared_memory_per_block_optin", 48 << 10)
    if 4 * n > most:
        pytest.skip(f"the device has {most} bytes a block")
    kernel = k.kernel(sources.REVERSE, "reverse", "out float* out[n], const float* in[n], int n", 1, 1024, shared="4 * n")
    a, out = random(torch, n), nothing(torch, n)
    kernel(out, a, n)
    assert torch.equal(out, a.flip(0))


@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_clusters(torch: Any, k: Any, cluster: int) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("clusters of this size are tested on compute capability 9.x")
    kernel = k.kernel(sources.RING, "ring", "out int* out[64]", 64, 32, cluster=cluster)
    out = torch.full((64,), -1, dtype=torch.int32, device="cuda")
    kernel(out)
    assert out.tolist() == [i - i % cluster + (i + 1) % cluster for i in range(64)]


def test_templates(torch: Any, k: Any) -> None:
    module = k.compile(sources.SCALE, ["scale<float, 4>", "scale<__half, 7>"])
    for name, each, c_type, dtype in (("scale<float, 4>", 4, "float", torch.float32), ("scale<__half, 7>", 7, "half", torch.float16)):
        signature = f"out {c_type}* out[n], const {c_type}* in[n], float factor, int n"
        kernel = module.kernel(name, signature, f"ceil_div(n, {each * 128})", 128)
        a = random(torch, 10_001).to(dtype)
        out = torch.full_like(a, -1)
        kernel(out, a, 0.5, 10_001)
        assert torch.equal(out, (a.float() * 0.5).to(dtype))


def test_a_histogram_by_atomics(torch: Any, k: Any) -> None:
    kernel = k.kernel(sources.HISTOGRAM, "histogram_kernel", "int* bins[256], const unsigned char* data[n], int n", "multiprocessors", 256)
    data = torch.randint(0, 256, (1_000_003,), dtype=torch.uint8, device="cuda")
    bins = torch.ones(256, dtype=torch.int32, device="cuda")
    kernel(bins, data, data.numel())
    assert torch.equal(bins.long(), torch.bincount(data.long(), minlength=256) + 1)


def test_tensor_cores(torch: Any, k: Any) -> None:
    kernel = k.kernel(
        sources.WMMA, "wmma_gemm", "out float* c[n][m], const half* a[n][k], const half* b[k][m], int n, int m, int k",
        grid=("m / 16", "n / 16"), block=32,
    )  # fmt: skip
    a, b, c = random(torch, 64, 80).half(), random(torch, 80, 48).half(), nothing(torch, 64, 48)
    kernel(c, a, b, 64, 48, 80)
    reference, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert bool(((c.double() - reference).abs() <= 2.0**-12 * scale).all())


@pytest.fixture
def add_bias(k: Any) -> Any:
    params = [
        kops.Param("out", "out", "f32", strided=True), kops.Param("in_", "in", "f32"), kops.Param("bias", "in", "f32"),
        *(kops.Param(name, "scalar", "i32") for name in ("rows", "columns", "out_row", "out_column")),
    ]  # fmt: skip
    return k.kernel(sources.STRIDED, "add_bias", params, ("ceil_div(columns, 128)", "rows"), 128)


def test_null_pointers_and_layouts(torch: Any, add_bias: Any) -> None:
    a, bias, whole = random(torch, 33, 65), random(torch, 65), torch.full((65, 70), -7.0, device="cuda")
    out = whole.t()[:33]
    add_bias(out, a, bias, 33, 65, out.stride(0), out.stride(1))
    assert torch.equal(out, a + bias)
    add_bias(out, a, None, 33, 65, out.stride(0), out.stride(1))
    assert torch.equal(out, a)
    assert bool((whole[:, 33:] == -7).all())


# ---- beside everything else ----


def test_a_chain_with_torch_keeps_its_order(torch: Any, k: Any) -> None:
    kernel = k.kernel(sources.STEP, "step", "int* x[n], int n", **VECTOR)
    x = torch.arange(10_000, dtype=torch.int32, device="cuda")
    expected = np.arange(10_000)
    for i in range(200):
        kernel(x, 10_000)
        x += i
        expected = (expected * 5 + 1) % 1009 + i
    k.synchronize()
    assert (x.cpu().numpy() == expected).all()


def test_streams_are_each_in_order(torch: Any, k: Any) -> None:
    kernel = k.kernel(sources.STEP, "step", "int* x[n], int n", **VECTOR)
    streams = [torch.cuda.Stream() for _ in range(3)]
    xs = [torch.full((5000,), i, dtype=torch.int32, device="cuda") for i in range(3)]
    expected = [np.full(5000, i) for i in range(3)]
    torch.cuda.synchronize()
    for link in range(50):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                kernel(xs[i], 5000)
                xs[i] += link + i
            expected[i] = (expected[i] * 5 + 1) % 1009 + link + i
    for stream in streams:
        stream.synchronize()
    for x, wanted in zip(xs, expected, strict=True):
        assert (x.cpu().numpy() == wanted).all()


def test_sequences_of_ops_and_kernels(torch: Any, k: Any, add: Any) -> None:
    a, b, c = random(torch, 10_001), random(torch, 10_001), nothing(torch, 10_001)
    with k.sequence():
        add(c, a, b, 10_001)
        squares = k.square(c)
        add(c, squares, squares, 10_001)
    assert_square(squares, a + b)
    assert torch.equal(c, 2 * squares)


def test_programs_of_ops_and_kernels(torch: Any, k: Any, add: Any) -> None:
    a, b, c = random(torch, 10_001), random(torch, 10_001), nothing(torch, 10_001)
    with k.program() as p:
        add(c, a, b, 10_001)
        squares = k.square(c)
    for _ in range(5):
        a.normal_()
        p.run()
        assert_add(c, a, b)
        assert_square(squares, c)
    other = random(torch, 10_001)
    p.run(bind={a: other})
    assert_add(c, other, b)
    p.run()
    assert_add(c, a, b)


def test_repeats_are_timed_one_by_one(torch: Any, k: Any, add: Any) -> None:
    a, b, c = random(torch, 1 << 20), random(torch, 1 << 20), nothing(torch, 1 << 20)
    profile = add.profile(c, a, b, 1 << 20, warmup=10, repeat=100)
    assert len(profile.timings.samples) == 100 and min(profile.timings.samples) > 0
    assert profile.timings.variant == "user"
    assert_add(c, a, b)
    step = k.kernel(sources.STEP, "step", "int* x[n], int n", **VECTOR)
    with pytest.raises(kops.KopsError):
        step.profile(torch.zeros(8, dtype=torch.int32, device="cuda"), 8, repeat=2)


def test_host_memory(torch: Any, k: Any, add: Any) -> None:
    rng = np.random.default_rng(7)
    a, b = (k.array(rng.standard_normal(10_001).astype(np.float32)) for _ in range(2))
    c = k.zeros(10_001)
    timings = add(c, a, b, 10_001, timing=True)
    assert (np.asarray(c) == np.asarray(a) + np.asarray(b)).all()
    assert timings.h2d_us > 0 and timings.d2h_us > 0 and timings.gpu_us > 0


def test_gaps_of_host_memory_are_left_alone(torch: Any, k: Any, add_bias: Any) -> None:
    whole = k.zeros((40, 66))
    out = whole[::2, ::3]
    a = k.array(np.random.default_rng(8).standard_normal(out.shape).astype(np.float32))
    add_bias(out, a, None, *out.shape, out.strides[0] // 4, out.strides[1] // 4)
    assert (np.asarray(out) == np.asarray(a)).all()
    assert not np.asarray(whole)[1::2].any() and not np.asarray(whole)[:, 1::3].any()


def test_work_of_others_goes_on_while_code_is_loaded(torch: Any, k: Any, add: Any, daemon: Daemon) -> None:
    a, b, c = random(torch, 4096), random(torch, 4096), nothing(torch, 4096)
    with kops.connect(daemon.socket_path) as other:
        for i in range(5):
            made = other.kernel(sources.FIVE + f"// {i}\n", "add2_kernel", ADD, **VECTOR)
            for _ in range(50):
                add(c, a, b, 4096)
            made(c, b, a, 4096, blocking=True)
    k.synchronize()
    assert_add(c, a, b)


# ---- what is wrong ----


def test_attributes_and_launch_bounds(torch: Any, k: Any) -> None:
    kernel = k.kernel(sources.BOUNDED, "bounded", "out float* p[128]", 1)
    assert kernel.attributes.max_threads in (0, 128) and kernel.attributes.registers > 0
    p = torch.zeros(256, device="cuda")
    kernel[1, 128](p, blocking=True)
    assert p.sum().item() == 128
    with pytest.raises(kops.OutOfRange, match="128"):
        kernel[1, 256](p, blocking=True)
