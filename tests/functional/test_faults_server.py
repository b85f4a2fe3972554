"""Deadlines, hangs and faults of users' kernels that have executors of their own: what each costs, and whom; isolation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from faults_machine import FIXTURES, SHORT, Client, Machine, N, only_on_the_fake
from support import proc, raw
from support.raw import tensor
from test_ordered import Timelines
from user_kernels import only_with_nvrtc

pytestmark = only_with_nvrtc
start, clients, client = FIXTURES


# ---- deadlines ----


def test_a_deadline_ends_a_kernel(client: Client) -> None:
    error = client.bad("spin_forever", deadline_ms=SHORT)
    assert error.code == "deadline_exceeded" and error.detail == {"ended": True}
    assert "kernel was ended" in error.message
    assert client.metric("kopsd_jobs_running") == 0
    client.good()


def test_a_deadline_ends_a_sequence_and_a_program(client: Client) -> None:
    steps = client.steps("square", "spin_forever", "square")
    error = client.connection.error("sequence", {**steps, "deadline_ms": SHORT})
    assert (error.code, error.detail) == ("deadline_exceeded", {"ended": True})
    program = client.connection.call("program", steps)["program"]
    error = client.connection.error("run_program", {"program": program, "deadline_ms": SHORT})
    assert (error.code, error.detail) == ("deadline_exceeded", {"ended": True})
    client.good()


def test_a_deadline_ends_nothing_that_runs_before(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    """The job in front of it on its stream goes on, and what is behind that ends in its turn."""
    machine = start()
    client, other = clients(machine), clients(machine)
    client.good()
    with machine.gate() as let:
        runs = client.square()
        late = client.launch("spin_forever", deadline_ms=SHORT)
        error = client.error_of(late)
        assert (error.code, error.detail) == ("deadline_exceeded", {"ended": False})
        assert runs not in client.connection.replies and other.metric("kopsd_jobs_running") == 2
        let()
        client.connection.reply(runs).get()
    client.connection.call("trim")
    assert other.metric("kopsd_jobs_running") == 0
    client.good()


def test_builtin_ops_of_a_client_with_kernels_end_at_their_deadline(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start()
    client = clients(machine)
    client.good()
    with machine.gate():
        error = client.error_of(client.square(deadline_ms=SHORT))
        assert (error.code, error.detail) == ("deadline_exceeded", {"ended": True})


def test_the_common_executor_is_never_ended_for_a_deadline(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start()
    client = clients(machine)
    with machine.gate() as let:
        msgid = client.square(deadline_ms=SHORT)
        error = client.error_of(msgid)
        assert (error.code, error.detail) == ("deadline_exceeded", {"ended": False})
        trim = client.connection.request("trim")  # tells when the work has ended
        assert client.connection.alive() and trim not in client.connection.replies
        assert client.metric("kopsd_jobs_running") == 1
        let()
        client.connection.reply(trim).get()
        assert client.metric("kopsd_jobs_running") == 0


def test_a_cancelled_kernel_ends_at_its_deadline(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start()
    client = clients(machine)
    client.good()
    with machine.kernels() as begun:
        msgid = client.launch("spin_forever", deadline_ms=5 * SHORT)
        begun(1)
        assert client.connection.call("cancel", {"msgid": msgid})["cancelled"]
        assert client.connection.alive() and msgid not in client.connection.replies  # a cancel alone ends no kernel
        error = client.error_of(msgid)
        assert (error.code, error.detail) == ("cancelled", {"ended": True})
    client.good()


def test_others_in_the_domain_are_lost_with_it_and_are_told_that_the_daemon_goes_on(
    start: Callable[..., Machine], clients: Callable[..., Client]
) -> None:
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
    error = client.error_of(msgid)
    assert (error.code, error.detail) == ("deadline_exceeded", {"ended": True})


# ---- clients that are gone ----


def test_a_kernel_whose_client_is_gone_is_ended(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    """Also one that would have had a deadline, much later."""
    machine = start()
    client, watcher = clients(machine), clients(machine)
    client.good()
    with machine.kernels() as begun:
        client.launch("spin_forever", stream=0)
        client.launch("spin_forever", stream=1, deadline_ms=86400000)
        begun(2)
        started = time.monotonic()
        client.connection.close()
        watcher.wait_running(0)
        assert time.monotonic() - started > 0.9  # until then it may end by itself


def test_work_that_ends_by_itself_is_left_alone(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more="faults = 1\n")
    client, other = clients(machine), clients(machine)
    for who in (client, other):
        who.good()
    with machine.gate() as let:
        client.square()
        other.wait_running(1)
        client.connection.close()
        let()
        other.wait_running(0)
    other.good()  # nothing was charged


def test_a_shutdown_ends_kernels(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more="[server]\nshutdown_grace_ms = 200\n")
    client = clients(machine)
    msgid = client.launch("spin_forever")
    client.wait_running(1)
    machine.daemon.stop()  # with status 0
    assert client.error_of(msgid).code == "cancelled"


# ---- the watchdog ----

WATCHED = "faults = 0\n[server]\njob_timeout_s = {seconds}\n"
SOON, LATER = WATCHED.format(seconds=1), WATCHED.format(seconds=2)  # later: the test does something meanwhile


def test_the_watchdog_ends_the_kernel_alone(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more=SOON)
    client, other = clients(machine), clients(machine)
    error = client.bad("spin_forever")
    assert error.code == "job_timeout" and error.detail == {"timeout_s": 1, "daemon": "goes_on"}
    assert "it alone was ended" in error.message
    assert "event=job_timeout" in machine.daemon.log() and "action=end_job" in machine.daemon.log()
    client.good()
    other.good()


@pytest.mark.parametrize("waits_for_longer", [False, True])
def test_who_waits_for_a_turn_is_not_ended(start: Callable[..., Machine], clients: Callable[..., Client], waits_for_longer: bool) -> None:
    machine = start("connection", LATER)
    client, other = clients(machine), clients(machine)
    client.good()
    other.good()
    with machine.gate() as let:
        first = client.square(stream=0)  # of its domain, which has the GPU now
        client.wait_running(1)
        hangs = None if waits_for_longer else client.launch("spin_forever", stream=1)
        waits = other.launch("custom_kernel")
        other.wait_running(2 if waits_for_longer else 3)
        if hangs is None:
            hangs = client.launch("spin_forever", stream=1)
        let()
        client.connection.reply(first).get()
    assert client.error_of(hangs).code == "job_timeout"
    other.connection.reply(waits).get()


def test_the_common_executor_is_ended_for_the_job_that_hangs(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more=LATER)
    client, other = clients(machine), clients(machine)
    with machine.gate() as let:
        hangs = client.square()
        client.wait_running(1)
        waits = other.square()
        error = client.error_of(hangs)
        assert error.code == "job_timeout" and error.detail == {"timeout_s": 2, "daemon": "goes_on"}
        assert other.connection.alive() and waits not in other.connection.replies
        let()
        other.connection.reply(waits).get()
    client.connection.reply(client.square()).get()


def test_without_executors_the_daemon_ends(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start("off", SOON)
    error = clients(machine).bad("spin_forever")
    assert error.code == "job_timeout" and error.detail == {"timeout_s": 1}
    assert "the daemon ends" in error.message
    assert machine.daemon.wait() == 75
    machine.daemon.process = None
    assert "action=exit" in machine.daemon.log()


# ---- faults ----


def test_a_fault_names_the_kernel(client: Client) -> None:
    error = client.bad("fault_kernel")
    assert error.code == "device_fault"
    assert error.detail["kernel"] == "fault_kernel" and error.detail["driver"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert "op_index" not in error.detail
    client.good()


def test_a_fault_in_a_sequence_and_in_a_program(client: Client) -> None:
    steps = client.steps("square", "fault_kernel", "square")
    program = client.connection.call("program", steps)["program"]
    for method, params in (("sequence", steps), ("run_program", {"program": program})):
        error = client.connection.error(method, params)
        assert error.code == "device_fault"
        assert (error.detail["kernel"], error.detail["op_index"]) == ("fault_kernel", 1)
    client.good()
    assert client.metric("kopsd_faults_total") == 2


@only_on_the_fake
def test_a_fault_of_several_kernels(client: Client) -> None:
    error = client.connection.error("sequence", client.steps("custom_kernel", "square", "fault_kernel", "custom_kernel"))
    assert (error.detail["kernel"], error.detail["op_index"]) == ("fault_kernel", 2)


def test_the_log_names_the_kernel(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start()
    client = clients(machine)
    assert client.connection.error("sequence", client.steps("square", "fault_kernel")).code == "device_fault"
    assert re.search(r"event=fault code=device_fault .* op=fault_kernel ", machine.daemon.log())


def fault(client: Client, times: int) -> None:
    for _ in range(times):
        assert client.bad("fault_kernel").code == "device_fault"


def refused(client: Client) -> raw.RpcError:
    error = client.bad("custom_kernel")
    assert error.code == "quota_exceeded", error
    return error


def test_too_many_faults_stop_the_users_kernels(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
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


def test_hangs_count_as_faults(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more="faults = 2\n")
    client = clients(machine)
    fault(client, 1)
    assert client.bad("spin_forever", deadline_ms=SHORT).code == "deadline_exceeded"
    refused(client)


@only_on_the_fake
def test_what_ends_together_is_one_fault(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more="faults = 2\n")
    client, other = clients(machine), clients(machine)
    for stream in range(3):
        client.launch("spin_forever", stream=stream)
    other.wait_running(3)
    client.connection.close()
    other.wait_running(0)
    other.good()
    fault(other, 1)
    refused(other)


def test_refused_ordered_work_writes_its_word(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    client = clients(start(more="faults = 1\n"))
    fault(client, 1)
    buffer = client.connection.call("alloc", {"size": 8 * N})["buffer"]
    client.a, client.b = tensor(buffer, [N]), tensor(buffer, [N], offset=4 * N)
    page = Timelines(client.connection)
    page.reach(0, 1)
    assert client.bad("custom_kernel", ready=1, done=1).code == "quota_exceeded"
    assert page.done(0) == 1


def test_no_bound_on_faults(client: Client) -> None:
    fault(client, 5)
    client.good()


# ---- isolation ----


@pytest.mark.parametrize("isolate", ["off", "none", "user", "connection"])
def test_hello_tells_the_isolation(start: Callable[..., Machine], clients: Callable[..., Client], isolate: str) -> None:
    machine = start(isolate)
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


@pytest.mark.parametrize("policy", ["off", "owner"])
def test_a_policy_that_is_set_stays(start: Callable[..., Machine], clients: Callable[..., Client], policy: str) -> None:
    assert clients(start(more=f"[kernels]\nuser_kernels = {policy}\n")).hello["kernels"]["policy"] == policy


def test_a_connection_asks_for_nothing_else(client: Client) -> None:
    for value in ("user", "none", "off", "", "Connection"):
        error = client.connection.error("hello", {"isolate": value})
        assert error.code == "invalid_argument" and error.key == "isolate", value
    assert client.connection.error("hello", {"isolate": True}).code == "wrong_type"


def test_it_asks_before_its_first_compile(client: Client) -> None:
    client.good()
    error = client.connection.error("hello", {"isolate": "connection"})
    assert error.code == "invalid_argument" and error.key == "isolate" and "first compile" in error.message
    assert client.connection.call("hello")["isolation"] == "user"


def test_a_connection_apart_is_not_hit(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start(more="faults = 0\n")
    client, apart = clients(machine), clients(machine, isolate="connection")
    apart.connection.call("hello", {"isolate": "connection"})
    waits = apart.launch("spin_forever")
    client.wait_running(1)
    client.launch("spin_forever", deadline_ms=SHORT)
    client.connection.close()
    assert apart.connection.alive() and waits not in apart.connection.replies


# ---- modules ----


@only_on_the_fake
def test_modules_of_a_connection_end_with_it(start: Callable[..., Machine], clients: Callable[..., Client]) -> None:
    machine = start()
    client, other = clients(machine, isolate="connection"), clients(machine)
    client.good()
    other.good()
    own, of_user = re.findall(r"event=fake_load domain=(\w+)", machine.daemon.log())
    client.connection.close()
    other.connection.close()
    proc.eventually(lambda: f"event=fake_unload domain={own}" in machine.daemon.log(), "its module is unloaded")
    clients(machine).good()
    assert machine.daemon.log().count("event=fake_load") == 2  # the user's was kept
    assert f"event=fake_unload domain={of_user}" not in machine.daemon.log()
