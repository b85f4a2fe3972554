"""CUDA memory of clients over a stand-in driver: how long mappings last, and what faults of client and driver do."""

from __future__ import annotations

import os

import gpu_machine as gpu
import numpy as np
import pytest
from gpu_machine import FIXTURES, Connect, Machine, N, only_with_the_standin, operands, register, reuse, square, values, vector
from support import memfd, proc, raw
from support.cuda_exporter import Exporter
from support.raw import tensor

MEMORY_POOLS_SUPPORTED = 115  # a CUdevice_attribute

pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES


# ---- lifetimes ----


def test_release_during_use_is_deferred(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, out = operands(exporter)
    before = machine.row.live_ipc_mappings
    buffers = [register(connection, m) for m in (a, out)]
    with machine.control.gate("kernel"):
        running = connection.request("run", {"op": "square", "in": [tensor(buffers[0], [N])], "out": [tensor(buffers[1], [N])]})
        machine.reaches("kernel")
        for buffer in buffers:
            connection.call("release", {"buffer": buffer})
        assert connection.alive()
        assert machine.row.live_ipc_mappings - before == 2
    connection.reply(running).get()
    assert (values(out) == 9).all()
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


@pytest.mark.parametrize("dies", [True, False])
def test_memory_goes_during_a_kernel(connection: raw.Connection, machine: Machine, dies: bool) -> None:
    """Its process dies, or frees it. An open mapping keeps the memory alive: the job ends, and later ones, too."""
    exporter = machine.exporter()
    a, out = operands(exporter)
    connection.call("run", square(a, out))
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out))
        machine.reaches("kernel")
        exporter.kill() if dies else a.free()
    connection.reply(running).get()
    if dies:
        connection.call("run", square(a, out))
    else:
        assert (values(out) == 9).all()
        exporter.close()
    assert machine.daemon.running()


def test_trim(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, out = operands(exporter)
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


def test_trim_spares_other_connections(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    one, two = connect(), connect()
    a, out = operands(exporter)
    one.call("run", square(a, out))
    opened = machine.row.ipc_maps
    assert two.call("trim")["mappings"] == 0
    one.call("run", square(a, out))
    assert machine.row.ipc_maps == opened


@pytest.mark.parametrize("used_anew", [False, True])
def test_closed_reference_becomes_stale(connection: raw.Connection, exporter: Exporter, used_anew: bool) -> None:
    """Closed while idle, then its memory is freed, and the bytes of its handle may be used anew: the old reference is not
    reopened."""
    a, out = operands(exporter)
    buffer = register(connection, a)
    connection.call("trim")
    if used_anew:
        new = vector(reuse(exporter, a), np.full(N, 5, np.float32))
        connection.call("run", square(new, out))
        assert (values(out) == 25).all()
    else:
        a.free()
    error = connection.run_error("square", [tensor(buffer, [N])], [out.inline([N])])
    assert error.code in (("stale_buffer",) if used_anew else ("stale_buffer", "invalid_handle")), error


def test_idle_mappings_close_by_themselves() -> None:
    machine = Machine("[limits]\nidle_close_s = 2\n")
    with machine.daemon, machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        assert machine.row.live_ipc_mappings == 2
        machine.wait(lambda: machine.row.live_ipc_mappings == 0)
        connection.call("run", square(a, out))
        assert (values(out) == 9).all()
        assert not machine.control.misuses()


def test_inline_references_are_bounded() -> None:
    machine = Machine()
    with machine.daemon, machine.daemon.connect() as connection, machine.operands() as (a, _):
        most = connection.call("hello")["limits"]["inline_mappings"]
        for memory in [a, *(vector(a.exporter.alloc(4 * N)) for _ in range(most + 5))]:
            connection.call("run", square(memory, memory))
        machine.wait(lambda: machine.row.live_ipc_mappings <= most)
        connection.call("run", square(a, a))
        assert (values(a) == 81).all()


# ---- deadlines and cancels of kernels that run: a GPU does not stop them, so a gate holds them. See test_cancel.py. ----


def test_deadline_of_a_running_kernel(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """It is answered while the kernel runs on: order, memory and barriers wait for the kernel."""
    (a, out), more = operands(exporter), exporter.alloc(4 * N)
    mapped = machine.row.live_ipc_mappings
    connection.call("run", square(a, out))  # from now on nothing is opened before a run goes to the device
    with machine.control.gate("kernel"):
        late = connection.request("run", square(a, out, deadline_ms=5))
        error = connection.reply_error(late)
        assert (error.code, error.detail) == ("deadline_exceeded", {"ended": False})
        assert connection.call("cancel", {"msgid": late}) == {"cancelled": False}, "nobody has that msgid any more"
        assert connection.reply(connection.request("ping", msgid=late)).get() == {}
        behind = connection.request("run", square(out, more))
        for memory in (a, out):
            connection.call("release", {"ipc": memory.handle})
        trim = connection.request("trim")
        assert connection.alive()
        assert not {behind, trim} & set(connection.replies), "the kernel has not ended"
        assert machine.row.live_ipc_mappings - mapped >= 2, "its memory was closed"
    connection.reply(behind).get()
    connection.reply(trim).get()
    assert (values(more) == 81).all()


def test_a_connection_that_ends_behind_a_deadline(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    a, out = operands(exporter)
    one, before = connect(), machine.row.live_ipc_mappings
    one.call("run", square(a, out))
    with machine.control.gate("kernel"):
        assert one.reply_error(one.request("run", square(a, out, deadline_ms=5))).detail == {"ended": False}
        one.close()
        assert connect().alive()
        assert machine.row.live_ipc_mappings > before
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


def test_answered_work_keeps_its_place(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    """Whoever stacks up work behind deadlines is not read once `limits.inflight` of it is there."""
    a, out = operands(exporter)
    one, watcher = connect(), connect()
    limit = one.call("hello")["limits"]["inflight"]
    one.call("run", square(a, out))
    with machine.control.gate("kernel"):
        first = one.request("run", square(a, out, deadline_ms=1))
        assert one.reply_error(first).detail == {"ended": False}
        asked = [one.request("run", square(a, out)) for _ in range(limit + 10)]
        machine.wait(lambda: max(c["inflight"] for c in watcher.call("clients")["clients"]) == limit)
    for msgid in asked:
        one.reply(msgid).get()


def test_cancel_of_a_running_kernel(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """The kernel runs to its end, and the reply, which waits for that, is what cancel said that it would be."""
    a, out = operands(exporter)
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out))
        machine.reaches("kernel")
        assert connection.call("cancel", {"msgid": running}) == {"cancelled": True}
        assert connection.call("cancel", {"msgid": running}) == {"cancelled": True}
        assert running not in connection.replies
    error = connection.reply_error(running)
    assert (error.code, error.detail) == ("cancelled", {"ended": True})


def test_a_deadline_behind_a_cancel(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """The reply comes at the deadline, and is the one that cancel promised."""
    a, out = operands(exporter)
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out, deadline_ms=2000))
        machine.reaches("kernel")
        assert connection.call("cancel", {"msgid": running}) == {"cancelled": True}
        error = connection.reply_error(running)
        assert (error.code, error.detail) == ("cancelled", {"ended": False})
    connection.call("trim")


# ---- faults ----


def test_launch_error_is_the_requesters(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    one, two = connect(), connect()
    a, out = operands(exporter)
    one.call("run", square(a, out))
    fault = machine.control.fail("cuLaunchKernel", gpu.LAUNCH_OUT_OF_RESOURCES, pid=machine.daemon.gpu_pid)
    error = one.error("run", square(a, out))
    assert fault.fired and error.code == "device_error"
    assert "RESOURCES" in str(error.detail["driver"]).upper(), error.detail
    two.call("run", square(a, out))
    one.call("run", square(a, out))
    assert (values(out) == 9).all()


def test_out_of_device_memory(connection: raw.Connection, machine: Machine) -> None:
    fault = machine.control.fail("cuMemCreate", gpu.OUT_OF_MEMORY, pid=machine.daemon.gpu_pid)
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
    with machine.daemon as daemon, daemon.connect() as connection, machine.operands() as (a, out):
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
            fault = machine.control.fail("cuMemHostUnregister", gpu.UNKNOWN, pid=daemon.gpu_pid)
            shared.view(np.float32, N)[:] = value
            buffer = connection.register(shared)
            view = tensor(buffer, [N])
            connection.run("square", [view], [{**view, "offset": 4 * N}], device=machine.gpu)
            assert (shared.view(np.float32, N, 4 * N) == value * value).all()
            connection.call("release", {"buffer": buffer})
            machine.wait(lambda fault=fault: fault.fired)
            proc.eventually(lambda: not proc.maps(daemon.pid), "the memory itself is let go of")
        assert machine.row.live_host_registrations == 4
        proc.eventually(lambda: "event=unregister_failed" in daemon.log(), "the daemon says so")


def test_a_handle_that_the_driver_does_not_close() -> None:
    """Other memory may get the same handle, and must not be taken for what is still open."""
    machine = Machine()
    with machine.daemon as daemon, daemon.connect() as connection:
        exporter = machine.exporter()
        memory = vector(exporter.alloc(4 * N))
        buffer = register(connection, memory)
        connection.run("square", [tensor(buffer, [N])], [tensor(buffer, [N])])
        before = daemon.gpu_pid
        machine.control.fail("cuIpcCloseMemHandle", gpu.UNKNOWN, pid=before)
        connection.call("release", {"buffer": buffer})
        proc.eventually(lambda: daemon.gpu_pid not in (before, daemon.pid), "another executor")
        connection.run("square", [memory.inline([N])], [memory.inline([N])])
        assert (values(memory) == 81).all()
        exporter.close()


@pytest.mark.parametrize("how", ["kernel", "cuLaunchKernel", "cuIpcOpenMemHandle"])
def test_lost_device(how: str) -> None:
    """A broken context cannot be mended: what may have run fails, and all else goes on in another executor."""
    machine = Machine()
    with machine.daemon as daemon:
        exporter = machine.exporter()
        (a, out), b = operands(exporter), exporter.alloc(4 * N)
        one, two = daemon.connect(), daemon.connect()
        one.call("run", square(a, a))
        two.call("run", square(a, out))
        with machine.control.gate("kernel"):
            asked = {one: [one.request("run", square(a, out, stream=i)) for i in range(3)], two: [two.request("run", square(a, a))]}
            machine.reaches("kernel", 2)
            machine.control.fail(how, gpu.ILLEGAL_ADDRESS, sticky=True, pid=daemon.gpu_pid)
            new = one.request("run", square(b, b, stream=4))
        for connection, msgids in asked.items():
            for msgid in msgids:
                reply = connection.reply(msgid)
                assert reply.error is None or reply.error["code"] == "device_lost", reply.error
        reply = one.reply(new)
        assert reply.error is None or reply.error["code"] == "device_lost", reply.error
        one.call("run", square(a, out))
        for connection in asked:
            connection.close()
        exporter.close()
