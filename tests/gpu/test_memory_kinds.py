"""Memory that is not a plain torch tensor: other libraries' arrays, shared host memory, allocators without handles."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from workers import MEMORY, Worker, check_memory


def test_cupy(torch: Any, k: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    a, b = cupy.random.random((300, 400), dtype=cupy.float32), cupy.random.random((300, 400), dtype=cupy.float32)
    c = k.add(a, b)
    assert isinstance(c, cupy.ndarray)
    assert bool((c == a + b).all())
    view = a[::2, 5:50]
    assert bool((k.square(view) == view * view).all())
    out = cupy.empty((300, 400), dtype=cupy.float32)
    assert k.add(a, b, out=out) is out
    assert bool((out == a + b).all())
    product = k.gemm(a, b.T).astype(cupy.float64)
    reference = a.astype(cupy.float64) @ b.T.astype(cupy.float64)
    assert bool((abs(product - reference) <= 1e-5 * reference).all())


def test_cupy_on_a_stream_of_its_own(torch: Any, k: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with cupy.cuda.Stream(non_blocking=True):
        a = cupy.zeros(1 << 24, dtype=cupy.float32)
        for _ in range(50):
            a += 1
        got = k.square(a)
        assert bool((got == 2500).all())


def test_numba(torch: Any, k: Any) -> None:
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    try:
        a = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
    except Exception as error:  # Numba supports fewer drivers than there are
        pytest.skip(f"Numba cannot use this driver: {error}")
    got = k.square(a)
    host = got.copy_to_host() if hasattr(got, "copy_to_host") else numpy.asarray(torch.as_tensor(got, device="cuda").cpu())
    assert bool((host == numpy.arange(1000, dtype=numpy.float32) ** 2).all())


def test_allocator_without_handles(torch: Any, daemon: Any) -> None:
    """The message names the setting at fault: the pool that torch allocates from is not exportable."""
    setting = "backend:cudaMallocAsync"
    environment = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    with Worker("allocator", daemon.socket_path, **environment) as worker:
        said = worker.hear()
        if said["code"] != "ok":
            assert said["code"] == "not_exportable"
            assert "cudamallocasync" in said["message"].lower(), said["message"]
        assert worker.hear() == {"alive": True}
        worker.finish()


@pytest.mark.parametrize("role", MEMORY)
def test_memory_of_every_kind(torch: Any, daemon: Any, role: str) -> None:
    check_memory(role, daemon.socket_path)


def test_two_gpus(torch: Any, k: Any) -> None:
    """Runs where the output is, on memory of the other."""
    if torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1):
        pytest.skip("needs two GPUs with peer access")
    assert "peer" in k.info.features
    here, there = (torch.randn(1 << 20, device=f"cuda:{i}") for i in (0, 1))
    expected = (here + there.to(here.device)).cpu()
    for out in (torch.empty_like(here), torch.empty_like(there)):
        k.add(here, there, out=out)
        torch.cuda.synchronize(out.device)
        assert torch.equal(out.cpu(), expected)


def test_ordinary_cpu_tensors_are_copied_without_torchs_threads(torch: Any, daemon: Any) -> None:
    """They would poll for more work for a while, on the processors that the daemon's work needs."""
    with Worker("cpu_tensors", daemon.socket_path) as worker:
        assert worker.hear() == {"started": 0, "noticed": True}
        worker.finish()
