"""CUDA memory of clients over a stand-in driver: how long mappings last, and what faults of client and driver do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
from gpu_machine import (
    DEVICE_LOST_STATUS,
    FIXTURES,
    ILLEGAL_ADDRESS,
    LAUNCH_OUT_OF_RESOURCES,
    OUT_OF_MEMORY,
    UNKNOWN,
    WITHOUT_EXECUTORS,
    Machine,
    N,
    only_with_the_standin,
    register,
    reuse,
    square,
    values,
    vector,
)
from support import memfd, proc, raw
from support.cuda_exporter import Exporter
from support.raw import tensor

MEMORY_POOLS_SUPPORTED = 115  # a CUdevice_attribute

pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES


# ---- lifetimes ----


def test_release_during_use_is_deferred(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    before = machine.row.live_ipc_mappings
    buffers = [register(connection, m) for m in (a, out)]
    with machine.control.gate("kernel"):
        running = connection.request("run", {"op": "square", "in": [tensor(buffers[0], [N])], "out": [tensor(buffers[1], [N])]})
        machine.wait(lambda: machine.row.waiting("kernel") == 1)
        for buffer in buffers:
            connection.call("release", {"buffer": buffer})
        assert connection.alive()
        assert machine.row.live_ipc_mappings - before == 2
    connection.reply(running).get()
    assert (values(out) == 9).all()
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


def test_client_killed_during_a_kernel(machine: Machine, exporter: Exporter, connect: Callable[[], raw.Connection]) -> None:
    """The kernel ends, then the mappings go; a second client is served all the while."""
    other = connect()
    a, out, b = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N), vector(exporter.alloc(4 * N))
    before = machine.row.live_ipc_mappings
    pid = os.fork()
    if not pid:
        try:
            connection = machine.daemon.connect()
            connection.request("run", square(a, out, repeat=10000))
            connection.request("run", square(a, out))
            signal.pause()
        finally:
            os._exit(0)
    with machine.control.gate("kernel") as gate:
        machine.wait(lambda: machine.row.waiting("kernel") >= 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert other.alive()
        assert machine.row.live_ipc_mappings - before == 2
        passed = machine.row.passed("kernel")
        del gate
    machine.wait(lambda: machine.row.live_ipc_mappings == before)
    assert machine.row.passed("kernel") - passed < 1000, "repeats went on for a dead client"
    other.call("run", square(b, b))
    assert (values(b) == 9).all()


def test_exporter_dies_during_a_kernel(connection: raw.Connection, machine: Machine) -> None:
    """An open mapping keeps the memory alive: the job ends, later ones too, and others notice nothing."""
    exporter = machine.exporter()
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    connection.call("run", square(a, out))
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out))
        machine.wait(lambda: machine.row.waiting("kernel") == 1)
        exporter.kill()
    connection.reply(running).get()
    connection.call("run", square(a, out))
    assert machine.daemon.running()


def test_exporter_frees_during_a_kernel(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out))
        machine.wait(lambda: machine.row.waiting("kernel") == 1)
        a.free()
    connection.reply(running).get()
    assert (values(out) == 9).all()


def test_trim(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    before = machine.row.live_ipc_mappings
    buffer = register(connection, a)
    connection.run("square", [tensor(buffer, [N])], [out.inline([N])])
    assert machine.row.live_ipc_mappings - before == 2
    result = connection.call("trim")
    assert result["mappings"] == 2 and result["unpinned"] >= 2 * 4 * N
    machine.wait(lambda: machine.row.live_ipc_mappings == before)
    assert connection.call("trim") == {"unpinned": 0, "mappings": 0}
    closed = [m for m in connection.call("stats")["mappings"] if m["kind"] == "cuda_ipc"]
    assert closed and not any(m["open"] for m in closed)
    vector(a, np.full(N, 4, np.float32))
    timings = connection.run("square", [tensor(buffer, [N])], [out.inline([N])])["timings"]
    assert timings["map_us"] > 0
    assert (values(out) == 16).all()


def test_trim_spares_other_connections(connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine) -> None:
    one, two = connect(), connect()
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    one.call("run", square(a, out))
    opened = machine.row.ipc_maps
    assert two.call("trim")["mappings"] == 0
    one.call("run", square(a, out))
    assert machine.row.ipc_maps == opened


def test_reopened_after_its_memory_was_freed(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """Closed while idle, then freed by its owner: the next use says so instead of computing on something else."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    buffer = register(connection, a)
    connection.call("trim")
    a.free()
    error = connection.run_error("square", [tensor(buffer, [N])], [out.inline([N])])
    assert error.code in ("stale_buffer", "invalid_handle"), error


def test_closed_reference_becomes_stale(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """Closed while idle, its memory freed, and the bytes of its handle used anew: the old reference is not reopened."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    buffer = register(connection, a)
    connection.call("trim")
    new = vector(reuse(exporter, a), np.full(N, 5, np.float32))
    connection.call("run", square(new, out))
    assert (values(out) == 25).all()
    error = connection.run_error("square", [tensor(buffer, [N])], [out.inline([N])])
    assert error.code == "stale_buffer", error


def test_idle_mappings_close_by_themselves() -> None:
    machine = Machine("[limits]\nidle_close_s = 2\n")
    with machine.daemon, machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        connection.call("run", square(a, out))
        assert machine.row.live_ipc_mappings == 2
        machine.wait(lambda: machine.row.live_ipc_mappings == 0)
        connection.call("run", square(a, out))
        assert (values(out) == 9).all()
        exporter.close()
        assert not machine.control.misuses()


def test_inline_references_are_bounded() -> None:
    machine = Machine("[limits]\ninline_mappings = 4\n")
    with machine.daemon, machine.daemon.connect() as connection:
        exporter = machine.exporter()
        memories = [vector(exporter.alloc(4 * N)) for _ in range(10)]
        for memory in memories:
            connection.call("run", square(memory, memory))
        machine.wait(lambda: machine.row.live_ipc_mappings <= 4)
        connection.call("run", square(memories[0], memories[0]))
        assert (values(memories[0]) == 81).all()
        exporter.close()


# ---- faults ----


def test_launch_error_is_the_requesters(connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine) -> None:
    one, two = connect(), connect()
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    one.call("run", square(a, out))
    fault = machine.control.fail("cuLaunchKernel", LAUNCH_OUT_OF_RESOURCES, pid=machine.daemon.gpu_pid)
    error = one.error("run", square(a, out))
    assert fault.fired and error.code == "device_error"
    assert "RESOURCES" in str(error.detail["driver"]).upper(), error.detail
    two.call("run", square(a, out))
    one.call("run", square(a, out))
    assert (values(out) == 9).all()


def test_out_of_device_memory(connection: raw.Connection, machine: Machine) -> None:
    fault = machine.control.fail("cuMemCreate", OUT_OF_MEMORY, pid=machine.daemon.gpu_pid)
    assert connection.error("alloc", {"size": 4096, "device": machine.gpu}).code == "out_of_memory"
    assert fault.fired
    reply = connection.reply(connection.request("alloc", {"size": 4096, "device": machine.gpu}))
    reply.get()
    for fd in reply.fds:
        os.close(fd)
    reply.fds.clear()


def test_a_gpu_without_memory_pools() -> None:
    """It computes on device memory. Shared host memory is copied through a pool: the requester is told that it cannot be."""
    machine = Machine(env={"KOPS_STANDIN_ATTRIBUTES": f"{MEMORY_POOLS_SUPPORTED}=0"})
    with machine.daemon as daemon, daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        view = tensor(connection.register(memfd.Shared(4 * N)), [N])
        steps = {"op": "square", "in": [view], "out": [view], "device": machine.gpu}
        for _ in range(2):
            error = connection.error("run", steps)
            assert error.code == "unsupported" and "memory pools" in str(error), error
            connection.call("run", square(a, out))
            assert (values(out) == 9).all()
        assert "event=fault" not in daemon.log() and not machine.control.misuses()


def test_memory_that_the_driver_does_not_let_go_of() -> None:
    """Its addresses are given to no other memory: the GPU could not register that, or would read the old pages."""
    machine = Machine()
    with machine.daemon as daemon, daemon.connect() as connection:
        shared = memfd.Shared(8 * N)
        for value in (2, 3, 4, 5):
            fault = machine.control.fail("cuMemHostUnregister", UNKNOWN, pid=daemon.gpu_pid)
            shared.view(np.float32, N)[:] = value
            buffer = connection.register(shared)
            view = tensor(buffer, [N])
            connection.run("square", [view], [{**view, "offset": 4 * N}], device=machine.gpu)
            assert (shared.view(np.float32, N, 4 * N) == value * value).all()
            connection.call("release", {"buffer": buffer})
            machine.wait(lambda fault=fault: fault.fired)
            proc.eventually(lambda: not proc.maps(daemon.pid), "the memory itself is let go of")
        assert machine.row.live_host_registrations == 4
        assert "event=unregister_failed" in daemon.log()


def test_a_handle_that_the_driver_does_not_close() -> None:
    """Other memory may get the same handle, and must not be taken for what is still open."""
    machine = Machine(WITHOUT_EXECUTORS)
    with machine.daemon as daemon, daemon.connect() as connection:
        exporter = machine.exporter()
        buffer = register(connection, vector(exporter.alloc(4 * N)))
        connection.run("square", [tensor(buffer, [N])], [tensor(buffer, [N])])
        machine.control.fail("cuIpcCloseMemHandle", UNKNOWN, pid=daemon.gpu_pid)
        connection.call("release", {"buffer": buffer})
        connection.wait_closed()
        daemon.stop(DEVICE_LOST_STATUS)


@pytest.mark.parametrize("how", ["kernel", "cuLaunchKernel", "cuIpcOpenMemHandle"])
def test_lost_device(how: str) -> None:
    """A broken context cannot be mended: what is in flight fails, and the daemon ends with its own status."""
    machine = Machine(WITHOUT_EXECUTORS)
    with machine.daemon as daemon:
        exporter = machine.exporter()
        a, out, b = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N), exporter.alloc(4 * N)
        one, two = daemon.connect(), daemon.connect()
        two.call("run", square(a, out))
        machine.control.fail(how, ILLEGAL_ADDRESS, sticky=True, pid=daemon.gpu_pid)
        error = one.error("run", square(b, b))
        assert error.code == "device_lost", error
        one.wait_closed()
        two.wait_closed()
        assert daemon.wait() == DEVICE_LOST_STATUS
        assert not os.path.exists(daemon.socket_path)
        for connection in (one, two):
            connection.close()
        exporter.close()
        daemon.stop(expect=DEVICE_LOST_STATUS)


def test_lost_device_fails_what_is_in_flight() -> None:
    machine = Machine(WITHOUT_EXECUTORS)
    with machine.daemon as daemon:
        exporter = machine.exporter()
        m = [vector(exporter.alloc(4 * N)) for _ in range(4)]
        one, two = daemon.connect(), daemon.connect()
        one.call("run", square(m[0], m[1]))
        two.call("run", square(m[2], m[3]))
        with machine.control.gate("kernel"):
            ids = [one.request("run", square(m[0], m[1], stream=i)) for i in range(3)]
            other = two.request("run", square(m[2], m[3]))
            machine.wait(lambda: machine.row.waiting("kernel") >= 2)
            machine.control.fail("kernel", ILLEGAL_ADDRESS, sticky=True, pid=daemon.gpu_pid)
        one.wait_closed()
        two.wait_closed()
        for connection, msgids in ((one, ids), (two, [other])):
            for msgid in msgids:
                reply = connection.replies[msgid]
                assert reply.error is None or reply.error["code"] == "device_lost", reply.error
            connection.close()
        assert daemon.wait() == DEVICE_LOST_STATUS
        exporter.close()
        daemon.stop(expect=DEVICE_LOST_STATUS)


def test_idle_daemon_with_a_gpu_costs_nothing(machine: Machine, connection: raw.Connection, exporter: Exporter) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    connection.call("run", square(a, out))
    connection.call("trim")
    ticks = proc.cpu_ticks(machine.daemon.pid)
    assert not connection.readable(2)
    assert proc.cpu_ticks(machine.daemon.pid) - ticks <= 1
