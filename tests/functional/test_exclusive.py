"""`exclusive`: work that is alone on the GPUs, for a time that is bounded, on the stand-in driver."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import pytest
from domains import FIXTURES, Client, Domains
from gpu_machine import N, only_with_the_standin
from support import memfd
from support.raw import tensor
from user_kernels import hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


def machine_of(start: Callable[..., Domains], bound_ms: int) -> Domains:
    """Connections have executors of their own, which have work at one time."""
    return start(isolate="connection", more=f"exclusive_ms = {bound_ms}\n", env={"KOPSD_EXECUTORS_ACTIVE": "4"})


def own_executor(machine: Domains, one: Client) -> int:
    before = machine.executors()
    one.own()
    return machine.new_executor(before)


def launch(one: Client, **how: Any) -> dict[str, Any]:
    return {"kernel": one.custom, "args": [one.tensors[1], one.tensors[0], N], **how}


def at_gate(machine: Domains, pid: int) -> None:
    machine.wait(lambda: machine.control.row(pid).waiting("kernel") == 1)


def test_alone_it_says_so(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = machine_of(start, 50)
    one = client(machine)
    own_executor(machine, one)
    call = one.connection.call
    assert call("launch", launch(one, exclusive=True))["exclusive"] is True
    assert "exclusive" not in call("launch", launch(one))
    assert call("launch", launch(one, exclusive=True, repeat=50))["exclusive"] is True
    step = {"kernel": one.custom, "args": [1, 0, N]}
    steps = {"tensors": one.tensors[:2], "ops": [step, step]}
    assert call("sequence", {**steps, "exclusive": True})["exclusive"] is True
    program = call("program", steps)["program"]
    assert call("run_program", {"program": program, "exclusive": True})["exclusive"] is True
    square = {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]], "exclusive": True}
    assert call("run", square)["exclusive"] is True
    # Nobody waits, so nothing bounds it.
    runs = {**one.tensors[1], "dtype": "u32", "shape": [1]}
    one.memory[1].write(bytes(4 * N))
    long = {"kernel": hostile_kernel(one.connection, "run_for"), "args": [runs, 200_000], "exclusive": True}
    assert call("launch", long)["exclusive"] is True
    # Many under way, on several streams, by one client.
    many = [one.connection.request("launch", launch(one, exclusive=True, stream=i % 3)) for i in range(30)]
    assert all(one.connection.reply(msgid).get()["exclusive"] is True for msgid in many)


def test_it_waits_for_the_work_of_others(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = machine_of(start, 200)
    one, other, third = client(machine), client(machine), client(machine)
    executor = own_executor(machine, one)
    others = own_executor(machine, other)
    third.square()
    launches = machine.control.row(executor).launches
    with machine.control.gate("kernel", others) as gate:
        busy = other.connection.request("launch", launch(other))
        at_gate(machine, others)
        waiting = one.connection.request("launch", launch(one, exclusive=True))
        third.square()  # waits for its hold, for half of the bound
        third.square()
        assert machine.control.row(executor).launches == launches, "it has not begun beside the other one's"
        gate.let(1)
        other.connection.reply(busy).get()
        assert one.connection.reply(waiting).get()["exclusive"] is True


def test_others_wait_no_longer_than_the_bound(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = machine_of(start, 50)
    one, other, third = client(machine), client(machine), client(machine)
    executor = own_executor(machine, one)
    own_executor(machine, other)
    third.square()
    with machine.control.gate("kernel", executor) as gate:
        endless = one.connection.request("launch", launch(one, exclusive=True))
        at_gate(machine, executor)
        other.launch_own()  # an answer, while the exclusive job is on the GPU
        third.square()
        gate.let(1)
        assert one.connection.reply(endless).get()["exclusive"] is False
    assert one.connection.call("launch", launch(one, exclusive=True))["exclusive"] is True


def test_with_patience_it_runs_beside_others(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Somebody's kernel does not end: after a while the exclusive job runs all the same, and says that it was not alone."""
    machine = machine_of(start, 50)
    one, other = client(machine), client(machine)
    own_executor(machine, one)
    others = own_executor(machine, other)
    with machine.control.gate("kernel", others) as gate:
        busy = other.connection.request("launch", launch(other))
        at_gate(machine, others)
        assert one.connection.call("launch", launch(one, exclusive=True))["exclusive"] is False
        gate.let(1)
        other.connection.reply(busy).get()


def test_one_that_is_cancelled_holds_nobody(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = machine_of(start, 5000)
    one, other, third = client(machine), client(machine), client(machine)
    executor = own_executor(machine, one)
    others = own_executor(machine, other)
    third.square()
    launches = machine.control.row(executor).launches
    with machine.control.gate("kernel", others) as gate:
        busy = other.connection.request("launch", launch(other))
        at_gate(machine, others)
        late = one.connection.request("launch", launch(one, exclusive=True, deadline_ms=20))
        gone = one.connection.request("launch", launch(one, exclusive=True, stream=1))
        one.connection.call("cancel", {"msgid": gone})
        assert one.connection.reply_error(late).code == "deadline_exceeded"
        assert one.connection.reply_error(gone).code == "cancelled"
        third.square()
        assert machine.control.row(executor).launches == launches
        gate.let(1)
        other.connection.reply(busy).get()


def test_one_whose_executor_is_lost_holds_nobody(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = machine_of(start, 5000)
    one, third = client(machine), client(machine)
    own_executor(machine, one)
    third.square()
    fault = {"kernel": hostile_kernel(one.connection, "fault_kernel"), "args": [one.tensors[1]], "exclusive": True}
    assert one.connection.error("launch", fault).code == "device_fault"
    third.square()
    assert one.connection.call("launch", launch(one, exclusive=True))["exclusive"] is True


def test_one_that_does_not_end_is_ended_while_others_work(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = machine_of(start, 50)
    one, other = client(machine), client(machine)
    own_executor(machine, one)
    own_executor(machine, other)
    spin = {"kernel": hostile_kernel(one.connection, "spin_forever"), "args": [one.tensors[1]], "exclusive": True}
    endless = one.connection.request("launch", spin)
    other.launch_own()
    while not select.select([one.connection.socket], [], [], 0)[0]:
        other.launch_own()
    assert one.connection.reply_error(endless).code == "job_timeout"
    one.own()
    assert one.connection.call("launch", launch(one, exclusive=True))["exclusive"] is True


@pytest.mark.parametrize("isolate", ["off", "none"])
def test_where_executors_are_off_it_is_refused(start: Callable[..., Domains], client: Callable[..., Client], isolate: str) -> None:
    one = client(start(isolate=isolate))
    request = {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]], "exclusive": True}
    features = one.connection.call("hello")["features"]
    assert ("exclusive" in features) == (isolate == "none")
    if isolate == "none":
        assert one.connection.call("run", request)["exclusive"] is True
        return
    error = one.connection.error("run", request)
    assert error.code == "unsupported" and error.key == "exclusive" and "executors.isolate" in error.message
    one.square()


def test_what_cannot_be_exclusive(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = start()
    one = client(machine)
    shared = memfd.Shared(8 * N)
    buffer = one.connection.register(shared)
    request = {"op": "square", "in": [tensor(buffer, [N])], "out": [tensor(buffer, [N], offset=4 * N)], "exclusive": True, "device": "host"}
    error = one.connection.error("run", request)
    assert error.code == "unsupported" and error.key == "exclusive" and "host" in error.message
    ordered = {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]], "exclusive": True}
    one.connection.call("timelines")
    error = one.connection.error("run", {**ordered, "ready": 1, "done": 1})
    assert error.code == "invalid_argument" and error.key == "exclusive"
