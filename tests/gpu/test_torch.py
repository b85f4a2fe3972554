"""torch CUDA tensors of every kind, through the Python client."""

from __future__ import annotations

from typing import Any

import kops
import pytest
from check import DTYPES, assert_add, assert_gemm, assert_square, random, variants

MILLION = 1_048_576


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_million_elements(torch: Any, k: Any, dtype: str) -> None:
    a, b = random(torch, MILLION, dtype=dtype), random(torch, MILLION, dtype=dtype)
    c = k.add(a, b)
    assert c.dtype == a.dtype and c.device == a.device and c.is_contiguous()
    assert_add(c, a, b)
    assert_square(k.square(a), a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_gemms(torch: Any, k: Any, dtype: str) -> None:
    """The small ones are tests/conformance's, by every variant."""
    for m, depth, n in ((4097, 4097, 4097), (16, 4096, 4096)):
        a, b = random(torch, m, depth, dtype=dtype), random(torch, depth, n, dtype=dtype)
        for precision in ("highest", "high", "medium") if dtype == "float32" else ("highest",):
            assert_gemm(k.gemm(a, b, precision=precision), a, b, precision)


SPECIAL = {"skinny": ("float32", "float16", "bfloat16"), "small": ("float32",), "hopper": ("float16", "bfloat16")}


@pytest.mark.parametrize(("variant", "dtype", "precision"), [
    *((variant, dtype, "highest") for variant, dtypes in SPECIAL.items() for dtype in dtypes), ("small", "float32", "medium"),
])  # fmt: skip
def test_gemm_of_special_variants(torch: Any, k: Any, variant: str, dtype: str, precision: str) -> None:
    """On shapes that each takes, with all transpositions, ends of rows, and a sum with what is there."""
    if variant not in variants(k, "gemm"):
        pytest.skip(f"the GPU has no {variant}")
    for m, n, depth in ((16, 256, 264), (9, 4096, 1024)) if variant == "skinny" else ((200, 136, 328), (256, 256, 256)):
        a, b = random(torch, m, depth, dtype=dtype), random(torch, depth, n, dtype=dtype)
        assert_gemm(k.gemm(a, b, variant=variant, precision=precision), a, b, precision)
        assert_gemm(k.gemm(a, b.t().contiguous(), trans_b=True, variant=variant, precision=precision), a, b, precision)
        assert_gemm(k.gemm(b, a, trans_a=True, trans_b=True, variant=variant, precision=precision).t(), a, b, precision)
        before = random(torch, m, n, dtype=dtype)
        out = before.clone()
        k.gemm(a, b, out=out, beta=1.0, variant=variant, precision=precision)
        torch.testing.assert_close(out, (a.double() @ b.double() + before.double()).to(out.dtype), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["cublaslt", None])
def test_gemm_of_heads(torch: Any, k: Any, dtype: str, variant: str | None) -> None:
    """Batches of two strides, [batch, rows, heads, width]: many calls of the library, each of many products."""
    query, key = (random(torch, 20, 256, 33, 64, dtype=dtype).transpose(1, 2) for _ in range(2))
    more = {} if variant is None else {"variant": variant}
    out = torch.full((20, 33, 256, 256), float("nan"), device="cuda", dtype=query.dtype)
    timings = k.run("gemm", query, key.transpose(2, 3), out=out, timing=True, **more)[1]
    assert timings.variant == "cublaslt"
    assert_gemm(out, query, key.transpose(2, 3))
    short = query[:, :, :8], key[:, :, :8].transpose(2, 3)
    with pytest.raises(kops.InvalidArgument, match="more than 16 small ones"):
        k.run("gemm", *short, variant="cublaslt", blocking=True)
    assert_gemm(k.gemm(*short), *short)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(torch: Any, k: Any, dtype: str) -> None:
    whole = random(torch, 500, 700, dtype=dtype)
    views = {
        "transposed": whole.t(),
        "rows": whole[17:300],
        "columns": whole[:, 3:129],
        "every third": whole[::3, 1::2],
        "odd offset": whole.flatten()[1:12346],
        "expanded": whole[4:5].expand(90, 700),
        "scalar expanded": whole[2, 3].expand(31, 7),
        "one element": whole[9, 9],
    }
    for name, view in views.items():
        other = random(torch, *view.shape, dtype=dtype)
        try:
            assert_add(k.add(view, other), view, other)
            assert_square(k.square(view), view)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    assert_gemm(k.gemm(whole.t(), whole[:, :100]), whole.t(), whole[:, :100])
    assert_gemm(k.gemm(whole[::2, 5:205], whole[100:300, ::7]), whole[::2, 5:205], whole[100:300, ::7])


@pytest.mark.parametrize("offset_a, offset_b, offset_out", [(0, 0, 0), (1, 1, 1), (1, 2, 3), (0, 0, 1), (3, 0, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alignments(torch: Any, k: Any, dtype: str, offset_a: int, offset_b: int, offset_out: int) -> None:
    """16-byte accesses must not be used where the operands do not allow them, and neighbours stay untouched."""
    for n in (1, 7, 15, 16, 17, 1023, 1024, 1025, 100_003):
        a = random(torch, n + 8, dtype=dtype)[offset_a : offset_a + n]
        b = random(torch, n + 8, dtype=dtype)[offset_b : offset_b + n]
        ground = torch.full((n + 8,), -7.0, device="cuda", dtype=getattr(torch, dtype))
        out = ground[offset_out : offset_out + n]
        k.add(a, b, out=out)
        assert_add(out, a, b)
        assert bool((ground[:offset_out] == -7).all()) and bool((ground[offset_out + n :] == -7).all())


def test_caching_allocator_reuses_memory(torch: Any, k: Any) -> None:
    """torch hands the same block out again, and after empty_cache() perhaps the same address of another allocation."""
    for round_ in range(30):
        n = MILLION + (round_ % 3)
        a = torch.full((n,), float(round_), device="cuda")
        b = torch.full((n,), 0.5, device="cuda")
        assert bool((k.add(a, b) == round_ + 0.5).all())
        del a, b
        if round_ % 2:
            torch.cuda.empty_cache()


def test_memory_goes_back_after_trim(torch: Any, k: Any) -> None:
    """A mapping pins memory; trim() lets it go, so that the device's free memory returns to where it was."""
    torch.cuda.empty_cache()
    k.square(random(torch, 16))
    k.trim()
    free_before = torch.cuda.mem_get_info()[0]
    big = torch.zeros(1 << 28, device="cuda")  # 1 GiB
    k.square(big, out=big)
    k.synchronize()  # until then the call holds its tensors
    del big
    torch.cuda.empty_cache()
    k.trim()
    free_after = torch.cuda.mem_get_info()[0]
    assert free_before - free_after < 1 << 29, "a freed gigabyte is still pinned"
