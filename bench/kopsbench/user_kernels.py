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
    """A kernel as kopsd is told of it, and as a function that load_inline makes launches it."""

    name: str  # of its file
    entry: str
    signature: str
    grid: str | tuple[str, ...]
    wrapper: str  # the body of `void NAME(…tensors…)` in C++
    tensors: tuple[str, ...]
    block: int = BLOCK

    @property
    def source(self) -> str:
        return (EXAMPLES / f"{self.name}.cu").read_text(encoding="utf-8")

    def declare(self, client: Any, source: str | None = None) -> Any:
        return client.kernel(source or self.source, self.entry, self.signature, grid=self.grid, block=self.block)

    @property
    def prototype(self) -> str:
        return f"void {self.name}_call({', '.join(f'torch::Tensor {name}' for name in self.tensors)})"

    @property
    def inline(self) -> str:
        """A source for load_inline."""
        return f"{self.source}\n{self.prototype}\n{{\n{self.wrapper}\n}}\n"


def _of_vectors(
    name: str, entry: str, tensors: tuple[str, ...], grid: str = "ceil_div(n, 256)", blocks: str = "(n + 255) / 256"
) -> UserKernel:
    out, *inputs = tensors
    signature = ", ".join([f"out float {out}[n]", *(f"const float {one}[n]" for one in inputs), "int n"])
    pointers = ", ".join(f"{one}.data_ptr<float>()" for one in tensors)
    wrapper = f"    int n = {out}.numel();\n    {entry}<<<{blocks}, {BLOCK}>>>({pointers}, n);"
    return UserKernel(name, entry, signature, grid, wrapper, tensors)


VECTOR_ADD = _of_vectors("vector_add", "vector_add", ("c", "a", "b"))
KERNELS = (
    UserKernel(
        "square_matrix",
        "square_matrix_kernel",
        "const float in[height][width], out float out[height][width], int width, int height",
        ("ceil_div(width, 256)", "min(height, 65535)"),
        "    int width = in.size(1), height = in.size(0);\n"
        "    dim3 grid((width + 255) / 256, std::min(height, 65535));\n"
        "    square_matrix_kernel<<<grid, 256>>>(in.data_ptr<float>(), out.data_ptr<float>(), width, height);",
        ("in", "out"),
    ),
    _of_vectors("add2", "add2_kernel", ("c", "a", "b"), "min(ceil_div(n, 256), 2112)", "std::min((n + 255) / 256, 2112)"),
    UserKernel(
        "gemm",
        "gemm_kernel",
        "out float c[n][m], const float a[n][k], const float b[k][m], int n, int m, int k",
        "ceil_div(n, 64) * ceil_div(m, 64)",
        "    int n = c.size(0), m = c.size(1), k = a.size(1);\n"
        "    gemm_kernel<<<((n + 63) / 64) * ((m + 63) / 64), 256>>>(c.data_ptr<float>(), a.data_ptr<float>(),\n"
        "                                                            b.data_ptr<float>(), n, m, k);",
        ("c", "a", "b"),
    ),
    _of_vectors("custom", "custom_kernel", ("out", "in")),
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


def load_inline(kernels: tuple[UserKernel, ...], name: str, folder: Path) -> Any:
    """An extension module of torch with a function NAME_call for each kernel, compiled or loaded from its folder."""
    from torch.utils import cpp_extension

    os.environ["TORCH_CUDA_ARCH_LIST"] = device_arch()
    folder.mkdir(parents=True, exist_ok=True)
    return cpp_extension.load_inline(
        name,
        cpp_sources="".join(f"{kernel.prototype};\n" for kernel in kernels),
        cuda_sources="\n".join(kernel.inline for kernel in kernels),
        functions=[f"{kernel.name}_call" for kernel in kernels],
        build_directory=str(folder),
    )


def device_arch() -> str:
    """Only this device's: what load_inline compiles the fastest."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{major}.{minor}{'a' if major == 9 else ''}"


def torch_kernel(torch: Any, source: str, entry: str) -> Any:
    """torch's own way from a source to a kernel, without nvcc. Raises Skipped where this torch has none."""
    make = getattr(torch.cuda, "_compile_kernel", None)
    if make is None:
        raise Skipped("this torch has no torch.cuda._compile_kernel")
    try:
        return make(source, entry)
    except OSError as error:  # it looks for libnvrtc.so by that name alone
        raise Skipped(f"torch.cuda._compile_kernel does not work here: {error}") from None
