"""Formulas of several kernels in this process's own context, and in its graphs, on the stand-in CUDA driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kops
import numpy
import pytest
from kops._base.compiled import native
from kops._calls import contexts
from kops._kernels import formulas
from kops._kernels.formulas import Formula, Prepared
from kops._kernels.kernels import Kernel
from kops._memory.driver import Driver
from test_daemon_cuda import driver, k, numbers, real, tensor
from test_daemon_kernels import add2
from test_here import Graph, launches
from test_ops_here import of

__all__ = ["driver", "k", "real"]

if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)


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


def test_auto_takes_one_place_for_both(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensor(driver, 1, 2), tensor(driver, 0, 0)
    thrice = Thrice(k, tensor(driver, 0, 0))
    measured = [(2.0, 11.0), (12.0, 11.0)]
    monkeypatch.setattr(contexts, "measure", lambda client, device: measured.pop(0))
    for more in (0, 2):
        before = launches(k)
        thrice(x, out=y, where="auto")
        k.synchronize()
        assert numbers(driver, y) == [3, 6] and launches(k) == before + more
        k._forget_places()


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


def test_a_reduction_in_parts(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in does not compute its kernels: what is launched is looked at."""
    seen: list[Any] = []
    monkeypatch.setattr(Kernel, "_launch_here", lambda self, arguments, *how: seen.append((self, arguments)))
    total = k.reduce("x", "a + b", identity=0, name="total")
    large = of(driver, numpy.ones(20_000, "float32"))
    result = total(large, where="here")
    (first, (given, parts, *_)), (second, (read, out, *_)) = seen
    assert given is large and parts is read and parts.shape[0] > 1 and out is result and first is not second
    seen.clear()
    assert total(large[:9], where="here") is not None and len(seen) == 1


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
