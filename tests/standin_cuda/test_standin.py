"""The stand-in driver between processes: handles, exporters that free or die, the control page."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from standin_cuda import Control, CudaError
from standin_cuda import control as control_module
from standin_cuda.conftest import Peer

INVALID_DEVICE, INVALID_HANDLE, ILLEGAL_ADDRESS = 101, 400, 700
LIBRARY = os.environ.get("KOPS_CUDA_DRIVER", "")
CODE = str(Path(LIBRARY).parent / "user_kernels_sm_90.cubin")


def test_mirror_has_the_layout_of_the_library(peers: Callable[[], Peer], control: Control) -> None:
    code = f"import ctypes; f = ctypes.CDLL({LIBRARY!r}).standin_control_size; f.restype = ctypes.c_uint64; print(f())"
    size = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(size.stdout) == control_module.PAGE_SIZE
    peer = peers()
    peer.alloc(100)
    row = control.row(peer.pid)
    assert (row.calls("cuMemAlloc"), row.live_allocations, row.live_allocation_bytes) == (1, 1, 100)


def test_equal_handle_gives_the_old_memory_while_it_is_open(peers: Callable[[], Peer]) -> None:
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


def test_a_freed_or_bogus_handle_is_refused(peers: Callable[[], Peer], control: Control) -> None:
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


def test_a_kernel_reads_only_what_its_process_has_mapped(peers: Callable[[], Peer]) -> None:
    """Tests of isolation expect a neighbour's read to fault: here is the one that works, and the one that does not."""
    spy, victim = peers(), peers()
    out, secret = spy.alloc(64), victim.alloc(8192)
    victim.write(secret, bytes(range(64)))
    module, mapped = spy.module_load(CODE), spy.ipc_open(victim.ipc_handle(secret))
    spy.launch(module, "read_range", struct.pack("<QQi", out, mapped, 16), spy.stream_create())
    spy.synchronize()
    assert spy.read(out, 64) == bytes(range(64))
    spy.ipc_close(mapped)
    spy.launch(module, "read_range", struct.pack("<QQi", out, mapped, 16), spy.stream_create())
    with pytest.raises(CudaError) as refused:
        spy.synchronize()
    assert refused.value.code == ILLEGAL_ADDRESS


def test_a_killed_process_waits_at_no_gate(peers: Callable[[], Peer], control: Control) -> None:
    owner, user = peers(), peers()
    handle = owner.ipc_handle(owner.alloc(4096))
    with control.gate("ipc_open") as gate:
        user.start("ipc_open", handle)
        control.wait_for(lambda: control.waiting("ipc_open") == 1)
        user.kill()
        assert control.waiting("ipc_open") == control.row(user.pid).waiting("ipc_open") == 0
        gate.let(1)
        assert peers().ipc_open(handle)


def test_rows_of_ended_processes_are_taken_again(peers: Callable[[], Peer], control: Control) -> None:
    """Also of those that nobody has waited for; those of living ones and of misuse stay."""
    culprit, living = peers(), peers()
    living.alloc(7)
    with pytest.raises(CudaError):
        culprit.free(living.alloc(1))
    culprit.kill()
    code = f"""
import ctypes, os
library = ctypes.CDLL({LIBRARY!r})
for _ in range(128):
    child = os.fork()
    if child == 0:
        library.cuInit(0)
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child)
"""
    last = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert control.row(last).calls("cuInit") == 1
    assert control.row(living.pid).live_allocation_bytes == 8
    assert len(control.misuses()) == 1 and control.row(culprit.pid).misuse == 1
    assert len(list(control.rows())) == 64


def test_misuse_is_reported(peers: Callable[[], Peer], control: Control) -> None:
    """The tests on this driver count on it, and on nothing that is right being taken for one."""
    peer = peers()
    a = peer.alloc(4096)
    for wrong, what in ((lambda: peer.free(a + 1), "cuMemFree"), (lambda: peer.ipc_close(a), "cuIpcCloseMemHandle")):
        with pytest.raises(CudaError):
            wrong()
        assert what in control.misuses()[-1]
    module, stream = peer.module_load(CODE), peer.stream_create()
    with control.gate("kernel") as gate:
        peer.launch(module, "read_range", struct.pack("<QQi", a, a, 16), stream)
        control.wait_for(lambda: control.waiting("kernel") == 1)
        peer.start("free", a)  # which waits for the kernel
        control.wait_for(lambda: "still queued" in control.misuses()[-1])
        gate.open()
        peer.finish()
    peer.synchronize()
    with pytest.raises(CudaError):
        peer.free(a)
    assert control.row(peer.pid).misuse == 4 and control.row(peer.pid).live_allocations == 0
