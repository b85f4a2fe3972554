"""CUDA IPC over a stand-in driver: caching, lifetimes and faults that no healthy GPU produces on demand.

In that driver the bytes of a handle repeat after free and malloc, gates hold work where a test wants it, calls fail on
command, and calls that a correct program does not make are counted.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from gpu_machine import FIXTURES, Connect, Machine, N, only_with_the_standin, operands, register, reuse, square, values, vector
from support import memfd, raw, users
from support.cuda_exporter import Exporter, Memory
from support.raw import tensor

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


def test_one_mapping_for_all(connect: Connect, exporter: Exporter, machine: Machine) -> None:
    """Equal handle and id: one open for the process, gone with the last user."""
    a, out = operands(exporter)
    one, two, three = connect(), connect(), connect()
    before, opened = machine.row.live_ipc_mappings, machine.row.ipc_maps
    buffer = register(one, a)
    assert register(one, a) != buffer
    register(two, a)
    three.call("run", square(a, out))
    assert machine.row.ipc_maps - opened == 2
    assert machine.row.live_ipc_mappings - before == 2
    one.close()
    three.close()
    two.call("run", square(a, out))
    assert machine.row.ipc_maps - opened <= 3  # `out` was three's alone


def test_without_alloc_id_nothing_is_shared_or_kept(
    connection: raw.Connection, exporter: Exporter, machine: Machine
) -> None:
    a, out = operands(exporter)
    params = square(a, out)
    for t in (*params["in"], *params["out"]):
        del t["alloc_id"]
    before = machine.row.live_ipc_mappings
    for _ in range(3):
        connection.call("run", params)
        assert (values(out) == 9).all()
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


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


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "connections"])
def test_overlap(connect: Connect, exporter: Exporter, machine: Machine, streams: bool) -> None:
    """The kernels of two connections, or of two streams of one, are on the device at once."""
    one = connect()
    two = one if streams else connect()
    m = [vector(exporter.alloc(4 * N)) for _ in range(4)]
    with machine.control.gate("kernel"):
        first = one.request("run", square(m[0], m[1]))
        second = two.request("run", square(m[2], m[3], stream=int(streams)))
        machine.reaches("kernel", 2)
    one.reply(first).get()
    two.reply(second).get()


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


def test_staging(connection: raw.Connection, machine: Machine) -> None:
    """Shared host memory is copied there and back, and the copies are timed."""
    shared = memfd.Shared(1 << 20)
    data = shared.view(np.float32, 1 << 18)
    data[:] = 3
    buffer = connection.register(shared)
    count = 1 << 16
    views = [tensor(buffer, [count])], [tensor(buffer, [count], offset=4 * count)]
    result = connection.run("square", *views, device=machine.gpu)
    assert result["device"] == machine.gpu
    assert result["timings"]["h2d_us"] >= 0 and result["timings"]["d2h_us"] >= 0
    assert (data[count : 2 * count] == 9).all() and (data[2 * count :] == 3).all()
    connection.call("release", {"buffer": buffer})
    machine.wait(lambda: machine.row.live_host_registrations == 0)


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
