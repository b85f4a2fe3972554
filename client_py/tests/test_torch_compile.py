"""`kops.torch.compile_kernel` with PyTorch itself, on CPU tensors: in the interpreter, and with the real compiler on the stand-in
driver. tests/gpu compares it with torch's own on a GPU."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; continuous integration does without its gigabytes", allow_module_level=True)
import kops.torch  # noqa: E402
import torch  # noqa: E402
from test_kernels import ADD2  # noqa: E402
from test_raw import SOURCE, host, interpreted, standin  # noqa: E402

__all__ = ["host", "standin"]


@pytest.fixture
def used(standin: kops.Client) -> Iterator[kops.Client]:
    kops.torch.use(standin)
    yield standin
    kops.torch.use(None)


def test_it_is_called_as_torch_s() -> None:
    ours, theirs = (inspect.signature(function).parameters for function in (kops.torch.compile_kernel, torch.cuda._compile_kernel))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[name].default == theirs[name].default for name in theirs)
    from torch.cuda._utils import _CudaKernel

    calls = [inspect.signature(kind.__call__).parameters for kind in (type(_no_kernel()), _CudaKernel)]
    assert [(name, p.default) for name, p in calls[0].items()] == [(name, p.default) for name, p in calls[1].items()]


def _no_kernel() -> Any:
    from kops.torch._kernels import CompiledKernel

    return CompiledKernel(None)  # type: ignore[arg-type]


@interpreted
def test_tensors_and_numbers(host: kops.Client) -> None:
    how = {"client": host, "fallback": "interpret"}
    axpy = kops.torch.compile_kernel(SOURCE, "axpy", nvcc_options=["-O3"], **how)
    x, y, out = torch.randn(100), torch.randn(100, requires_grad=True), torch.zeros(100)
    axpy(block=(128, 1, 1), args=[x, y.detach(), out, 2.0, x.numel()])
    assert torch.equal(out, 2 * x + y), "a Python float is what the source's `float` takes"
    scale = kops.torch.compile_kernel(SOURCE, "scale<double>", **how)
    scale.set_shared_memory_config(1 << 16)
    doubles = torch.randn(10, 10, dtype=torch.float64)
    made = torch.zeros(10, 10, dtype=torch.float64)
    scale((1, 1, 1), (128, 1, 1), [made, doubles.t(), 3.0, 100], shared_mem=1024)
    assert torch.equal(made, 3 * doubles), "a transposed view is its memory"
    repeated = torch.ones(1).expand(50)
    scale_f = kops.torch.compile_kernel(SOURCE, "scale<float>", **how)
    scale_f((1, 1, 1), (32, 1, 1), [repeated, repeated, 5.0, 1], shared_mem=128)
    assert repeated[7] == 5
    axpy(args=[torch.view_as_complex(torch.ones(4, 2))] * 3 + [1.0, 1])
    with pytest.raises(kops.BadArgument, match="0 or more"):
        scale.set_shared_memory_config(-1)
    with pytest.raises(kops.SignatureMismatch, match="takes 5 arguments, got 0"):
        axpy()


def test_compiled_by_the_daemon(used: kops.Client, tmp_path: Path) -> None:
    (tmp_path / "two.cuh").write_text('#include "three.cuh"\n')
    (tmp_path / "three.cuh").write_text("#define THREE 3\n")
    source = "#include <two.cuh>\n#include <cuda_fp16.h>\n" + ADD2 + "static_assert(THREE == 3 && N == 4);\n"
    capability = used.info.kernels["arch"][0].removeprefix("sm_")
    for given in (None, capability, capability.rstrip("a")):
        add2 = kops.torch.compile_kernel(source, "add2_kernel", given, [tmp_path], ["-DN=4", "--use_fast_math"])
    a, b, c = torch.randn(100), torch.randn(100), torch.zeros(100)
    add2((1, 1, 1), (128, 1, 1), [c, a, b, 100])
    assert torch.equal(c, a + b) and add2.attributes.params == (8, 8, 8, 4)
    assert used.stats()["kernels"]["compiles"] == 1, "the same source is compiled once"
    again = kops.torch.compile_kernel(source, "add2_kernel", None, [tmp_path], ["-DN=4", "--use_fast_math"])
    again((1, 1, 1), (128, 1, 1), [c, a.reshape(10, 10).t(), b, 100])
    assert torch.equal(c, a + b)


@pytest.mark.parametrize(
    "arguments, error, why",
    [
        ((SOURCE, "axpy", "61"), kops.BadArgument, "not that of the daemon's GPU .*: leave it out"),
        ((SOURCE, "axpy", "turing"), kops.BadArgument, 'like "90"'),
        ((SOURCE, "nothing"), kops.CompileFailed, "nothing"),
        (("#include <mine.h>\n" + SOURCE, "axpy"), kops.CompileFailed, "name the folders of others in cuda_include_dirs"),
        (("#error no", "axpy"), kops.CompileFailed, "no"),
        ((SOURCE, "axpy", None, None, ["-O2", "--ptxas-options=-v"]), kops.InvalidArgument, "--ptxas-options=-v.* not allowed"),
        ((5, "axpy"), kops.WrongType, "texts"),
    ],
)
def test_what_cannot_be_compiled(used: kops.Client, arguments: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        kops.torch.compile_kernel(*arguments)


def test_more_headers_than_a_compile_takes(used: kops.Client, tmp_path: Path) -> None:
    for i in range(65):
        (tmp_path / f"h{i}.h").write_text(f"#include <h{i + 1}.h>\n" if i < 64 else "")
    with pytest.raises(kops.LimitExceeded, match="65 files .* takes 64"):
        kops.torch.compile_kernel("#include <h0.h>\n" + SOURCE, "axpy", None, [tmp_path])
    (tmp_path / "cuda_runtime.h").write_text("")
    with pytest.raises(kops.CompileFailed, match="h0.h"):  # CUDA's own folder is not looked into
        kops.torch.compile_kernel("#include <h0.h>\n" + SOURCE, "axpy", None, [tmp_path])


@interpreted
def test_a_stream_that_is_none(host: kops.Client) -> None:
    axpy = kops.torch.compile_kernel(SOURCE, "axpy", client=host, fallback="interpret")
    x = torch.zeros(4)
    with pytest.raises(kops.WrongType, match="stream of torch's or CuPy's"):
        axpy(args=[x, x, x, 1.0, 1], stream="default")
    axpy(args=[x, x, x, 1.0, 1], stream=0)
