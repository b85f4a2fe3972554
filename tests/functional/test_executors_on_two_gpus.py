"""Executors on two GPUs: kernels of two connections wait for each other on one GPU, and not where each has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from domains import FIXTURES, Domains, Plain, Start
from gpu_machine import only_with_the_standin
from support.raw import Connection
from test_counters import counting
from user_kernels import hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, _ = FIXTURES


class Client:
    """A connection with an executor of its own and, on each GPU, a kernel that counts its runs."""

    def __init__(self, machine: Domains, gpus: list[str]) -> None:
        self.connection: Connection = machine.daemon.connect()
        self.gpus = gpus
        before = machine.executors()
        self.kernels = [hostile_kernel(self.connection, "run_for", gpu) for gpu in gpus]
        self.memory = [Plain(self.connection, gpu, 1, "u32") for gpu in gpus]
        for at in range(len(gpus)):
            self.launch(at)
        self.pid = machine.new_executor(before)

    def ask(self, at: int, **how: Any) -> int:
        """A launch on GPU `at`, on a stream of its own: the request's number."""
        launch = {"kernel": self.kernels[at], "args": [self.memory[at].tensor(), 1], "stream": at, **how}
        return self.connection.request("launch", launch)

    def launch(self, at: int, **how: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.connection.reply(self.ask(at, **how)).get()
        return result

    def runs(self, at: int) -> int:
        return int(self.memory[at].data[0])


Make = Callable[..., tuple[Domains, list[Client]]]


@pytest.fixture
def make(start: Start) -> Iterator[Make]:
    clients: list[Client] = []

    def new(count: int, env: dict[str, str] | None = None, **how: Any) -> tuple[Domains, list[Client]]:
        machine = start(isolate="connection", env={"KOPS_STANDIN_DEVICES": "2", **(env or {})}, **how)
        gpus = [d["uuid"] for d in machine.hello()["devices"] if d["backend"] == "cuda"]
        assert len(gpus) == 2
        clients.extend(Client(machine, gpus) for _ in range(count))
        return machine, clients

    yield new
    for one in clients:
        one.connection.close()


def at_gate(machine: Domains, *clients: Client) -> None:
    for one in clients:
        machine.reaches("kernel", pid=one.pid)


@contextmanager
def held(machine: Domains, one: Client, asked: Callable[[], int]) -> Iterator[list[dict[str, Any]]]:
    """What is asked has begun on the GPU and ends after the block; its result is in the list then."""
    results: list[dict[str, Any]] = []
    with machine.control.gate("kernel", one.pid):
        msgid = asked()
        at_gate(machine, one)
        yield results
    results.append(one.connection.reply(msgid).get())


# ---- turns ----


@pytest.mark.parametrize("exclusive", [False, True])
def test_kernels_on_two_gpus_run_at_once(make: Make, exclusive: bool) -> None:
    machine, (one, other) = make(2, more="exclusive_ms = 1\n")
    with machine.control.gate("kernel"):
        asked = one.ask(0, exclusive=exclusive), other.ask(1, exclusive=exclusive)
        at_gate(machine, one, other)  # both have begun, neither has ended
    for client, msgid in zip((one, other), asked):
        assert client.connection.reply(msgid).get().get("exclusive", False) is exclusive
    assert (one.runs(0), other.runs(1)) == (2, 2)


@pytest.mark.parametrize("active", [1, 2])
def test_kernels_on_one_gpu_wait_for_each_other(make: Make, active: int) -> None:
    """The one that waits works on the other GPU meanwhile. As many as are active have no need to wait."""
    machine, (one, other) = make(2, more=f"active = {active}\nlate_ms = 60000\n")
    with held(machine, one, lambda: one.ask(0)):
        waiting = other.ask(0)
        if active > 1:
            other.connection.reply(waiting).get()
        for _ in range(5):
            other.launch(1)
        assert (other.runs(0), other.runs(1)) == (active, 6)
    if active == 1:
        other.connection.reply(waiting).get()
    assert (one.runs(0), other.runs(0)) == (2, 2)


def endless(one: Client, at: int) -> int:
    kernel = hostile_kernel(one.connection, "spin_forever", one.gpus[at])
    args = [{**one.memory[at].tensor(), "dtype": "f32"}]
    return one.connection.request("launch", {"kernel": kernel, "args": args, "stream": at})


def works_beside(one: Client, at: int, late: Client) -> None:
    """One launch after the other, until the late one has an answer."""
    one.launch(at)
    while not late.connection.readable(0):
        one.launch(at)


def test_a_long_kernel_is_ended_for_those_who_wait_for_its_gpu(make: Make) -> None:
    machine, (one, other, third) = make(3)
    with held(machine, one, lambda: one.ask(0)):
        spinning = endless(other, 1)
        works_beside(third, 1, other)
        assert other.connection.reply_error(spinning).code == "job_timeout"
        at_gate(machine, one)  # which has had more time than that


def test_the_one_that_others_wait_for_is_at_fault(make: Make) -> None:
    """One executor has kernels that do not end on both GPUs: it ends for those who wait for one of them."""
    _, (one, other) = make(2)
    spinning = [endless(one, at) for at in range(2)]
    works_beside(other, 1, one)
    assert [one.connection.reply_error(msgid).code for msgid in spinning] == ["device_lost", "job_timeout"]


# ---- work that is alone ----


def test_exclusive_work_is_alone_on_its_gpu(make: Make) -> None:
    """What others do on the other GPU neither waits for it nor disturbs it."""
    machine, (one, other) = make(2, more="exclusive_ms = 5000\n")
    with held(machine, one, lambda: one.ask(0, exclusive=True)) as results:
        for _ in range(5):
            other.launch(1)
        assert other.launch(1, exclusive=True)["exclusive"] is True
        late = other.ask(0)
        other.launch(1)
        assert other.runs(0) == 1, "the GPU is held"
    assert results[0]["exclusive"] is True
    other.connection.reply(late).get()


def square_on_1(one: Client, source: Plain, out: Plain) -> dict[str, Any]:
    """The request of a square on the second GPU."""
    return {"op": "square", "in": [source.tensor()], "out": [out.tensor()], "device": one.gpus[1], "stream": 2}


@pytest.mark.parametrize("disturbs", [True, False])
def test_work_with_memory_of_a_gpu_disturbs_it(make: Make, disturbs: bool) -> None:
    """A job on one GPU that reads the other one's memory waits for that one's exclusive work."""
    machine, (one, other) = make(2, more="exclusive_ms = 5000\n")
    out = Plain(other.connection, other.gpus[1], 1, "u32")
    with held(machine, one, lambda: one.ask(0, exclusive=True)) as results:
        asked = other.connection.request("run", square_on_1(other, other.memory[0 if disturbs else 1], out))
        if not disturbs:
            other.connection.reply(asked).get()
        for _ in range(5):
            other.launch(1)
        assert out.data[0] == (0 if disturbs else 1)
    assert results[0]["exclusive"] is True
    if disturbs:
        other.connection.reply(asked).get()
    assert out.data[0] == 1


def test_exclusive_work_waits_for_work_with_its_gpus_memory(make: Make) -> None:
    machine, (one, other) = make(2)
    square = square_on_1(other, other.memory[0], Plain(other.connection, other.gpus[1], 1, "u32"))
    with machine.daemon.connect() as third:
        with held(machine, other, lambda: other.connection.request("run", square)):
            asked = one.ask(0, exclusive=True)
            ours = Plain(third, one.gpus[1], 1)
            for _ in range(5):
                third.run("square", [ours.tensor()], [ours.tensor()])
            assert one.runs(0) == 1
    assert one.connection.reply(asked).get()["exclusive"] is True


def test_counters_are_of_one_gpu(make: Make) -> None:
    """What counts on one GPU keeps nobody from the other one."""
    machine, (one, other) = make(2, env=counting())
    before = machine.executors()
    with machine.control.gate("kernel"):
        asked = one.connection.request("counters", {"kernel": one.kernels[0], "args": [one.memory[0].tensor(), 1]})
        counter = machine.new_executor(before)
        machine.wait(lambda: any(row.pid == counter and row.waiting("kernel") == 1 for row in machine.control.rows()))
        waiting, begun = other.ask(0), other.ask(1)
        at_gate(machine, other)
    for client, msgid in ((one, asked), (other, begun), (other, waiting)):
        client.connection.reply(msgid).get()
    assert (other.runs(0), other.runs(1)) == (2, 2)
