"""Device memory that has no IPC handle: virtual memory by its chunks' descriptors, and memory of exportable pools."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_machine import FIXTURES, OUT_OF_MEMORY, UNKNOWN, Machine, N, only_with_the_standin, operands
from support import memfd, raw
from support.cuda_exporter import Exporter
from support.raw import tensor

pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES

CHUNK = 2 << 20


@contextlib.contextmanager
def taken(exporter: Exporter, fds: list[int]) -> Iterator[list[int]]:
    """Descriptors of the exporter, here; it loses them."""
    own = [os.open(f"/proc/{exporter.pid}/fd/{fd}", os.O_RDWR) for fd in fds]
    try:
        yield own
    finally:
        for fd in own:
            os.close(fd)


class Segment:
    """Virtual memory of the exporter: chunks mapped one behind the other, as torch's expandable segments are."""

    def __init__(self, exporter: Exporter, chunks: list[int]) -> None:
        self.exporter, self.chunks = exporter, chunks
        self.size = sum(chunks)
        self.address: int = exporter.ask("vmm_reserve", self.size)
        self.handles: list[int] = []
        at = self.address
        for size in chunks:
            handle = exporter.ask("vmm_create", size)
            exporter.ask("vmm_map", at, size, handle)
            self.handles.append(handle)
            at += size
        self.fds = [exporter.ask("vmm_export", handle) for handle in self.handles]

    def pieces(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Copies stay within a chunk."""
        start = 0
        for chunk in self.chunks:
            first, end = max(start, offset), min(start + chunk, offset + size)
            if first < end:
                yield first, end - first
            start += chunk

    def write(self, values: np.ndarray, offset: int = 0) -> None:
        data = values.tobytes()
        for at, size in self.pieces(offset, len(data)):
            self.exporter.ask("write", self.address + at, data[at - offset : at - offset + size].hex())
        self.exporter.ask("synchronize")

    def read(self, count: int, offset: int = 0) -> np.ndarray:
        pieces = [self.exporter.ask("read", self.address + at, size) for at, size in self.pieces(offset, 4 * count)]
        return np.frombuffer(bytes.fromhex("".join(pieces)), np.float32)

    def params(self, first: int = 0, count: int = 16, **more: Any) -> dict[str, Any]:
        chunks = self.chunks[first : first + count]
        return {"kind": "cuda_vmm", "size": self.size if not first else sum(chunks), "device": self.exporter.device,
                "fds": list(range(len(chunks))), "chunk_bytes": chunks, **more}  # fmt: skip

    def register(self, connection: raw.Connection, **more: Any) -> int:
        buffer = 0
        for first in range(0, len(self.chunks), 16):
            params = self.params(first, **more)
            if first:
                params["extend"] = buffer
            with taken(self.exporter, self.fds[first : first + 16]) as fds:
                result = connection.call("register", params, fds)
            assert result["size"] == sum(self.chunks[: first + 16])
            buffer = result["buffer"]
        return buffer

    def free(self) -> None:
        self.exporter.ask("vmm_unmap", self.address, self.size)
        self.exporter.ask("vmm_address_free", self.address, self.size)
        for handle in self.handles:
            self.exporter.ask("vmm_release", handle)


# ---- virtual memory ----


def test_one_chunk(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    assert {"cuda_ipc", "cuda_vmm", "cuda_pool"} <= set(machine.hello()["features"])
    segment = Segment(exporter, [CHUNK])
    segment.write(np.full(100, 3, np.float32))
    before = machine.row.live_vmm_maps
    params = {"kind": "cuda_vmm", "size": 1000, "fd": 0, "device": exporter.device}
    with taken(exporter, segment.fds) as fds:
        buffer = connection.call("register", params, fds)["buffer"]
    connection.run("square", [tensor(buffer, [100])], [tensor(buffer, [100], offset=400)])
    assert (segment.read(100, 400) == 9).all()
    error = connection.run_error("square", [tensor(buffer, [100])], [tensor(buffer, [101], offset=600)])
    assert error.code in ("out_of_bounds", "shape_mismatch")
    assert machine.row.live_vmm_maps == before + 1
    connection.call("release", {"buffer": buffer})
    machine.wait(lambda: machine.row.live_vmm_maps == before)
    segment.free()


def test_a_descriptor_that_no_driver_made(connection: raw.Connection, machine: Machine) -> None:
    params = {"kind": "cuda_vmm", "size": CHUNK, "fd": 0, "device": machine.gpu}
    with socket.socket(socket.AF_UNIX) as other:
        error = connection.error("register", params, [other.fileno()])
    assert error.code == "invalid_fd" and "none that a CUDA driver exports" in str(error), error


@pytest.mark.parametrize("chunks", [[CHUNK, CHUNK], [CHUNK, 3 * CHUNK, CHUNK], [CHUNK] * 37])
def test_a_tensor_across_chunks(connection: raw.Connection, exporter: Exporter, chunks: list[int]) -> None:
    segment = Segment(exporter, chunks)
    buffer = segment.register(connection)
    border = segment.size - CHUNK - 200  # bytes: the last border, in the middle
    values = np.arange(100, dtype=np.float32)
    segment.write(values, border)
    connection.run("square", [tensor(buffer, [100], offset=border)], [tensor(buffer, [100])])
    assert (segment.read(100) == values**2).all()
    end = segment.size // 4
    connection.run("square", [tensor(buffer, [1])], [tensor(buffer, [1], offset=4 * (end - 1))])
    error = connection.run_error("square", [tensor(buffer, [2])], [tensor(buffer, [2], offset=4 * (end - 1))])
    assert error.code == "out_of_bounds"
    segment.free()


def held(connection: raw.Connection) -> tuple[int, int]:
    (row,) = connection.call("clients")["clients"]
    return row["buffers"], row["mapped_bytes"]


def test_usable_as_far_as_it_is_there(connection: raw.Connection, exporter: Exporter) -> None:
    segment = Segment(exporter, [CHUNK] * 3)
    with taken(exporter, segment.fds) as fds:
        result = connection.call("register", {**segment.params(0, 1), "size": segment.size}, fds[:1])
        buffer = result["buffer"]
        assert result["size"] == CHUNK
        assert held(connection) == (1, CHUNK)
        there, beyond = [tensor(buffer, [10])], [tensor(buffer, [10], offset=CHUNK)]
        connection.run("square", there, [tensor(buffer, [10], offset=400)])
        assert connection.run_error("square", there, beyond).code == "out_of_bounds"
        more = {**segment.params(1, 2), "extend": buffer}
        assert connection.call("register", more, fds[1:])["size"] == segment.size
        connection.run("square", there, beyond)
        # It is complete now.
        error = connection.error("register", more, fds[1:])
        assert (error.code, error.key) == ("invalid_argument", "chunk_bytes")
        assert held(connection) == (1, segment.size)
        connection.call("release", {"buffer": buffer})
        assert held(connection) == (0, 0)
    segment.free()


def test_an_extension_that_cannot_be_undone() -> None:
    """What is there stays of use; nothing more is mapped behind a piece that the driver keeps."""
    machine = Machine()
    with machine.daemon as daemon, daemon.connect() as connection:
        exporter = machine.exporter()
        segment = Segment(exporter, [CHUNK] * 3)
        segment.write(np.full(10, 3, np.float32))
        with taken(exporter, segment.fds) as fds:
            buffer = connection.call("register", {**segment.params(0, 1), "size": segment.size}, fds[:1])["buffer"]
            more = {**segment.params(1, 2), "extend": buffer}
            faults = [
                machine.control.fail("cuMemMap", OUT_OF_MEMORY, nth=2, pid=daemon.gpu_pid),
                machine.control.fail("cuMemUnmap", UNKNOWN, pid=daemon.gpu_pid),
            ]
            assert connection.error("register", more, fds[1:]).code == "out_of_memory"
            assert all(fault.fired for fault in faults)
            error = connection.error("register", more, fds[1:])
            assert error.code == "device_error" and "anew" in str(error)
            connection.run("square", [tensor(buffer, [10])], [tensor(buffer, [10], offset=400)])
            assert (segment.read(10, 400) == 9).all()
            connection.call("release", {"buffer": buffer})
            anew = segment.register(connection)
            connection.run("square", [tensor(anew, [10])], [tensor(anew, [10], offset=2 * CHUNK)])
            assert (segment.read(10, 2 * CHUNK) == 9).all()
        assert not machine.control.misuses()
        exporter.close()


@pytest.mark.parametrize(
    "change, code, key",
    [
        ({"size": 4 * CHUNK}, None, None),  # the rest may follow
        ({"size": CHUNK}, "invalid_argument", "chunk_bytes"),
        ({"chunk_bytes": [CHUNK]}, "invalid_argument", "chunk_bytes"),
        ({"chunk_bytes": [CHUNK, 1000]}, "invalid_argument", "chunk_bytes"),
        ({"chunk_bytes": [CHUNK, 2 * CHUNK], "size": 3 * CHUNK}, "out_of_bounds", "chunk_bytes"),
        ({"chunk_bytes": [CHUNK, 1 << 63], "size": (1 << 63) - 1}, "out_of_range", "chunk_bytes"),
        ({"size": 1 << 62}, "out_of_bounds", None),
        ({"chunk_bytes": None, "size": 2 * CHUNK + 1}, "invalid_argument", "chunk_bytes"),
        ({"fds": []}, "invalid_argument", "fds"),
        ({"fds": [0, 2]}, "out_of_range", "fds"),
        ({"fd": 0}, "invalid_argument", "fds"),
        ({"fds": None}, "missing_key", "fd"),
        ({"device": None}, "missing_key", "device"),
        ({"extend": 12345}, "unknown_buffer", "extend"),
        ({"kind": "memfd"}, "invalid_argument", "fds"),
    ],
)
def test_bad_chunks(
    connection: raw.Connection, exporter: Exporter, machine: Machine, change: dict[str, Any], code: Any, key: Any
) -> None:
    segment = Segment(exporter, [CHUNK] * 2)
    maps, reserved = machine.row.live_vmm_maps, machine.row.live_vmm_reservations
    params = {k: v for k, v in {**segment.params(), **change}.items() if v is not None}
    with taken(exporter, segment.fds) as fds:
        if code is None:
            connection.call("release", {"buffer": connection.call("register", params, fds)["buffer"]})
        else:
            error = connection.error("register", params, fds)
            assert error.code == code and (key is None or error.key == key), error
    machine.wait(lambda: (machine.row.live_vmm_maps, machine.row.live_vmm_reservations) == (maps, reserved))
    segment.free()


def test_bad_extensions(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    segment = Segment(exporter, [CHUNK] * 3)
    shared = memfd.Shared(4096)
    with taken(exporter, segment.fds) as fds:
        buffer = connection.call("register", {**segment.params(0, 1), "size": segment.size}, fds[:1])["buffer"]
        host = connection.register(shared)
        for change, code, key in (
            ({"extend": host}, "invalid_argument", "extend"),
            ({"extend": buffer, "kind": "cuda_ipc"}, "invalid_argument", "extend"),
            ({"extend": buffer, "size": CHUNK}, "invalid_argument", "size"),
        ):
            error = connection.error("register", {**segment.params(1, 2), **change}, fds[1:])
            assert (error.code, error.key) == (code, key), error
        bogus = memfd.make(4096)
        maps = machine.row.live_vmm_maps
        error = connection.error("register", {**segment.params(1, 2), "extend": buffer}, [fds[1], bogus])
        assert error.code == "invalid_handle"
        assert machine.row.live_vmm_maps == maps, "the chunk before the bad one stayed mapped"
        os.close(bogus)
        assert connection.call("register", {**segment.params(1, 2), "extend": buffer}, fds[1:])["size"] == segment.size
    connection.run("square", [tensor(buffer, [10])], [tensor(buffer, [10], offset=2 * CHUNK)])
    segment.free()


def test_memory_outlives_its_exporter(connection: raw.Connection, machine: Machine) -> None:
    """An open mapping keeps the memory, whatever became of the exporter, until it is released."""
    exporter = machine.exporter()
    segment = Segment(exporter, [CHUNK] * 2)
    segment.write(np.full(10, 3, np.float32))
    buffer = segment.register(connection)
    exporter.kill()
    out = memfd.Shared(40)
    view = tensor(connection.register(out), [10])
    connection.run("square", [tensor(buffer, [10])], [view])
    assert (np.frombuffer(out.bytes[:40], np.float32) == 9).all()
    before = machine.row.live_vmm_maps
    connection.close()
    machine.wait(lambda: machine.row.live_vmm_maps == before - 2)


def test_chunks_of_another_gpu_are_refused(machine: Machine) -> None:
    two = Machine(env={"KOPS_STANDIN_DEVICES": "2"})
    with two.daemon:
        first, second = (d["uuid"] for d in two.hello()["devices"] if d["backend"] == "cuda")
        exporter = two.exporter(1)
        segment = Segment(exporter, [CHUNK])
        assert exporter.device == second
        with two.daemon.connect() as connection, taken(exporter, segment.fds) as fds:
            error = connection.error("register", {**segment.params(), "device": first}, fds)
            assert error.code == "invalid_handle" and first in error.message
            connection.call("register", segment.params(), fds)
            assert connection.error("register", exporter.alloc(4096).register_params(device=first)).code == "invalid_handle"
        exporter.close()


def test_released_by_a_guessed_id_while_it_opens(
    connection: raw.Connection, exporter: Exporter, machine: Machine
) -> None:
    memory = exporter.alloc(4096)
    known = connection.call("register", exporter.alloc(4096).register_params())["buffer"]
    with machine.control.gate("ipc_open"):
        opening = connection.request("register", memory.register_params())
        guesses = [connection.request("release", {"buffer": known + i}) for i in range(1, 50)]
        assert all(connection.reply_error(g).code == "unknown_buffer" for g in guesses)
    buffer = connection.reply(opening).get()["buffer"]
    connection.run("square", [tensor(buffer, [10])], [tensor(buffer, [10], offset=400)])


def test_device_memory_is_registered_anew() -> None:
    """Memory that a daemon made, which is killed: whoever kept its descriptor imports it again, contents and all."""
    machine = Machine()
    with machine.daemon as daemon:
        exporter = machine.exporter()
        memory, out = operands(exporter)
        with daemon.connect() as connection:
            made = connection.reply(connection.request("alloc", {"size": 4 * N, "device": machine.gpu}))
            (fd,) = made.fds
            made.fds.clear()
            size, buffer = made.get()["size"], made.get()["buffer"]
            connection.run("square", [memory.inline([N])], [tensor(buffer, [N])])
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.process.wait()  # type: ignore[union-attr]
        daemon.start()
        with daemon.connect() as connection:
            params = {"kind": "cuda_vmm", "size": size, "fds": [0], "chunk_bytes": [size], "device": machine.gpu}
            buffer = connection.call("register", params, [fd])["buffer"]
            connection.run("add", [memory.inline([N]), tensor(buffer, [N])], [out.inline([N])])
            assert np.array_equal(np.frombuffer(out.read(4 * N), np.float32), np.full(N, 12)), "3 + the square of 3"
        os.close(fd)
        exporter.close()


# ---- pools ----


class PooledMemory:
    def __init__(self, exporter: Exporter, pool: int, size: int) -> None:
        self.exporter, self.size = exporter, size
        self.address: int = exporter.ask("pool_alloc", pool, size)
        self.handle = bytes.fromhex(exporter.ask("pool_export_pointer", self.address))
        self.alloc_id: int = exporter.ask("buffer_id", self.address)

    def params(self, **more: Any) -> dict[str, Any]:
        return {"kind": "cuda_pool", "size": self.size, "handle": self.handle, "alloc_id": self.alloc_id,
                "device": self.exporter.device, "fd": 0, **more}  # fmt: skip

    def write(self, values: np.ndarray) -> None:
        self.exporter.ask("write", self.address, values.tobytes().hex())
        self.exporter.ask("synchronize")

    def read(self, count: int) -> np.ndarray:
        return np.frombuffer(bytes.fromhex(self.exporter.ask("read", self.address, 4 * count)), np.float32)


@pytest.fixture
def pool(exporter: Exporter) -> Iterator[tuple[int, int]]:
    """A pool of the exporter, and its descriptor here."""
    made = exporter.ask("pool_create")
    with taken(exporter, [exporter.ask("pool_export", made)]) as (fd,):
        yield made, fd


def test_pooled(connection: raw.Connection, exporter: Exporter, machine: Machine, pool: tuple[int, int]) -> None:
    a, out = PooledMemory(exporter, pool[0], 4096), PooledMemory(exporter, pool[0], 4096)
    a.write(np.full(100, 3, np.float32))
    pools, imports = machine.row.live_pools, machine.row.live_pool_imports
    one, two = (connection.call("register", m.params(), [pool[1]])["buffer"] for m in (a, out))
    connection.run("square", [tensor(one, [100])], [tensor(two, [100])])
    assert (out.read(100) == 9).all()
    assert machine.row.live_pools == pools + 1, "the pool was imported for every pointer"
    assert machine.row.live_pool_imports == imports + 2
    again = connection.call("register", a.params(), [pool[1]])["buffer"]
    assert again != one and machine.row.live_pool_imports == imports + 2
    for buffer in (one, two, again):
        connection.call("release", {"buffer": buffer})
    machine.wait(lambda: machine.row.live_pool_imports == imports and machine.row.live_pools == pools)


def test_bad_pools(connection: raw.Connection, exporter: Exporter, machine: Machine, pool: tuple[int, int]) -> None:
    a = PooledMemory(exporter, pool[0], 4096)
    pools, imports = machine.row.live_pools, machine.row.live_pool_imports
    bogus = memfd.make(4096)
    for change, fds, code, key in (
        ({}, [bogus], "invalid_handle", None),
        ({"handle": bytes(64)}, [pool[1]], "invalid_handle", None),
        ({"size": 1 << 40}, [pool[1]], "out_of_bounds", None),
        ({"fds": [0, 1], "fd": None}, [pool[1], bogus], "invalid_argument", "fds"),
        ({"fd": None}, [pool[1]], "missing_key", "fd"),
    ):
        params = {k: v for k, v in {**a.params(), **change}.items() if v is not None}
        error = connection.error("register", params, fds)
        assert error.code == code and (key is None or error.key == key), (change, error)
    os.close(bogus)
    machine.wait(lambda: (machine.row.live_pools, machine.row.live_pool_imports) == (pools, imports))
