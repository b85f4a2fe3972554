"""Kernels of users in executors of their own, on the stand-in driver: a fault meets only its own user."""

from __future__ import annotations

import os
import signal

from domains import FIXTURES, NewClient, Start
from gpu_machine import N, only_with_the_standin, register, vector
from support import proc
from support.raw import tensor
from user_kernels import (
    OTHERS,
    compile_source,
    hostile_kernel,
    only_with_nvrtc,
)

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


def test_stray_signals(start: Start, client: NewClient) -> None:
    """The daemon, its executors, the compiler that forks and the process that it has forked."""
    machine = start()
    own = client(machine)
    own.square()
    own.own()
    (forker,) = proc.executors(machine.daemon.pid, "compile-helper")
    spare = proc.eventually(lambda: proc.executors(forker, "compile-helper"), "a process waits for the next source")
    before = machine.executors()
    assert len(before) == 2
    proc.send_stray(machine.daemon.pid, *before, forker, *spare)
    proc.send_stray(*before, forker, *spare, more=[signal.SIGHUP])
    own.square()
    own.launch_own()
    compile_source(own.connection, OTHERS, "fault_kernel")
    assert machine.executors() == before and proc.executors(machine.daemon.pid, "compile-helper") == [forker]
    log = machine.daemon.log()
    assert "level=error" not in log and "level=warning" not in log, log


def test_a_domain_of_a_connection_ends_with_it(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection")
    first, second = client(machine), client(machine)
    first.square()
    (common,) = machine.executors()
    first.own()
    one = machine.new_executor({common})
    second.own()
    two = machine.new_executor({common, one})
    assert first.fault().code == "device_fault"
    second.launch_own()
    assert two in machine.executors()
    first.launch_own()
    first.connection.close()
    second.connection.close()
    proc.eventually(lambda: machine.executors() == {common}, "nobody needs the others")


def test_the_least_recently_used_makes_room(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection", maximum=3)
    clients = [client(machine) for _ in range(3)]
    for one in clients * 2:
        one.own()
        assert len(machine.executors()) <= 3
    clients[0].launch_own()


def test_a_busy_one_makes_room(start: Start, client: NewClient) -> None:
    """An executor that is never without work does not keep its place for ever; its domain goes on later."""
    machine = start(isolate="connection", maximum=3)
    first, second = client(machine, own=True), client(machine)
    busy = hostile_kernel(first.connection, "run_for")
    count = {**first.tensors[1], "dtype": "u32"}
    sent = [first.connection.request("launch", {"kernel": busy, "args": [count, 150_000]}) for _ in range(200)]
    second.own()
    assert first.connection.call("cancel", {"msgid": sent[-1]}) == {"cancelled": True}  # it was not done before
    second.connection.close()
    for msgid in sent[:20]:
        first.connection.reply(msgid).get()


def test_an_executor_that_starts_slowly(start: Start, client: NewClient) -> None:
    """What waits for it has not begun, so it is no job that hangs."""
    machine = start(more="[server]\njob_timeout_s = 1\n")
    one = client(machine)
    one.square()
    (common,) = machine.executors()
    with machine.control.gate("init"):
        os.kill(common, signal.SIGKILL)
        msgid = one.connection.request("run", {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]]})
        assert not one.connection.readable(1.5)
    one.connection.reply(msgid).get()


def test_a_deadline_while_memory_is_opened(start: Start, client: NewClient) -> None:
    """The driver does not answer: the executor ends."""
    machine = start()
    stranger, one = client(machine), client(machine)
    stranger.square()
    (common,) = machine.executors()
    one.own()
    domain = machine.new_executor({common})
    more = tensor(register(one.connection, vector(one.exporter.alloc(4 * N))), [N])
    with machine.control.gate("ipc_open", domain):
        launch = {"kernel": one.custom, "args": [one.tensors[1], more, N], "deadline_ms": 50}
        error = one.connection.error("launch", launch)
        assert error.code == "deadline_exceeded" and error.detail["ended"] is True, error
        stranger.square()
        one.launch_own()


def test_a_job_that_begins_anew_has_its_full_time(start: Start, client: NewClient) -> None:
    machine = start(more="[server]\njob_timeout_s = 4\n")
    one = client(machine)
    one.square()
    (common,) = machine.executors()
    with machine.control.gate("kernel"):
        msgid = one.connection.request("run", {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]]})
        machine.reaches("kernel", pid=common)
        assert not one.connection.readable(3.5)
        os.kill(common, signal.SIGKILL)
        machine.wait(lambda: any(row.waiting("kernel") for row in machine.control.rows() if row.pid != common))
        assert not one.connection.readable(2.5)
    one.connection.reply(msgid).get()


def test_a_run_that_is_lost_ends_after_those_that_begin_anew(start: Start, client: NewClient) -> None:
    machine = start()
    one = client(machine)
    one.square()
    (common,) = machine.executors()
    a, b, c = one.tensors
    with machine.control.gate("kernel"):
        first = one.connection.request("run", {"op": "square", "in": [a], "out": [b]})
        second = one.connection.request("run", {"op": "add", "in": [b, c], "out": [c]})
        machine.reaches("kernel", pid=common)
        os.kill(common, signal.SIGKILL)
        machine.wait(lambda: any(row.waiting("kernel") for row in machine.control.rows() if row.pid != common))
        assert not one.connection.readable(0.5)
    one.connection.reply(first).get()
    assert one.connection.reply_error(second).code == "device_lost"


def test_a_cancelled_run_that_comes_back_behind_another_is_answered(start: Start, client: NewClient) -> None:
    """Nothing of it is under way any more, though the run before it waits for the next executor."""
    machine = start()
    one = client(machine)
    one.square()
    (common,) = machine.executors()
    square = {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]]}
    with machine.control.gate("init"):
        with machine.control.gate("kernel", common):
            first, second = (one.connection.request("run", square) for _ in range(2))
            machine.reaches("kernel", pid=common)
            one.connection.call("cancel", {"msgid": second})
            os.kill(common, signal.SIGKILL)
        assert one.connection.reply_error(second).code == "cancelled"
    one.connection.reply(first).get()
