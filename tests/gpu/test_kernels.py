"""Kernels that users bring, on a GPU: right results, in every form of a call, and clear errors."""

from __future__ import annotations

from typing import Any

import kops
import numpy as np
import pytest
from check import assert_add, assert_square, nothing, random
from support.daemon import Daemon
from support.kernels import ADD

pytestmark = pytest.mark.usefixtures("kernels_are_served")
OF_ADD = "out float* c[n], const float* a[n], const float* b[n], int n"
VECTOR = {"grid": "ceil_div(n, 256)", "block": 256}

# One block turns n floats around by way of its shared memory.
REVERSE = """
extern "C" __global__ void reverse(float* out, const float* in, int n)
{
    extern __shared__ float staged[];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        staged[i] = in[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = staged[n - 1 - i];
}
"""

# Each block of a cluster reads the shared memory of the next one.
RING = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void ring(int* out)
{
    __shared__ int mine;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0)
        mine = (int)blockIdx.x;
    cluster.sync();
    if (threadIdx.x == 0)
        out[blockIdx.x] = *cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % cluster.num_blocks());
    cluster.sync();
}
"""

SCALE = """
#include <cuda_fp16.h>
template <typename T, int EACH> __global__ void scale(T* out, const T* in, float factor, int n)
{
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    for (int i = first; i < first + EACH && i < n; i++)
        out[i] = (T)(factor * (float)in[i]);
}
"""

# What a chain of these gives depends on the order of its links.
STEP = """
extern "C" __global__ void step(int* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = (x[i] * 5 + 1) % 1009;
}
"""

# Takes layouts as numbers, and a null pointer for no bias.
STRIDED = """
extern "C" __global__ void add_bias(float* out, const float* in, const float* bias, int rows, int columns, int out_row,
                                    int out_column)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < columns && y < rows)
        out[y * out_row + x * out_column] = in[y * columns + x] + (bias ? bias[x] : 0);
}
"""

BOUNDED = """
extern "C" __global__ void __launch_bounds__(128) bounded(float* p)
{
    p[threadIdx.x] = 1;
}
"""


@pytest.fixture
def add(k: Any) -> Any:
    return k.kernel(ADD, "add2_kernel", OF_ADD, **VECTOR)


# ---- what a launch may ask for ----


@pytest.mark.parametrize("n", [1000, 12_289, 40_000])
def test_shared_memory_beyond_48_kilobytes(torch: Any, k: Any, n: int) -> None:
    most = getattr(torch.cuda.get_device_properties(0), "shared_memory_per_block_optin", 48 << 10)
    if 4 * n > most:
        pytest.skip(f"the device has {most} bytes a block")
    kernel = k.kernel(REVERSE, "reverse", "out float* out[n], const float* in[n], int n", 1, 1024, shared="4 * n")
    a, out = random(torch, n), nothing(torch, n)
    kernel(out, a, n)
    assert torch.equal(out, a.flip(0))


@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_clusters(torch: Any, k: Any, cluster: int) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("clusters of this size are tested on compute capability 9.x")
    kernel = k.kernel(RING, "ring", "out int* out[64]", 64, 32, cluster=cluster)
    out = torch.full((64,), -1, dtype=torch.int32, device="cuda")
    kernel(out)
    assert out.tolist() == [i - i % cluster + (i + 1) % cluster for i in range(64)]


def test_templates(torch: Any, k: Any) -> None:
    module = k.compile(SCALE, ["scale<float, 4>", "scale<__half, 7>"])
    for name, each, c_type, dtype in (("scale<float, 4>", 4, "float", torch.float32), ("scale<__half, 7>", 7, "half", torch.float16)):
        signature = f"out {c_type}* out[n], const {c_type}* in[n], float factor, int n"
        kernel = module.kernel(name, signature, f"ceil_div(n, {each * 128})", 128)
        a = random(torch, 10_001).to(dtype)
        out = torch.full_like(a, -1)
        kernel(out, a, 0.5, 10_001)
        assert torch.equal(out, (a.float() * 0.5).to(dtype))


@pytest.fixture
def add_bias(k: Any) -> Any:
    params = [
        kops.Param("out", "out", "f32", strided=True), kops.Param("in_", "in", "f32"), kops.Param("bias", "in", "f32"),
        *(kops.Param(name, "scalar", "i32") for name in ("rows", "columns", "out_row", "out_column")),
    ]  # fmt: skip
    return k.kernel(STRIDED, "add_bias", params, ("ceil_div(columns, 128)", "rows"), 128)


def test_null_pointers_and_layouts(torch: Any, add_bias: Any) -> None:
    a, bias, whole = random(torch, 33, 65), random(torch, 65), torch.full((65, 70), -7.0, device="cuda")
    out = whole.t()[:33]
    add_bias(out, a, bias, 33, 65, out.stride(0), out.stride(1))
    assert torch.equal(out, a + bias)
    add_bias(out, a, None, 33, 65, out.stride(0), out.stride(1))
    assert torch.equal(out, a)
    assert bool((whole[:, 33:] == -7).all())


# ---- beside everything else ----


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
    step = k.kernel(STEP, "step", "int* x[n], int n", **VECTOR)
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
            made = other.kernel(ADD + f"// {i}\n", "add2_kernel", OF_ADD, **VECTOR)
            for _ in range(50):
                add(c, a, b, 4096)
            made(c, b, a, 4096, blocking=True)
    k.synchronize()
    assert_add(c, a, b)


# ---- what is wrong ----


def test_attributes_and_launch_bounds(torch: Any, k: Any) -> None:
    kernel = k.kernel(BOUNDED, "bounded", "out float* p[128]", 1)
    assert kernel.attributes.max_threads in (0, 128) and kernel.attributes.registers > 0
    p = torch.zeros(256, device="cuda")
    kernel[1, 128](p, blocking=True)
    assert p.sum().item() == 128
    with pytest.raises(kops.OutOfRange, match="128"):
        kernel[1, 256](p, blocking=True)
