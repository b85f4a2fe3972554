"""`torch.ops.kops` and `kops.torch.custom_op` on CUDA tensors: the checks of client_py/tests/test_torch_ops.py, and order on streams."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)
import kops  # noqa: E402
import kops.torch  # noqa: E402
from support import torch_kernels, torch_ops  # noqa: E402
from support.torch_ops import OPS  # noqa: E402
from torch import sigmoid  # noqa: E402

BACKENDS = ["aot_eager", "inductor"]
sized = pytest.mark.skipif(not kops.compiled, reason="without the compiled part there are no expressions, which say how large results are")
captured = pytest.mark.skipif(not kops.compiled, reason="without the compiled part nothing can be launched here, nor captured")
DOUBLED = """
extern "C" __global__ void doubled(float *out, const float *in, int n)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}
"""


@pytest.fixture(autouse=True)
def used(torch: Any, k: Any) -> Iterator[None]:
    kops.torch.use(k)
    yield
    kops.torch.use(None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "inductor" and importlib.util.find_spec("triton") is None:
        pytest.skip("inductor needs Triton for CUDA tensors")
    return str(request.param)


@pytest.mark.parametrize("case", torch_ops.CASES, ids=torch_ops.name_of)
@pytest.mark.parametrize("check", [torch_ops.check_values, torch_ops.check_opcheck, torch_ops.check_derivatives])
def test_op(check: Any, case: Any) -> None:
    check("cuda", case)


@pytest.mark.parametrize("check", torch_ops.CHECKS)
def test_ops(check: Any) -> None:
    check("cuda")


@pytest.mark.skipif(not kops.compiled, reason="without the compiled part the client looks at every call")
def test_an_op_that_nothing_watches_goes_to_the_extension(torch: Any, k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(8, 8, device="cuda"), torch.nn.Parameter(torch.rand(8, 8, device="cuda"))
    OPS.add(a, a), OPS.gemm(a, b), k.synchronize()  # their memory is registered, and that of results
    monkeypatch.setattr(type(k), "_op", None)
    torch.testing.assert_close(OPS.add(a, a), a + a)
    with torch.no_grad():
        torch.testing.assert_close(OPS.gemm(a, b), a @ b)
        assert not OPS.add(a, b).requires_grad
    with pytest.raises(TypeError):
        OPS.add(a, b)  # a gradient is wanted


def test_compiled(backend: str) -> None:
    torch_ops.check_compiled("cuda", backend)


@sized
def test_kernel(k: Any) -> None:
    torch_kernels.check_kernel("cuda", k.kernel)


@sized
def test_kernel_compiled(k: Any, backend: str) -> None:
    torch_kernels.check_kernel_compiled("cuda", k.kernel, backend)


@sized
def test_kernel_that_mutates(k: Any, backend: str) -> None:
    torch_kernels.check_kernel_that_mutates("cuda", k.kernel, backend)


def test_training(k: Any) -> None:
    torch_kernels.check_training("cuda", k.kernel, None)


def test_training_compiled(k: Any, backend: str) -> None:
    torch_kernels.check_training("cuda", k.kernel, backend)


def test_calls_are_in_the_stream_s_order(torch: Any, k: Any) -> None:
    """Forward and backward, on a stream of one's own, between torch's kernels that change what the ops read and wrote."""
    ground = torch.randn(1 << 22, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        for _ in range(50):
            x = ground.clone().requires_grad_()
            made = OPS.add(OPS.square(x), x)
            (gradient,) = torch.autograd.grad(made.sum(), x)
            with torch.no_grad():
                x.zero_()
            assert torch.allclose(made, ground * ground + ground)
            assert torch.allclose(gradient, 2 * ground + 1)
    k.synchronize()


PRODUCT_WITHOUT_WARM_UP = """
import kops.torch, torch
a = torch.randn(64, 64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = torch.ops.kops.gemm(a, a)
graph.replay()
torch.testing.assert_close(out, a @ a, rtol=1e-3, atol=1e-2)
"""


@captured
def test_a_graph_begins_with_a_product(torch: Any, daemon: Any) -> None:
    """In a process of its own, since it is about what torch does at its first product."""
    environment = {**os.environ, "KOPS_SOCKET": str(daemon.socket_path)}
    done = subprocess.run([sys.executable, "-c", PRODUCT_WITHOUT_WARM_UP], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@captured
def test_graphs_of_torch(torch: Any, k: Any) -> None:
    """Captured eager code: what follows a replay is the graph's, and the daemon is not asked."""
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    out, graph, side = torch.empty_like(x), torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def step() -> None:
        y = OPS.add(OPS.gemm(x, w, trans_b=True), torch.relu(x))
        z = OPS.gemm(y, w, x, beta=0.5, alpha=2.0)
        OPS.square.out(z, out=out)

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warmed up, as torch asks for
        torch.mm(x, w)
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    before = runs(k)
    for _ in range(3):
        x.normal_()
        graph.replay()
        want = (2 * ((x @ w.mT + x.relu()) @ w) + 0.5 * x).square()
        torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-2)
    assert runs(k) == before


def runs(k: Any) -> int:
    """Executions by the daemon."""
    return sum(row["count"] for row in k.stats()["ops"] if row["variant"] != "here")


def model(a: Any, w: Any, c: Any) -> Any:
    made = OPS.add(OPS.gemm(a, w, trans_b=True), c)
    for _ in range(3):
        made = OPS.add(OPS.square(sigmoid(made)), OPS.copy(c))
    return OPS.gemm(made, w)


def expected(a: Any, w: Any, c: Any) -> Any:
    made = a @ w.mT + c
    for _ in range(3):
        made = sigmoid(made).square() + c
    return made @ w


@captured
def test_graphs_of_torch_compile(torch: Any, k: Any) -> None:
    """mode="reduce-overhead": forward and backward are replayed, and the daemon runs nothing any more."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("inductor needs Triton for CUDA tensors")
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    before = None
    for i in range(6):
        given = [torch.randn(shape, device="cuda", requires_grad=True) for shape in ((32, 48), (48, 48), (48,))]
        torch.compiler.cudagraph_mark_step_begin()
        ours, theirs = compiled(*given), expected(*given)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        for one, other in zip(torch.autograd.grad(ours.sum(), given), torch.autograd.grad(theirs.sum(), given)):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)
        if i == 2:  # warmed up and captured
            before = runs(k)
    assert before is not None and runs(k) == before
    assert not torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


@captured
def test_a_kernel_in_graphs_of_torch_compile(torch: Any, k: Any) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("inductor needs Triton for CUDA tensors")
    kern = k.kernel(DOUBLED, "doubled", "out float* out[n], const float* in[n], int n", grid="ceil_div(n, 256)", block=256)
    doubled = kops.torch.custom_op(kern, fake=lambda x, n: torch.empty_like(x))
    compiled = torch.compile(lambda x: OPS.add(doubled(x * 3, x.numel()), x), fullgraph=True, mode="reduce-overhead")
    before = None
    for i in range(6):
        x = torch.randn(4096, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(x), 7 * x)
        if i == 2:
            before = k.stats()["kernels"]["launches"]
    assert k.stats()["kernels"]["launches"] == before


def test_tensors_of_two_places(torch: Any) -> None:
    with pytest.raises(kops.DeviceMismatch):
        OPS.add(torch.ones(4, device="cuda"), torch.ones(4))
