"""Kernels of users in executors of their own, on the stand-in driver: a fault meets only its own user, who waits for whose turn on the
GPU, and how domains share fewer places for executors than there are domains; deadlines, hangs and faults, and what each costs."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from domains import FIXTURES, Client, Domains, NewClient, Plain, Start
from gpu_machine import N, only_with_nvrtc, only_with_the_standin, register, vector
from prometheus import parse
from support import proc, raw
from support.kernels import OTHERS, compile_source
from support.raw import tensor
from test_ordered import Timelines

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
    one = machine.executor_of(first)
    second.own()
    two = machine.new_executor({common, one})
    assert first.fault().code == "device_fault"
    second.launch_own()
    assert two in machine.executors()
    first.launch_own()
    first.connection.close()
    second.connection.close()
    proc.eventually(lambda: machine.executors() == {common}, "nobody needs the others")


def test_a_connection_that_has_released_its_code_keeps_its_executor(start: Start, client: NewClient) -> None:
    """Each of its calls would wait for a new process otherwise. With the connection it ends at once."""
    machine = start(isolate="connection")
    own = client(machine)
    executor = machine.executor_of(own)
    (common,) = machine.executors() - {executor}
    own.connection.call("release", {"kernel": own.custom})
    own.connection.call("release", {"module": 1})
    for _ in range(5):
        own.square()
        time.sleep(0.05)
        assert machine.executors() == {common, executor}
    own.connection.close()
    closed = time.monotonic()
    proc.eventually(lambda: machine.executors() == {common}, "nobody needs the other")
    assert time.monotonic() - closed < 5


def test_the_last_job_of_a_connection_ends_after_it(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection")
    own = client(machine)
    executor = machine.executor_of(own)
    own.connection.call("release", {"kernel": own.custom})
    own.connection.call("release", {"module": 1})
    own.square()
    with machine.control.gate("kernel"):
        own.ask_square()
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        own.connection.close()
        time.sleep(0.2)  # the daemon sees that, and ends the job only later
    closed = time.monotonic()
    proc.eventually(lambda: executor not in machine.executors(), "nobody needs it")
    assert time.monotonic() - closed < 5


def test_a_job_that_begins_anew_has_its_full_time(start: Start, client: NewClient) -> None:
    machine = start(more="[server]\njob_timeout_s = 4\n")
    one = client(machine)
    one.square()
    (common,) = machine.executors()
    with machine.control.gate("kernel"):
        msgid = one.ask_square()
        machine.reaches("kernel", pid=common)
        assert not one.connection.readable(3.5)
        os.kill(common, signal.SIGKILL)
        machine.wait(lambda: any(row.waiting("kernel") for row in machine.control.rows() if row.pid != common))
        assert not one.connection.readable(2.5)
    one.connection.reply(msgid).get()


def test_a_cancelled_run_that_comes_back_behind_another_is_answered(start: Start, client: NewClient) -> None:
    """Nothing of it is under way any more, though the run before it waits for the next executor."""
    machine = start()
    one = client(machine)
    one.square()
    (common,) = machine.executors()
    with machine.control.gate("init"):
        with machine.control.gate("kernel", common):
            first, second = (one.ask_square() for _ in range(2))
            machine.reaches("kernel", pid=common)
            one.connection.call("cancel", {"msgid": second})
            os.kill(common, signal.SIGKILL)
        error = one.connection.reply_error(second)
        assert error.code == "cancelled" and "outputs are undefined" in error.message
    one.connection.reply(first).get()


# ---- turns ----


def several(start: Start, client: NewClient, count: int, more: str = "") -> list[Client]:
    """Clients with an executor each."""
    machine = start(isolate="connection", more=more)
    return [client(machine, own=True) for _ in range(count)]


@pytest.mark.parametrize(("more", "seconds"), [("", 2), ("longest_s = 1\n", 1)])
def test_a_kernel_that_never_ends_while_others_wait(start: Start, client: NewClient, more: str, seconds: int) -> None:
    first, second = several(start, client, 2, more)
    endless = first.ask_endless()
    second.launch_own()
    assert not first.connection.readable(0), "others go beside a kernel that is late"
    while not first.connection.readable(0):
        second.launch_own()
    error = first.connection.reply_error(endless)
    assert error.code == "job_timeout" and error.detail["timeout_s"] == seconds, error
    first.launch_own()


def test_as_many_late_kernels_as_have_turns(start: Start, client: NewClient) -> None:
    """Others wait for the second one, and not for the third."""
    machine = start(isolate="connection", more="late_ms = 1\n")
    hostile, other = [client(machine) for _ in range(2)], client(machine, own=True)
    endless = []
    for one in hostile:
        one.own()
        endless.append(one.ask_endless())
    other.launch_own()
    ended = [one.connection.reply_error(msgid) for one, msgid in zip(hostile, endless) if one.connection.readable(0)]
    assert ended and {error.code for error in ended} == {"job_timeout"}, ended


def test_a_kernel_has_its_time_from_when_others_are_there(start: Start, client: NewClient) -> None:
    """Somebody went beside it long ago, and comes again."""
    first, second = several(start, client, 2, "late_ms = 1\nlongest_s = 1\n")
    long = first.ask_for(2_000_000)
    second.launch_own()
    assert not first.connection.readable(1.5)
    second.launch_own()
    first.connection.reply(long).get()


@pytest.mark.parametrize("why", ["its turn went on with nothing to do", "its debt is old"])
def test_a_newcomer_does_not_wait_for_all_that_others_have_to_do(start: Start, client: NewClient, why: str) -> None:
    """Nobody pays for time that nobody wanted, and others who come later go before somebody in debt no longer than each other."""
    *busy, other, one = several(start, client, 3 if "turn" in why else 4)
    if "turn" in why:
        busy.append(other)
        assert not one.connection.readable(1.0)
    else:
        for own, asked in [(own, [own.ask_for(4000) for _ in range(150)]) for own in (one, other)]:
            for msgid in asked:
                own.connection.reply(msgid).get()
    sent = [[each.ask_for(4000) for _ in range(300)] for each in busy]
    one.launch_own()
    assert all(each.connection.call("cancel", {"msgid": asked[-1]})["cancelled"] for each, asked in zip(busy, sent))


def test_who_has_cancelled_waits_no_longer(start: Start, client: NewClient) -> None:
    """The kernel that it waited for has all its time."""
    first, second = several(start, client, 2, "late_ms = 60000\nlongest_s = 1\n")
    long = first.ask_for(1_600_000)
    assert second.connection.call("cancel", {"msgid": second.ask_for(1)})["cancelled"]
    first.connection.reply(long).get()


# ---- places ----

ONE_PLACE = 3  # with the common executor's and a spare's


def test_a_busy_one_makes_room(start: Start, client: NewClient) -> None:
    """An executor that is never without work does not keep its place for ever; its domain goes on later."""
    machine = start(isolate="connection", maximum=3)
    first, second = client(machine, own=True), client(machine)
    sent = [first.ask_for(150_000) for _ in range(200)]
    second.own()
    assert len(machine.executors()) <= 3
    assert first.connection.call("cancel", {"msgid": sent[-1]}) == {"cancelled": True}  # it was not done before
    second.connection.close()
    for msgid in sent[:20]:
        first.connection.reply(msgid).get()


@contextmanager
def slow(machine: Domains, gate: str, seconds: float) -> Iterator[dict[int, float]]:
    """Each process takes so long there. Yields those that have come to it."""
    since: dict[int, float] = {}
    over = threading.Event()
    closed = machine.control.gate(gate).close()

    def let() -> None:
        while not over.wait(0.005):
            for row in machine.control.rows():
                if row.waiting(gate):
                    begun = since.setdefault(row.pid, time.monotonic())
                    if time.monotonic() > begun + seconds and not closed.tickets:
                        closed.let(1)

    thread = threading.Thread(target=let)
    thread.start()
    try:
        yield since
    finally:
        over.set()
        thread.join()
        closed.open()


@pytest.mark.parametrize("spares", [0, 1])
def test_a_wait_that_was_given_up_counts_no_more(start: Start, client: NewClient, spares: int) -> None:
    """Two wait for the place of a third; the one that came first is cancelled."""
    machine = start(isolate="connection", maximum=ONE_PLACE, spares=spares, more="longest_s = 60\n")
    second, first, busy = client(machine, own=True), client(machine, own=True), client(machine)
    busy.own()
    with machine.control.gate("kernel"):
        held = busy.ask()
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        given_up = first.ask()
        first.connection.call("ping", {})
        waiting = second.ask()
        second.connection.call("ping", {})
        first.cancel(given_up)
        assert not second.connection.readable(3.5)  # longer than a place is kept
    busy.connection.reply(held).get()
    second.connection.reply(waiting).get()


def test_who_leaves_stays_where_nobody_waits_any_more(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection", maximum=ONE_PLACE)
    other, busy = client(machine, own=True), client(machine, own=True)
    with machine.control.gate("kernel"):
        held = busy.ask()
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        assert not busy.connection.readable(2.2)  # it has had its place for long
        given_up = other.ask()
        other.connection.call("ping", {})
        other.cancel(given_up)
        assert not busy.connection.readable(3)  # it is not ended as late
    busy.connection.reply(held).get()
    other.own()


@pytest.mark.parametrize("gate", ["context", "module_load"])
def test_executors_that_take_longer_than_a_place_is_kept(start: Start, client: NewClient, gate: str) -> None:
    machine = start(isolate="connection", maximum=ONE_PLACE, spares=0)
    a, b = client(machine, own=True), client(machine, own=True)
    with slow(machine, gate, 2.3) as begun:
        one = a.ask()
        machine.wait(lambda: bool(begun))
        two = b.ask()
        a.connection.reply(one).get()
        b.connection.reply(two).get()
        assert len(begun) <= 4


@pytest.mark.parametrize("deadline", [{}, {"deadline_ms": 4000}], ids=["none", "deadline"])
def test_an_opening_that_hangs_gives_its_place_up(start: Start, client: NewClient, deadline: dict[str, int]) -> None:
    """At its deadline its executor ends."""
    machine = start(isolate="connection", maximum=ONE_PLACE)
    other, one = client(machine, own=True), client(machine, own=True)
    more = tensor(register(one.connection, vector(one.exporter.alloc(4 * N))), [N])
    client(machine).square()
    pid = [row.pid for row in machine.control.rows() if row.pid in machine.executors()][-1]
    with machine.control.gate("ipc_open", pid):
        msgid = one.ask(args=[one.tensors[1], more, N], **deadline)
        machine.reaches("ipc_open", pid=pid)
        waiting = other.ask()
        if deadline:
            error = one.connection.reply_error(msgid)
            assert error.code == "deadline_exceeded" and error.detail["ended"] is True, error
        other.connection.reply(waiting).get()
    if not deadline:
        one.connection.reply(msgid).get()


SHORT = 200  # ms, a deadline that passes
ENDED = ("deadline_exceeded", {"ended": True})


def answer(one: Client, msgid: int) -> tuple[str, dict[str, Any]]:
    error = one.connection.reply_error(msgid)
    return error.code, error.detail


def metric(one: Client, name: str, **labels: str) -> float:
    samples = parse(one.connection.call("metrics")["text"])[name].samples
    return sum(value for (_, of), value in samples.items() if set(labels.items()) <= of)


def wait_running(one: Client, jobs: int) -> None:
    proc.eventually(lambda: metric(one, "kopsd_jobs_running") == jobs, f"{jobs} jobs are on devices")


def with_op(one: Client, op: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Requests of a sequence and a program with such a second op."""
    square = {"op": "square", "in": [0], "out": [2]}
    steps = {"tensors": one.tensors, "ops": [square, op, square]}
    program = one.connection.call("program", steps)["program"]
    return [("sequence", steps), ("run_program", {"program": program})]


# ---- deadlines ----


def test_a_deadline_ends_a_kernel(start: Start, client: NewClient) -> None:
    one = client(start(faults=0), own=True)
    error = one.connection.reply_error(one.ask_endless(deadline_ms=SHORT))
    assert (error.code, error.detail) == ENDED and "kernel was ended" in error.message
    assert metric(one, "kopsd_jobs_running") == 0
    one.launch_own()
    one.memory[1].write(bytes(4 * N))
    for method, params in with_op(one, {"kernel": one.hostile("spin_forever"), "args": [1]}):
        error = one.connection.error(method, {**params, "deadline_ms": SHORT})
        assert (error.code, error.detail) == ENDED, method
    one.launch_own()


def test_a_deadline_ends_nothing_that_runs_before(start: Start, client: NewClient) -> None:
    """The job in front of it on its stream goes on, and what is behind that ends in its turn."""
    machine = start()
    one, other = client(machine, own=True), client(machine)
    with machine.control.gate("kernel") as gate:
        runs = one.ask_square()
        assert answer(one, one.ask_endless(deadline_ms=SHORT)) == ("deadline_exceeded", {"ended": False})
        assert runs not in one.connection.replies and metric(other, "kopsd_jobs_running") == 2
        gate.let(1000)
        one.connection.reply(runs).get()
    one.connection.call("trim")
    assert metric(other, "kopsd_jobs_running") == 0
    one.launch_own()


def test_a_cancelled_kernel_ends_at_its_deadline(start: Start, client: NewClient) -> None:
    machine = start()
    one = client(machine, own=True)
    with machine.control.gate("kernel"):
        msgid = one.ask_endless(deadline_ms=5 * SHORT)
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        assert one.connection.call("cancel", {"msgid": msgid})["cancelled"]
        assert one.connection.alive() and msgid not in one.connection.replies  # a cancel alone ends no kernel
        assert answer(one, msgid) == ("cancelled", {"ended": True})
    one.launch_own()


def test_others_in_the_domain_are_lost_with_it_and_are_told_that_the_daemon_goes_on(start: Start, client: NewClient) -> None:
    machine = start()
    one, other = client(machine), client(machine, own=True)
    beside = other.ask_endless()
    wait_running(other, 1)
    one.own()  # it is of the same user, so both have their turn
    assert answer(one, one.ask_endless(deadline_ms=SHORT))[0] == "deadline_exceeded"
    code, detail = answer(other, beside)
    assert (code, detail["daemon"]) == ("device_lost", "goes_on")
    other.launch_own()


def ordered(machine: Domains, one: Client) -> Timelines:
    """From now on the client works on memory that ordered work takes; its first word is reached."""
    plain = Plain(one.connection, machine.gpu, 2 * N)
    one.tensors[:2] = [plain.tensor(N, N * i) for i in range(2)]
    page = Timelines(one.connection)
    page.reach(0, 1)
    return page


def test_done_is_written_when_the_kernel_has_ended(start: Start, client: NewClient) -> None:
    machine = start(faults=0)
    one = client(machine)
    one.hostile("spin_forever")
    page = ordered(machine, one)
    msgid = one.ask_endless(deadline_ms=5 * SHORT, ready=1, done=1)  # it is looked at before that
    wait_running(one, 1)
    assert page.done(0) == 0
    page.wait_done(0, 1)
    assert answer(one, msgid) == ENDED


def test_a_shutdown_ends_kernels(start: Start, client: NewClient) -> None:
    machine = start(more="[server]\nshutdown_grace_ms = 200\n")
    one = client(machine)
    msgid = one.ask_endless()
    wait_running(one, 1)
    machine.daemon.stop()  # with status 0
    assert answer(one, msgid)[0] == "cancelled"


def test_the_common_executor_is_ended_for_the_job_that_hangs(start: Start, client: NewClient) -> None:
    machine = start(faults=0, more="[server]\njob_timeout_s = 2\n")
    one, other = client(machine), client(machine)
    with machine.control.gate("kernel") as gate:
        hangs = one.ask_square()
        wait_running(one, 1)
        waits = other.ask_square()
        assert answer(one, hangs) == ("job_timeout", {"timeout_s": 2, "daemon": "goes_on"})
        assert other.connection.alive() and waits not in other.connection.replies
        gate.let(1000)
        other.connection.reply(waits).get()
    one.square()


# ---- faults ----


def refused(one: Client) -> raw.RpcError:
    error = one.connection.reply_error(one.ask())
    assert error.code == "quota_exceeded", error
    return error


def test_too_many_faults_stop_the_users_kernels(start: Start, client: NewClient) -> None:
    """One that hangs counts as well."""
    machine = start()
    one, again = client(machine, own=True), client(machine, own=True)
    requests = with_op(one, {"kernel": one.custom, "args": [1, 0, N]})
    assert one.fault().code == "device_fault"
    assert answer(one, one.ask_endless(deadline_ms=SHORT)) == ENDED
    one.launch_own()
    assert one.fault().code == "device_fault"
    error = refused(one)
    assert (error.detail["quota"], error.detail["current"], error.detail["limit"]) == ("faults", 3, 3)
    assert 50000 < error.detail["retry_after_ms"] <= 60000
    assert "3 times" in error.message and "executors.faults" in error.message
    for method, params in requests:
        assert one.connection.error(method, params).code == "quota_exceeded"
    one.square()
    refused(again)
    assert metric(again, "kopsd_refusals_total", what="faults") == metric(again, "kopsd_user_refused_total") == 4
    assert re.search(r"event=faults uid=\d+ faults=3 refused_s=60", machine.daemon.log())
    assert "event=refuse what=faults" in machine.daemon.log()
    page = ordered(machine, one)  # whose word is written all the same
    assert answer(one, one.ask(ready=1, done=1))[0] == "quota_exceeded" and page.done(0) == 1


@pytest.mark.parametrize("isolate", ["none", "user"])
def test_isolation_is_asked_for_before_the_first_compile(start: Start, client: NewClient, isolate: str) -> None:
    one = client(start(isolate=isolate))
    hello = one.connection.call("hello")
    assert hello["isolation"] == isolate and hello["kernels"]["policy"] == ("all" if isolate == "user" else "owner")
    if isolate == "user":
        one.own()
    error = one.connection.error("hello", {"isolate": "connection"})
    assert error.key == "isolate" and one.connection.call("hello")["isolation"] == isolate
    wanted = ("invalid_argument", "first compile") if isolate == "user" else ("unsupported", "isolate is none")
    assert error.code == wanted[0] and wanted[1] in error.message
