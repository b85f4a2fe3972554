"""`exclusive`: work that is alone on the GPUs, for a time that is bounded, on the stand-in driver. See
test_executors_on_two_gpus.py, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from domains import FIXTURES, Client, Domains, NewClient, Start
from gpu_machine import N, only_with_the_standin
from support import memfd
from support.raw import tensor
from user_kernels import hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


class Scene:
    """Two clients with executors of their own, which have work at one time, and a third one without."""

    def __init__(self, start: Start, client: NewClient, bound_ms: int) -> None:
        more, env = f"exclusive_ms = {bound_ms}\n", {"KOPSD_EXECUTORS_ACTIVE": "4"}
        self.machine: Domains = start(isolate="connection", more=more, env=env)
        self.one, self.other, self.third = (client(self.machine) for _ in range(3))
        self.executor, self.others = self.own_executor(self.one), self.own_executor(self.other)
        self.third.square()

    def own_executor(self, one: Client) -> int:
        before = self.machine.executors()
        one.own()
        return self.machine.new_executor(before)

    @contextmanager
    def held(self, one: Client, pid: int, **how: Any) -> Iterator[int]:
        """A launch whose kernel ends at the end of the block, and not before."""
        with self.machine.control.gate("kernel", pid) as gate:
            msgid = one.connection.request("launch", launch(one, **how))
            self.machine.reaches("kernel", pid=pid)
            yield msgid
            gate.let(1)
            one.connection.reply(msgid).get()

    def launches(self) -> int:
        return self.machine.control.row(self.executor).launches


def launch(one: Client, **how: Any) -> dict[str, Any]:
    return {"kernel": one.custom, "args": [one.tensors[1], one.tensors[0], N], **how}


def was_alone(one: Client) -> bool:
    alone: bool = one.connection.call("launch", launch(one, exclusive=True))["exclusive"]
    return alone


def test_alone_it_says_so(start: Start, client: NewClient) -> None:
    one = Scene(start, client, 50).one
    call = one.connection.call
    assert was_alone(one)
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


def test_it_waits_for_the_work_of_others(start: Start, client: NewClient) -> None:
    scene = Scene(start, client, 200)
    launches = scene.launches()
    with scene.held(scene.other, scene.others):
        waiting = scene.one.connection.request("launch", launch(scene.one, exclusive=True))
        scene.third.square()  # waits for its hold, for half of the bound
        scene.third.square()
        assert scene.launches() == launches, "it has not begun beside the other one's"
    assert scene.one.connection.reply(waiting).get()["exclusive"] is True


def test_others_wait_no_longer_than_the_bound(start: Start, client: NewClient) -> None:
    scene = Scene(start, client, 50)
    with scene.machine.control.gate("kernel", scene.executor) as gate:
        endless = scene.one.connection.request("launch", launch(scene.one, exclusive=True))
        scene.machine.reaches("kernel", pid=scene.executor)
        scene.other.launch_own()  # an answer, while the exclusive job is on the GPU
        scene.third.square()
        gate.let(1)
        assert scene.one.connection.reply(endless).get()["exclusive"] is False
    assert was_alone(scene.one)


def test_with_patience_it_runs_beside_others(start: Start, client: NewClient) -> None:
    """Somebody's kernel does not end: after a while the exclusive job runs all the same, and says that it was not alone."""
    scene = Scene(start, client, 50)
    with scene.held(scene.other, scene.others):
        assert not was_alone(scene.one)


def test_one_that_is_cancelled_holds_nobody(start: Start, client: NewClient) -> None:
    scene = Scene(start, client, 5000)
    one, launches = scene.one, scene.launches()
    with scene.held(scene.other, scene.others):
        late = one.connection.request("launch", launch(one, exclusive=True, deadline_ms=20))
        gone = one.connection.request("launch", launch(one, exclusive=True, stream=1))
        one.connection.call("cancel", {"msgid": gone})
        assert one.connection.reply_error(late).code == "deadline_exceeded"
        assert one.connection.reply_error(gone).code == "cancelled"
        scene.third.square()
        assert scene.launches() == launches


def test_one_whose_executor_is_lost_holds_nobody(start: Start, client: NewClient) -> None:
    scene = Scene(start, client, 5000)
    one = scene.one
    fault = {"kernel": hostile_kernel(one.connection, "fault_kernel"), "args": [one.tensors[1]], "exclusive": True}
    assert one.connection.error("launch", fault).code == "device_fault"
    scene.third.square()
    assert was_alone(one)


def test_one_that_does_not_end_is_ended_while_others_work(start: Start, client: NewClient) -> None:
    scene = Scene(start, client, 50)
    one = scene.one
    spin = {"kernel": hostile_kernel(one.connection, "spin_forever"), "args": [one.tensors[1]], "exclusive": True}
    one.memory[1].write(bytes(4 * N))
    endless = one.connection.request("launch", spin)
    scene.other.launch_own()
    while not one.connection.readable(0):
        scene.other.launch_own()
    assert one.connection.reply_error(endless).code == "job_timeout"
    one.own()
    assert was_alone(one)


def test_where_all_share_an_executor(start: Start, client: NewClient) -> None:
    one = client(start(isolate="none"))
    request = {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]], "exclusive": True}
    assert "exclusive" in one.connection.call("hello")["features"]
    assert one.connection.call("run", request)["exclusive"] is True


def test_what_cannot_be_exclusive(start: Start, client: NewClient) -> None:
    one = client(start())
    buffer = one.connection.register(memfd.Shared(8 * N))
    run = {"op": "square", "in": [tensor(buffer, [N])], "out": [tensor(buffer, [N], offset=4 * N)], "exclusive": True}
    error = one.connection.error("run", {**run, "device": "host"})
    assert error.code == "unsupported" and error.key == "exclusive" and "host" in error.message
    one.connection.call("timelines")
    ordered = {**run, "in": one.tensors[:1], "out": one.tensors[2:], "ready": 1, "done": 1}
    error = one.connection.error("run", ordered)
    assert error.code == "invalid_argument" and error.key == "exclusive"


def test_one_of_low_priority_that_must_wait_holds_nobody(start: Start, client: NewClient) -> None:
    """It yields to the work of others, and one of these is exclusive, too."""
    machine = start(isolate="connection", env={"KOPSD_EXECUTORS_ACTIVE": "4"})
    busy, low, other = (client(machine) for _ in range(3))
    pids = []
    for one in (busy, low, other):
        before = machine.executors()
        one.own()
        pids.append(machine.new_executor(before))
    with machine.control.gate("kernel", pids[0]):
        first = busy.connection.request("launch", {"kernel": busy.custom, "args": [busy.tensors[1], busy.tensors[0], N], "priority": "low"})
        machine.reaches("kernel", pid=pids[0])
        sent = []
        for one, how in ((low, {"priority": "low"}), (other, {})):
            params = {"kernel": one.custom, "args": [one.tensors[1], one.tensors[0], N], "exclusive": True, **how}
            sent.append(one.connection.request("launch", params))
            one.connection.call("ping", {})
    busy.connection.reply(first).get()
    assert other.connection.reply(sent[1]).get()["exclusive"] is True
    assert low.connection.reply(sent[0]).get()["exclusive"] is True  # not given up for want of patience
