"""CUDA IPC over a stand-in driver: caching, lifetimes and faults that no healthy GPU produces on demand.

In that driver the bytes of a handle repeat after free and malloc, gates hold work where a test wants it, calls fail on
command, and calls that a correct program does not make are counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from gpu_machine import (
    FIXTURES,
    Machine,
    N,
    only_with_the_standin,
    register,
    reuse,
    square,
    values,
    vector,
)
from support import memfd, raw
from support.cuda_exporter import Exporter
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
    assert result["timings"]["gpu_us"] >= 0 and "host_us" not in result["timings"]
    assert not set(result["timings"]) & {"h2d_us", "d2h_us"}


def test_inline_references_are_cached(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """The first use opens, the rest open nothing, and say so by having no map_us."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    opened = machine.row.ipc_maps
    first = connection.call("run", square(a, out))
    assert first["timings"]["map_us"] > 0
    for _ in range(20):
        assert "map_us" not in connection.call("run", square(a, out))["timings"]
    assert (values(out) == 9).all()
    assert machine.row.ipc_maps - opened == 2
    connection.call("release", {"ipc": a.handle})
    assert connection.error("release", {"ipc": a.handle}).code == "unknown_buffer"


def test_timing_false(connection: raw.Connection, exporter: Exporter) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    timings = connection.call("run", square(a, out, timing=False))["timings"]
    assert "gpu_us" not in timings and timings["total_us"] > 0


def test_some_untimed_runs_are_timed_for_the_statistics(
    connection: raw.Connection, exporter: Exporter, machine: Machine
) -> None:
    """One in 61, in whose replies nothing shows."""
    a, out = vector(exporter.alloc(4 * 99)), exporter.alloc(4 * 99)
    params = {"op": "square", "in": [a.inline([99])], "out": [out.inline([99])], "timing": False}
    for _ in range(2 * 61):
        assert not {"gpu_us", "samples"} & set(connection.call("run", params)["timings"])
    (row,) = [r for r in connection.call("stats")["ops"] if r["shapes"] == [[99], [99]]]
    assert row["count"] == 2 * 61 and row["exec_us"]["p50"] > 0
    timed = sum(r["latency"]["device"]["count"] for r in connection.call("clients")["clients"])
    assert timed == 2


def test_one_mapping_for_all(connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine) -> None:
    """Equal handle and id: one open for the process, gone with the last user."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
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
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    params = {k: v for k, v in square(a, out).items()}
    for t in (*params["in"], *params["out"]):
        del t["alloc_id"]
    before = machine.row.live_ipc_mappings
    for _ in range(3):
        connection.call("run", params)
        assert (values(out) == 9).all()
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


# ---- handle bytes that repeat ----


def test_stale_inline(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """A new id makes the old reference stale and is opened only after the old mapping was closed: while it is open, the
    driver would hand back the old memory."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    connection.call("run", square(a, out))
    hits = machine.row.ipc_hits
    new = vector(reuse(exporter, a), np.full(N, 5, np.float32))
    connection.call("run", square(new, out))
    assert (values(out) == 25).all(), "computed on the freed memory"
    assert machine.row.ipc_hits == hits
    error = connection.error("run", square(a, out))
    assert error.code == "stale_buffer" and error.key.startswith("in[0]")


def test_stale_registered(connection: raw.Connection, exporter: Exporter) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    old = tensor(register(connection, a), [N])
    connection.run("square", [old], [out.inline([N])])
    new = vector(reuse(exporter, a), np.full(N, 5, np.float32))
    fresh = tensor(register(connection, new), [N])
    connection.run("square", [fresh], [out.inline([N])])
    assert (values(out) == 25).all()
    assert connection.run_error("square", [old], [out.inline([N])]).code == "stale_buffer"
    connection.call("release", {"buffer": old["buffer"]})
    connection.run("square", [fresh], [out.inline([N])])


def test_stale_on_another_connection(connect: Callable[[], raw.Connection], exporter: Exporter) -> None:
    one, two = connect(), connect()
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    old = tensor(register(one, a), [N])
    one.run("square", [old], [out.inline([N])])
    new = vector(reuse(exporter, a), np.full(N, 5, np.float32))
    two.call("run", square(new, out))
    assert (values(out) == 25).all()
    assert one.run_error("square", [old], [out.inline([N])]).code == "stale_buffer"
    assert one.alive()


def test_stale_many_times(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """An allocator that frees and allocates in a loop, always at the same place."""
    out = exporter.alloc(4 * N)
    a = exporter.alloc(4 * N)
    before = machine.row.live_ipc_mappings
    for i in range(30):
        vector(a, np.full(N, i, np.float32))
        connection.call("run", square(a, out))
        assert (values(out) == i * i).all(), i
        a = reuse(exporter, a)
    assert machine.row.live_ipc_mappings <= before + 2, "stale mappings pile up"


def test_stale_while_a_job_uses_the_old(
    connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine
) -> None:
    """The old mapping is drained before the new one is opened; the old job ends as if nothing had happened."""
    one, two = connect(), connect()
    a, out, out2 = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N), exporter.alloc(4 * N)
    one.call("run", square(a, out))
    with machine.control.gate("kernel"):
        running = one.request("run", square(a, out))
        machine.wait(lambda: machine.row.waiting("kernel") == 1)
        new = vector(reuse(exporter, a), np.full(N, 5, np.float32))
        waiting = two.request("run", square(new, out2))
        assert two.alive() and not two.replies
    one.reply(running).get()
    two.reply(waiting).get()
    assert (values(out2) == 25).all()


def test_foreign_user_cannot_make_stale(machine: Machine, exporter: Exporter, connection: raw.Connection) -> None:
    """The same bytes with another id from another user's process are refused, and the owner's reference lives."""
    if os.geteuid():
        pytest.skip("needs to change its user")
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    connection.call("run", square(a, out))
    os.chmod(machine.daemon.folder, 0o755)
    os.chmod(machine.daemon.socket_path, 0o666)
    report, send = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setresuid(65534, 65534, 65534)
            with machine.daemon.connect() as stranger:
                params = square(a, out)
                params["in"][0]["alloc_id"] += 1000
                os.write(send, stranger.error("run", params).code.encode())
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(pid, 0)
    assert os.read(report, 100).decode() == "permission_denied"
    os.close(report)
    connection.call("run", square(a, out))


# ---- references that are refused ----


def test_bogus_handle(connection: raw.Connection, machine: Machine) -> None:
    params = {"kind": "cuda_ipc", "size": 4096, "handle": os.urandom(64), "alloc_id": 5, "device": machine.gpu}
    error = connection.error("register", params)
    assert error.code == "invalid_handle", error
    # A second try is not answered from a cache of something half-open.
    assert connection.error("register", params).code == "invalid_handle"


def test_bogus_handle_inline(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    out = exporter.alloc(4 * N)
    params = square(out, out)
    params["in"][0] = {**params["in"][0], "ipc": os.urandom(64), "alloc_id": 77}
    error = connection.error("run", params)
    assert error.code == "invalid_handle", error
    assert connection.alive()


def test_freed_handle(connection: raw.Connection, exporter: Exporter) -> None:
    a = exporter.alloc(4 * N)
    a.free()
    assert connection.error("register", a.register_params()).code == "invalid_handle"


def test_unknown_gpu(connection: raw.Connection, exporter: Exporter) -> None:
    a = exporter.alloc(4 * N)
    params = a.register_params(device="GPU-00000000-1111-2222-3333-444444444444")
    assert connection.error("register", params).code == "unknown_device"


def test_host_has_no_cuda_memory(connection: raw.Connection, exporter: Exporter) -> None:
    a = exporter.alloc(4 * N)
    assert connection.error("register", a.register_params(device="host")).code == "unsupported"


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


def test_outside_by_one_element(connection: raw.Connection, exporter: Exporter) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    params = square(a, out)
    params["in"][0]["offset"] = 4
    assert connection.error("run", params).code == "out_of_bounds"


def test_read_only_reference(connection: raw.Connection, exporter: Exporter) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    buffer = register(connection, out, access="r")
    error = connection.run_error("square", [a.inline([N])], [tensor(buffer, [N])])
    assert error.code == "read_only"
    connection.run("square", [tensor(buffer, [N])], [a.inline([N])])


def test_handle_without_what_belongs_to_it(connection: raw.Connection, exporter: Exporter) -> None:
    out = exporter.alloc(4 * N)
    for key in ("size", "device"):
        params = square(out, out)
        del params["in"][0][key]
        error = connection.error("run", params)
        assert (error.code, error.key) == ("missing_key", f"in[0].{key}"), error


def test_memory_of_the_daemon_itself(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """What alloc made can be registered again by its descriptor, not as foreign VMM memory."""
    reply = connection.reply(connection.request("alloc", {"size": 4096, "device": machine.gpu}))
    result = reply.get()
    assert result["kind"] == "cuda_vmm" and result["size"] >= 4096
    again = {"kind": "cuda_vmm", "size": 4096, "fd": 0, "device": machine.gpu}
    assert connection.call("register", again, reply.fds)["buffer"] != result["buffer"]
    fd = memfd.make(4096)
    assert connection.error("register", again, [fd]).code == "invalid_handle"
    os.close(fd)
    for fd in reply.fds:
        os.close(fd)
    reply.fds.clear()


def test_alloc_is_zeroed_device_memory(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    reply = connection.reply(connection.request("alloc", {"size": 8 * N, "device": machine.gpu}))
    result, (fd,) = reply.get(), reply.fds
    size = result["size"]
    assert exporter.vmm_read(fd, size) == bytes(size)
    a = vector(exporter.alloc(4 * N))
    out = tensor(result["buffer"], [N], offset=4 * N)
    connection.run("square", [a.inline([N])], [out])
    content = np.frombuffer(exporter.vmm_read(fd, size), np.float32)
    assert (content[N : 2 * N] == 9).all() and not content[:N].any()
    os.close(fd)
    reply.fds.clear()


# ---- concurrency ----


def test_connections_overlap(connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine) -> None:
    """Two connections' kernels are on the device at once."""
    one, two = connect(), connect()
    m = [vector(exporter.alloc(4 * N)) for _ in range(4)]
    with machine.control.gate("kernel"):
        ids = one.request("run", square(m[0], m[1])), two.request("run", square(m[2], m[3]))
        machine.wait(lambda: machine.row.waiting("kernel") == 2)
    one.reply(ids[0]).get()
    two.reply(ids[1]).get()


def test_streams_overlap(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    m = [vector(exporter.alloc(4 * N)) for _ in range(4)]
    with machine.control.gate("kernel"):
        ids = [connection.request("run", square(m[2 * i], m[2 * i + 1], stream=i)) for i in range(2)]
        machine.wait(lambda: machine.row.waiting("kernel") == 2)
    for msgid in ids:
        connection.reply(msgid).get()


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
        sent = [
            connection.request(
                "run_program",
                {
                    "program": program,
                    "bind": [{"index": t, "buffer": ids[i][t], "offset": 4 * N * (i % 2)} for t in range(2)],
                },
            )
            for i in range(len(pairs))
        ]
        assert connection.alive()  # the daemon has taken all of them
    for msgid in sent:
        connection.reply(msgid).get()
    for i, (_, out) in enumerate(pairs):
        assert (values(out, offset=4 * N * (i % 2)) == (2 + i) ** 2 + 2 + i).all()


def test_one_stream_does_not_overlap(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    m = [vector(exporter.alloc(4 * N)) for _ in range(3)]
    with machine.control.gate("kernel") as gate:
        first = connection.request("run", square(m[0], m[1]))
        second = connection.request("run", square(m[1], m[2]))
        machine.wait(lambda: machine.row.waiting("kernel") == 1)
        gate.let(1)
        connection.reply(first).get()
        assert machine.row.waiting("kernel") <= 1
    connection.reply(second).get()
    assert (values(m[2]) == 81).all()


def test_a_slow_open_stops_nobody_else(
    connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine
) -> None:
    """The driver takes its time to open a handle: other connections, and pings of this one, go on."""
    one, two = connect(), connect()
    a, out, b = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N), vector(exporter.alloc(4 * N))
    two.call("run", square(b, b))
    with machine.control.gate("ipc_open"):
        opening = one.request("run", square(a, out))
        machine.wait(lambda: machine.row.waiting("ipc_open") >= 1)
        assert one.alive() and two.alive()
        two.call("run", square(b, b))
    one.reply(opening).get()
    assert (values(out) == 9).all() and (values(b) == 81).all()


def test_order_behind_a_slow_open(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """A run whose memory is still being opened is not overtaken by a later one of its stream."""
    a, b, c = vector(exporter.alloc(4 * N)), vector(exporter.alloc(4 * N)), vector(exporter.alloc(4 * N))
    connection.call("run", square(b, c))
    with machine.control.gate("ipc_open"):
        first = connection.request("run", square(a, b))
        second = connection.request("run", square(b, c))
        machine.wait(lambda: machine.row.waiting("ipc_open") >= 1)
        assert connection.alive() and second not in connection.replies
    connection.reply(first).get()
    connection.reply(second).get()
    assert (values(c) == 81).all()


def test_killed_while_a_handle_is_opened(machine: Machine, exporter: Exporter) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    before = machine.row.live_ipc_mappings
    with machine.control.gate("ipc_open"):
        connection = machine.daemon.connect()
        connection.request("run", square(a, out))
        connection.request("register", a.register_params())
        machine.wait(lambda: machine.row.waiting("ipc_open") >= 1)
        connection.close()
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


def test_cancel_between_repeats(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out, repeat=10000))
        machine.wait(lambda: machine.row.waiting("kernel") >= 1)
        assert connection.call("cancel", {"msgid": running})["cancelled"] is True
        before = machine.row.passed("kernel")
    assert connection.reply_error(running).code == "cancelled"
    assert machine.row.passed("kernel") - before < 1000


# ---- memfds on the GPU ----


def test_staging(connection: raw.Connection, machine: Machine) -> None:
    """Shared host memory is copied there and back, and the copies are timed."""
    shared = memfd.Shared(1 << 20)
    data = shared.view(np.float32, 1 << 18)
    data[:] = 3
    buffer = connection.register(shared)
    count = 1 << 16
    result = connection.run(
        "square", [tensor(buffer, [count])], [tensor(buffer, [count], offset=4 * count)], device=machine.gpu
    )
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


def test_host_device_beside_a_gpu(connection: raw.Connection, machine: Machine) -> None:
    shared = memfd.Shared(8 * N)
    shared.view(np.float32, N)[:] = 3
    buffer = connection.register(shared)
    result = connection.run("square", [tensor(buffer, [N])], [tensor(buffer, [N], offset=4 * N)], device="host")
    assert result["device"] == "host" and "host_us" in result["timings"]
    assert (shared.view(np.float32, N, 4 * N) == 9).all()
