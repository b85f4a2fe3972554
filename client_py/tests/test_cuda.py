"""Device memory, over the stand-in CUDA driver: what is exported, as what, what is cached, what is refused."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, refuser
from kops._memory import exports as _cuda
from standin_driver import driver, standin
from which import in_child

from standin_cuda import dlpack  # isort: skip

__all__ = ["driver"]


@pytest.fixture
def gpu(driver: Any, daemon: FakeDaemon) -> Iterator[Any]:
    """Makes device arrays; the daemon says yes to whatever it is asked to run."""
    driver.make_current()
    daemon.script["run"] = lambda peer, params, fds: {"timings": {"gpu_us": 1.0}, "device": "GPU-x", "variant": "v"}
    yield driver
    gc.collect()
    _cuda.allocations.sweep()
    assert not driver.control.misuses()


def synchronizations(gpu: Any) -> int:
    return int(gpu.control.row(os.getpid()).calls("cuStreamSynchronize"))


def test_the_allocation_is_registered_once_and_views_say_their_offset(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a, out = gpu.empty((100, 60)), gpu.empty((60, 100))
    assert k.square(a.T, out=out) is out
    first, second = daemon.sent("register")
    base, size = gpu.address_range(a.address)
    assert (first["kind"], first["size"], first["device"], len(first["handle"])) == ("cuda_ipc", size, gpu.uuid(), 64)
    assert first["alloc_id"] != second["alloc_id"]
    given = {"buffer": 1, "offset": a.address - base, "shape": [60, 100], "strides": [1, 60], "dtype": "f32"}
    assert daemon.runs()[-1]["in"] == [given]
    for _ in range(3):
        k.square(a[10:20, ::2], out=out[:10, :30])
    assert daemon.count("register") == 2, "a later call sends ids only"
    (tensor,) = daemon.runs()[-1]["in"]
    assert (tensor["offset"], tensor["strides"]) == (a.address - base + 4 * 600, [60, 2])
    # The result is made by the inputs' own framework.
    a, b = gpu.empty((4, 5), "float64"), gpu.empty((5, 6), "float64")
    c, timings = k.gemm(a, b, timing=True)
    assert type(c) is type(a) and c.shape == (4, 6) and c.dtype == "float64"
    assert timings.exec_us == timings.gpu_us == 1.0
    assert k.square(gpu.empty((0, 3))).shape == (0, 3)


def test_memory_freed_and_allocated_again_is_registered_anew(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    """The next allocation may have the address and even the handle of the one before; its id differs."""
    out = gpu.empty(1000)
    a = gpu.empty(1000)
    address = a.address
    k.square(a, out=out)
    a.free()
    again = gpu.empty(1000)
    assert again.address == address, "this test is about a reused address"
    k.square(again, out=out)
    old, _, new = daemon.sent("register")
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
    assert [b.params["alloc_id"] for b in buffers.values()] == [daemon.sent("register")[1]["alloc_id"]]


def test_a_stale_reference_is_looked_up_again_once(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    a = gpu.empty(1000)
    answer, refuse, stale = daemon.script["run"], refuser("stale_buffer"), [False, True]
    daemon.script["run"] = lambda *request: (refuse if stale.pop() else answer)(*request)
    k.square(a, out=a)
    assert daemon.count("run") == 2 and daemon.count("register") == 2
    stale[:] = [False, True, True]
    with pytest.raises(kops.StaleBuffer):
        k.square(a, out=a)


def test_memory_without_a_handle_says_what_to_change(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    pointer = gpu.alloc_async(4000)
    a = standin.DeviceArray(gpu, pointer, (1000,), numpy.dtype("float32"))
    with pytest.raises(kops.NotExportable, match="backend:native") as caught:
        k.square(a, out=a)
    assert isinstance(caught.value, ValueError)
    assert daemon.count("register") == 0
    gpu.call("cuMemFreeAsync", ctypes.c_uint64(pointer), ctypes.c_void_p(None))


class Array:
    """A device array that says what a test wants."""

    def __init__(self, base: Any, **changes: Any) -> None:
        self.base = base
        self.__cuda_array_interface__ = {**base.__cuda_array_interface__, **changes}
        for key in [key for key, value in changes.items() if value is ...]:
            del self.__cuda_array_interface__[key]


def test_the_interfaces_stream_is_waited_for(k: kops.Client, gpu: Any) -> None:
    base = gpu.empty(100)
    k.square(base, out=base)
    stream = ctypes.c_void_p()
    gpu.call("cuStreamCreate", ctypes.byref(stream), 1)
    for changes, waits in (({"stream": None}, 0), ({"stream": 1}, 1), ({"stream": stream.value}, 1), ({"stream": ...}, 1)):
        a = Array(base, **changes)
        before = synchronizations(gpu)
        k.add(a, a, out=a)
        assert synchronizations(gpu) - before == waits, changes
    gpu.call("cuStreamDestroy_v2", stream)


def test_refused(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    base, host = gpu.empty(100), numpy.ones(100, "float32")
    nothing = standin.DeviceArray(gpu, 0x1000, (4,), numpy.dtype("float32"))
    for call, error, why in (
        (lambda: k.square(base, out=Array(base, data=(base.address, True))), kops.ReadOnly, ""),
        (lambda: k.square(Array(base, mask=base)), kops.Unsupported, ""),
        (lambda: k.square(Array(base, typestr="|b1")), kops.UnknownDtype, ""),
        (lambda: k.square(base[::-1]), kops.BadArgument, ""),
        (lambda: k.square(Array(base)), kops.BadArgument, "out="),
        (lambda: k.square(nothing, out=nothing), kops.BadArgument, "0x1000"),
        (lambda: k.add(base, host), kops.DeviceMismatch, ""),
        (lambda: k.add(host, base), kops.DeviceMismatch, ""),
        (lambda: k.add(base, [1.0]), kops.DeviceMismatch, ""),
    ):
        with pytest.raises(error, match=why):
            call()
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


def test_dlpack(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    base = gpu.empty((20, 6))[:10]
    out = gpu.empty((10, 6))
    source = Capsule(base, offset=128)
    before, alive = synchronizations(gpu), dlpack.alive()
    k.square(source, out=out)
    (tensor,) = daemon.runs()[-1]["in"]
    assert tensor["shape"] == [10, 6] and tensor["offset"] == 128 and tensor["dtype"] == "f32"
    assert source.streams == [1] and synchronizations(gpu) == before + 1
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
    interface = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": None}
    with pytest.raises(kops.NoCuda, match="nonexistent"):
        k.square(SimpleNamespace(__cuda_array_interface__=interface))


# Memory without an IPC handle: chunks of virtual memory

CHUNK = 2 << 20
PER_CHUNK = CHUNK // 4  # elements


def released(daemon: FakeDaemon) -> list[int]:
    return [params["buffer"] for params in daemon.sent("release")]


class Segment:
    """What torch calls an expandable segment: addresses, with memory mapped chunk by chunk."""

    def __init__(self, gpu: Any, chunks: int) -> None:
        self.gpu, self.nbytes = gpu, chunks * CHUNK
        self.address = gpu.vmm_reserve(self.nbytes)
        for i in range(chunks):
            self.map(i)

    def map(self, i: int) -> None:
        handle = self.gpu.vmm_create(CHUNK)
        self.gpu.vmm_map(self.address + i * CHUNK, CHUNK, handle)
        self.gpu.vmm_release(handle)

    def tensor(self, start: int, elements: int) -> Any:
        return standin.DeviceArray(self.gpu, self.address + 4 * start, (elements,), numpy.dtype("float32"))

    def free(self) -> None:
        self.gpu.vmm_unmap(self.address, self.nbytes)
        self.gpu.vmm_address_free(self.address, self.nbytes)


def test_only_the_chunks_that_a_tensor_touches(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    segment = Segment(gpu, 8)
    a = segment.tensor(3 * PER_CHUNK - 10, 20)  # the end of one, the start of the next
    k.square(a, out=a)
    (register,) = daemon.sent("register")
    assert register["kind"] == "cuda_vmm" and register["nfds"] == 2 and register["chunk_bytes"] == [CHUNK, CHUNK]
    assert register["size"] == 2 * CHUNK
    run = daemon.runs()[-1]
    assert run["out"][0]["offset"] == CHUNK - 40
    k.square(a, out=a)
    k.square(segment.tensor(2 * PER_CHUNK, 5), out=a)  # within what is known
    assert len(daemon.sent("register")) == 1
    segment.free()


def test_more_chunks_than_a_message_carries(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    segment = Segment(gpu, 35)
    a = segment.tensor(0, 35 * PER_CHUNK)
    k.square(a, out=a)
    first, *more = daemon.sent("register")
    assert first["size"] == 35 * CHUNK and first["nfds"] == 16 and "extend" not in first
    assert [m["nfds"] for m in more] == [16, 3] and [m["size"] for m in more] == [16 * CHUNK, 3 * CHUNK]
    assert len({m["extend"] for m in more}) == 1
    assert daemon.runs()[-1]["in"][0]["buffer"] == more[0]["extend"]
    segment.free()


def test_memory_that_was_mapped_anew_is_registered_anew(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    segment = Segment(gpu, 3)
    a = segment.tensor(0, 3 * PER_CHUNK)
    k.square(a, out=a)
    before = daemon.runs()[-1]["in"][0]["buffer"]
    gpu.vmm_unmap(segment.address + CHUNK, CHUNK)
    segment.map(1)
    k.square(a, out=a)
    assert len(daemon.sent("register")) == 2 and daemon.runs()[-1]["in"][0]["buffer"] != before
    k.ping()
    assert before in released(daemon)
    segment.free()


def test_overlapping_tensors_share_a_registration(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    """The daemon can see that two tensors share memory only where they are in one buffer."""
    segment = Segment(gpu, 4)
    left, right = segment.tensor(0, 2 * PER_CHUNK), segment.tensor(PER_CHUNK, 2 * PER_CHUNK)
    k.square(left, out=left)
    k.square(right, out=right)
    k.square(left, out=right)
    run = daemon.runs()[-1]
    assert run["in"][0]["buffer"] == run["out"][0]["buffer"]
    assert (run["in"][0]["offset"], run["out"][0]["offset"]) == (0, CHUNK)
    segment.free()


def test_a_registration_that_fails_halfway_is_given_back(k: kops.Client, gpu: Any, daemon: FakeDaemon) -> None:
    segment = Segment(gpu, 20)
    a = segment.tensor(0, 20 * PER_CHUNK)
    refuse = refuser("out_of_memory", "no addresses")
    daemon.script["register"] = lambda peer, params, fds: refuse() if "extend" in params else {"buffer": 77, "size": params["size"]}
    with pytest.raises(kops.OutOfMemory):
        k.square(a, out=a)
    k.ping()
    assert released(daemon) == [77]
    segment.free()


def test_an_older_daemon_is_not_sent_descriptors(gpu: Any, daemon: FakeDaemon) -> None:
    daemon.hello = {**daemon.hello, "features": ["memfd", "cuda_ipc"]}
    segment = Segment(gpu, 1)
    a = segment.tensor(0, 10)
    with kops.connect(daemon.path) as k, pytest.raises(kops.Unsupported, match="cuda_vmm"):
        k.square(a, out=a)
    assert not daemon.sent("register")
    segment.free()
