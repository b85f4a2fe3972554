"""Tuning on a GPU: what is chosen computes the same, is no slower than what ran before, and runs from then on."""

from __future__ import annotations

from typing import Any

import pytest

CASES = [
    ("bfloat16", "highest", (256, 256, 256)), ("bfloat16", "highest", (1025, 1027, 1031)), ("float16", "highest", (16, 4096, 4096)),
    ("float32", "highest", (16, 1024, 4096)), ("float32", "high", (1024, 1024, 1024)), ("float32", "medium", (513, 512, 511)),
    ("float64", "highest", (256, 128, 512)),
]  # fmt: skip


def scaled_error(torch: Any, out: Any, a: Any, b: Any) -> float:
    """The largest error, as a part of the sum of the terms' magnitudes."""
    exact, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return float(((out.double() - exact).abs() / terms).max())


def tune(k: Any, *args: Any, **how: Any) -> Any:
    """Tunes until every candidate was tried. Replies come in time: the first ones before the process that measures has started."""
    for _ in range(50):
        tuned = k.tune(*args, **how)
        if not tuned.goes_on and tuned.tried == len(tuned.candidates):
            return tuned
    raise AssertionError(f"there is no end to it: {tuned}")


ALLOWED = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-5, "float64": 1e-13, "high": 8e-5, "medium": 2e-3}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("columns", [True, False])
def test_linear_without_the_librarys_epilogue(torch: Any, k: Any, dtype: str, columns: bool) -> None:
    """gelu by erf, with a vector as bias and with one along the columns."""
    a, b = (torch.randn(512, 512, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    bias = torch.randn(*(512, 1) if columns else (512,), device="cuda").to(a.dtype)
    tuned = tune(k, "linear", a, b, bias, activation="gelu")
    assert tuned.problem.startswith("linear ") and tuned.best.us <= tuned.before.us
    out, timings = k.linear(a, b, bias, activation="gelu", timing=True)
    assert timings.variant == tuned.best.variant
    exact = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())
    terms = a.double().abs() @ b.double().abs() + bias.double().abs()
    assert float(((out.double() - exact).abs() / terms).max()) <= ALLOWED[dtype]


def test_a_program_that_has_run_before(torch: Any, k: Any) -> None:
    """It becomes a new graph where tuning has chosen something else."""
    a, b = (torch.randn(256, 256, device="cuda") for _ in range(2))
    out, squared = torch.empty_like(a), torch.empty_like(a)
    with k.program() as program:
        k.gemm(a, b, out=out)
        k.square(out, out=squared)

    def check() -> None:
        for one in (out, squared):
            one.fill_(float("nan"))
        torch.cuda.synchronize()
        program.run(blocking=True)
        assert scaled_error(torch, out, a, b) <= ALLOWED["float32"]
        torch.testing.assert_close(squared, out * out)

    check()
    tuned = tune(k, "gemm", a, b, out=out)
    for _ in range(3):
        a.normal_()
        check()
    counts = {row["variant"]: row["count"] for row in k.stats("gemm")["ops"] if row["shapes"][0] == [256, 256] and row["dtype"] == "f32"}
    assert counts.get(tuned.best.variant, 0) >= 3, counts


@pytest.mark.parametrize(("dtype", "precision", "shape"), CASES)
def test_what_is_chosen(torch: Any, k: Any, dtype: str, precision: str, shape: tuple[int, int, int]) -> None:
    m, n, depth = shape
    a = torch.randn((m, depth), device="cuda", dtype=torch.float32).to(getattr(torch, dtype))
    b = torch.randn((depth, n), device="cuda", dtype=torch.float32).to(getattr(torch, dtype))
    tuned = tune(k, "gemm", a, b, precision=precision)
    assert tuned.best.us <= tuned.before.us and len(tuned.candidates) > 1
    out = torch.full((m, n), float("nan"), device="cuda", dtype=a.dtype)
    result, timings = k.gemm(a, b, out=out, precision=precision, timing=True)
    assert timings.variant == tuned.best.variant
    assert scaled_error(torch, out, a, b) <= ALLOWED.get(precision, ALLOWED[dtype])
    again = k.tune("gemm", a, b, precision=precision)
    assert again.before.variant == tuned.best.variant
    for candidate in tuned.candidates:  # also what was not chosen is right
        if candidate.state in ("measured", "slower"):
            k.gemm(a, b, out=out.fill_(float("nan")), precision=precision, variant=candidate.variant)
            assert scaled_error(torch, out, a, b) <= ALLOWED.get(precision, ALLOWED[dtype]), candidate
