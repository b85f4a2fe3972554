"""What processes of the stand-in driver leave to others when they end or are killed, and what their kernels do."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from standin_cuda import Control, CudaError
from standin_cuda.control import has_ended
from standin_cuda.peer import Peer

ILLEGAL_ADDRESS = 700
LIBRARY = os.environ.get("KOPS_CUDA_DRIVER", "")
CODE = str(Path(LIBRARY).parent / "user_kernels_sm_90.cubin")
ROWS = 64
PATH = {"PYTHONPATH": str(Path(__file__).parents[1])}


def word(peer: Peer, address: int) -> int:
    return int.from_bytes(peer.read(address, 4), "little")


def launch(peer: Peer, name: str, *values: int) -> None:
    """Pointers and addresses are told from ints by their size."""
    parameters = b"".join(struct.pack("<Q" if value > 1 << 31 else "<i", value) for value in values)
    peer.launch(peer.module_load(CODE), name, parameters, peer.stream_create())


# ---- kernels ----


def test_a_fault_breaks_one_process_only(peers: Callable[..., Peer], control: Control) -> None:
    culprit, other = peers(), peers()
    there = other.alloc(4)
    launch(culprit, "fault_kernel", culprit.alloc(4))
    control.wait_for(lambda: control.row(culprit.pid).sticky == 1)
    for call in (culprit.synchronize, lambda: culprit.alloc(4)):
        with pytest.raises(CudaError) as refused:
            call()
        assert refused.value.code == ILLEGAL_ADDRESS
    other.write(there, b"\0\0\0\0")
    launch(other, "run_for", there, 1)
    other.synchronize()
    assert word(other, there) == 1 and control.row(other.pid).sticky == 0


def test_a_kernel_writes_until_its_process_is_killed(peers: Callable[..., Peer], control: Control) -> None:
    owner, culprit = peers(), peers()
    count = owner.alloc(4)
    owner.write(count, bytes(4))
    launch(culprit, "count_forever", culprit.ipc_open(owner.ipc_handle(count)))
    control.wait_for(lambda: word(owner, count) > 1)
    before = word(owner, count)
    control.wait_for(lambda: word(owner, count) > before)
    os.kill(culprit.pid, signal.SIGKILL)
    control.wait_for(lambda: has_ended(culprit.pid))
    last = word(owner, count)
    launch(owner, "run_for", count, 5000)  # in that time there would have been writes
    owner.synchronize()
    assert word(owner, count) == last + 1


def test_a_kernel_takes_as_long_as_it_is_told(peers: Callable[..., Peer]) -> None:
    peer = peers()
    runs = peer.alloc(4)
    peer.write(runs, bytes(4))
    started = time.monotonic()
    launch(peer, "run_for", runs, 30000)
    peer.synchronize()
    assert time.monotonic() - started >= 0.03
    assert word(peer, runs) == 1


def test_a_kernel_reads_what_its_process_has_mapped(peers: Callable[..., Peer], control: Control) -> None:
    spy, victim = peers(), peers()
    out, secret, told = spy.alloc(64), victim.alloc(8192), victim.alloc(8)
    victim.write(secret, bytes(range(64)))
    launch(victim, "tell_address", told, secret)
    victim.synchronize()
    address = int.from_bytes(victim.read(told, 8), "little")
    assert address == secret

    mapped = spy.ipc_open(victim.ipc_handle(secret))
    launch(spy, "read_range", out, mapped, 16)
    spy.synchronize()
    assert spy.read(out, 64) == bytes(range(64))

    # From the last words that there are on, as far as it comes.
    launch(spy, "read_range", out, mapped + 8192 - 8, 16)
    with pytest.raises(CudaError) as refused:
        spy.synchronize()
    assert refused.value.code == ILLEGAL_ADDRESS
    assert not control.misuses()


def test_memory_of_another_process_is_not_mapped(peers: Callable[..., Peer]) -> None:
    spy, victim = peers(), peers()
    out = spy.alloc(64)
    launch(spy, "read_range", out, victim.alloc(8192), 16)
    with pytest.raises(CudaError) as refused:
        spy.synchronize()
    assert refused.value.code == ILLEGAL_ADDRESS


# ---- what is left ----


def _retain_error(**env: str) -> str:
    """The error of a process that makes a context and ends; "" where it has one."""
    code = """
from standin_cuda import CudaError, Driver
try:
    Driver()
except CudaError as error:
    print(error.name, end="")
"""
    env = {**os.environ, **PATH, **env}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True).stdout


def test_compute_modes_limit_who_has_a_context(peers: Callable[..., Peer], control: Control) -> None:
    exclusive, under_mps, prohibited = "20=3", "20=3,133=1", "20=2"
    holder = peers(KOPS_STANDIN_ATTRIBUTES=exclusive)
    holder.alloc(1)
    assert _retain_error(KOPS_STANDIN_ATTRIBUTES=exclusive) == "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert _retain_error(KOPS_STANDIN_ATTRIBUTES=under_mps) == ""
    holder.kill()
    assert _retain_error(KOPS_STANDIN_ATTRIBUTES=exclusive) == ""
    assert _retain_error(KOPS_STANDIN_ATTRIBUTES=prohibited) == "CUDA_ERROR_DEVICE_UNAVAILABLE"


def test_rows_outlive_their_process(peers: Callable[..., Peer], control: Control) -> None:
    peer = peers()
    peer.alloc(7)
    pid = peer.pid
    peer.kill()
    assert control.row(pid).live_allocation_bytes == 7
    assert control.total("live_allocation_bytes") == 7
    assert numpy.array([row.pid for row in control.rows()]).tolist() == [pid]


def test_a_killed_process_waits_at_no_gate(peers: Callable[..., Peer], control: Control) -> None:
    owner, user = peers(), peers()
    handle = owner.ipc_handle(owner.alloc(4096))
    with control.gate("ipc_open") as gate:
        user.start("ipc_open", handle)
        control.wait_for(lambda: control.waiting("ipc_open") == 1)
        user.kill()
        assert control.waiting("ipc_open") == control.row(user.pid).waiting("ipc_open") == 0
        gate.let(1)
        assert peers().ipc_open(handle)


def test_faults_of_ended_processes_make_room(peers: Callable[..., Peer], control: Control) -> None:
    ended, peer = peers(), peers()
    ended.alloc(1)
    for _ in range(16):
        control.fail("cuMemAlloc", 2, pid=ended.pid)
    with pytest.raises(RuntimeError):
        control.fail("cuMemAlloc", 2, pid=peer.pid)
    ended.kill()
    control.fail("cuMemAlloc", 2, pid=peer.pid)
    with pytest.raises(CudaError):
        peer.alloc(1)


def test_a_program_that_runs_another_gets_a_row_for_each(control: Control) -> None:
    code = """
import os, sys
from standin_cuda import Driver
Driver().alloc(int(sys.argv[1]))
if sys.argv[1] == "1":
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], "2", ""])
"""
    child = subprocess.Popen([sys.executable, "-c", code, "1", code], env={**os.environ, **PATH})
    assert child.wait() == 0
    assert [row.live_allocation_bytes for row in control.rows()] == [1, 2]
    assert control.row(child.pid).live_allocation_bytes == 2


def test_rows_of_ended_processes_are_taken_again(peers: Callable[..., Peer], control: Control) -> None:
    """Also of those that nobody has waited for; those of living ones and of misuse stay."""
    culprit, living = peers(), peers()
    living.alloc(7)
    with pytest.raises(CudaError):
        culprit.free(living.alloc(1))
    culprit.kill()
    code = f"""
import ctypes, os
library = ctypes.CDLL({LIBRARY!r})
for _ in range({2 * ROWS}):
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
    assert len(list(control.rows())) == ROWS
