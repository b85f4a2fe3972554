"""Device memory without an IPC handle, over the stand-in CUDA driver: chunks of virtual memory, and pools."""

from __future__ import annotations

from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, Refused
from standin_driver import standin
from test_cuda import control, driver, gpu

__all__ = ["control", "driver", "gpu"]

CHUNK = 2 << 20
F32 = numpy.dtype("float32")
PER_CHUNK = CHUNK // 4  # elements


def released(daemon: FakeDaemon) -> list[int]:
    return [params["buffer"] for method, params in daemon.requests if method == "release"]


class Segment:
    """What torch calls an expandable segment: addresses, with memory mapped chunk by chunk."""

    def __init__(self, gpu: Any, chunks: int, room: int = 64) -> None:
        self.gpu, self.room, self.mapped = gpu, room, 0
        self.address = gpu.vmm_reserve(room * CHUNK)
        self.grow(chunks)

    def grow(self, chunks: int) -> None:
        for i in range(self.mapped, self.mapped + chunks):
            self.map(i)
        self.mapped += chunks

    def map(self, i: int) -> None:
        handle = self.gpu.vmm_create(CHUNK)
        self.gpu.vmm_map(self.address + i * CHUNK, CHUNK, handle)
        self.gpu.vmm_release(handle)

    def remap(self, i: int) -> None:
        self.gpu.vmm_unmap(self.address + i * CHUNK, CHUNK)
        self.map(i)

    def tensor(self, start: int, elements: int) -> Any:
        return standin.DeviceArray(self.gpu, self.address + 4 * start, (elements,), F32)

    def free(self) -> None:
        self.gpu.vmm_unmap(self.address, self.mapped * CHUNK)
        self.gpu.vmm_address_free(self.address, self.room * CHUNK)


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
    segment.remap(1)
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
    made: list[int] = []

    def register(peer: Any, params: dict[str, Any], fds: list[int]) -> Any:
        if "extend" in params:
            raise Refused("out_of_memory", "no addresses")
        made.append(77)
        return {"buffer": 77, "size": params["size"]}

    daemon.script["register"] = register
    with pytest.raises(kops.OutOfMemory):
        k.square(a, out=a)
    del daemon.script["register"]
    k.ping()
    assert made and 77 in released(daemon)
    segment.free()


def test_an_older_daemon_is_not_sent_descriptors(gpu: Any, daemon: FakeDaemon) -> None:
    daemon.hello = {**daemon.hello, "features": ["memfd", "cuda_ipc"]}
    segment = Segment(gpu, 1)
    a = segment.tensor(0, 10)
    with kops.connect(daemon.path) as k, pytest.raises(kops.Unsupported, match="cuda_vmm"):
        k.square(a, out=a)
    assert not daemon.sent("register")
    segment.free()
