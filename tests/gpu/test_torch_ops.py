"""`torch.ops.kops` and `kops.torch.custom_op` on CUDA tensors: the checks of client_py/tests/test_torch_ops.py, and order on streams."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)
import kops  # noqa: E402
import kops.torch  # noqa: E402
from support import torch_ops  # noqa: E402
from support.torch_ops import OPS  # noqa: E402

BACKENDS = ["aot_eager", "inductor"]


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


def test_compiled(backend: str) -> None:
    torch_ops.check_compiled("cuda", backend)


def test_kernel(k: Any) -> None:
    torch_ops.check_kernel("cuda", k.kernel)


def test_kernel_compiled(k: Any, backend: str) -> None:
    torch_ops.check_kernel_compiled("cuda", k.kernel, backend)


def test_kernel_that_mutates(k: Any, backend: str) -> None:
    torch_ops.check_kernel_that_mutates("cuda", k.kernel, backend)


def test_training(k: Any) -> None:
    torch_ops.check_training("cuda", k.kernel, None)


def test_training_compiled(k: Any, backend: str) -> None:
    torch_ops.check_training("cuda", k.kernel, backend)


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


def test_streams_that_are_captured_take_no_op(torch: Any) -> None:
    x = torch.ones(1000, device="cuda")
    out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    OPS.square.out(x, out=out)
    torch.cuda.synchronize()
    with pytest.raises(kops.Capturing), torch.cuda.graph(graph):
        OPS.square.out(x, out=out)


def test_threads(torch: Any, k: Any) -> None:
    """Each on its own stream, forward and backward."""
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(100):
                x = torch.full((1000,), float(number + i), device="cuda", requires_grad=True)
                OPS.square(OPS.add(x, x)).sum().backward()
                if not bool((x.grad == 8 * (number + i)).all()):
                    wrong.append(f"thread {number}, call {i}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    k.synchronize()
    assert not wrong


def test_tensors_of_two_places(torch: Any) -> None:
    with pytest.raises(kops.DeviceMismatch):
        OPS.add(torch.ones(4, device="cuda"), torch.ones(4))
