"""Kernels that the daemon compiles and this process launches, on the stand-in CUDA driver."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from kops._base import compiled
from kops._base.compiled import native
from kops._base.declarations import DTYPES
from kops._calls import contexts, launch
from kops._tensors import adapters
from test_daemon_cuda import driver, k, numbers, real, tensor
from test_daemon_kernels import OTHERS, SIGNATURE, add2, vectors
from test_kernels import ADD2
from which import compiled_only

from support.daemon import Daemon  # isort: skip

__all__ = ["driver", "k", "real"]

if native is None:
    pytest.skip("the compiled part is not there", allow_module_level=True)


def launches(k: kops.Client) -> int:
    count: int = k.stats()["kernels"]["launches"]
    return count


def test_a_launch_is_this_process_s_own(k: kops.Client, driver: Any) -> None:
    c, a, b = vectors(driver)
    kern = add2(k, alias=True)
    before = launches(k)
    assert kern(c, a, b, 4, where="here") is c and numbers(driver, c) == [11, 22, 33, 44]
    kern[4, 32](c, c, a, 3, where="here")
    kern(c, c, a, n=4, grid=lambda c, a, b, n: n, where="here")
    assert numbers(driver, c) == [13, 26, 39, 48]
    timings = kern(c, a, b, 4, where="here", timing=True)
    assert timings.timer == "events" and timings.gpu_us >= 0 and timings.variant == "user" and timings.device == driver.uuid()
    assert launches(k) == before, "the daemon launched none of them"
    kern(c, a, b, 4, where="daemon")
    k.synchronize()
    assert launches(k) == before + 1


def test_a_batch_keeps_its_order(k: kops.Client, driver: Any) -> None:
    c, a, b = vectors(driver)
    kern = add2(k, alias=True)
    kern(c, a, b, 4, where="here")
    with k.batch():
        k.add(a, b, out=c)
        kern(c, c, c, 4, where="here")
        k.add(c, c, out=c)
        k.square(c, out=c, where="here")
        k.add(c, c, out=c)
    assert numbers(driver, c) == [2 * n * n for n in (44, 88, 132, 176)]


def test_the_first_launch_is_the_compiled_part_s(k: kops.Client, driver: Any, real: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is imported before the connection is made, no launch goes by Python."""
    native.configure((), (None,) * len(DTYPES), None, None, None, None)  # as in a process that has seen no tensor yet
    monkeypatch.setattr(compiled, "_configured", None)
    monkeypatch.setattr(adapters, "_by_type", {})
    monkeypatch.setattr(launch, "_array", None)  # what Python describes arrays by
    c, a, b = vectors(driver)
    with kops.connect(real.socket_path) as fresh:
        add2(fresh)(c, a, b, 4, where="here")
        assert numbers(driver, c) == [11, 22, 33, 44]


def test_the_same_checks(k: kops.Client, driver: Any) -> None:
    """Every wrong call gets the same error here as in the daemon."""
    c, a, b = vectors(driver)
    kern = add2(k)
    short = tensor(driver, 1, 2)
    shapeless = k.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n")
    for arguments, keywords, of in (
        ((c, a, short, 4), {}, kern), ((c, a, None, 4), {}, kern), ((c, a, c, 4), {}, kern), ((c, a, b, 0), {}, kern),
        ((c, a, b, 2**31), {}, kern), ((c, a, b, 1.5), {}, kern), ((c, a, b, 4), {"block": 1025}, kern),
        ((c, a, b, 4), {"grid": 0}, kern), ((c, a, b, 4), {"shared": 1 << 20}, kern), ((c, a, b, 4), {"grid": 3, "cluster": 2}, kern),
        ((c, a, b, 4), {"grid": (1, 70000)}, kern), ((c, a, b, 4), {"block": 32}, shapeless), ((c, a, 7, 4), {}, kern),
        ((c, a, b), {}, kern),
    ):  # fmt: skip
        failures = []
        for where in ("daemon", "here"):
            with pytest.raises(kops.KopsError) as failure:
                of(*arguments, **keywords, where=where, **({"blocking": True} if where == "daemon" else {}))
            failures.append(failure.value)
        there, here = failures
        assert type(here) is type(there) and here.detail.get("key") == there.detail.get("key"), (there, here)
        assert numbers(driver, c) == [0, 0, 0, 0]
    kern(c, a, b, 4, where="here")
    assert numbers(driver, c) == [11, 22, 33, 44], "nothing was lost by it"


MAPS = """#include <cuda.h>
extern "C" __global__ void square_by_maps(const __grid_constant__ CUtensorMap out, const __grid_constant__ CUtensorMap in)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&in) : "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(&out) : "memory");
}
"""


@pytest.mark.parametrize("where", ["here", "daemon"])
def test_tensor_maps(k: kops.Client, driver: Any, where: str) -> None:
    kern = k.kernel(MAPS, "square_by_maps", "tma out float* out[][] box[2][4], tma const float* in_[][] box[2][4]", grid=1, block=32)
    numpys = [numpy.arange(n, n + 64, dtype="float32").reshape(8, 8) for n in (0, 3)]
    out, *ins = (driver.array(value) for value in (numpys[0], *numpys))
    for given, value in [*zip(ins, numpys)] * 2:  # each call has maps of its own
        kern(out, given, where=where)
        k.synchronize()
        driver.synchronize()
        assert numpy.array_equal(out.numpy(), value**2)
    with pytest.raises(kops.Misaligned, match="a tensor map takes multiples of 16 bytes"):
        kern(driver.array(numpy.zeros((8, 7), "float32")), ins[0], where=where, **({} if where == "here" else {"blocking": True}))


def test_structures(k: kops.Client, driver: Any) -> None:
    """By value: each launch has its own. The same kernel for the stand-in driver, which knows it by its name and sizes."""
    source = ADD2.replace("int n", "Pair n").replace("n;", "n.low;").replace('extern "C"', 'struct Pair { short low, high; }; extern "C"')
    kern = k.kernel(source, "add2_kernel", SIGNATURE.replace("int n", "bytes<4> n").replace("[n]", ""), grid=1, block=32)
    pair = numpy.zeros((), "i2,i2")
    for n in (1, 3, 2):
        for call in (kern, kern[1, 32]):
            c, a, b = vectors(driver)
            pair["f0"] = n
            call(c, a, b, pair, where="here")
            assert numbers(driver, c) == [*[11, 22, 33][:n], *[0] * (4 - n)]
    with pytest.raises(kops.WrongType, match="structure of 4 bytes"):
        kern(c, a, b, numpy.zeros((), "i2,i2,i2"), where="here")


@pytest.mark.parametrize("where", ["here", "daemon"])
def test_cooperative_launches(k: kops.Client, driver: Any, where: str) -> None:
    c, a, b = vectors(driver)
    kern = k.kernel(ADD2, "add2_kernel", SIGNATURE, block=256, cooperative=True)
    how = {"where": where, **({} if where == "here" else {"blocking": True})}
    kern(c, a, b, 4, grid=32, **how)
    assert numbers(driver, c) == [11, 22, 33, 44]
    for cluster in (None, 2):
        with pytest.raises(kops.OutOfRange, match="run at one time") as failure:
            kern(c, a, b, 4, grid=34, cluster=cluster, **how)
        assert failure.value.detail["key"] == "grid" and failure.value.detail["max"] == 32


def test_what_a_launch_here_does_not_take(k: kops.Client, driver: Any) -> None:
    c, a, b = vectors(driver)
    kern = add2(k)
    for keywords in ({"stream": 1}, {"deadline_ms": 5}, {"priority": "high"}, {"blocking": True}, {"timing": "exact"}):
        with pytest.raises(kops.BadArgument) as failure:
            kern(c, a, b, 4, where="here", **keywords)
        assert next(iter(keywords)) in str(failure.value)
    with pytest.raises(kops.BadArgument, match="daemon, here, auto"):
        kern(c, a, b, 4, where="there")
    with pytest.raises(kops.WrongType, match="not in device memory"):
        kern(c, a, numpy.ones(4, "float32"), 4, where="here")
    with k.sequence(), pytest.raises(kops.BadArgument, match="recorded"):
        kern(c, a, b, 4, where="here")


def test_other_arrays_than_torch_s(k: kops.Client, driver: Any) -> None:
    a, b, c = (driver.array(numpy.arange(8, dtype="float32")) for _ in range(3))
    kern = add2(k)
    kern(c, a, b, 8, where="here")
    driver.synchronize()
    assert c.numpy().tolist() == [2 * i for i in range(8)]
    data, bins = driver.array(numpy.array([3, 3, 7], "uint8")), driver.array(numpy.zeros(256, "uint32"))
    k.kernel(OTHERS, "histogram_kernel", "inout unsigned* bins[256], const unsigned char* data[n], int n", grid=1, block=32)(
        bins, data, numpy.int64(3), where="here"
    )
    driver.synchronize()
    assert bins.numpy()[[3, 7]].tolist() == [2, 1]


class Graph:
    """A graph of what is put on a stream of its own meanwhile."""

    def __init__(self, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver, self.stream, self.graph, self.ready = driver, ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(1))
        monkeypatch.setattr(torch.cuda, "handle", self.stream.value)

    def __enter__(self) -> Graph:
        self.driver.call("cuStreamBeginCapture_v2", self.stream, ctypes.c_int(0))
        return self

    def __exit__(self, *failure: Any) -> None:
        self.driver.call("cuStreamEndCapture", self.stream, ctypes.byref(self.graph))
        if failure[0] is None:
            self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(self.ready), self.graph, ctypes.c_ulonglong(0))

    def replay(self) -> None:
        self.driver.call("cuGraphLaunch", self.ready, self.stream)


@pytest.mark.parametrize("kind", ["new", "known", "raw"])
def test_a_captured_launch_is_a_part_of_the_graph(
    real: Daemon, k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A raw kernel asks for "auto", and nothing is measured while a stream is captured."""
    monkeypatch.setattr(contexts, "measure", None)
    c, a, b = vectors(driver)
    if kind == "raw":
        kern = kops.RawKernel(ADD2, "add2_kernel", client=k)
    else:
        kern = add2(k, alias=True)
    if kind == "known":
        kern(c, a, b, 4)
        k.synchronize()
    before = launches(k)
    graph = Graph(driver, monkeypatch)
    with graph:
        if kind == "raw":
            kern((1,), (32,), (c, a, b, 4))
            kern((1,), (32,), (c, c, a, 3))
        else:
            kern(c, a, b, 4)
            kern[1, 64](c, c, a, 3)
    assert numbers(driver, c) == ([11, 22, 33, 44] if kind == "known" else [0, 0, 0, 0]), "captured, and not run"
    for _ in range(2):
        graph.replay()
        assert numbers(driver, c) == [12, 24, 36, 44]
    assert launches(k) == before and not k._places
    k.close()
    os.kill(real.pid, signal.SIGKILL)
    driver.write(a.array.__cuda_array_interface__["data"][0], bytes(16))
    graph.replay()
    assert numbers(driver, c) == [10, 20, 30, 40], "neither the client nor the daemon is needed"


def test_a_capture_that_is_to_be_the_daemon_s_is_refused(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    c, a, b = vectors(driver)
    kern = add2(k)
    with Graph(driver, monkeypatch) as graph:
        for keywords in ({"where": "daemon"}, {"timing": True}, {"where": "here", "timing": True}):
            with pytest.raises(kops.Capturing):
                kern(c, a, b, 4, **keywords)
        with pytest.raises(kops.ShapeMismatch):
            kern(c, a, b, 5)
        kern(c, a, b, 4)
    graph.replay()
    assert numbers(driver, c) == [11, 22, 33, 44], "the refused calls spoilt nothing"


@compiled_only
def test_an_earlier_error_is_the_caller_s(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    c, a, b = vectors(driver)
    kern = add2(k)

    def measure(client: Any, device: int) -> tuple[float, float]:
        client.add(a, b, out=c, where="daemon")
        client.synchronize()
        return 12.0, 11.0

    monkeypatch.setattr(contexts, "measure", measure)
    k.square(a[:3], out=a[1:])
    with pytest.raises(kops.Overlap, match="square"):
        kern(c, a, b, 4, where="auto")
    assert not k._places and numbers(driver, c) == [0, 0, 0, 0]
    assert kern.place(c, a, b, 4).here_us == 12.0, "measured once the error was told"
    k.square(a[:3], out=a[1:])
    assert kern.place(c, a, b, 4).where == "daemon", "what was measured is known without another call"
    with pytest.raises(kops.Overlap):
        k.synchronize()


def test_a_measurement_that_failed_is_made_again(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    c, a, b = vectors(driver)
    kern, measured = add2(k), []

    def measure(client: Any, device: int) -> tuple[float, float]:
        measured.append(device)
        if len(measured) == 1:
            raise kops.Unsupported("no add here")
        return 12.0, 11.0

    monkeypatch.setattr(contexts, "measure", measure)
    with monkeypatch.context() as patch:
        patch.setattr(k, "synchronize", lambda: (_ for _ in ()).throw(kops.Timeout("not yet")))
        patch.setattr(contexts, "AGAIN_S", -1.0)
        assert "have not ended: not yet" in kern.place(c, a, b, 4).why
    for _ in range(2):
        assert kern.place(c, a, b, 4) == kops.Place("here", "the daemon could not be measured: no add here") and measured == [0]
    later = time.monotonic() + contexts.AGAIN_S + 1
    monkeypatch.setattr(contexts, "time", SimpleNamespace(monotonic=lambda: later))
    assert kern.place(c, a, b, 4).where == "daemon" and measured == [0, 0]


def test_auto_tells_why_only_one_is_possible(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kern = add2(k)
    host = [numpy.ones(4, "float32") for _ in range(3)]
    assert kern.place(*host, 4).where == "daemon" and "copies" in kern.place(*host, 4).why
    assert kern(*host, 4, where="auto") is host[0] and host[0].tolist() == [2, 2, 2, 2]
    arrays = [driver.array(numpy.ones(4, "float32")) for _ in range(3)]
    assert kern.place(*arrays, 4).where == "here" and kern.place(*arrays, 4).here_us is None
    monkeypatch.setattr(contexts, "offered", lambda connection, feature: False)
    assert kern.place(*arrays, 4).where == "daemon" and "hand_out" in kern.place(*arrays, 4).why


def test_the_daemon_s_statistics_have_launches_here(real: Daemon, k: kops.Client, driver: Any) -> None:
    def told() -> int:
        return sum(row["count"] for row in k.stats()["ops"] if row["variant"] == "here")

    c, a, b = vectors(driver)
    kern = add2(k, alias=True)
    before = told()
    for _ in range(100):
        kern(c, a, b, 4, where="here")
    assert kern(c, a, b, 4, where="here", timing=True).gpu_us >= 0
    stats = k.stats()
    (row,) = [row for row in stats["ops"] if row["variant"] == "here" and row["shapes"] == [[4], [4], [4]]]
    assert row["count"] == before + 101 and row["op"] == "add2_kernel" and row["dtype"] == "f32" and row["device"] == driver.uuid()
    assert row["exec_us"]["max"] >= row["exec_us"]["p50"] >= 0 and "here" in str(stats)
    assert sum(info.here for info in k.clients().clients) >= 101
    kern(c, a, b, 4, where="here")
    del kern  # its last launch is told with the next request
    assert told() == before + 102
    with kops.connect(real.socket_path) as other:
        add2(other)(c, a, b, 4, where="here")
    assert told() == before + 103, "close() has told of the last one"
