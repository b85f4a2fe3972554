"""More elements than 31 bits can count: index arithmetic on the GPU. Checked in chunks, to leave room."""

from __future__ import annotations

from typing import Any

import pytest
from check import gemm_by, gemm_variants

OVER_31_BITS = (1 << 31) + 16
CHUNK = 1 << 27
GIB = 1 << 30


def need_memory(torch: Any, gib: float) -> None:
    free = torch.cuda.mem_get_info()[0]
    if free < gib * GIB:
        pytest.skip(f"needs {gib:g} GiB of free GPU memory, there are {free / GIB:.1f}")


def pattern(torch: Any, n: int, dtype: Any, period: int) -> Any:
    """Small integers that differ from chunk to chunk: exact in every dtype, and so are their sums."""
    out = torch.empty(n, device="cuda", dtype=dtype)
    for start in range(0, n, CHUNK):
        end = min(n, start + CHUNK)
        index = torch.arange(start, end, device="cuda")
        out[start:end] = ((index ^ (index >> 13)) % period).to(dtype)
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_add(torch: Any, k: Any, dtype: str) -> None:
    need_memory(torch, 20)
    torch_dtype = getattr(torch, dtype)
    a, b = pattern(torch, OVER_31_BITS, torch_dtype, 61), pattern(torch, OVER_31_BITS, torch_dtype, 67)
    out = k.add(a, b)
    for start in range(0, OVER_31_BITS, CHUNK):
        part = slice(start, start + CHUNK)
        assert torch.equal(out[part], a[part] + b[part]), f"wrong from element {start} on"


def test_square_in_place_of_strided_rows(torch: Any, k: Any) -> None:
    """The strided path, with offsets past 2^31 elements: two columns of three."""
    need_memory(torch, 14)
    rows = (1 << 30) + 5
    whole = pattern(torch, rows * 3, torch.bfloat16, 13).view(rows, 3)
    view = whole[:, :2]
    k.square(view, out=view)
    expected = pattern(torch, rows * 3, torch.bfloat16, 13).view(rows, 3)
    step = CHUNK // 4
    for start in range(0, rows, step):
        part = expected[start : start + step]
        got = whole[start : start + step]
        assert torch.equal(got[:, :2], part[:, :2] * part[:, :2]), f"wrong from row {start} on"
        assert torch.equal(got[:, 2], part[:, 2]), f"row {start} on: a neighbour was written"


def test_gemm_with_a_far_row(torch: Any, k: Any) -> None:
    """Leading dimensions so large that row offsets pass 2^31 elements."""
    need_memory(torch, 24)
    leading = (1 << 24) + 8
    base = torch.zeros(200, leading, device="cuda", dtype=torch.bfloat16)
    a = base[:, :64]
    a.copy_(torch.randint(-4, 5, (200, 64), device="cuda"))
    b = torch.randint(-4, 5, (64, 96), device="cuda").to(torch.bfloat16)
    expected = a.double() @ b.double()
    for variant in gemm_variants(k):
        got = gemm_by(k, variant, a, b)
        assert got is None or torch.equal(got.double(), expected.to(torch.bfloat16).double()), variant
