"""scaled_gemm from Python, with the real daemon: torch tensors of 8-bit floats, numbers as scales, torch.ops.kops, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kops
import numpy
import pytest
from built import k, real

torch = pytest.importorskip("torch")
import kops.torch  # noqa: E402

__all__ = ["k", "real"]

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture
def op(k: kops.Client) -> Iterator[Any]:
    kops.torch.use(k)
    yield torch.ops.kops.scaled_gemm
    kops.torch.use(None)


def operands(m: int = 33, n: int = 20, k: int = 47, of_a: Any = E4M3, of_b: Any = E5M2) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    return normal(m, k).to(of_a), normal(n, k).to(of_b).t(), normal(m, 1), normal(n)


def expected(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return (a.double() @ b.double()) * scale_a * scale_b


@pytest.mark.parametrize("of_b", [E4M3, E5M2])
@pytest.mark.parametrize("of_a", [E4M3, E5M2])
def test_torch_tensors(k: kops.Client, of_a: Any, of_b: Any) -> None:
    given = operands(of_a=of_a, of_b=of_b)
    for out_dtype, dtype, error in ((None, torch.bfloat16, 8e-3), ("f16", torch.float16, 1e-3), (torch.float32, torch.float32, 1e-5)):
        got = k.scaled_gemm(*given, out_dtype=out_dtype)
        assert got.dtype is dtype and got.shape == (33, 20)
        torch.testing.assert_close(got.double(), expected(*given).double(), rtol=error, atol=1e-3 if dtype is torch.float32 else 5e-2)
    out = torch.full((20, 33), torch.nan)
    assert k.scaled_gemm(*given, out=out.t()) is not None
    torch.testing.assert_close(out.t().double(), expected(*given).double(), rtol=1e-5, atol=1e-3)
    turned = k.scaled_gemm(given[0].t().contiguous(), given[1].t(), *given[2:], trans_a=True, trans_b=True, out_dtype="f32")
    assert torch.equal(turned, k.scaled_gemm(*given, out_dtype="f32"))


def test_scales_may_be_numbers_and_lists(k: kops.Client) -> None:
    a, b, *_ = operands()
    whole = k.scaled_gemm(a, b, torch.tensor(0.5), torch.tensor(3.0), out_dtype="f32")
    for pair in ((0.5, 3.0), (0.5, numpy.float64(3.0)), ([0.5], [3]), ([[0.5]] * 33, [3.0] * 20), (torch.tensor([0.5]), 3)):
        assert torch.equal(k.scaled_gemm(a, b, *pair, out_dtype="f32"), whole)


def test_kops_arrays(k: kops.Client) -> None:
    a, b, *_ = operands()
    on_device = [k.array(x.contiguous(), device=0) for x in (a, b, torch.tensor(0.5))]
    got = k.scaled_gemm(*on_device, 3.0, out_dtype="f32")
    assert got.dtype == numpy.float32
    assert torch.equal(torch.from_numpy(got.get()), k.scaled_gemm(a, b, 0.5, 3.0, out_dtype="f32"))


def test_vectors(k: kops.Client) -> None:
    a, b, *_ = operands(of_b=E4M3)
    whole = k.scaled_gemm(a, b, 1.0, 2.0, out_dtype="f32")
    assert torch.equal(k.scaled_gemm(a[3], b, 1.0, 2.0, out_dtype="f32"), whole[3])
    assert torch.equal(k.scaled_gemm(a, b[:, 4], 1.0, 2.0, out_dtype="f32"), whole[:, 4])


def test_errors_say_what_is_taken(k: kops.Client) -> None:
    a, b, rows, columns = operands()
    with pytest.raises(kops.UnknownDtype, match="float8_e4m3fn, float8_e5m2"):
        k.scaled_gemm(a.float(), b, rows, columns)
    with pytest.raises(kops.DtypeMismatch, match="b is float32, and must be float8_e4m3fn or float8_e5m2"):
        k.scaled_gemm(a, b.float(), rows, columns)
    with pytest.raises(kops.DtypeMismatch, match="scale_a is float64, and must be float32"):
        k.scaled_gemm(a, b, rows.double(), columns)
    with pytest.raises(kops.DtypeMismatch, match="gives bfloat16 or float16 or float32, not float8_e4m3fn"):
        k.scaled_gemm(a, b, rows, columns, out_dtype="f8_e4m3")
    with pytest.raises(kops.ShapeMismatch, match=r"scale_a of shape \(33,\) does not broadcast to \(33, 1\)"):
        k.scaled_gemm(a, b, rows.flatten(), columns)
    with pytest.raises(kops.ShapeMismatch, match=r"scale_b of shape \(20, 1\) does not broadcast to \(1, 20\)"):
        k.scaled_gemm(a, b, rows, columns[:, None])
    with pytest.raises(kops.DtypeMismatch, match="out"):
        k.scaled_gemm(a, b, rows, columns, out=torch.empty(33, 20, dtype=torch.float64))
    with pytest.raises(kops.WrongType, match="numbers"):
        k.scaled_gemm(2.0, b, rows, columns)
    with pytest.raises(TypeError):
        k.scaled_gemm(a, b, rows, columns, alpha=2.0)
    with pytest.raises(kops.BadArgument, match="highest, high, medium"):
        k.scaled_gemm(a, b, rows, columns, precision="exact")


def test_torch_ops(op: Any) -> None:
    given = operands()
    got = op(*given)
    assert got.dtype is torch.bfloat16 and got.is_contiguous()
    torch.testing.assert_close(op(*given, out_dtype=torch.float32).double(), expected(*given).double(), rtol=1e-5, atol=1e-3)
    out = torch.full((33, 20), torch.nan, dtype=torch.float16)
    op.out(*given, out=out)
    torch.testing.assert_close(out.double(), expected(*given).double(), rtol=1e-3, atol=1e-2)
    fake = torch.library.opcheck(op.default, given, {"out_dtype": torch.float32}, test_utils="test_faketensor")  # its schema test has no f8
    assert set(fake.values()) == {"SUCCESS"}
    with torch.autocast("cpu"):  # what has a scale is not cast
        assert torch.equal(op(*given), got)


def test_torch_ops_are_compiled_and_mapped(op: Any) -> None:
    a, b, rows, columns = operands()
    compiled = torch.compile(lambda *x: op(*x, out_dtype=torch.float32) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, rows, columns), 2 * op(a, b, rows, columns, out_dtype=torch.float32))
    scales = torch.rand(3)
    mapped = torch.func.vmap(lambda scale: op(a, b, scale, columns, out_dtype=torch.float32))(scales)
    for i in range(3):
        torch.testing.assert_close(mapped[i], op(a, b, scales[i], columns, out_dtype=torch.float32))
    several = torch.stack([x.float() for x in (a, 2 * a.float(), -a.float())]).to(E4M3)
    mapped = torch.func.vmap(lambda one, scale: op(one, b, scale, columns, out_dtype=torch.float32))(several, scales)
    for i in range(3):
        torch.testing.assert_close(mapped[i], op(several[i], b, scales[i], columns, out_dtype=torch.float32))
