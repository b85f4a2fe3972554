"""CUDA memory of clients over a stand-in driver: caching, lifetimes and faults that no healthy GPU produces on demand.

In that driver the bytes of a handle repeat after free and malloc, gates hold work where a test wants it, calls fail on
command, and calls that a correct program does not make are counted.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from domains import Plain
from gpu_machine import (
    FIXTURES,
    LAUNCH_OUT_OF_RESOURCES,
    UNKNOWN,
    Connect,
    Machine,
    N,
    only_with_the_standin,
    operands,
    register,
    reuse,
    square,
    values,
    vector,
)
from support import memfd, proc, raw, users
from support.cuda_exporter import Exporter, Memory
from support.raw import tensor

MEMORY_POOLS_SUPPORTED = 115  # a CUdevice_attribute
pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES


# ---- results ----


def test_registered(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, b, out = (exporter.alloc(4 * N + 64) for _ in range(3))
    vector(a), vector(b)
    views = [tensor(register(connection, m), [N], offset=64) for m in (a, b, out)]
    result = connection.run("add", views[:2], views[2:])
    assert (values(out, N, 64) == 6).all()
    assert result["device"] == machine.gpu
    assert result["timings"]["gpu_us"] >= 0
    assert not set(result["timings"]) & {"host_us", "h2d_us", "d2h_us"}


def test_inline_references_are_cached(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """The first use opens, the rest open nothing, and say so by having no map_us."""
    a, out = operands(exporter)
    opened = machine.row.ipc_maps
    first = connection.call("run", square(a, out))
    assert first["timings"]["map_us"] > 0
    for _ in range(20):
        assert "map_us" not in connection.call("run", square(a, out))["timings"]
    assert (values(out) == 9).all()
    assert machine.row.ipc_maps - opened == 2
    connection.call("release", {"ipc": a.handle})
    assert connection.error("release", {"ipc": a.handle}).code == "unknown_buffer"


def test_some_untimed_runs_are_timed_for_the_statistics(connection: raw.Connection, exporter: Exporter) -> None:
    """One in 61, in whose replies nothing shows."""
    a, out = vector(exporter.alloc(4 * 99)), exporter.alloc(4 * 99)
    params = {"op": "square", "in": [a.inline([99])], "out": [out.inline([99])], "timing": False}
    for _ in range(2 * 61):
        timings = connection.call("run", params)["timings"]
        assert not {"gpu_us", "samples"} & set(timings) and timings["total_us"] > 0
    (row,) = [r for r in connection.call("stats")["ops"] if r["shapes"] == [[99], [99]]]
    assert row["count"] == 2 * 61 and row["exec_us"]["p50"] > 0
    timed = sum(r["latency"]["device"]["count"] for r in connection.call("clients")["clients"])
    assert timed == 2


# ---- handle bytes that repeat ----


def fives(exporter: Exporter, old: Memory) -> Memory:
    """Other memory under the same handle bytes."""
    return vector(reuse(exporter, old), np.full(N, 5, np.float32))


def test_stale_inline(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """A new id makes the old reference stale and is opened only after the old mapping was closed: while it is open, the
    driver would hand back the old memory."""
    a, out = operands(exporter)
    connection.call("run", square(a, out))
    hits = machine.row.ipc_hits
    new = fives(exporter, a)
    connection.call("run", square(new, out))
    assert (values(out) == 25).all(), "computed on the freed memory"
    assert machine.row.ipc_hits == hits
    error = connection.error("run", square(a, out))
    assert error.code == "stale_buffer" and error.key.startswith("in[0]")


@pytest.mark.parametrize("inline", [False, True])
def test_stale_registered(connect: Connect, exporter: Exporter, inline: bool) -> None:
    """Another connection has the new memory, registered or inline."""
    one, two = connect(), connect()
    a, out = operands(exporter)
    old = tensor(register(one, a), [N])
    one.run("square", [old], [out.inline([N])])
    new = fives(exporter, a)
    fresh = new.inline([N]) if inline else tensor(register(two, new), [N])
    two.run("square", [fresh], [out.inline([N])])
    assert (values(out) == 25).all()
    assert one.run_error("square", [old], [out.inline([N])]).code == "stale_buffer"
    one.call("release", {"buffer": old["buffer"]})
    two.run("square", [fresh], [out.inline([N])])
    assert one.alive()


def test_stale_while_a_job_uses_the_old(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    """The old mapping is drained before the new one is opened; the old job ends as if nothing had happened."""
    one, two = connect(), connect()
    a, out = operands(exporter)
    out2 = exporter.alloc(4 * N)
    one.call("run", square(a, out))
    with machine.control.gate("kernel"):
        running = one.request("run", square(a, out))
        machine.reaches("kernel")
        new = fives(exporter, a)
        waiting = two.request("run", square(new, out2))
        assert two.alive() and not two.replies
    one.reply(running).get()
    two.reply(waiting).get()
    assert (values(out2) == 25).all()


@users.as_root
def test_foreign_user_cannot_make_stale(machine: Machine, exporter: Exporter, connection: raw.Connection) -> None:
    """The same bytes with another id from another user's process are refused, and the owner's reference lives."""
    a, out = operands(exporter)
    connection.call("run", square(a, out))
    os.chmod(machine.daemon.socket_path, 0o666)
    params = square(a, out)
    params["in"][0]["alloc_id"] += 1000
    with users.connect(machine.daemon, users.STRANGER) as stranger:
        assert stranger.error("run", params).code == "permission_denied"
    connection.call("run", square(a, out))


# ---- references that are refused ----


def test_bogus_handles(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    params = {"kind": "cuda_ipc", "size": 4096, "handle": os.urandom(64), "alloc_id": 5, "device": machine.gpu}
    for _ in range(2):  # a second try is not answered from a cache of something half-open
        assert connection.error("register", params).code == "invalid_handle"
    out = exporter.alloc(4 * N)
    run = square(out, out)
    run["in"][0] = {**run["in"][0], "ipc": os.urandom(64), "alloc_id": 77}
    assert connection.error("run", run).code == "invalid_handle"
    freed = exporter.alloc(4 * N)
    freed.free()
    assert connection.error("register", freed.register_params()).code == "invalid_handle"


@pytest.mark.parametrize(
    ("device", "code"), [("GPU-00000000-1111-2222-3333-444444444444", "unknown_device"), ("host", "unsupported")]
)
def test_devices_that_have_no_such_memory(connection: raw.Connection, exporter: Exporter, device: str, code: str) -> None:
    a = exporter.alloc(4 * N)
    assert connection.error("register", a.register_params(device=device)).code == code


def test_smaller_than_declared(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """The driver's true size counts, and the mapping that was opened to find it is not left open."""
    a = exporter.alloc(4 * N)
    before = machine.row.live_ipc_mappings
    _, size = exporter.ask("address_range", a.address)
    error = connection.error("register", a.register_params(size=size + 1))
    assert error.code == "out_of_bounds", error
    assert error.detail["needed"] == size + 1 and error.detail["size"] == size
    machine.wait(lambda: machine.row.live_ipc_mappings == before)
    assert register(connection, a)


def test_bad_runs(connection: raw.Connection, exporter: Exporter) -> None:
    """Outside by one element, an output that is read only, a handle without what belongs to it."""
    a, out = operands(exporter)

    def refused(**change: Any) -> raw.RpcError:
        params = square(a, out)
        params["in"][0] = {k: v for k, v in {**params["in"][0], **change}.items() if v is not None}
        return connection.error("run", params)

    assert refused(offset=4).code == "out_of_bounds"
    for key in ("size", "device"):
        error = refused(**{key: None})
        assert (error.code, error.key) == ("missing_key", f"in[0].{key}"), error
    read_only = tensor(register(connection, out, access="r"), [N])
    assert connection.run_error("square", [a.inline([N])], [read_only]).code == "read_only"
    connection.run("square", [read_only], [a.inline([N])])


def test_memory_of_the_daemon_itself(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """It is zeroed. What alloc made can be registered again by its descriptor, not as foreign VMM memory."""
    reply = connection.reply(connection.request("alloc", {"size": 8 * N, "device": machine.gpu}))
    result, (fd,) = reply.get(), reply.fds
    size = result["size"]
    assert result["kind"] == "cuda_vmm" and size >= 8 * N
    assert exporter.vmm_read(fd, size) == bytes(size)
    a = vector(exporter.alloc(4 * N))
    connection.run("square", [a.inline([N])], [tensor(result["buffer"], [N], offset=4 * N)])
    content = np.frombuffer(exporter.vmm_read(fd, size), np.float32)
    assert (content[N : 2 * N] == 9).all() and not content[:N].any()

    again = {"kind": "cuda_vmm", "size": 4096, "fd": 0, "device": machine.gpu}
    other = connection.call("register", again, [fd])["buffer"]
    error = connection.run_error("square", [tensor(result["buffer"], [16])], [tensor(other, [16], offset=4)])
    assert other != result["buffer"] and error.code == "overlap"
    os.close(fd)
    reply.fds.clear()
    foreign = memfd.make(4096)
    assert connection.error("register", again, [foreign]).code == "invalid_handle"
    os.close(foreign)


# ---- concurrency ----


def test_runs_of_one_program_on_other_memory_overlap(
    connection: raw.Connection, exporter: Exporter, machine: Machine
) -> None:
    """Each run has its own memory and offsets, also while earlier runs of the program wait for the GPU."""
    pairs = [(vector(exporter.alloc(8 * N), np.full(2 * N, 2 + i, np.float32)), exporter.alloc(8 * N)) for i in range(4)]
    ids = [[register(connection, memory) for memory in pair] for pair in pairs]
    ops = [{"op": "square", "in": [0], "out": [1]}, {"op": "add", "in": [0, 1], "out": [1]}]
    tensors = [tensor(buffer, [N]) for buffer in ids[0]]
    program = connection.call("program", {"tensors": tensors, "ops": ops})["program"]
    with machine.control.gate("kernel"):
        sent = []
        for i in range(len(pairs)):
            bind = [{"index": t, "buffer": ids[i][t], "offset": 4 * N * (i % 2)} for t in range(2)]
            sent.append(connection.request("run_program", {"program": program, "bind": bind}))
        assert connection.alive()  # the daemon has taken all of them
    for msgid in sent:
        connection.reply(msgid).get()
    for i, (_, out) in enumerate(pairs):
        assert (values(out, offset=4 * N * (i % 2)) == (2 + i) ** 2 + 2 + i).all()


def test_a_slow_open_stops_nobody_else(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    """The driver takes its time to open a handle: other connections, and pings of this one, go on."""
    one, two = connect(), connect()
    a, out, b = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N), vector(exporter.alloc(4 * N))
    two.call("run", square(b, b))
    with machine.control.gate("ipc_open"):
        opening = one.request("run", square(a, out))
        machine.reaches("ipc_open")
        assert one.alive() and two.alive()
        two.call("run", square(b, b))
    one.reply(opening).get()
    assert (values(out) == 9).all() and (values(b) == 81).all()


# ---- memfds on the GPU ----


def test_mixed_host_and_device_memory(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """A memfd beside GPU memory: the run goes where the GPU memory is."""
    a, shared = vector(exporter.alloc(4 * N)), memfd.Shared(4 * N)
    buffer = connection.register(shared)
    result = connection.run("square", [a.inline([N])], [tensor(buffer, [N])])
    assert result["device"] == machine.gpu
    assert (shared.view(np.float32, N) == 9).all()
    error = connection.run_error("square", [a.inline([N])], [tensor(buffer, [N])], device="host")
    assert error.code == "device_mismatch", error
    view = tensor(buffer, [N])
    result = connection.run("square", [view], [view], device="host")
    assert result["device"] == "host" and "host_us" in result["timings"]
    assert (shared.view(np.float32, N) == 81).all()


def test_the_second_copy_is_not_prepared_again(connection: raw.Connection, machine: Machine) -> None:
    host, gpu = tensor(connection.register(memfd.Shared(4 * N)), [16]), Plain(connection, machine.gpu, N)
    connection.run("copy", [host], [gpu.tensor(16)])
    registered = machine.row.live_host_registrations
    for _ in range(50):
        connection.run("copy", [host], [gpu.tensor(16)])
    assert machine.row.live_host_registrations == registered


def test_variants_of_copies_say_where_they_cannot(connection: raw.Connection, machine: Machine) -> None:
    host, gpu = tensor(connection.register(memfd.Shared(4 * N)), [16]), Plain(connection, machine.gpu, N)
    for a, out, more in (
        (gpu.tensor(16), gpu.tensor(16, 16), {}),
        (host, {**host, "offset": 64}, {"device": machine.gpu}),
        ({**host, "shape": [8], "strides": [2]}, gpu.tensor(8), {}),
    ):
        error = connection.run_error("copy", [a], [out], attrs={"variant": "transfer"}, **more)
        assert error.code == "invalid_argument" and "transfer" in str(error)
    for variant in ("transfer", "strided"):
        assert connection.run("copy", [host], [gpu.tensor(16)], attrs={"variant": variant})["variant"] == variant


def test_copies_in_a_sequence_keep_their_order(connection: raw.Connection, machine: Machine) -> None:
    shared = memfd.Shared(4 * N)
    numbers, gpu = shared.view(np.float32, 48), Plain(connection, machine.gpu, N)
    numbers[:] = np.arange(48)
    host = tensor(connection.register(shared), [16])
    steps = [("copy", 0, 1), ("square", 1, 2), ("copy", 2, 3), ("copy", 3, 1), ("square", 1, 1), ("copy", 1, 0)]
    ops = [{"op": op, "in": [a], "out": [out]} for op, a, out in steps]
    connection.call("sequence", {"tensors": [host, gpu.tensor(16), gpu.tensor(16, 16), {**host, "offset": 128}], "ops": ops})
    assert (numbers[32:] == np.arange(16) ** 2).all() and (numbers[:16] == np.arange(16) ** 4).all()


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
    fault = machine.control.fail("cuLaunchKernel", LAUNCH_OUT_OF_RESOURCES, pid=machine.daemon.gpu_pid)
    error = one.error("run", square(a, out))
    assert fault.fired and error.code == "device_error"
    assert "RESOURCES" in str(error.detail["driver"]).upper(), error.detail
    two.call("run", square(a, out))
    one.call("run", square(a, out))
    assert (values(out) == 9).all()


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
        machine.control.fail("cuIpcCloseMemHandle", UNKNOWN, pid=before)
        connection.call("release", {"buffer": buffer})
        proc.eventually(lambda: daemon.gpu_pid not in (before, daemon.pid), "another executor")
        connection.run("square", [memory.inline([N])], [memory.inline([N])])
        assert (values(memory) == 81).all()
        exporter.close()
