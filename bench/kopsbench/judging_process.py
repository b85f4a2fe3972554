"""`python -m kopsbench.judging_process NAME`: an example kernel, launched by torch a few times on operands of a benchmark's size, for ncu
to watch."""

from __future__ import annotations

import sys
from typing import Any

from .user_kernels import KERNELS

SIDE, LENGTH, LAUNCHES = 1024, 1 << 20, 5


def operands(torch: Any, name: str) -> tuple[list[Any], tuple[int, ...], tuple[int, ...]]:
    """Arguments, grid and block, as the signatures have them."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda")

    if name == "gemm":
        tiles = -(-SIDE // 64)
        return [made(SIDE, SIDE), made(SIDE, SIDE), made(SIDE, SIDE), SIDE, SIDE, SIDE], (tiles * tiles, 1, 1), (256, 1, 1)
    if name == "square_matrix":
        return [made(SIDE, SIDE), made(SIDE, SIDE), SIDE, SIDE], (-(-SIDE // 256), SIDE, 1), (256, 1, 1)
    blocks = -(-LENGTH // 256)
    tensors = [made(LENGTH) for _ in range(2 if name == "custom" else 3)]
    return [*tensors, LENGTH], (min(blocks, 2112) if name == "add2" else blocks, 1, 1), (256, 1, 1)


def main() -> None:
    import torch

    kernel = next(one for one in KERNELS if one.name == sys.argv[1])
    arguments, grid, block = operands(torch, kernel.name)
    call = torch.cuda._compile_kernel(kernel.source, kernel.entry)
    for _ in range(LAUNCHES):
        call(grid=grid, block=block, args=arguments)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
