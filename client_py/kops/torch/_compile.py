"""Kernels that are compiled and called as by `torch.cuda._compile_kernel`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._base.errors import BadArgument, CompileFailed, WrongType
from .._kernels.kernels import Code, checked_fallback, launches_none
from .._kernels.untyped import Untyped
from .._source.options import of_nvcc
from .._source.source import headers
from ._clients import client as current_client

__all__ = ["compile_kernel"]


class CompiledKernel:
    """A kernel that `compile_kernel` has made. Call it with `grid`, `block` and `args`. Thread-safe."""

    def __init__(self, untyped: Untyped) -> None:
        self._untyped = untyped

    def __call__(
        self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Sequence[Any] | None = None, shared_mem: int = 0, stream: Any = None
    ) -> None:
        """Launches it: `grid` in blocks, `block` in threads, `shared_mem` of a block in bytes. `args` are a tensor or None for each
        pointer and a number for each other parameter. Ordered on `stream`, a `torch.cuda.Stream`, or on torch's current one."""
        self._untyped(args or (), grid, block, shared_mem, stream)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Does nothing but look at the number: the daemon allows each launch the shared memory that it asks for, up to what the GPU has."""
        if shared_mem_bytes < 0:
            raise BadArgument(f"shared_mem_bytes must be 0 or more, not {shared_mem_bytes}", {"key": "shared_mem_bytes"})

    @property
    def attributes(self) -> Any:
        """A `kops.Entry`: registers, shared memory, spills…"""
        return self._untyped.attributes

    def __repr__(self) -> str:
        return f"<kops.torch kernel {self._untyped.entry}>"


def _arch(client: Any, capability: Any) -> str | None:
    """What to compile for: None for the daemon's GPU itself."""
    if capability is None:
        return None
    asked = str(capability)
    digits = asked.rstrip("abcdefghijklmnopqrstuvwxyz")
    if not digits.isdecimal():
        raise BadArgument(f"compute_capability must be like \"90\", not {asked!r}", {"key": "compute_capability"})
    here = [arch for arch in client._live().info.kernels.get("arch", ()) if arch]
    for arch in here:
        if arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz") == digits:
            return None
    if here:
        raise BadArgument(
            f"compute_capability {asked} is not that of the daemon's GPU ({', '.join(here)}), so the kernel could not be launched: "
            "leave it out",
            {"key": "compute_capability"},
        )
    return f"sm_{asked}"


def _device() -> str | None:
    """The UUID of torch's current device, where there are several."""
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        return None
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def compile_kernel(
    kernel_source: str, kernel_name: str, compute_capability: str | None = None,
    cuda_include_dirs: Iterable[str | os.PathLike[str]] | None = None, nvcc_options: Iterable[str] | None = None, *,
    client: Any = None, fallback: str | None = None,
) -> CompiledKernel:  # fmt: skip
    """As `torch.cuda._compile_kernel`, by the daemon, which compiles a source once for all processes and keeps it for its next start.

        add = kops.torch.compile_kernel(source, "add_tensors")
        add(grid=(4, 1, 1), block=(256, 1, 1), args=[a, b, c, a.numel()])

    `kernel_source`: CUDA C++. `kernel_name`: a `__global__` function, `extern "C"` or not, or an instantiation of a template,
    "scale<float>". `compute_capability`: the GPU's own, or None; for another one nothing could be launched. `cuda_include_dirs`: folders
    whose headers the source includes. The daemon reads no folder of yours: the included files are sent along, 64 at most, and CUDA's own
    headers are the daemon's. `nvcc_options`: NVRTC's, of those that the daemon allows; those without effect there are left out.
    `client`: that of `kops.torch.use` or the default one without it. `fallback="interpret"`: calls run on the CPU, checked, where the
    daemon has no GPU.

    Returns a callable, `kernel(grid=(1, 1, 1), block=(1, 1, 1), args=None, shared_mem=0, stream=None)`, whose launches are ordered on
    torch's current stream, or on `stream`, and return at once. What differs from torch's:

    - Numbers are converted to the type that the source declares: a Python float for a `float` is right, and a number that does not fit
      raises an error. None is a null pointer.
    - Tensors on the CPU are copied to the GPU and, where the parameter is no pointer to const, back; the call waits then.
    - A launch runs here, in this process's CUDA context, or in the daemon: where tiny launches were measured to take less time, as with
      `where="auto"` of a `kops.Kernel`. On a stream under capture it runs here. A kernel that faults here ends this process's context, as
      torch's does. One that faults in the daemon does not.
    - Errors are `kops.KopsError`, `kops.CompileFailed` of the compiler. Those of a launch in the daemon appear at a later call or at
      `client.synchronize()`.
    - More than 48 KiB of shared memory need no `set_shared_memory_config`.
    - Symbolic names, such as of `__constant__` variables, have no address here.

    The types of tensors are not compared with the source, as torch's does not. Raises `CompileFailed`, `BadArgument`, `WrongType`.
    """
    if not isinstance(kernel_source, str) or not isinstance(kernel_name, str):
        raise WrongType("kernel_source and kernel_name must be texts", {"key": "kernel_source"})
    chosen = client if client is not None else current_client()
    options, folders = of_nvcc(nvcc_options or ())
    files = headers(kernel_source, [*map(str, cuda_include_dirs or ()), *folders])
    name, arch = f"{kernel_name.partition('<')[0]}.cu", _arch(chosen, compute_capability)
    code = Code(kernel_source, kernel_name, options, files, name, arch, _device())
    untyped = Untyped(chosen, code, kernel_name, checked_fallback(fallback))
    if fallback is None or not launches_none(chosen._live()):
        _compile(untyped)
    return CompiledKernel(untyped)


def _compile(untyped: Untyped) -> None:
    try:
        untyped.compile()
    except CompileFailed as error:
        if "could not open source file" not in error.log and "cannot open source file" not in error.log:
            raise
        why = f"{error.message}. The daemon has CUDA's own headers; name the folders of others in cuda_include_dirs"
        raise CompileFailed(why, error.detail) from None
