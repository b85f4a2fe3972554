"""The five kernels of the tutorials in the daemon, against the same sources compiled by torch's load_inline."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..context import Context, Skipped
from ..cuda import kernel_times
from ..record import Record, summarise
from ..user_kernels import KERNELS, UserKernel, load_inline, load_inline_missing, torch_kernel
from . import add
from .common import beside, client_with, rounds

SIDE, LENGTH, GEMM = 8192, 1 << 26, 2048  # of the matrix that is squared, of vectors, of the matrices that are multiplied
PEER = {"load_inline": "torch load_inline", "torch_nvrtc": "torch.cuda._compile_kernel"}


def operands(context: Context, kernel: UserKernel) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[int, int], Any]:
    """Tensors in the order of the parameters, the numbers behind them, the grid, and torch's op on the same."""
    torch, small = context.torch, context.smoke
    side, length, gemm = (64, 1 << 12, 64) if small else (SIDE, LENGTH, GEMM)

    def of(*shape: int) -> Any:
        return torch.full(shape, 2.0, device="cuda")

    if kernel.name == "square_matrix":
        a, out = of(side, side), of(side, side)
        return (a, out), (side, side), (-(-side // 256), min(side, 65535)), lambda: torch.square(a, out=out)
    if kernel.name == "gemm":
        a, b, c = of(gemm, gemm), of(gemm, gemm), of(gemm, gemm)
        return (c, a, b), (gemm, gemm, gemm), ((-(-gemm // 64)) ** 2, 1), lambda: torch.mm(a, b, out=c)
    vectors = tuple(of(length) for _ in kernel.tensors)
    out, *inputs = vectors
    op: Callable[[], Any] = (lambda: torch.add(*inputs, out=out)) if len(inputs) == 2 else (lambda: torch.mul(inputs[0], 2, out=out))
    blocks = -(-length // 256)
    return vectors, (length,), (min(blocks, 2112) if kernel.name == "add2" else blocks, 1), op


def peers(context: Context, folder: str) -> tuple[str, Any, str | None]:
    """Which peer there is, and what launches a kernel by it: of the kernel, its tensors, numbers and grid. And why not
    load_inline."""
    if context.smoke:
        return "", None, "the stand-in has no load_inline"
    lacking = load_inline_missing()
    if lacking is None:
        module = load_inline(KERNELS, "kops_bench_tutorial", Path(folder))
        return "load_inline", lambda kernel, tensors, numbers, grid: getattr(module, f"{kernel.name}_call")(*tensors), None
    torch = context.torch
    try:
        made = {kernel.name: torch_kernel(torch, kernel.source, kernel.entry) for kernel in KERNELS}
    except Skipped as reason:
        return "", None, f"{lacking}; {reason}"

    def launch(kernel: UserKernel, tensors: Any, numbers: Any, grid: Any) -> None:
        made[kernel.name]((*grid, 1), (kernel.block, 1, 1), (*tensors, *numbers))

    return "torch_nvrtc", launch, lacking


def nvcc() -> str:
    """The version of the compiler that load_inline runs: its code may differ from that of another version's NVRTC."""
    from torch.utils.cpp_extension import CUDA_HOME

    said = subprocess.run([f"{CUDA_HOME}/bin/nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release ([\d.]+)", said)
    return f"nvcc {found[1]}" if found else "nvcc"


def one(context: Context, client: Any, kernel: UserKernel, peer: str, launch: Any, lacking: str | None) -> Record:
    import kops

    torch = context.torch
    tensors, numbers, grid, op = operands(context, kernel)
    mine = kernel.declare(client)
    torch.cuda.synchronize()

    def ours(n: int) -> Any:
        return mine.profile(*tensors, *numbers, warmup=0, repeat=n).samples

    def theirs(n: int) -> Any:
        return kernel_times(torch, [lambda: launch(kernel, tensors, numbers, grid)] * n)

    def same_binary(n: int) -> Any:
        return kernel_times(torch, [lambda: mine(*tensors, *numbers, where="here")] * n)

    # The daemon's binary launched in this process: what differs from the peer then is the compiler, from ours the daemon.
    handed_out = not context.smoke and kops.compiled and "code" in client.info.features
    our_times, *others = rounds(context, [ours, *([theirs] if launch else []), *([same_binary] if handed_out else [])])
    peer_times = others[0] if launch else []
    compiled = mine.code.compiled
    detail = {
        "measured": "CUPTI's times of repeated executions in the daemon against CUPTI's times of launches in a row",
        "shapes": [list(tensor.shape) for tensor in tensors],
        "compiler": compiled.compiler,
        "arch": compiled.arch,
        **({"peer_compiler": nvcc()} if peer == "load_inline" else {}),
        **({"same_binary_in_process_p50_us": summarise(others[-1]).p50} if handed_out else {}),
        **({"no_load_inline": lacking} if lacking else {}),
    }
    if not context.smoke:
        detail["torch_op_p50_us"] = summarise(kernel_times(torch, [op] * 20, each=None)).p50
    return beside(f"tutorial_{kernel.name}", our_times, (peer_times, f"{PEER[peer]}, the same source") if peer_times else None, **detail)


def run(context: Context) -> list[Record]:
    import kops

    made = []
    with (
        tempfile.TemporaryDirectory(prefix="kops-inline-") as folder,
        client_with(context, "kernels", blocking=not kops.compiled) as client,
    ):
        peer, launch, lacking = peers(context, folder)
        for kernel in KERNELS:
            made.append(one(context, client, kernel, peer, launch, lacking))
            if not context.smoke:
                context.torch.cuda.empty_cache()
                client.trim()
    return made


add("tutorial", run, on_gpu=True, table=True, seconds=240)
