"""Work that is alone on a GPU (`exclusive`), and kernels of two connections on two GPUs, which wait for each other on one GPU and not
where each has its own. On the stand-in driver; whom exclusive work holds and how long: tests/unit/executor/test_executor_front.c."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from domains import FIXTURES, Client, Domains, NewClient, Plain, Start
from gpu_machine import N, only_with_nvrtc, only_with_the_standin
from support import memfd
from support.kernels import hostile_kernel
from support.raw import Connection, tensor
from test_counters import counting

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


def machine_of(start: Start, bound_ms: int) -> Domains:
    return start(isolate="connection", more=f"exclusive_ms = {bound_ms}\n", env={"KOPSD_EXECUTORS_ACTIVE": "4"})


def was_alone(one: Client) -> bool:
    alone: bool = one.connection.reply(one.ask(exclusive=True)).get()["exclusive"]
    return alone


def test_alone_it_says_so(start: Start, client: NewClient) -> None:
    machine = machine_of(start, 50)
    one, other = client(machine, own=True), client(machine, own=True)
    call = one.connection.call
    assert was_alone(one)
    assert "exclusive" not in call("launch", one.launch_params())
    assert call("launch", one.launch_params(exclusive=True, repeat=50))["exclusive"] is True
    step = {"kernel": one.custom, "args": [1, 0, N]}
    steps = {"tensors": one.tensors[:2], "ops": [step, step]}
    assert call("sequence", {**steps, "exclusive": True})["exclusive"] is True
    program = call("program", steps)["program"]
    assert call("run_program", {"program": program, "exclusive": True})["exclusive"] is True
    assert call("run", one.square_params(exclusive=True))["exclusive"] is True
    # Nobody waits, so nothing bounds it.
    runs = {**one.tensors[1], "dtype": "u32", "shape": [1]}
    one.memory[1].write(bytes(4 * N))
    long = {"kernel": one.hostile("run_for"), "args": [runs, 200_000], "exclusive": True}
    assert call("launch", long)["exclusive"] is True
    # Many under way, on several streams, by one client.
    many = [one.ask(exclusive=True, stream=i % 3) for i in range(30)]
    assert all(one.connection.reply(msgid).get()["exclusive"] is True for msgid in many)
    # One whose executor is lost holds nobody.
    assert one.fault(exclusive=True).code == "device_fault"
    other.square()
    assert was_alone(one)


def test_with_patience_it_runs_beside_others(start: Start, client: NewClient) -> None:
    """Somebody's kernel does not end: after a while the exclusive job runs all the same, and says that it was not alone."""
    machine = machine_of(start, 50)
    one, other = client(machine, own=True), client(machine)
    pid = machine.executor_of(other)
    with machine.control.gate("kernel", pid) as gate:
        msgid = other.ask()
        machine.reaches("kernel", pid=pid)
        assert not was_alone(one)
        gate.let(1)
        other.connection.reply(msgid).get()


def test_where_all_share_an_executor(start: Start, client: NewClient) -> None:
    one = client(start(isolate="none"))
    assert "exclusive" in one.connection.call("hello")["features"]
    assert one.connection.call("run", one.square_params(exclusive=True))["exclusive"] is True


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
    machine = machine_of(start, 1000)
    busy, low, other = (client(machine) for _ in range(3))
    pid = machine.executor_of(busy)
    low.own(), other.own()
    with machine.control.gate("kernel", pid):
        first = busy.ask(priority="low")
        machine.reaches("kernel", pid=pid)
        sent = []
        for one, how in ((low, {"priority": "low"}), (other, {})):
            sent.append(one.ask(exclusive=True, **how))
            one.connection.call("ping", {})
    busy.connection.reply(first).get()
    assert other.connection.reply(sent[1]).get()["exclusive"] is True
    assert low.connection.reply(sent[0]).get()["exclusive"] is True  # not given up for want of patience


class OnBoth:
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


Make = Callable[..., tuple[Domains, list[OnBoth]]]


@pytest.fixture
def make(start: Start) -> Iterator[Make]:
    clients: list[OnBoth] = []

    def new(count: int, env: dict[str, str] | None = None, **how: Any) -> tuple[Domains, list[OnBoth]]:
        machine = start(isolate="connection", env={"KOPS_STANDIN_DEVICES": "2", **(env or {})}, **how)
        gpus = [d["uuid"] for d in machine.hello()["devices"] if d["backend"] == "cuda"]
        assert len(gpus) == 2
        clients.extend(OnBoth(machine, gpus) for _ in range(count))
        return machine, clients

    yield new
    for one in clients:
        one.connection.close()


def at_gate(machine: Domains, *clients: OnBoth) -> None:
    for one in clients:
        machine.reaches("kernel", pid=one.pid)


@contextmanager
def held(machine: Domains, one: OnBoth, asked: Callable[[], int]) -> Iterator[list[dict[str, Any]]]:
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


def endless(one: OnBoth, at: int) -> int:
    kernel = hostile_kernel(one.connection, "spin_forever", one.gpus[at])
    args = [{**one.memory[at].tensor(), "dtype": "f32"}]
    return one.connection.request("launch", {"kernel": kernel, "args": args, "stream": at})


def works_beside(one: OnBoth, at: int, late: OnBoth) -> None:
    """One launch after the other, until the late one has an answer."""
    one.launch(at)
    while not late.connection.readable(0):
        one.launch(at)


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


def square_on_1(one: OnBoth, source: Plain, out: Plain) -> dict[str, Any]:
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
