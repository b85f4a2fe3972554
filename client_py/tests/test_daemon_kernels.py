"""Kernels of the user's own with the real daemon and the real compiler, on the stand-in CUDA driver, which computes those
that it knows by name."""

from __future__ import annotations

import os
import signal
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from kops._clients import inline as _inline
from kops._source import elementwise as text
from kops._source.elementwise import Argument, Form, Text
from kops._source.formulas import Declared, operands
from test_daemon_cuda import driver, k, numbers, real, tensor
from test_kernels import ADD2

from support import backends  # isort: skip
from which import compiled_only

__all__ = ["driver", "k", "real"]

if backends.nvrtc() is None:
    pytest.skip("there is no NVRTC here", allow_module_level=True)

OTHERS = """
#include <cuda_fp16.h>
extern "C" __global__ void custom_kernel(float* out, const float* in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}
extern "C" __global__ void histogram_kernel(unsigned* bins, const unsigned char* data, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[data[i]], 1u);
}
"""
SIGNATURE = "out float* c[n], const float* a[n], const float* b[n], int n"


def add2(k: kops.Client, alias: bool = False) -> kops.Kernel:
    return k.kernel(ADD2, "add2_kernel", SIGNATURE, grid="ceil_div(n, 256)", block=256, alias=alias)


def vectors(driver: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tensor(driver, 0, 0, 0, 0), tensor(driver, 1, 2, 3, 4), tensor(driver, 10, 20, 30, 40)


def test_torch_tensors(k: kops.Client, driver: Any) -> None:
    c, a, b = vectors(driver)
    kern = add2(k, alias=True)
    assert kern(c, a, b, 4) is c
    assert numbers(driver, c) == [11, 22, 33, 44]
    d = k.square(c)
    kern(c, c, d, 3)
    assert numbers(driver, c) == [132, 506, 1122, 44]
    kern[4, 32](c, a, a, 4)
    kern(c, c, a, 4, grid=lambda c, a, b, n: n)
    k.synchronize()
    assert numbers(driver, c) == [3, 6, 9, 12]
    timings = kern(c, a, b, 4, timing=True)
    assert timings.variant == "user" and timings.gpu_us is not None and timings.gpu_us >= 0
    assert [type(again) for again in (timings, kern[1, 64](c, a, b, 4, timing=True))] == [kops.Timings] * 2
    k.synchronize()
    assert numbers(driver, c) == [11, 22, 33, 44]
    profile = kern.profile(c, a, b, 4, repeat=7)
    assert len(profile.samples) == 7 and profile.op == "add2_kernel" and profile.shapes == ((4,), (4,), (4,))
    assert 0 < kern.attributes.registers < 256 and kern.attributes.params == (8, 8, 8, 4)
    (row,) = [row for row in k.stats()["ops"] if row["op"] == "add2_kernel" and row["shapes"] == [[4], [4], [4]]]
    assert row["variant"] == "user" and "operations" not in row and row["bytes"] == profile.bytes == 3 * 4 * 4


def test_batches_sequences_and_programs(k: kops.Client, driver: Any) -> None:
    c, a, b = vectors(driver)
    kern = add2(k, alias=True)
    with k.batch():
        for _ in range(20):
            kern(c, c, a, 4)
            k.add(c, b, out=c)
    assert numbers(driver, c) == [220, 440, 660, 880]
    k.synchronize()
    scratch, before = k.empty(4, device=0), k.stats()
    with k.sequence(timing=True) as s:
        kern(scratch, a, b, 4)
        kern(c, scratch, a, 4)
        d = k.square(c)
        s.launch(kern, c, c, d, n=2)
    after = k.stats()
    assert numbers(driver, c) == [12 + 144, 24 + 576, 36, 48] and s.timings.gpu_us > 0
    assert after["kernels"]["launches"] == before["kernels"]["launches"] + 3
    assert after["counters"]["jobs"] == before["counters"]["jobs"] + 1, "one request"
    with k.program() as p:
        kern(c, a, a, 4)
        e = k.add(c, c)
    p.run()
    assert numbers(driver, e) == [4, 8, 12, 16]
    p.run([(a, b)])
    assert numbers(driver, e) == [40, 80, 120, 160]


def test_ordinary_arrays_go_to_the_gpu_and_back(k: kops.Client) -> None:
    kern = add2(k)
    a, b, c = numpy.arange(1000, dtype="float32"), numpy.ones(1000, "float32"), numpy.zeros(1000, "float32")
    assert kern(c, a, b, 999) is c
    assert (c[:999] == a[:999] + 1).all() and c[999] == 0
    shared = k.zeros(1000)
    kern(shared, k.array(a), k.array(b), 1000)
    assert (shared == a + b).all()
    bins, data = k.zeros(256, "u32"), numpy.random.default_rng().integers(0, 256, 5000).astype("uint8")
    k.compile(OTHERS, grid="ceil_div(n, 256)", block=256).histogram_kernel(bins, data, 5000)
    assert (bins == numpy.bincount(data, minlength=256)).all()
    kern(k.zeros(0), k.zeros(0), k.zeros(0), 0)


@compiled_only
def test_the_daemon_comes_back(k: kops.Client, real: Any, driver: Any) -> None:
    c, a, b = vectors(driver)
    kern = add2(k)
    kern(c, a, b, 4, blocking=True)
    os.kill(real.pid, signal.SIGKILL)
    real.process.wait()
    real.start()
    kern(c, a, a, 4, blocking=True)
    assert numbers(driver, c) == [2, 4, 6, 8]


# As nvcc and the C++ library have them.
POWERS = """__global__ void powers(float* c, const float* a, const float* b, int n) {
    static_assert(sizeof(pow(*a, 3)) == 8 && sizeof(std::pow(*a, 2.0)) == 8 && sizeof(::pow(n, n)) == 8, "double");
    static_assert(sizeof(pow(*a, 3.0f)) == 4, "float");
    *c = pow(*a, 3) + std::pow(*b, *a);
}
"""


def test_load_inline_and_the_decorator(k: kops.Client, real: Any, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPS_SOCKET", str(real.socket_path))
    monkeypatch.setattr(_inline, "_default", None)

    @kops.cuda_kernel(grid="ceil_div(n, 256)", block=256)
    def custom_kernel(out: "out float*[n]", x: "const float*[n]", n: "int"):  # type: ignore # noqa
        """
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n)
            out[i] = 2 * x[i];
        """

    c, a, _ = vectors(driver)
    custom_kernel(c, a, 4)
    assert numbers(driver, c) == [2, 4, 6, 8]
    mod = kops.load_inline("tutorial", cuda_sources=ADD2, functions=["add2_kernel"], grid=1, block=256, extra_cuda_cflags=["-O2"])
    mod.add2_kernel(c, a, a, 3)
    assert numbers(driver, c) == [2, 4, 6, 8]
    wrapper = "#include <torch/extension.h>\nvoid add2(torch::Tensor c, int n) { add2_kernel<<<1, 4>>>(C, C, C, n); }\n"
    wrapper = wrapper.replace("C", "c.data_ptr<float>()")
    if kops.compiled:
        with pytest.raises(kops.CompileFailed) as caught:
            kops.load_inline("tutorial", cuda_sources=[wrapper, ADD2.replace("c[i]", "nothing[i]")], functions="add2")
        assert caught.value.line == 7, "a kernel that does not compile is told first, with its line"
        host = kops.load_inline("tutorial", cuda_sources=[ADD2, wrapper], functions="add2")
        x = numpy.arange(6, dtype="float32")
        host.add2(x, 4)
        assert x.tolist() == [0, 2, 4, 6, 4, 5], "launched by the daemon, on a copy of the array"
        kops.load_inline("tutorial", cuda_sources=[POWERS, wrapper.replace("add2_kernel<<<1, 4>>>", "powers<<<1, 1>>>")], functions="add2")
    kops.default_client().close()


def test_formulas_are_compiled(k: kops.Client) -> None:
    """Every kind of source that is generated, by the real compiler."""
    def compiled(f: kops.Elementwise, *values: Any, out: Any = None) -> Any:
        ((kernel, *_),) = f._prepare(values, out).steps
        k._drive(k._live(), kernel.define, 120)
        return kernel.attributes

    f = k.elementwise("x * y + z")
    for dtype in ("float32", "float16", "uint8", "int64", "bool"):
        x = numpy.ones((4, 6), dtype)
        assert compiled(f, x, x, 1).registers
        assert compiled(f, x, x[0], x.T[:, :4].copy().T).registers
    y = k.empty((4, 6))
    assert compiled(f, y, y.T[:4, :4][:, :1], 2, out=y).params
    declared = operands("bf16 x, f8_e4m3 y, f16 z, int64 n", "all"), operands("f8_e5m2 a, bf16 b", "all")
    for rank, dense in ((0, True), (3, False)):
        kinds = ("in", "in", "scalar", "in"), ("out", "inout")
        made = [Argument(one, kind, one.dtype, dense) for both in zip(declared, kinds) for one, kind in zip(*both)]
        form = Form(tuple(made), ((Declared("w", "T", None), 5),), (("T", "float"),), rank, True)
        source = text.source(Text("all", "#define ONE 1", "a = x * T(y) + w; b = z + n + i + ONE"), form)
        assert k.compile(source).entries["all_kernel"].registers
    total = k.reduce("x * T(s)", "a + b", "a / n", 0, inputs="T x, float s", name="total")
    for dtype in ("float32", "float16", "int64", "uint8"):
        for shape, axis in (((4, 6), None), ((9_000, 3), None), ((3_000, 40), 0), ((4, 500), 1)):
            for kernel, *_ in total._prepare((numpy.ones(shape, dtype), 2), None, axis=axis).steps:
                k._drive(k._live(), kernel.define, 120)
                assert kernel.attributes.registers
    with pytest.raises(kops.CompileFailed, match=r"fma \(`float s = x;") as error:
        compiled(k.elementwise("T x", "T y", "float s = x;\ny = nothing(s)", name="fma"), numpy.ones(3, "float32"))
    assert (error.value.file, error.value.line, error.value.reason) == ("fma", 2, "source") and "nothing" in error.value.log
