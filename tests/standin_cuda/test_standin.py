"""The stand-in driver between processes: handles, exporters that free or die, the control page, device arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from standin_cuda import Control, CudaError
from standin_cuda import control as control_module
from standin_cuda.peer import Peer

INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE, ILLEGAL_ADDRESS = 1, 101, 400, 700
LIBRARY = os.environ.get("KOPS_CUDA_DRIVER", "")

def test_mirror_has_the_layout_of_the_library(peers: Callable[..., Peer], control: Control) -> None:
    code = f"import ctypes; f = ctypes.CDLL({LIBRARY!r}).standin_control_size; f.restype = ctypes.c_uint64; print(f())"
    size = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(size.stdout) == control_module.PAGE_SIZE
    peer = peers()
    peer.alloc(100)
    row = control.row(peer.pid)
    assert (row.calls("cuMemAlloc"), row.live_allocations, row.live_allocation_bytes) == (1, 1, 100)


def test_memory_is_shared(peers: Callable[..., Peer], control: Control) -> None:
    owner, user = peers(), peers()
    base = owner.alloc(5000)
    owner.write(base, b"hello")
    handle = owner.ipc_handle(base)
    there = user.ipc_open(handle)
    assert user.ipc_open(handle) == there  # the same mapping again
    assert user.address_range(there + 4999) == (there, 5000)
    assert user.read(there, 5) == b"hello"
    user.write(there + 1, b"u")
    assert owner.read(base, 5) == b"hullo"
    user.ipc_close(there)
    assert control.row(user.pid).live_ipc_mappings == 1
    user.ipc_close(there)
    assert control.row(user.pid).live_ipc_mappings == 0
    assert (control.row(user.pid).ipc_maps, control.row(user.pid).ipc_hits) == (1, 1)
    assert not control.misuses()
    with pytest.raises(CudaError):
        user.ipc_close(there)
    assert control.misuses()


def test_equal_handle_gives_the_old_memory_while_it_is_open(peers: Callable[..., Peer]) -> None:
    owner, user = peers(), peers()
    base = owner.alloc(4096)
    owner.write(base, b"old")
    handle, old_id = owner.ipc_handle(base), owner.buffer_id(base)
    there = user.ipc_open(handle)
    owner.free(base)
    assert user.read(there, 3) == b"old"  # an open mapping keeps it
    again = owner.alloc(4096)
    owner.write(again, b"new")
    assert (again, owner.ipc_handle(again)) == (base, handle)
    assert owner.buffer_id(again) != old_id
    assert user.ipc_open(handle) == there
    assert user.read(there, 3) == b"old"
    user.ipc_close(there)
    user.ipc_close(there)
    assert user.read(user.ipc_open(handle), 3) == b"new"


def test_a_freed_or_bogus_handle_is_refused(peers: Callable[..., Peer], control: Control) -> None:
    owner, user = peers(), peers()
    handle = owner.ipc_handle(owner.alloc(4096))
    for bad in (bytes(64), os.urandom(64), handle[:20] + b"\x7f" + handle[21:], handle[:-8][::-1] + bytes(8)):
        with pytest.raises(CudaError) as refused:
            user.ipc_open(bad)
        assert refused.value.code in (INVALID_HANDLE, INVALID_DEVICE)
    base = owner.alloc(10 << 20)
    freed = owner.ipc_handle(base)
    user.ipc_close(user.ipc_open(freed))
    owner.free(base)
    with pytest.raises(CudaError) as refused:
        user.ipc_open(freed)
    assert refused.value.code == INVALID_HANDLE
    base = user.ipc_open(handle)
    user.ipc_close(base)
    owner.kill()
    with pytest.raises(CudaError) as refused:
        user.ipc_open(handle)
    assert refused.value.code == INVALID_HANDLE
    assert control.row(user.pid).live_ipc_mappings == 0


def test_a_dead_exporters_memory_lives_while_it_is_mapped(peers: Callable[..., Peer]) -> None:
    owner, user = peers(), peers()
    base = owner.alloc(1 << 20)
    owner.write(base, b"legacy")
    there = user.ipc_open(owner.ipc_handle(base))
    owner.kill()
    assert user.read(there, 6) == b"legacy"


def test_an_async_allocation_has_no_handle(peers: Callable[..., Peer]) -> None:
    owner = peers()
    base = owner.alloc_async(100)
    with pytest.raises(CudaError) as refused:
        owner.ipc_handle(base)
    assert refused.value.code == INVALID_VALUE


def test_a_device_is_known_by_its_uuid(peers: Callable[..., Peer]) -> None:
    two = {"KOPS_STANDIN_DEVICES": "2"}
    first, second = peers(**two), peers(**two, CUDA_VISIBLE_DEVICES="1")
    assert first.uuid() != second.uuid()
    assert first.uuid() == peers().uuid()
    handle = second.ipc_handle(second.alloc(100))
    with pytest.raises(CudaError) as refused:
        peers().ipc_open(handle)  # sees only the first
    assert refused.value.code == INVALID_DEVICE


def test_gate_holds_an_open(peers: Callable[..., Peer], control: Control) -> None:
    owner, user = peers(), peers()
    handle = owner.ipc_handle(owner.alloc(100))
    with control.gate("ipc_open") as gate:
        user.start("ipc_open", handle)
        control.wait_for(lambda: control.waiting("ipc_open") == 1)
        assert control.row(user.pid).live_ipc_mappings == 0
        gate.let(1)
        there = user.finish()
        assert user.ipc_open(handle) == there  # open already: no gate
    assert control.row(user.pid).passed("ipc_open") == 1


def test_a_copy_fault_breaks_one_process_only(peers: Callable[..., Peer], control: Control) -> None:
    victim, other = peers(), peers()
    base, elsewhere = victim.alloc(100), other.alloc(100)
    fault = control.fail("copy", ILLEGAL_ADDRESS, nth=2, pid=victim.pid)
    victim.write(base, b"x")
    for method, arguments in (("read", (base, 1)), ("alloc", (10,)), ("free", (base,)), ("synchronize", ())):
        with pytest.raises(CudaError) as broken:
            getattr(victim, method)(*arguments)
        assert broken.value.code == ILLEGAL_ADDRESS
    assert fault.fired and control.row(victim.pid).sticky == 1
    other.write(elsewhere, b"y")


def test_vmm_memory_crosses_by_descriptor(control: Control, peers: Callable[..., Peer]) -> None:
    granule = 2 << 20
    peer = peers()
    handle = peer.vmm_create(granule)
    where = peer.vmm_reserve(granule)
    peer.vmm_map(where, granule, handle)
    peer.write(where, b"vmm")
    fd = peer.vmm_export(handle)
    copy = peer.vmm_import(fd)
    wide = peer.vmm_reserve(2 * granule)
    with pytest.raises(CudaError) as refused:
        peer.vmm_map(wide, 2 * granule, copy)
    assert refused.value.code == 801
    peer.vmm_map(wide, granule, copy)
    assert peer.read(wide, 3) == b"vmm"
    other = peers()
    assert other.read_vmm_of(peer.pid, fd, 3) == b"vmm"
    peer.vmm_unmap(where, granule)
    peer.vmm_unmap(wide, granule)
    peer.vmm_release(handle)
    peer.vmm_release(copy)
    row = control.row(peer.pid)
    assert (row.live_vmm_maps, row.live_vmm_handles) == (0, 0)


def test_chunks_of_a_segment_are_mapped_as_one_range(control: Control, peers: Callable[..., Peer]) -> None:
    granule = 2 << 20
    owner, user = peers(), peers()
    where = owner.vmm_reserve(3 * granule)
    fds = []
    for i in range(3):
        handle = owner.vmm_create(granule)
        owner.vmm_map(where + i * granule, granule, handle)
        owner.write(where + i * granule, b"chunk %d" % i)
        fds.append(owner.vmm_export(handle))
        owner.vmm_release(handle)
    assert user.read_chunks_of(owner.pid, fds, 7) == [b"chunk 0", b"chunk 1", b"chunk 2"]
    row = control.row(user.pid)
    assert (row.live_vmm_maps, row.live_vmm_handles, row.live_vmm_reservations) == (0, 0, 0)
    assert not control.misuses()


def test_a_pools_memory_crosses_by_descriptor_and_bytes(control: Control, peers: Callable[..., Peer]) -> None:
    owner, user = peers(), peers()
    pool = owner.pool_create()
    base = owner.pool_alloc(pool, 5000)
    owner.write(base, b"pooled")
    imported = user.pool_import_of(owner.pid, owner.pool_export(pool))
    data = owner.pool_export_pointer(base)
    there = user.pool_import_pointer(imported, data)
    assert user.address_range(there + 4999) == (there, 5000)
    assert user.read(there, 6) == b"pooled"
    user.write(there, b"P")
    assert owner.read(base, 6) == b"Pooled"
    for bad in (bytes(64), data[:8] + os.urandom(56), data[:40] + b"\xff" + data[41:]):
        with pytest.raises(CudaError) as refused:
            user.pool_import_pointer(imported, bad)
        assert refused.value.code == INVALID_VALUE
    with pytest.raises(CudaError) as refused:
        user.pool_alloc(imported, 100)
    assert refused.value.code == INVALID_VALUE
    owner.free(base)
    assert user.read(there, 6) == b"Pooled"  # a mapping keeps it
    with pytest.raises(CudaError) as refused:
        user.pool_import_pointer(imported, data)
    assert refused.value.code == INVALID_VALUE
    assert control.row(user.pid).live_pool_imports == 1
    user.pool_destroy(imported)
    user.free(there)
    owner.pool_destroy(pool)
    assert control.total("live_pool_imports") == control.total("live_pools") == 0
    assert not control.misuses()


def test_a_pointer_belongs_to_its_pool(peers: Callable[..., Peer]) -> None:
    owner, user = peers(), peers()
    first, second = owner.pool_create(), owner.pool_create()
    data = owner.pool_export_pointer(owner.pool_alloc(first, 100))
    other = user.pool_import_of(owner.pid, owner.pool_export(second))
    with pytest.raises(CudaError) as refused:
        user.pool_import_pointer(other, data)
    assert refused.value.code == INVALID_VALUE
    private = owner.pool_create(False)
    for method, argument in (("pool_export", private), ("pool_export_pointer", owner.pool_alloc(private, 100))):
        with pytest.raises(CudaError) as refused:
            getattr(owner, method)(argument)
        assert refused.value.code == INVALID_VALUE
    with pytest.raises(CudaError) as refused:
        owner.pool_export_pointer(owner.alloc_async(100))  # the device's own pool is not exportable
    assert refused.value.code == INVALID_VALUE


def test_a_stream_waits_for_a_word_that_another_process_writes(peers: Callable[..., Peer]) -> None:
    owner, user = peers(), peers()
    base = owner.alloc(4096)
    owner.write(base, bytes(64))
    there = user.ipc_open(owner.ipc_handle(base))
    held, free = user.stream_create(), user.stream_create(-1)
    user.stream_wait_value(held, there, 7)
    user.stream_fill(held, there + 16, 0x01010101, 1)
    user.stream_write_value(held, there + 8, 9)
    user.stream_fill(free, there + 20, 0x02020202, 1)
    user.stream_synchronize(free)
    assert owner.read(base + 8, 16) == bytes(12) + b"\2\2\2\2"
    assert not user.stream_is_done(held)
    owner.stream_write_value(0, base, 7)
    user.stream_synchronize(held)
    assert owner.read(base, 24) == b"\7" + bytes(7) + b"\t" + bytes(7) + b"\1\1\1\1\2\2\2\2"


def test_device_arrays_are_views_of_device_memory(peers: Callable[..., Peer], control: Control) -> None:
    code = """
import numpy
from standin_cuda import DLPackArray, Driver, dlpack
driver = Driver()
host = numpy.arange(60, dtype=numpy.float32).reshape(3, 4, 5)
a = driver.array(host)
for view, expected in ((a, host), (a.T, host.T), (a[1], host[1]), (a[:, ::2, 1:4], host[:, ::2, 1:4]),
                       (a[-1, 2:, 0], host[-1, 2:, 0])):
    assert numpy.array_equal(view.numpy(), expected)
    interface = view.__cuda_array_interface__
    assert interface["shape"] == expected.shape and interface["typestr"] == "<f4"
view = a[1:]
base = a.address
del a
assert driver.address_range(view.address)[0] == base
del view
b = driver.array([[1, 2.5, 1 / 3]], "bfloat16")
assert b.numpy().tolist() == [[1, 2.5, 0.333984375]] and b.T.numpy().shape == (3, 1)
capsule = DLPackArray(b).__dlpack__()
address, name = b.address, repr(capsule)
del b
assert driver.address_range(address) and "dltensor" in name and dlpack.alive() == 1
del capsule
assert dlpack.alive() == 0
try:
    driver.address_range(base)
except Exception:
    print("freed")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (0, "freed\n"), done.stderr
    assert not control.misuses()
