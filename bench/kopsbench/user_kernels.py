"""What the measures of users' kernels have in common: the sources, and which peers there are on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .context import ROOT, Skipped

EXAMPLES = ROOT / "client_py" / "examples" / "kernels"
BLOCK = 256


@dataclass(frozen=True)
class UserKernel:
    """A kernel as kopsd is told of it."""

    name: str  # of its file
    entry: str
    signature: str
    grid: str | tuple[str, ...]
    block: int = BLOCK

    @property
    def source(self) -> str:
        return (EXAMPLES / f"{self.name}.cu").read_text(encoding="utf-8")

    def declare(self, client: Any, source: str | None = None) -> Any:
        return client.kernel(source or self.source, self.entry, self.signature, grid=self.grid, block=self.block)


SUM = "out float c[n], const float a[n], const float b[n], int n"
OF_N = "ceil_div(n, 256)"
VECTOR_ADD = UserKernel("vector_add", "vector_add", SUM, OF_N)
KERNELS = (
    UserKernel(
        "square_matrix",
        "square_matrix_kernel",
        "const float in[height][width], out float out[height][width], int width, int height",
        ("ceil_div(width, 256)", "min(height, 65535)"),
    ),
    UserKernel("add2", "add2_kernel", SUM, f"min({OF_N}, 2112)"),
    UserKernel(
        "gemm",
        "gemm_kernel",
        "out float c[n][m], const float a[n][k], const float b[k][m], int n, int m, int k",
        "ceil_div(n, 64) * ceil_div(m, 64)",
    ),
    UserKernel("custom", "custom_kernel", "out float out[n], const float in[n], int n", OF_N),
    VECTOR_ADD,
)


def fresh(source: str) -> str:
    """The same kernel as a text, and as code, that no cache knows: NVRTC finds what differs in a comment alone in the
    driver's cache on disk, where one is there."""
    number = uuid.uuid4().int
    return f'{source}\nextern "C" __global__ void number_{number % 10**12}(int* p) {{ *p = {number % (1 << 30)}; }}\n'


@cache
def load_inline_missing() -> str | None:
    """Why torch's load_inline cannot compile here; None when it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if not (os.environ.get("CUDA_HOME") or shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
        return "no nvcc"
    lacking = [program for program in ("ninja", os.environ.get("CXX", "c++")) if shutil.which(program) is None]
    if lacking:
        return f"no {' and no '.join(lacking)}, which load_inline runs"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h, which load_inline includes"
    return None


def compile_for_this_device() -> None:
    """Has torch compile for no other devices, which is the fastest."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}{'a' if major == 9 else ''}"


def load_inline(folder: Path) -> Any:
    """An extension module of torch with a function vector_add_call, compiled or loaded from its folder."""
    from torch.utils import cpp_extension

    compile_for_this_device()
    prototype = "void vector_add_call(torch::Tensor c, torch::Tensor a, torch::Tensor b)"
    launch = "vector_add<<<(n + 255) / 256, 256>>>(c.data_ptr<float>(), a.data_ptr<float>(), b.data_ptr<float>(), n);"
    folder.mkdir(parents=True, exist_ok=True)
    return cpp_extension.load_inline(
        "kops_bench_inline",
        cpp_sources=f"{prototype};\n",
        cuda_sources=f"{VECTOR_ADD.source}\n{prototype}\n{{\n    int n = c.numel();\n    {launch}\n}}\n",
        functions=["vector_add_call"],
        build_directory=str(folder),
    )


WRAPPER = f"""
#include <torch/extension.h>
{VECTOR_ADD.source}
torch::Tensor added(torch::Tensor a, torch::Tensor b)
{{
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "both must be on the GPU");
    TORCH_CHECK(a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous(), "both must have one shape");
    auto c = torch::empty_like(a);
    const int n = a.numel();
    vector_add<<<(n + 255) / 256, 256>>>(c.data_ptr<float>(), a.data_ptr<float>(), b.data_ptr<float>(), n);
    return c;
}}
"""


def load_wrapper(who: str, source: str, folder: Path, client: Any = None) -> Any:
    """A module with the function added(a, b), by "torch" or by kops."""
    prototype = "torch::Tensor added(torch::Tensor a, torch::Tensor b);"
    if who != "torch":
        import kops

        return kops.load_inline("kops_bench_wrapper", prototype, source, ["added"], client=client)
    from torch.utils import cpp_extension

    compile_for_this_device()
    folder.mkdir(parents=True, exist_ok=True)
    return cpp_extension.load_inline("kops_bench_wrapper", prototype, source, functions=["added"], build_directory=str(folder))


def torch_kernel(torch: Any, source: str, entry: str) -> Any:
    """torch's own way from a source to a kernel, without nvcc. Raises Skipped where this torch has none."""
    make = getattr(torch.cuda, "_compile_kernel", None)
    if make is None:
        raise Skipped("this torch has no torch.cuda._compile_kernel")
    try:
        return make(source, entry)
    except OSError as error:  # it looks for libnvrtc.so by that name alone
        raise Skipped(f"torch.cuda._compile_kernel does not work here: {error}") from None
