"""Matrices times vectors: k.gemm(a, v)."""

from __future__ import annotations

from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon


def normal(*shape: int) -> Any:
    return numpy.random.default_rng().standard_normal(shape).astype("float32")


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4,)), ((3,), (3, 4)), ((5,), (5,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((0, 4), (4,)), ((3, 0), (0,)), ((1,), (1, 1)),
    ((7, 2, 3, 4), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", CASES)
@pytest.mark.parametrize("shared", [False, True])
def test_the_result_is_numpys(k: kops.Client, shapes: tuple[tuple[int, ...], tuple[int, ...]], shared: bool) -> None:
    a, b = (k.array(normal(*shape)) if shared else normal(*shape) for shape in shapes)
    want = numpy.matmul(a, b)
    result = k.gemm(a, b)
    assert result.shape == want.shape and numpy.allclose(result, want, rtol=1e-5, atol=1e-5)
    out = k.zeros(want.shape)
    assert k.gemm(a, b, out=out, alpha=2.0) is out and numpy.allclose(out, 2 * want, rtol=1e-5, atol=1e-5)


def test_views_and_transposed_matrices_are_not_copied(k: kops.Client, daemon: FakeDaemon) -> None:
    a, v, out = k.array(normal(6, 4)), k.array(normal(6, 4, 3)), k.zeros((4, 5))
    copied = k.gemm(a, v[:, 1, 2], trans_a=True, out=out[:, 2])
    assert numpy.allclose(copied, a.T @ v[:, 1, 2], atol=1e-5) and (out[:, :2] == 0).all() and (out[:, 3:] == 0).all()
    run = daemon.runs()[-1]
    assert run["in"][1]["shape"] == [6, 1] and run["in"][1]["strides"] == [12, 1] and run["out"][0]["shape"] == [4, 1]
    assert numpy.allclose(k.gemm(v[0, ::2, 0], a[::3]), v[0, ::2, 0] @ a[::3], atol=1e-5)
    assert run["out"][0]["buffer"] == daemon.runs()[-2]["out"][0]["buffer"]
    y = k.array(normal(6))
    want = a @ v[0, :, 0] + 2 * y
    k.gemm(a, v[0, :, 0], beta=2.0, out=y)
    assert numpy.allclose(y, want, atol=1e-5)


def test_what_is_refused(k: kops.Client, daemon: FakeDaemon) -> None:
    a, v = normal(3, 4), normal(4)
    for call, kind, message in (
        (lambda: k.gemm(a, v[:3]), kops.ShapeMismatch, "inner sizes differ"),
        (lambda: k.gemm(a, v, trans_b=True), kops.BadArgument, "trans_b swaps the dimensions of a matrix, and b is a vector"),
        (lambda: k.gemm(v, a, trans_a=True), kops.BadArgument, "trans_a"),
        (lambda: k.gemm(a, v, out=normal(3, 1)), kops.ShapeMismatch, r"has shape \(3,\), but out= \(3, 1\)"),
        (lambda: k.gemm(a, normal(1)[0]), kops.WrongType, "no numbers"),
        (lambda: k.gemm(a, k.zeros(())), kops.ShapeMismatch, "matrices and vectors"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            call()
    assert not daemon.runs()


def test_programs_bind_vectors(k: kops.Client) -> None:
    a, v, w = k.array(normal(4, 4)), k.array(normal(4)), k.array(normal(4))
    with k.program() as p:
        y = k.gemm(a, k.add(v, v))
        z = k.gemm(v, a)
        dot = k.gemm(v, w)
    p.run()
    assert y.shape == z.shape == (4,) and dot.shape == ()
    assert numpy.allclose(z, v @ a, atol=1e-5) and numpy.allclose(dot, v @ w, atol=1e-5)
    other, there, sums = k.array(normal(4)), k.zeros(4), k.zeros(())
    p.run([(v, other), (z, there), (dot, sums)])
    assert numpy.allclose(y, a @ (2 * other), atol=1e-5) and numpy.allclose(there, other @ a, atol=1e-5)
    assert numpy.allclose(sums, other @ w, atol=1e-5)
    assert numpy.allclose(k.sequence([("gemm", a, v)])[0], a @ v, atol=1e-5)
    assert k.profile("gemm", a, v, repeat=8).operations == 2 * 4 * 4
