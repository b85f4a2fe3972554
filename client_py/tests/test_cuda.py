"""Device memory, over the stand-in CUDA driver: what is exported, what is cached, what is refused."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, Refused
from kops._memory import exports as _cuda
from standin_driver import in_use, standin

from standin_cuda import dlpack  # isort: skip
from which import in_child


@pytest.fixture(scope="module")
def control() -> Iterator[Any]:
    with in_use() as made:
        yield made


@pytest.fixture(scope="module")
def driver(control: Any) -> Any:
    return standin.Driver()


@pytest.fixture
def gpu(driver: Any, control: Any, daemon: FakeDaemon) -> Iterator[Any]:
    """Makes device arrays; the daemon says yes to whatever it is asked to run."""
    driver.make_current()
    daemon.script["run"] = lambda peer, params, fds: {"timings": {"gpu_us": 1.0}, "device": "GPU-x", "variant": "v"}
    yield driver
    gc.collect()
    _cuda.allocations.sweep()
    assert not control.misuses()


def registrations(daemon: FakeDaemon) -> list[dict[str, Any]]:
    return [params for method, params in daemon.requests if method == "register" and params["kind"] == "cuda_ipc"]


def synchronizations(control: Any) -> int:
    return int(control.row(os.getpid()).calls("cuStreamSynchronize"))


def test_the_allocation_is_registered_once_and_views_say_their_offset(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a, out = gpu.empty((100, 60)), gpu.empty((60, 100))
    assert k.square(a.T, out=out) is out
    first, second = registrations(daemon)
    base, size = gpu.address_range(a.address)
    assert (first["size"], first["device"], len(first["handle"])) == (size, gpu.uuid(), 64)
    assert first["alloc_id"] != second["alloc_id"]
    run = daemon.runs()[-1]
    assert run["in"][0] == {
        "buffer": 1,
        "offset": a.address - base,
        "shape": [60, 100],
        "strides": [1, 60],
        "dtype": "f32",
    }
    for _ in range(3):
        k.square(a[10:20, ::2], out=out[:10, :30])
    assert len(registrations(daemon)) == 2, "a later call sends ids only"
    (tensor,) = daemon.runs()[-1]["in"]
    assert (tensor["offset"], tensor["strides"]) == (a.address - base + 4 * 600, [60, 2])


def test_results_are_made_by_the_inputs_own_framework(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a, b = gpu.empty((4, 5), "float64"), gpu.empty((5, 6), "float64")
    c = k.gemm(a, b)
    assert type(c) is type(a) and c.shape == (4, 6) and c.dtype == "float64"
    _, timings = k.gemm(a, b, timing=True)
    assert timings.exec_us == timings.gpu_us == 1.0


def test_memory_freed_and_allocated_again_is_registered_anew(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    """The next allocation may have the address and even the handle of the one before; its id differs."""
    out = gpu.empty(1000)
    a = gpu.empty(1000)
    address = a.address
    k.square(a, out=out)
    old = registrations(daemon)[0]
    a.free()
    again = gpu.empty(1000)
    assert again.address == address, "this test is about a reused address"
    k.square(again, out=out)
    new = registrations(daemon)[-1]
    assert new["handle"] == old["handle"] and new["alloc_id"] != old["alloc_id"]
    assert ("release", {"buffer": 1}) in daemon.requests
    assert daemon.runs()[-1]["in"][0]["buffer"] == 3


def test_trim_releases_what_was_freed(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a, out = gpu.empty(1000), gpu.empty(1000)
    k.square(a, out=out)
    a.free()
    k.trim()
    k.ping()
    buffers = daemon.peers[0].buffers
    assert [b.params["alloc_id"] for b in buffers.values()] == [registrations(daemon)[1]["alloc_id"]]


def test_a_stale_reference_is_looked_up_again_once(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a = gpu.empty(1000)
    stale = [True]

    def run(*_: Any) -> Any:
        if stale.pop():
            raise Refused("stale_buffer")
        return {"timings": {}, "device": "d", "variant": "v"}

    daemon.script["run"] = run
    stale[:] = [False, True]
    k.square(a, out=a)
    assert daemon.count("run") == 2 and len(registrations(daemon)) == 2
    stale[:] = [False, True, True]
    with pytest.raises(kops.StaleBuffer):
        k.square(a, out=a)


def test_memory_without_a_handle_says_what_to_change(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    pointer = gpu.alloc_async(4000)
    a = standin.DeviceArray(gpu, pointer, (1000,), numpy.dtype("float32"))
    with pytest.raises(kops.NotExportable, match="backend:native") as caught:
        k.square(a, out=a)
    assert isinstance(caught.value, ValueError) and "backend:native" in str(caught.value)
    assert daemon.count("register") == 0
    gpu.call("cuMemFreeAsync", ctypes.c_uint64(pointer), ctypes.c_void_p(None))


def test_a_pointer_that_is_none(k: kops.Client, gpu: Any) -> None:
    a = standin.DeviceArray(gpu, 0x1000, (4,), numpy.dtype("float32"))
    with pytest.raises(kops.BadArgument, match="0x1000"):
        k.square(a, out=a)


def test_host_and_device_memory_do_not_mix(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a = gpu.empty(4)
    for x, y in ((a, numpy.ones(4, "float32")), (numpy.ones(4, "float32"), a), (a, [1.0])):
        with pytest.raises(kops.DeviceMismatch):
            k.add(x, y)
    assert daemon.count("run") == 0


def test_empty_tensors(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    assert k.square(gpu.empty((0, 3))).shape == (0, 3)
    assert not registrations(daemon)


class Array:
    """A device array that says what a test wants."""

    def __init__(self, base: Any, **changes: Any) -> None:
        self.base = base
        self.__cuda_array_interface__ = {**base.__cuda_array_interface__, **changes}
        for key in [key for key, value in changes.items() if value is ...]:
            del self.__cuda_array_interface__[key]


def test_the_interfaces_stream_is_waited_for(k: kops.Client, gpu: Any, control: Any) -> None:
    base = gpu.empty(100)
    k.square(base, out=base)
    stream = ctypes.c_void_p()
    gpu.call("cuStreamCreate", ctypes.byref(stream), 1)
    for changes, waits in (
        ({"stream": None}, 0),
        ({"stream": 1}, 1),
        ({"stream": stream.value}, 1),
        ({"stream": ...}, 1),
    ):
        a = Array(base, **changes)
        before = synchronizations(control)
        k.add(a, a, out=a)
        assert synchronizations(control) - before == waits, changes
    gpu.call("cuStreamDestroy_v2", stream)


def test_refused_interfaces(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    base = gpu.empty(100)
    with pytest.raises(kops.ReadOnly):
        k.square(base, out=Array(base, data=(base.address, True)))
    with pytest.raises(kops.Unsupported):
        k.square(Array(base, mask=base))
    with pytest.raises(kops.UnknownDtype):
        k.square(Array(base, typestr="|b1"))
    with pytest.raises(kops.BadArgument):
        k.square(base[::-1])
    with pytest.raises(kops.BadArgument, match="out="):
        k.square(Array(base))
    assert daemon.count("run") == 0


def test_other_threads_need_no_context(k: kops.Client, gpu: Any) -> None:
    a = Array(gpu.empty(5000), stream=1)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(k.square, a, out=a).result()


class Capsule:
    """A device array by DLPack, whose elements begin so many bytes behind its address."""

    def __init__(self, base: Any, offset: int) -> None:
        self.base, self.offset, self.streams = base, offset, []  # type: ignore[var-annotated]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, stream: Any = None) -> Any:
        self.streams.append(stream)
        made = dlpack.capsule(self.base)
        dlpack._Managed.from_address(dlpack._api.PyCapsule_GetPointer(id(made), b"dltensor")).tensor.byte_offset = self.offset
        return made


def test_dlpack(k: kops.Client, gpu: Any, daemon: FakeDaemon, control: Any) -> None:
    base = gpu.empty((20, 6))[:10]
    out = gpu.empty((10, 6))
    source = Capsule(base, offset=128)
    before, alive = synchronizations(control), dlpack.alive()
    k.square(source, out=out)
    (tensor,) = daemon.runs()[-1]["in"]
    assert tensor["shape"] == [10, 6] and tensor["offset"] == 128 and tensor["dtype"] == "f32"
    assert source.streams == [1] and synchronizations(control) == before + 1
    gc.collect()
    assert dlpack.alive() == alive, "its deleter was called"


def test_in_a_forked_child_device_memory_is_refused(k: kops.Client, gpu: Any) -> None:

    a = gpu.empty(100)
    k.square(a, out=a)

    def child() -> bool:
        with pytest.raises(kops.NoCuda):
            k.square(a, out=a)
        return k.square([2.0]) is not None

    in_child(child)


def test_without_a_driver(k: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPS_CUDA_DRIVER", "/nonexistent/libcuda.so")
    monkeypatch.setattr(_cuda.allocations, "_driver", None)
    monkeypatch.setattr(_cuda.allocations, "_table", ([], []))

    class Device:
        __cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            "stream": None,
        }

    with pytest.raises(kops.NoCuda, match="nonexistent"):
        k.square(Device())
