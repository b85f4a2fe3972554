"""Turns of users with a GPU, on the stand-in driver: who waits for whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from domains import FIXTURES, Client, Domains
from gpu_machine import N, only_with_the_standin
from user_kernels import hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


def test_domains_have_turns(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """With one active domain, another one's kernel waits until the first one's has ended, if that is not late."""
    machine = start(isolate="connection", more="late_ms = 60000\n")
    first, second = client(machine), client(machine)
    first.own()
    second.own()
    with machine.control.gate("kernel"):
        sent = [
            one.connection.request("launch", {"kernel": one.custom, "args": [one.tensors[1], one.tensors[0], N]}) for one in (first, second)
        ]
        rows = [machine.control.row(pid) for pid in machine.executors()]
        machine.wait(lambda: sum(row.waiting("kernel") for row in rows) == 1)
        assert not second.connection.readable(0.2)
        assert sum(row.waiting("kernel") for row in rows) == 1
    for one, msgid in zip((first, second), sent):
        one.connection.reply(msgid).get()


@pytest.mark.parametrize(("more", "seconds"), [("", 2), ("longest_s = 1\n", 1)])
def test_a_kernel_that_never_ends_while_others_wait(
    start: Callable[..., Domains], client: Callable[..., Client], more: str, seconds: int
) -> None:
    machine = start(isolate="connection", more=more)
    first, second = client(machine), client(machine)
    first.own()
    second.own()
    first.memory[1].write(bytes(4 * N))
    kernel = hostile_kernel(first.connection, "spin_forever")
    endless = first.connection.request("launch", {"kernel": kernel, "args": [first.tensors[1]]})
    second.launch_own()
    assert not first.connection.readable(0), "others go beside a kernel that is late"
    while not first.connection.readable(0):
        second.launch_own()
    error = first.connection.reply_error(endless)
    assert error.code == "job_timeout" and error.detail["timeout_s"] == seconds, error
    first.launch_own()


def test_as_many_late_kernels_as_have_turns(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Others wait for the second one, and not for the third."""
    machine = start(isolate="connection", more="late_ms = 1\n")
    hostile, other = [client(machine) for _ in range(2)], client(machine)
    other.own()
    endless = []
    for one in hostile:
        one.own()
        one.memory[1].write(bytes(4 * N))
        kernel = hostile_kernel(one.connection, "spin_forever")
        endless.append(one.connection.request("launch", {"kernel": kernel, "args": [one.tensors[1]]}))
    other.launch_own()
    ended = [one.connection.reply_error(msgid) for one, msgid in zip(hostile, endless) if one.connection.readable(0)]
    assert ended and {error.code for error in ended} == {"job_timeout"}, ended


def ask(one: Client, us: int, times: int = 1) -> list[int]:
    """Kernels that take so long, one after the other."""
    kernel = hostile_kernel(one.connection, "run_for")
    launch = {"kernel": kernel, "args": [{**one.tensors[1], "dtype": "u32", "shape": [1]}, us]}
    return [one.connection.request("launch", launch) for _ in range(times)]


def test_a_kernel_has_its_time_from_when_others_are_there(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Somebody went beside it long ago, and comes again."""
    machine = start(isolate="connection", more="late_ms = 1\nlongest_s = 1\n")
    first, second = client(machine), client(machine)
    first.own()
    second.own()
    (long,) = ask(first, 2_000_000)
    second.launch_own()
    assert not first.connection.readable(1.5)
    second.launch_own()
    first.connection.reply(long).get()


def goes_soon(one: Client, *busy: Client) -> None:
    """Its kernel does not wait for all that the busy ones have to do."""
    sent = [ask(other, 4000, 300) for other in busy]
    one.launch_own()
    assert all(other.connection.call("cancel", {"msgid": asked[-1]})["cancelled"] for other, asked in zip(busy, sent))


def test_nobody_pays_for_time_that_nobody_wanted(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """A user whose turn went on, with nothing to do, does not wait for all that others have to do."""
    machine = start(isolate="connection")
    idle, *busy = (client(machine) for _ in range(3))
    for one in (*busy, idle):
        one.own()
    assert not idle.connection.readable(1.0)
    goes_soon(idle, *busy)


def test_an_old_debt_is_forgotten(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Two have shared the GPU for a while. Others who come later go before them no longer than each other."""
    machine = start(isolate="connection")
    old, other, *new = (client(machine) for _ in range(4))
    for one in (*new, other, old):
        one.own()
    for one, asked in [(one, ask(one, 4000, 150)) for one in (old, other)]:
        for msgid in asked:
            one.connection.reply(msgid).get()
    goes_soon(old, *new)


def test_who_has_cancelled_waits_no_longer(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """The kernel that it waited for has all its time."""
    machine = start(isolate="connection", more="late_ms = 60000\nlongest_s = 1\n")
    first, second = client(machine), client(machine)
    first.own()
    second.own()
    (long,) = ask(first, 1_600_000)
    (waiting,) = ask(second, 1)
    assert second.connection.call("cancel", {"msgid": waiting})["cancelled"]
    first.connection.reply(long).get()
