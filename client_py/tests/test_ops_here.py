"""The daemon's ops in this process's own context, and in its graphs, on the stand-in CUDA driver."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from kops._base.compiled import native
from kops._calls import ops_here
from kops._kernels import formulas
from kops._kernels.formulas import Formula, Prepared
from kops._memory.driver import Driver
from kops._tensors.operands import Layout
from test_daemon_cuda import driver, k, numbers, real, tensor
from test_daemon_kernels import add2
from test_here import Graph, launches

from support import backends  # isort: skip
from support.daemon import Daemon  # isort: skip

__all__ = ["driver", "k", "real"]

if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)

KINDS = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}
CLOSE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}


def of(driver: Any, array: Any) -> torch.Tensor:
    array = numpy.asarray(array)
    return torch.Tensor(driver.array(array), KINDS[array.dtype.name], torch.device("cuda", 0))


def runs(k: kops.Client) -> int:
    """Executions by the daemon."""
    return sum(row["count"] for row in k.stats()["ops"] if row["variant"] != "here")


def random(*shape: int, dtype: str = "float32") -> Any:
    return numpy.random.default_rng(sum(shape) + len(dtype)).standard_normal(shape).astype(dtype)


def near(got: Any, want: Any, dtype: str) -> bool:
    return got.shape == want.shape and bool(numpy.allclose(got.astype("float64"), want, rtol=CLOSE[dtype], atol=CLOSE[dtype] * 30))


def result(driver: Any, value: Any) -> Any:
    driver.synchronize()
    return value.array.numpy()


# First of all, while this process has none of the binaries.
def test_a_capture_fetches_what_is_not_there_yet(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a = random(3, 4, dtype="float16")
    x, y = of(driver, a), of(driver, numpy.zeros((3, 3), "float16"))
    with Graph(driver, monkeypatch) as graph:
        k.gemm(x, x, trans_b=True, out=y)
    assert not result(driver, y).any()
    graph.replay()
    assert near(result(driver, y), a.astype("float64") @ a.astype("float64").T, "float16")


@pytest.mark.parametrize("dtype", sorted(KINDS))
def test_every_op_is_this_process_s_own(k: kops.Client, driver: Any, dtype: str) -> None:
    a, b, m = random(5, 6, dtype=dtype), random(5, 6, dtype=dtype), random(6, 7, dtype=dtype)
    x, y, z = of(driver, a), of(driver, b), of(driver, m)
    before = runs(k)
    wide_a, wide_b, wide_m = (array.astype("float64") for array in (a, b, m))
    for made, want in (
        (k.add(x, y, where="here"), wide_a + wide_b),
        (k.square(x, where="here"), wide_a**2),
        (k.copy(x, where="here"), wide_a),
        (k.gemm(x, z, where="here"), wide_a @ wide_m),
        (k.gemm(x, y, trans_a=True, alpha=0.5, where="here"), 0.5 * wide_a.T @ wide_b),
        (k.add(x, y[0], where="here"), wide_a + wide_b[0]),
        (k.add(x[:, ::2], y[:, 1::2], where="here"), wide_a[:, ::2] + wide_b[:, 1::2]),
        (k.add(x, 2.5, where="here"), wide_a + 2.5),
        (k.run("square", x.t(), where="here"), wide_a.T**2),
    ):
        assert made.dtype is KINDS[dtype] and near(result(driver, made), want, dtype)
    assert k.add(x, y, out=x, where="here") is x and near(result(driver, x), wide_a + wide_b, dtype)
    k.gemm(y, z, out=(out := of(driver, random(5, 7, dtype=dtype))), beta=0.0, where="here")
    assert near(result(driver, out), wide_b @ wide_m, dtype)
    assert runs(k) == before, "the daemon ran none of them"


def test_vectors_of_gemm(k: kops.Client, driver: Any) -> None:
    a, u, v = random(3, 4), random(3), random(4)
    x, row, column = of(driver, a), of(driver, u), of(driver, v)
    for made, want in (
        (k.gemm(x, column, where="here"), a @ v), (k.gemm(row, x, where="here"), u @ a), (k.gemm(row, row, where="here"), u @ u),
        (k.gemm(x, column, out=of(driver, u), where="here"), a @ v),
    ):  # fmt: skip
        assert near(result(driver, made), numpy.asarray(want, "float64"), "float32")
    with pytest.raises(kops.ShapeMismatch, match=r"shape \(3,\)"):
        k.gemm(x, column, out=of(driver, v), where="here")
    with pytest.raises(kops.BadArgument, match="trans_b"):
        k.gemm(x, column, trans_b=True, where="here")


def test_times_and_variants(k: kops.Client, driver: Any) -> None:
    x = tensor(driver, 1, 2, 3)
    made, timings = k.square(x, timing=True, where="here")
    assert numbers(driver, made) == [1, 4, 9]
    assert timings.timer == "events" and timings.gpu_us >= 0 and timings.variant == "vector" and timings.device == driver.uuid()
    assert k.square(x, variant="strided", timing=True, where="here")[1].variant == "strided"
    with pytest.raises(kops.InvalidArgument):
        k.square(x, variant="tiled", where="here")
    empty = of(driver, numpy.zeros((0, 3), "float32"))
    made, timings = k.square(empty, timing=True, where="here")
    assert made.shape == (0, 3) and timings.gpu_us == 0 and timings.variant == ""


def test_the_same_checks(k: kops.Client, driver: Any) -> None:
    """Every wrong call gets the same error here as in the daemon."""
    x, y, short = tensor(driver, 1, 2, 3, 4), tensor(driver, 5, 6, 7, 8), tensor(driver, 1, 2, 3)
    double, matrix = of(driver, numpy.zeros(4)), of(driver, random(4, 4))
    for op, arguments, keywords in (
        ("add", (x, short), {}), ("add", (x, double), {}), ("add", (x, y), {"out": short}), ("square", (x[:3],), {"out": x[1:]}),
        ("add", (x, y), {"out": double}), ("gemm", (matrix, matrix), {"out": matrix}), ("gemm", (matrix, matrix[:3]), {}),
        ("gemm", (matrix, matrix), {"beta": 1.0}), ("gemm", (matrix, matrix), {"alpha": "x"}), ("gemm", (matrix, 2.0), {}),
        ("gemm", (matrix, matrix), {"precision": "low"}),
    ):  # fmt: skip
        failures = []
        for where in ("daemon", "here"):
            with pytest.raises(kops.KopsError) as failure:
                getattr(k, op)(*arguments, **keywords, where=where, **({"blocking": True} if where == "daemon" else {}))
            failures.append(failure.value)
        there, here = failures
        assert type(here) is type(there), (op, there, here)
    assert numbers(driver, k.add(x, y, where="here")) == [6, 8, 10, 12], "nothing was lost by it"


def test_what_a_launch_here_does_not_take(k: kops.Client, driver: Any) -> None:
    x = tensor(driver, 1, 2)
    for keywords in ({"stream": 1}, {"deadline_ms": 5}, {"priority": "high"}, {"blocking": True}, {"timing": "exact"}, {"device": 0}):
        with pytest.raises(kops.BadArgument) as failure:
            k.square(x, where="here", **keywords)
        assert next(iter(keywords)) in str(failure.value)
    with pytest.raises(kops.BadArgument, match="daemon, here, auto"):
        k.square(x, where="there")
    for value in (numpy.ones(2, "float32"), torch.tensor(numpy.ones(2, "float32")), [1.0, 2.0]):
        with pytest.raises(kops.WrongType, match="not in device memory"):
            k.add(x, value, where="here")
        with pytest.raises(kops.WrongType, match="not in device memory"):
            k.square(value, where="here")
    with pytest.raises(kops.WrongType, match="not in device memory"):
        k.square(x, out=numpy.ones(2, "float32"), where="here")
    negated = tensor(driver, 1, 2)
    negated.negated = True
    with pytest.raises(kops.BadArgument, match="negated"):
        k.square(x, out=negated, where="here")
    with k.sequence() as s, pytest.raises(kops.BadArgument, match="recorded"):
        s.square(x, where="here")
    with pytest.raises(kops.Unsupported, match="does not know"):
        k.run("cube", x, out=x, where="here")


def test_a_graph_needs_neither_client_nor_daemon(real: Daemon, k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, z, one = tensor(driver, 1, 2, 3, 4), tensor(driver, 0, 0, 0, 0), tensor(driver, 0, 0, 0, 0), tensor(driver, 1)
    before = runs(k)
    with Graph(driver, monkeypatch) as graph:
        k.add(x, x, out=z)
        k.square(z, out=y)
        k.add(y, one, out=y)
        k.copy(y, out=x)
    assert numbers(driver, y) == [0, 0, 0, 0], "captured, and not run"
    graph.replay()
    assert numbers(driver, y) == [5, 17, 37, 65] and runs(k) == before
    k.close()
    os.kill(real.pid, signal.SIGKILL)
    driver.write(x.array.__cuda_array_interface__["data"][0], numpy.ones(4, "float32").tobytes())
    graph.replay()
    assert numbers(driver, x) == [5, 5, 5, 5], "the client is closed and the daemon dead"


def test_a_capture_that_is_to_be_the_daemon_s_is_refused(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, new, three = tensor(driver, 1, 2), tensor(driver, 0, 0), tensor(driver, 3, 4), tensor(driver, 1, 2, 3)
    known = k.square(x)  # its memory is known to the daemon
    k.synchronize()
    with Graph(driver, monkeypatch) as graph:
        for keywords in ({"where": "daemon"}, {"timing": True}, {"where": "here", "timing": True}, {"blocking": True}):
            for value in (x, known, new):
                with pytest.raises(kops.Capturing):
                    k.square(value, out=y, **keywords)
        with pytest.raises(kops.ShapeMismatch):
            k.add(x, y, out=three)
        k.square(x, out=y)
        k.square(y, out=y, where="auto")
    graph.replay()
    assert numbers(driver, y) == [1, 16], "the refused calls spoilt nothing"


def test_where_code_is_not_handed_out(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Daemon(config=backends.config(backends.STANDIN) + "[kernels]\nhand_out = off\n") as daemon:
        monkeypatch.setitem(__import__("sys").modules, "torch", torch)
        monkeypatch.setattr(torch.cuda, "driver", driver)
        monkeypatch.setattr(torch.cuda, "handle", 0)
        with kops.connect(daemon.socket_path) as client:
            x = of(driver, random(2, 2, dtype="float64"))
            assert not ops_here.offered(client._live())
            with pytest.raises(kops.Unsupported, match="kernels.hand_out"):
                client._drive(client._live(), lambda link: ops_here.fetch(link, "add", "add"), None)
            assert client.square(x, where="auto").shape == (2, 2)
            with Graph(driver, monkeypatch), pytest.raises(kops.Capturing):
                client.square(x, out=x)


def test_another_version_s_kernels_are_not_used(k: kops.Client) -> None:
    layout = k._drive(k._live(), lambda link: _asked(), None)["layout"]
    assert native.check_layout(layout) is None
    with pytest.raises(kops.Unsupported, match="different versions"):
        native.check_layout(layout ^ 1)
    with pytest.raises(kops.BadArgument, match="no binary"):
        native.keep_image("mul", -1, 1)


def _asked() -> Any:
    return (yield ops_here.Call("code", {"image": "add"}))


def test_arrays_of_another_gpu_are_refused(k: kops.Client, driver: Any) -> None:
    """Also where they come as addresses, as arrays of other frameworks, vectors and views do."""
    x, y = (of(driver, random(4)) for _ in range(2))
    k.add(x, x, out=y, where="here")
    before = result(driver, y).copy()

    def array(device: int) -> Layout:
        return Layout("f32", (4,), None, x.array.__cuda_array_interface__["data"][0], device)

    for arrays in ([0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 1, 1], [-1, 1, -1]):
        with pytest.raises(kops.DeviceMismatch, match="GPU 1"):
            k._ops_here.launch("square", tuple(map(array, arrays[1:])), 1, None, 0, False)
            k._ops_here.launch("add", tuple(map(array, arrays)), 2, None, 0, False)
    assert (result(driver, y) == before).all()


# Formulas of several kernels

class Thrice(Formula):
    """Three times its operand, by two kernels that the stand-in computes; the first one's result is in `between`."""

    def __init__(self, client: kops.Client, between: Any) -> None:
        super().__init__(client, "thrice", "3 * x", (), None, None, None)
        self.inputs = self.outputs = ()
        self._kernel_of, self._between = add2(client), between

    def _prepare(self, values: Sequence[Any], out: Any, staged: bool = True, **how: Any) -> Prepared:
        (x,), n = values, values[0].shape[0]
        return Prepared(((self._kernel_of, self._between, x, x, n), (self._kernel_of, out, self._between, x, n)), [out], [None])


def test_two_kernels_are_this_process_s_own(k: kops.Client, driver: Any) -> None:
    x, y = tensor(driver, 1, 2, 3, 4), tensor(driver, 0, 0, 0, 0)
    thrice = Thrice(k, tensor(driver, 0, 0, 0, 0))
    before = launches(k)
    assert thrice(x, out=y, where="here") is y and numbers(driver, y) == [3, 6, 9, 12]
    made, timings = thrice(y, out=x, where="here", timing=True, timeout=30)
    assert made is x and numbers(driver, x) == [9, 18, 27, 36]
    assert timings.timer == "events" and timings.gpu_us >= 0 and timings.device == driver.uuid()
    assert launches(k) == before, "the daemon launched none of them"
    for where in ("daemon", None):
        thrice(y, out=x, where=where)
        k.synchronize()
        assert numbers(driver, x) == [9, 18, 27, 36]
    assert launches(k) == before + 4
    for keywords in ({"stream": 1}, {"deadline_ms": 5}, {"priority": "high"}, {"blocking": True}, {"timing": "exact"}, {"exclusive": True}):
        with pytest.raises(kops.BadArgument, match=next(iter(keywords))):
            thrice(x, out=y, where="here", **keywords)
    with pytest.raises(kops.BadArgument, match="daemon, here, auto"):
        thrice(x, out=y, where="there")


def test_both_are_parts_of_a_graph(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensor(driver, 1, 2), tensor(driver, 0, 0)
    thrice = Thrice(k, tensor(driver, 0, 0))
    with Graph(driver, monkeypatch) as graph:
        for keywords in ({"where": "daemon"}, {"timing": True}, {"where": "here", "timing": True}, {"priority": "high"}):
            with pytest.raises(kops.Capturing):
                thrice(x, out=y, **keywords)
        thrice(x, out=y)
        thrice(y, out=x, where="auto")
        thrice(x, out=y, where="here")
    assert numbers(driver, y) == [0, 0], "captured, and not run"
    graph.replay()
    assert numbers(driver, y) == [27, 54]


def test_memory_between_kernels_lives_until_they_have_ended(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is waited for where nothing is known of the allocator."""
    waited: list[int] = []
    monkeypatch.setattr(Driver, "synchronize", lambda self, pointer, stream: waited.append(stream))
    x, y = (driver.array(numpy.ones(4, "float32")) for _ in range(2))
    Thrice(k, driver.array(numpy.zeros(4, "float32")))(x, out=y, where="here")
    driver.synchronize()
    assert waited == [0] and y.numpy().tolist() == [3, 3, 3, 3]
    a, b = tensor(driver, 1, 2), tensor(driver, 0, 0)
    Thrice(k, tensor(driver, 0, 0))(a, out=b, where="here")
    assert waited == [0] and numbers(driver, b) == [3, 6]
    monkeypatch.setattr(Driver, "capturing", lambda self, stream: True)
    with pytest.raises(kops.Capturing, match="tensors of torch's alone"):
        Thrice(k, driver.array(numpy.zeros(4, "float32")))(x, out=y, where="here")


def test_frameworks_with_different_streams_are_refused(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensor(driver, 1, 2), tensor(driver, 0, 0)
    streams = iter((1, 1, 2))
    monkeypatch.setattr(formulas.contexts, "stream_of", lambda arguments: next(streams))
    with pytest.raises(kops.BadArgument, match="different current streams"):
        Thrice(k, tensor(driver, 0, 0))(x, out=y, where="here")
