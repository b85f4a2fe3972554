"""deadline_ms and cancel of kernels that run: a GPU does not stop them, so a gate holds them here. See test_cancel.py."""

from __future__ import annotations

from collections.abc import Callable

from gpu_machine import FIXTURES, Machine, N, only_with_the_standin, square, values, vector
from support import raw
from support.cuda_exporter import Exporter

pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES


def test_deadline_of_a_running_kernel(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """It is answered while the kernel runs on: order, memory and barriers wait for the kernel."""
    a, out, more = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N), exporter.alloc(4 * N)
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


def test_a_connection_that_ends_behind_a_deadline(
    connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine
) -> None:
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    one, before = connect(), machine.row.live_ipc_mappings
    one.call("run", square(a, out))
    with machine.control.gate("kernel"):
        assert one.reply_error(one.request("run", square(a, out, deadline_ms=5))).detail == {"ended": False}
        one.close()
        assert connect().alive()
        assert machine.row.live_ipc_mappings > before
    machine.wait(lambda: machine.row.live_ipc_mappings == before)


def test_answered_work_keeps_its_place(connect: Callable[[], raw.Connection], exporter: Exporter, machine: Machine) -> None:
    """Whoever stacks up work behind deadlines is not read once `limits.inflight` of it is there."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
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
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out))
        machine.wait(lambda: machine.row.waiting("kernel") >= 1)
        assert connection.call("cancel", {"msgid": running}) == {"cancelled": True}
        assert connection.call("cancel", {"msgid": running}) == {"cancelled": True}
        assert running not in connection.replies
    error = connection.reply_error(running)
    assert (error.code, error.detail) == ("cancelled", {"ended": True})


def test_a_deadline_behind_a_cancel(connection: raw.Connection, exporter: Exporter, machine: Machine) -> None:
    """The reply comes at the deadline, and is the one that cancel promised."""
    a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    with machine.control.gate("kernel"):
        running = connection.request("run", square(a, out, deadline_ms=2000))
        machine.wait(lambda: machine.row.waiting("kernel") >= 1)
        assert connection.call("cancel", {"msgid": running}) == {"cancelled": True}
        error = connection.reply_error(running)
        assert (error.code, error.detail) == ("cancelled", {"ended": False})
    connection.call("trim")
