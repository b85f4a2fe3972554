"""Deadlines, hangs and faults of users' kernels that have executors of their own, on the stand-in driver: what each costs, and whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from domains import FIXTURES, Domains, Start
from gpu_machine import only_with_the_standin
from prometheus import parse
from support import memfd, proc, raw
from support.raw import tensor
from test_ordered import Timelines
from user_kernels import CUSTOM_PARAMS, OTHERS, compile_source, declare, only_with_nvrtc, pointer

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, _ = FIXTURES
N = 256
SHORT = 200  # ms, a deadline that passes
ENDED = ("deadline_exceeded", {"ended": True})


class Client:
    """A connection with two vectors in shared memory, and kernels: custom_kernel and those that misbehave."""

    def __init__(self, machine: Domains, **hello: Any) -> None:
        self.connection = machine.daemon.connect()
        self.hello = self.connection.call("hello", hello)
        buffer = self.connection.register(memfd.Shared(8 * N))
        self.a, self.b = tensor(buffer, [N]), tensor(buffer, [N], offset=4 * N)
        self.kernels: dict[str, int] = {}

    def kernel(self, entry: str) -> int:
        if entry not in self.kernels:
            module = compile_source(self.connection, OTHERS, entry)["module"]
            params = CUSTOM_PARAMS if entry == "custom_kernel" else [pointer("p", "inout")]
            self.kernels[entry] = declare(self.connection, module, entry=entry, params=params, grid=[1], block=[1])
        return self.kernels[entry]

    def args(self, entry: str, *tensors: Any) -> list[Any]:
        return [*tensors, N] if entry == "custom_kernel" else [tensors[0]]

    def launch(self, entry: str, **more: Any) -> int:
        params = {"kernel": self.kernel(entry), "args": self.args(entry, self.a, self.b), **more}
        return self.connection.request("launch", params)

    def good(self) -> None:
        self.connection.reply(self.launch("custom_kernel")).get()

    def bad(self, entry: str, **more: Any) -> raw.RpcError:
        return self.connection.reply_error(self.launch(entry, **more))

    def square(self, **more: Any) -> int:
        return self.connection.request("run", {"op": "square", "in": [self.a], "out": [self.b], **more})

    def steps(self, *entries: str) -> dict[str, Any]:
        """The keys of a sequence or program: kernels, and square as itself."""
        ops: list[dict[str, Any]] = []
        for entry in entries:
            if entry == "square":
                ops.append({"op": "square", "in": [0], "out": [1]})
            else:
                ops.append({"kernel": self.kernel(entry), "args": self.args(entry, 0, 1)})
        return {"tensors": [self.a, self.b], "ops": ops}

    def error_of(self, msgid: int) -> raw.RpcError:
        return self.connection.reply_error(msgid)

    def answer_of(self, msgid: int) -> tuple[str, dict[str, Any]]:
        error = self.error_of(msgid)
        return error.code, error.detail

    def metric(self, name: str, **labels: str) -> float:
        samples = parse(self.connection.call("metrics")["text"])[name].samples
        return sum(value for (_, of), value in samples.items() if set(labels.items()) <= of)

    def wait_running(self, jobs: int) -> None:
        proc.eventually(lambda: self.metric("kopsd_jobs_running") == jobs, f"{jobs} jobs are on devices")


Clients = Callable[..., Client]


@pytest.fixture
def clients() -> Iterator[Clients]:
    made: list[Client] = []

    def new(machine: Domains, **hello: Any) -> Client:
        made.append(Client(machine, **hello))
        return made[-1]

    yield new
    for client in made:
        client.connection.close()


@pytest.fixture
def client(start: Start, clients: Clients) -> Client:
    """Of a daemon that refuses no kernels."""
    return clients(start(faults=0))


# ---- deadlines ----


def test_a_deadline_ends_a_kernel(client: Client) -> None:
    error = client.bad("spin_forever", deadline_ms=SHORT)
    assert (error.code, error.detail) == ENDED
    assert "kernel was ended" in error.message
    assert client.metric("kopsd_jobs_running") == 0
    client.good()
    steps = client.steps("square", "spin_forever", "square")
    program = client.connection.call("program", steps)["program"]
    for method, params in (("sequence", steps), ("run_program", {"program": program})):
        error = client.connection.error(method, {**params, "deadline_ms": SHORT})
        assert (error.code, error.detail) == ENDED, method
    client.good()


def test_a_deadline_ends_nothing_that_runs_before(start: Start, clients: Clients) -> None:
    """The job in front of it on its stream goes on, and what is behind that ends in its turn."""
    machine = start()
    client, other = clients(machine), clients(machine)
    client.good()
    with machine.control.gate("kernel") as gate:
        runs = client.square()
        late = client.launch("spin_forever", deadline_ms=SHORT)
        assert client.answer_of(late) == ("deadline_exceeded", {"ended": False})
        assert runs not in client.connection.replies and other.metric("kopsd_jobs_running") == 2
        gate.let(1000)
        client.connection.reply(runs).get()
    client.connection.call("trim")
    assert other.metric("kopsd_jobs_running") == 0
    client.good()


def test_builtin_ops_of_a_client_with_kernels_end_at_their_deadline(start: Start, clients: Clients) -> None:
    machine = start()
    client = clients(machine)
    client.good()
    with machine.control.gate("kernel"):
        assert client.answer_of(client.square(deadline_ms=SHORT)) == ENDED


def test_a_cancelled_kernel_ends_at_its_deadline(start: Start, clients: Clients) -> None:
    machine = start()
    client = clients(machine)
    client.good()
    with machine.control.gate("kernel"):
        msgid = client.launch("spin_forever", deadline_ms=5 * SHORT)
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        assert client.connection.call("cancel", {"msgid": msgid})["cancelled"]
        assert client.connection.alive() and msgid not in client.connection.replies  # a cancel alone ends no kernel
        assert client.answer_of(msgid) == ("cancelled", {"ended": True})
    client.good()


def test_others_in_the_domain_are_lost_with_it_and_are_told_that_the_daemon_goes_on(start: Start, clients: Clients) -> None:
    machine = start()
    client, other = clients(machine), clients(machine)
    beside = other.launch("spin_forever")
    other.wait_running(1)
    client.good()  # it is of the same user, so both have their turn
    assert client.bad("spin_forever", deadline_ms=SHORT).code == "deadline_exceeded"
    error = other.error_of(beside)
    assert (error.code, error.detail["daemon"]) == ("device_lost", "goes_on")
    other.good()


def test_done_is_written_when_the_kernel_has_ended(client: Client) -> None:
    client.kernel("spin_forever")
    buffer = client.connection.call("alloc", {"size": 4 * N})["buffer"]
    client.a = tensor(buffer, [N])  # ordered work takes no shared memory
    page = Timelines(client.connection)
    page.reach(0, 1)
    msgid = client.launch("spin_forever", deadline_ms=5 * SHORT, ready=1, done=1)  # it is looked at before that
    client.wait_running(1)
    assert page.done(0) == 0
    page.wait_done(0, 1)
    assert client.answer_of(msgid) == ENDED


# ---- clients that are gone ----


def test_work_that_ends_by_itself_is_left_alone(start: Start, clients: Clients) -> None:
    machine = start(faults=1)
    client, other = clients(machine), clients(machine)
    for who in (client, other):
        who.good()
    with machine.control.gate("kernel") as gate:
        client.square()
        other.wait_running(1)
        client.connection.close()
        gate.let(1000)
        other.wait_running(0)
    other.good()  # nothing was charged


def test_a_shutdown_ends_kernels(start: Start, clients: Clients) -> None:
    machine = start(more="[server]\nshutdown_grace_ms = 200\n")
    client = clients(machine)
    msgid = client.launch("spin_forever")
    client.wait_running(1)
    machine.daemon.stop()  # with status 0
    assert client.error_of(msgid).code == "cancelled"


# ---- the watchdog ----

LATER = {"faults": 0, "more": "[server]\njob_timeout_s = 2\n"}  # the test does something meanwhile


@pytest.mark.parametrize("waits_for_longer", [False, True])
def test_who_waits_for_a_turn_is_not_ended(start: Start, clients: Clients, waits_for_longer: bool) -> None:
    machine = start(isolate="connection", **LATER)
    client, other = clients(machine), clients(machine)
    client.good()
    other.good()
    with machine.control.gate("kernel") as gate:
        first = client.square(stream=0)  # of its domain, which has the GPU now
        client.wait_running(1)
        hangs = None if waits_for_longer else client.launch("spin_forever", stream=1)
        waits = other.launch("custom_kernel")
        other.wait_running(2 if waits_for_longer else 3)
        if hangs is None:
            hangs = client.launch("spin_forever", stream=1)
        gate.let(1000)
        client.connection.reply(first).get()
    assert client.error_of(hangs).code == "job_timeout"
    other.connection.reply(waits).get()


def test_the_common_executor_is_ended_for_the_job_that_hangs(start: Start, clients: Clients) -> None:
    machine = start(**LATER)
    client, other = clients(machine), clients(machine)
    with machine.control.gate("kernel") as gate:
        hangs = client.square()
        client.wait_running(1)
        waits = other.square()
        error = client.error_of(hangs)
        assert error.code == "job_timeout" and error.detail == {"timeout_s": 2, "daemon": "goes_on"}
        assert other.connection.alive() and waits not in other.connection.replies
        gate.let(1000)
        other.connection.reply(waits).get()
    client.connection.reply(client.square()).get()


# ---- faults ----


def test_a_fault_names_the_kernel(start: Start, clients: Clients) -> None:
    machine = start(faults=0)
    client = clients(machine)
    error = client.bad("fault_kernel")
    assert error.code == "device_fault"
    assert error.detail["kernel"] == "fault_kernel" and error.detail["driver"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert "op_index" not in error.detail
    client.good()
    steps = client.steps("square", "fault_kernel", "square")
    program = client.connection.call("program", steps)["program"]
    for method, params in (("sequence", steps), ("run_program", {"program": program})):
        error = client.connection.error(method, params)
        assert error.code == "device_fault", method
        assert (error.detail["kernel"], error.detail["op_index"]) == ("fault_kernel", 1), method
    client.good()
    assert client.metric("kopsd_faults_total") == 3
    assert re.search(r"event=fault code=device_fault .* op=fault_kernel ", machine.daemon.log())


def fault(client: Client, times: int) -> None:
    for _ in range(times):
        assert client.bad("fault_kernel").code == "device_fault"


def refused(client: Client) -> raw.RpcError:
    error = client.bad("custom_kernel")
    assert error.code == "quota_exceeded", error
    return error


def test_too_many_faults_stop_the_users_kernels(start: Start, clients: Clients) -> None:
    machine = start()
    client = clients(machine)
    steps, builtin = client.steps("square", "custom_kernel"), client.steps("square")
    program = client.connection.call("program", steps)["program"]
    fault(client, 2)
    client.good()
    fault(client, 1)
    error = refused(client)
    assert (error.detail["quota"], error.detail["current"], error.detail["limit"]) == ("faults", 3, 3)
    assert 50000 < error.detail["retry_after_ms"] <= 60000
    assert "3 times" in error.message and "executors.faults" in error.message
    assert client.connection.error("sequence", steps).code == "quota_exceeded"
    assert client.connection.error("run_program", {"program": program}).code == "quota_exceeded"
    client.connection.reply(client.square()).get()
    client.connection.call("sequence", builtin)
    again = clients(machine)
    refused(again)
    assert again.metric("kopsd_refusals_total", what="faults") == 4
    assert again.metric("kopsd_user_refused_total") == 4
    assert re.search(r"event=faults uid=\d+ faults=3 refused_s=60", machine.daemon.log())
    assert "event=refuse what=faults" in machine.daemon.log()


def test_hangs_count_as_faults(start: Start, clients: Clients) -> None:
    machine = start(faults=2)
    client = clients(machine)
    fault(client, 1)
    assert client.bad("spin_forever", deadline_ms=SHORT).code == "deadline_exceeded"
    refused(client)


def test_refused_ordered_work_writes_its_word(start: Start, clients: Clients) -> None:
    client = clients(start(faults=1))
    fault(client, 1)
    buffer = client.connection.call("alloc", {"size": 8 * N})["buffer"]
    client.a, client.b = tensor(buffer, [N]), tensor(buffer, [N], offset=4 * N)
    page = Timelines(client.connection)
    page.reach(0, 1)
    assert client.bad("custom_kernel", ready=1, done=1).code == "quota_exceeded"
    assert page.done(0) == 1


# ---- isolation ----


@pytest.mark.parametrize("isolate", ["none", "user", "connection"])
def test_hello_tells_the_isolation(start: Start, clients: Clients, isolate: str) -> None:
    machine = start(isolate=isolate)
    client = clients(machine)
    assert client.hello["isolation"] == isolate
    assert client.hello["kernels"]["policy"] == ("all" if isolate in ("user", "connection") else "owner")
    with machine.daemon.connect() as connection:
        if isolate in ("user", "connection"):
            assert connection.call("hello", {"isolate": "connection"})["isolation"] == "connection"
            assert connection.call("hello")["isolation"] == "connection"
        else:
            error = connection.error("hello", {"isolate": "connection"})
            assert error.code == "unsupported" and error.key == "isolate" and f"isolate is {isolate}" in error.message
            assert connection.call("hello")["isolation"] == isolate


def test_it_asks_before_its_first_compile(client: Client) -> None:
    client.good()
    error = client.connection.error("hello", {"isolate": "connection"})
    assert error.code == "invalid_argument" and error.key == "isolate" and "first compile" in error.message
    assert client.connection.call("hello")["isolation"] == "user"
