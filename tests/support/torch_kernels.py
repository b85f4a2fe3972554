"""What `kops.torch.custom_op` makes of a user's kernel, as checks on tensors of any device, like those of torch_ops.py. `make` is
what makes the kernel, `how` what it is given beside its source, name and signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kops
import kops.torch
import pytest
import torch

from .torch_ops import OPS, TESTS, normal

SOURCE = r"""
template <typename T>
__device__ void scale_all(T* y, const T* x, T factor, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = factor * x[i];
}

extern "C" __global__ void scale(double* y, const double* x, double factor, int n) { scale_all(y, x, factor, n); }

extern "C" __global__ void gather(float* sums, float* rows, float* total, const float* x, int width, int height)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= height)
        return;
    sums[i] = 0;
    for (int j = 0; j < width; j++) {
        rows[i * width + j] = 2 * x[i * width + j];
        sums[i] += x[i * width + j];
    }
    total[i] += sums[i];
}

extern "C" __global__ void leaky(float* y, const float* x, float slope, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] > 0 ? x[i] : slope * x[i];
}

extern "C" __global__ void leaky_backward(float* dx, const float* dy, const float* x, float slope, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        dx[i] = x[i] > 0 ? dy[i] : slope * dy[i];
}
"""
SIZES: dict[str, Any] = {"grid": "ceil_div(n, 256)", "block": 256}


def check_kernel(device: str, make: Callable[..., Any], **how: Any) -> None:
    """A kernel with one result, whose size is declared, and a derivative."""
    kern = make(SOURCE, "scale", "out double* y[x.numel], const double* x, double factor, int n", **SIZES)
    scale = kops.torch.custom_op(kern, backward=lambda ctx, g: scale(g, ctx.scalars["factor"], g.numel()), **how)
    assert str(scale._schema) == "kops_kernels::scale(Tensor x, float factor, SymInt n) -> Tensor"
    x = normal(device, 50, dtype=torch.float64, grad=True)
    torch.testing.assert_close(scale(x, 3.0, 50), 3 * x)
    torch.library.opcheck(scale, (x, 3.0, 50), test_utils=TESTS)
    assert torch.autograd.gradcheck(lambda x: scale(x, 3.0, 50), (x,))
    assert torch.autograd.gradgradcheck(lambda x: scale(x, 3.0, 50), (x,))
    torch.testing.assert_close(scale(x[::2], 3.0, 25), 3 * x[::2])
    torch.testing.assert_close(torch.func.grad(lambda x: scale(x, 3.0, 50).sum())(x), torch.full_like(x, 3))
    narrow = kops.torch.custom_op(kern[2, 32], "kops_kernels::narrow", **how)
    torch.testing.assert_close(narrow(x.detach(), 3.0, 50), 3 * x.detach())
    with pytest.raises(NotImplementedError, match="give backward="):
        narrow(x, 3.0, 50).sum().backward()


def check_kernel_compiled(device: str, make: Callable[..., Any], backend: str, **how: Any) -> None:
    """In one graph for all sizes."""
    kern = make(SOURCE, "scale", "out double* y[n], const double* x, double factor, int n", **SIZES)
    scale = kops.torch.custom_op(kern, backward=lambda ctx, g: 3 * g, **how)
    graphs = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(lambda x: scale(x * 2, 3.0, x.numel()) + 1, fullgraph=True, dynamic=True, backend=graphs)
    for n in (5, 300, 77):
        x = normal(device, n, dtype=torch.float64, grad=True)
        made = compiled(x)
        torch.testing.assert_close(made, 6 * x + 1)
        torch.testing.assert_close(torch.autograd.grad(made.sum(), x)[0], torch.full_like(x, 6))
    assert graphs.frame_count == 1


def check_kernel_that_mutates(device: str, make: Callable[..., Any], backend: str, **how: Any) -> None:
    """A kernel with two results and an argument that it reads and writes."""
    signature = "out float* sums[height], out float* rows[height][width], float* total, const float* x, int width, int height"
    kern = make(SOURCE, "gather", signature, grid="ceil_div(height, 256)", block=256)
    gather = kops.torch.custom_op(kern, "kops_kernels::gathered", **how)
    declared = "gathered(Tensor(a!) total, Tensor x, SymInt width, SymInt height) -> (Tensor, Tensor)"
    assert str(gather._schema) == f"kops_kernels::{declared}"
    x, total = normal(device, 30, 7), torch.ones(30, device=device)
    version = total._version
    sums, rows = gather(total, x, 7, 30)
    torch.testing.assert_close(sums, x.sum(1))
    torch.testing.assert_close(rows, 2 * x)
    torch.testing.assert_close(total, 1 + x.sum(1))
    assert total._version > version
    torch.library.opcheck(gather, (total, x, 7, 30), test_utils=TESTS)
    expected = 2 * (total + x.sum(1))

    def twice(total: Any, x: Any) -> Any:
        gather(total, x, x.shape[1], x.shape[0])
        return total * 2

    torch.testing.assert_close(torch.compile(twice, fullgraph=True, backend=backend)(total, x), expected)
    torch.testing.assert_close(total, expected / 2)
    with pytest.raises(RuntimeError, match="pass x.detach"):
        gather(total, x.clone().requires_grad_(), 7, 30)


def activation(make: Callable[..., Any], **how: Any) -> Callable[[Any, float], Any]:
    """A leaky ReLU by two kernels, results by `fake`."""
    forward = make(SOURCE, "leaky", "out float* y, const float* x, float slope, int n", **SIZES)
    backward = make(SOURCE, "leaky_backward", "out float* dx, const float* dy, const float* x, float slope, int n", **SIZES)
    gradient = kops.torch.custom_op(backward, fake=lambda dy, x, slope, n: torch.empty_like(x), **how)

    def of_x(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient(g, x, ctx.scalars["slope"], x.numel())

    leaky = kops.torch.custom_op(forward, fake=lambda x, slope, n: torch.empty_like(x), backward=of_x, **how)
    return lambda x, slope: leaky(x, slope, x.numel())


def check_training(device: str, make: Callable[..., Any], backend: str | None, steps: int = 30, **how: Any) -> None:
    """A small network, trained with gemm and a kernel of one's own, goes the way that float64 goes with torch's ops."""
    leaky = activation(make, **how)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(64, 20, generator=generator, dtype=torch.float64)
    y = x.square().sum(1, keepdim=True) / 20
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3 for shape in ((32, 20), (32,), (1, 32), (1,))]

    def ours(w: list[Any], x: Any) -> Any:
        hidden = leaky(OPS.add(OPS.gemm(x, w[0], trans_b=True), w[1]), 0.125)
        return OPS.add(OPS.gemm(hidden, w[2], trans_b=True), w[3])

    def theirs(w: list[Any], x: Any) -> Any:
        return torch.nn.functional.leaky_relu(x @ w[0].T + w[1], 0.125) @ w[2].T + w[3]

    def losses(model: Callable[..., Any], dtype: Any, where: str) -> list[float]:
        weights = [w.clone().to(where, dtype).requires_grad_() for w in start]
        given, wanted = x.to(where, dtype), y.to(where, dtype)
        found = []
        for _ in range(steps):
            loss = (model(weights, given) - wanted).square().mean()
            found.append(float(loss.detach()))
            with torch.no_grad():
                for w, g in zip(weights, torch.autograd.grad(loss, weights)):
                    w -= 0.05 * g
        return found

    model = ours if backend is None else torch.compile(ours, fullgraph=True, backend=backend)
    reference, found = losses(theirs, torch.float64, "cpu"), losses(model, torch.float32, device)
    assert reference[-1] < reference[0] / 2
    torch.testing.assert_close(torch.tensor(found), torch.tensor(reference), rtol=1e-4, atol=1e-5, check_dtype=False)
