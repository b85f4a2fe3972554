"""Kernels of users in executors of their own, on the stand-in driver: a fault meets only its own user."""

from __future__ import annotations

import os
import signal

import numpy as np
from domains import FIXTURES, NewClient, Start
from gpu_machine import N, only_with_the_standin, register, values, vector
from support import proc
from support.raw import tensor
from user_kernels import OTHERS, add_kernel, compile_source, hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


def test_a_kernel_runs_in_an_executor_of_its_user(start: Start, client: NewClient) -> None:
    """A fault of the kernel is an error reply. All who launch no kernels do not notice; the user's ids stay good."""
    machine = start()
    stranger, own = client(machine), client(machine)
    stranger.square()
    (common,) = machine.executors()
    own.own()
    domain = machine.new_executor({common})
    # An op, the client's kernel, and another op, on the results of each other.
    a, b, c = own.tensors
    own.connection.run("square", [a], [b])
    own.connection.call("launch", {"kernel": own.custom, "args": [c, b, N]})
    own.connection.run("add", [c, a], [b])
    assert (values(own.memory[1]) == 21).all()
    stranger.square()
    assert machine.executors() == {common, domain}

    error = own.fault()
    assert error.code == "device_fault" and error.detail["driver"] == "CUDA_ERROR_ILLEGAL_ADDRESS", error
    stranger.square()
    own.launch_own()
    own.square()
    assert domain not in machine.executors() and common in machine.executors()


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


def test_a_spare_takes_over(start: Start, client: NewClient) -> None:
    machine = start(spares=1)
    culprit = client(machine)
    culprit.square()
    proc.eventually(lambda: len(machine.executors()) == 2, "the common one and a spare")
    two = machine.executors()
    culprit.own()
    third = machine.new_executor(two)  # a spare again
    assert culprit.fault().code == "device_fault"
    culprit.launch_own()
    assert third in machine.executors(), "the spare serves the user now"


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


def test_programs_follow(start: Start, client: NewClient) -> None:
    """A program with a kernel runs again after the fault, in an executor that has met neither its kernel nor its memory."""
    machine = start()
    one = client(machine)
    add = add_kernel(one.connection)
    a, b, c = one.tensors
    ops = [{"kernel": add, "args": [2, 0, 1, N]}, {"op": "square", "in": [2], "out": [1]}]
    program = one.connection.call("program", {"tensors": [a, b, c], "ops": ops})["program"]
    one.connection.call("run_program", {"program": program})
    assert (values(one.memory[1]) == 36).all()
    assert one.fault().code == "device_fault"
    vector(one.memory[1])
    one.connection.call("run_program", {"program": program})
    assert (values(one.memory[1]) == 36).all()
    assert np.isfinite(values(one.memory[2])).all()


def test_a_deadline_ends_a_kernel(start: Start, client: NewClient) -> None:
    """Its executor is reaped before the reply: the kernel, which counts until it is killed, writes no more."""
    machine = start(spares=1)
    one = client(machine, own=True)
    kernel = hostile_kernel(one.connection, "count_forever")
    count = {**one.tensors[1], "dtype": "u32"}
    error = one.connection.error("launch", {"kernel": kernel, "args": [count], "deadline_ms": 100})
    assert error.code == "deadline_exceeded" and error.detail["ended"] is True, error
    reached = one.memory[1].read(4)
    one.launch_own()
    one.memory[1].write(reached)
    assert one.memory[1].read(4) == reached


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


def test_memory_of_others_is_not_there(start: Start, client: NewClient) -> None:
    """A kernel that reads where another one's buffer is, in that one's executor, faults."""
    machine = start(isolate="connection")
    victim, spy = client(machine, own=True), client(machine, own=True)
    tell = hostile_kernel(victim.connection, "tell_address")
    where = {**victim.tensors[1], "dtype": "u64", "shape": [1]}
    victim.connection.call("launch", {"kernel": tell, "args": [where, victim.tensors[0]]})
    address = int.from_bytes(victim.memory[1].read(8), "little")
    assert address
    read = hostile_kernel(spy.connection, "read_range")
    spy.memory[1].write(bytes(4 * N))
    out = {**spy.tensors[1], "dtype": "u32"}
    error = spy.connection.error("launch", {"kernel": read, "args": [out, address + (1 << 44), N]})
    assert error.code == "device_fault", error
    assert spy.memory[1].read(4 * N) == bytes(4 * N)
    victim.launch_own()


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
