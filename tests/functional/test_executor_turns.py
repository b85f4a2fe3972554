"""Turns of users with a GPU, on the stand-in driver: who waits for whom, and for how long. See test_executors_on_two_gpus.py, too."""

from __future__ import annotations

import pytest
from domains import FIXTURES, Client, NewClient, Start
from gpu_machine import N, only_with_the_standin
from user_kernels import hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES


def several(start: Start, client: NewClient, count: int, more: str = "") -> list[Client]:
    """Clients with an executor each."""
    machine = start(isolate="connection", more=more)
    return [client(machine, own=True) for _ in range(count)]


def ask_endless(one: Client) -> int:
    one.memory[1].write(bytes(4 * N))
    kernel = hostile_kernel(one.connection, "spin_forever")
    return one.connection.request("launch", {"kernel": kernel, "args": [one.tensors[1]]})


def ask(one: Client, us: int, times: int = 1) -> list[int]:
    """Kernels that take so long, one after the other."""
    kernel = hostile_kernel(one.connection, "run_for")
    launch = {"kernel": kernel, "args": [{**one.tensors[1], "dtype": "u32", "shape": [1]}, us]}
    return [one.connection.request("launch", launch) for _ in range(times)]


@pytest.mark.parametrize(("more", "seconds"), [("", 2), ("longest_s = 1\n", 1)])
def test_a_kernel_that_never_ends_while_others_wait(start: Start, client: NewClient, more: str, seconds: int) -> None:
    first, second = several(start, client, 2, more)
    endless = ask_endless(first)
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
        endless.append(ask_endless(one))
    other.launch_own()
    ended = [one.connection.reply_error(msgid) for one, msgid in zip(hostile, endless) if one.connection.readable(0)]
    assert ended and {error.code for error in ended} == {"job_timeout"}, ended


def test_a_kernel_has_its_time_from_when_others_are_there(start: Start, client: NewClient) -> None:
    """Somebody went beside it long ago, and comes again."""
    first, second = several(start, client, 2, "late_ms = 1\nlongest_s = 1\n")
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


def test_nobody_pays_for_time_that_nobody_wanted(start: Start, client: NewClient) -> None:
    """A user whose turn went on, with nothing to do, does not wait for all that others have to do."""
    *busy, idle = several(start, client, 3)
    assert not idle.connection.readable(1.0)
    goes_soon(idle, *busy)


def test_an_old_debt_is_forgotten(start: Start, client: NewClient) -> None:
    """Two have shared the GPU for a while. Others who come later go before them no longer than each other."""
    *new, other, old = several(start, client, 4)
    for one, asked in [(one, ask(one, 4000, 150)) for one in (old, other)]:
        for msgid in asked:
            one.connection.reply(msgid).get()
    goes_soon(old, *new)


def test_who_has_cancelled_waits_no_longer(start: Start, client: NewClient) -> None:
    """The kernel that it waited for has all its time."""
    first, second = several(start, client, 2, "late_ms = 60000\nlongest_s = 1\n")
    (long,) = ask(first, 1_600_000)
    (waiting,) = ask(second, 1)
    assert second.connection.call("cancel", {"msgid": waiting})["cancelled"]
    first.connection.reply(long).get()
