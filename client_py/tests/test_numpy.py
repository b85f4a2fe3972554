"""NumPy arrays: what is copied, what is not, and what comes back."""

from __future__ import annotations

import gc

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._memory.pool import pool


def normal(*shape: int, dtype: str = "float32") -> numpy.ndarray:
    return numpy.random.default_rng().standard_normal(shape).astype(dtype)


def test_shared_arrays_are_used_where_they_are(k: kops.Client, daemon: FakeDaemon) -> None:
    a, out = k.array(normal(100, 60)), k.zeros((60, 100))
    usage = pool.usage()
    result = k.square(a.T, out=out)
    assert result is out and numpy.array_equal(out, (a * a).T)
    assert pool.usage() == usage, "something was staged"
    (tensor,) = daemon.runs()[-1]["in"]
    assert tensor["shape"] == [60, 100] and tensor["strides"] == [1, 60]


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[5:20],
        lambda a: a[:, 3],
        lambda a: a[::2, 1::3],
        lambda a: a.T[3:9],
        lambda a: a[None, :, None, 4:],
        lambda a: a.reshape(-1)[1:777],
        lambda a: numpy.broadcast_to(a[3], (7, 40)),
        lambda a: a[2:2],
        lambda a: a[4, 4, ...],
    ],
)
def test_views_of_shared_arrays_are_not_copied(k: kops.Client, daemon: FakeDaemon, view: object) -> None:
    a = k.array(normal(50, 40))
    x = view(a)  # type: ignore[operator]
    expected = x * x
    out = k.empty(x.shape)
    a_buffer = k.square(a) is not None and daemon.runs()[-1]["in"][0]["buffer"]
    assert numpy.array_equal(k.square(x, out=out), expected)
    (tensor,) = daemon.runs()[-1]["in"]
    assert x.size == 0 or tensor["buffer"] == a_buffer


def test_views_of_ordinary_arrays(k: kops.Client) -> None:
    a, row = normal(50, 40), normal(40)
    for x in (a.T, a[::2, 1::3], a[::-1], a[:, ::-1], numpy.broadcast_to(row, (7, 40)), a[0:0], a[1, 1], a.astype(">f4")):
        assert numpy.array_equal(k.square(x), numpy.asarray(x * x, dtype="float32"))
    a, out = k.array(a), k.zeros((50, 40))
    assert numpy.array_equal(k.square(a[::-1, ::-1]), (a * a)[::-1, ::-1]), "negative strides of shared ones are copied"
    k.square(a, out=out[::-1])
    assert numpy.array_equal(out[::-1], a * a)

    class Tensor:
        def __dlpack__(self, **options: object) -> object:
            return a.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return a.__dlpack_device__()

    assert numpy.array_equal(k.square(Tensor()), a * a)


def test_a_broadcast_ordinary_array_is_copied_once(k: kops.Client, daemon: FakeDaemon) -> None:
    row = normal(1, 64)
    wide = numpy.broadcast_to(row, (1 << 16, 64))
    before = pool.usage()["bytes"]
    out = k.empty((1 << 16, 64))
    grown = pool.usage()["bytes"] - before
    assert numpy.array_equal(k.add(wide, wide, out=out), wide + wide)
    assert pool.usage()["bytes"] - before - grown < 4 << 20
    assert daemon.runs()[-1]["in"][0]["strides"] == [0, 1]


def test_out_may_be_an_ordinary_array(k: kops.Client) -> None:
    a, b = normal(30, 20), normal(30, 20)
    ground = numpy.full((30, 40), -7, numpy.float32)
    out = ground[:, ::2]
    assert k.add(a, b, out=out) is out
    assert numpy.array_equal(out, a + b) and (ground[:, 1::2] == -7).all()


def test_in_place(k: kops.Client, daemon: FakeDaemon) -> None:
    for a in (normal(100), k.array(normal(100))):
        expected = a * a
        assert k.square(a, out=a) is a
        assert numpy.array_equal(a, expected)
        run = daemon.runs()[-1]
        assert run["in"][0] == run["out"][0], "in place must be one tensor for the daemon"
    k.add(a, a[:])
    first, second = daemon.runs()[-1]["in"]
    assert first == second, "one array is copied once"


def test_gemm_shapes(k: kops.Client) -> None:
    a, b = normal(3, 2, 4, 5), normal(2, 5, 6)
    assert numpy.allclose(k.gemm(a, b), a @ b, atol=1e-5)
    assert numpy.allclose(k.gemm(a[0, 0], b[0].T, trans_b=True), a[0, 0] @ b[0], atol=1e-5)
    assert numpy.array_equal(k.gemm(normal(3, 0), normal(0, 4)), numpy.zeros((3, 4)))
    c = normal(4, 6)
    expected = 2 * (a[0, 0] @ b[0]) + 0.5 * c
    assert numpy.allclose(k.gemm(a[0, 0], b[0], alpha=2, beta=numpy.float32(0.5), out=c), expected, atol=1e-5)


def test_refused_before_anything_is_sent(k: kops.Client, daemon: FakeDaemon) -> None:
    x, read_only = normal(4), normal(4)
    read_only.flags.writeable = False
    assert numpy.array_equal(k.square(read_only), read_only * read_only)
    sent = len(daemon.requests)
    for error, why, call in (
        (kops.UnknownDtype, "bool", lambda: k.square(numpy.ones(4, "bool"))),
        (kops.DtypeMismatch, "", lambda: k.add(x, normal(4, dtype="float64"))),
        (kops.ShapeMismatch, "", lambda: k.add(x, normal(5))),
        (kops.ShapeMismatch, "", lambda: k.gemm(normal(3, 4), normal(3, 4))),
        (ValueError, "", lambda: k.gemm(x, normal(5))),
        (kops.WrongType, "", lambda: k.add(x, object())),
        (TypeError, "", lambda: k.add(x)),
        (TypeError, "", lambda: k.add(x, x, no_such_option=1)),
        (TypeError, "", lambda: k.gemm(normal(4, 4), normal(4, 4), alpha="1")),
        (ValueError, "", lambda: k.gemm(normal(4, 4), normal(4, 4), precision="low")),
        (kops.BadArgument, "out=", lambda: k.gemm(normal(4, 4), normal(4, 4), beta=1.0)),
        (kops.WrongType, "mask", lambda: k.square(numpy.ma.masked_array([1.0, 2.0], [0, 1]))),
        (kops.ReadOnly, "", lambda: k.square(x, out=read_only)),
        (PermissionError, "", lambda: k.square(x, out=numpy.broadcast_to(numpy.float32(0), (4,)))),
    ):
        with pytest.raises(error, match=why):
            call()
    assert len(daemon.requests) == sent


def test_empty_tensors_need_no_buffer(k: kops.Client, daemon: FakeDaemon) -> None:
    c = k.add(numpy.empty((0, 3), numpy.float32), numpy.empty((1, 3), numpy.float32))
    assert c.shape == (0, 3)
    run = daemon.runs()[-1]
    assert "buffer" not in run["out"][0] and "buffer" not in run["in"][0]


def test_nothing_is_registered_in_a_steady_state(k: kops.Client, daemon: FakeDaemon) -> None:
    a, b = normal(300_000), normal(300_000)
    for _ in range(3):
        k.add(a, b)
    registered, usage = daemon.count("register"), pool.usage()["bytes"]
    for _ in range(50):
        assert numpy.array_equal(k.add(a, b), a + b)
    assert daemon.count("register") == registered and pool.usage()["bytes"] == usage


def test_memory_is_reused_only_when_nobody_has_it(k: kops.Client) -> None:
    a = normal(100_000)
    view = k.add(a, a)[10:20]
    expected = view.copy()
    for i in range(20):
        k.add(a, numpy.full_like(a, i))
    assert numpy.array_equal(view, expected)


def test_trim_gives_memory_back_and_releases(k: kops.Client, daemon: FakeDaemon) -> None:
    gc.collect()
    k.trim()
    before, buffers = pool.usage()["bytes"], len(daemon.peers[0].buffers)
    big = k.zeros((1 << 20,))
    k.square(big, out=big)
    assert len(daemon.peers[0].buffers) == buffers + 1
    del big
    assert k.trim()["freed"] >= 4 << 20
    k.ping()
    assert pool.usage()["bytes"] == before and len(daemon.peers[0].buffers) == buffers


def test_idle_memory_is_bounded(k: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "idle_limit", 1 << 20)
    for size in (1 << 18, 1 << 19, 1 << 20):
        k.square(k.zeros((size,)))
    k.empty(1)
    assert pool.usage()["idle_bytes"] <= 1 << 20


def test_small_blocks_keep_the_segment_of_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    pool.trim()
    before = pool.usage()
    small = [pool.take(300) for _ in range(2000)]
    del small[:1000]  # whole segments
    del small[::2]  # halves
    among = pool.usage()
    monkeypatch.setattr(pool, "idle_limit", among["idle_bytes"])
    pool.take(8 << 20)
    pool.take(300)
    assert pool.usage() == among, "the large one goes, and it alone"
    monkeypatch.undo()
    whole = pool.trim()
    assert 0 < whole < among["bytes"] - before["bytes"]
    del small
    assert whole + pool.trim() == among["bytes"] - before["bytes"] and pool.usage() == before


def test_a_count_that_ctrl_c_has_lost_is_made_anew() -> None:
    pool.take(1 << 20)
    known = pool.usage()
    pool._idle -= 1 << 20
    assert pool.usage() == known
    pool._idle += 1 << 30
    pool.trim()
    assert pool._idle == pool.usage()["idle_bytes"] < 1 << 30


def test_shared_arrays_outlive_the_client(daemon: FakeDaemon) -> None:
    with kops.connect(daemon.path) as first:
        a = first.array([1.0, 2.0])
    with kops.connect(daemon.path) as second:
        assert second.square(a).tolist() == [1, 4]
    assert a.tolist() == [1, 2]


def test_array_keeps_a_supported_dtype(k: kops.Client) -> None:
    assert k.array([1, 2]).dtype == numpy.float32
    assert k.array(normal(2, dtype="float64")).dtype == numpy.float64
    assert k.array(numpy.arange(3)).dtype == numpy.int64
    assert k.array([1, 2], "f16").dtype == numpy.float16
    assert k.empty((2, 3), "float64").dtype == numpy.float64 and k.empty(3).shape == (3,)
    assert k.zeros((2, 0)).shape == (2, 0) and (k.zeros((3, 3)) == 0).all()
    with pytest.raises(kops.UnknownDtype):
        k.empty(3, "complex64")
    with pytest.raises(kops.UnknownDtype):
        k.square(k.empty(3, "bool"))


def test_bfloat16_by_ml_dtypes(k: kops.Client, daemon: FakeDaemon) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    daemon.script["run"] = lambda peer, params, fds: {"timings": {}, "device": "host", "variant": "none"}
    result = k.square(numpy.ones(4, ml_dtypes.bfloat16))
    assert result.dtype == ml_dtypes.bfloat16
    assert daemon.runs()[-1]["in"][0]["dtype"] == "bf16" and k.empty(2, "bf16").dtype == ml_dtypes.bfloat16


# Matrices times vectors

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
