"""Domains that share fewer places for executors than there are domains: who waits, who leaves, and what no longer counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from domains import FIXTURES, Client, Domains, NewClient, Start
from gpu_machine import N, only_with_the_standin, register, vector
from support.raw import tensor
from user_kernels import only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES

ONE_PLACE = 3  # with the common executor's and a spare's


def ask(one: Client, **how: object) -> int:
    return one.connection.request("launch", {"kernel": one.custom, "args": [one.tensors[1], one.tensors[0], N], **how})


def cancel(one: Client, msgid: int) -> None:
    one.connection.call("cancel", {"msgid": msgid})
    assert one.connection.reply_error(msgid).code == "cancelled"


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
        held = ask(busy)
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        given_up = ask(first)
        first.connection.call("ping", {})
        waiting = ask(second)
        second.connection.call("ping", {})
        cancel(first, given_up)
        assert not second.connection.readable(3.5)  # longer than a place is kept
    busy.connection.reply(held).get()
    second.connection.reply(waiting).get()


def test_who_leaves_stays_where_nobody_waits_any_more(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection", maximum=ONE_PLACE)
    other, busy = client(machine, own=True), client(machine, own=True)
    with machine.control.gate("kernel"):
        held = ask(busy)
        machine.wait(lambda: machine.control.waiting("kernel") == 1)
        assert not busy.connection.readable(2.2)  # it has had its place for long
        given_up = ask(other)
        other.connection.call("ping", {})
        cancel(other, given_up)
        assert not busy.connection.readable(3)  # it is not ended as late
    busy.connection.reply(held).get()
    other.own()


@pytest.mark.parametrize("gate", ["context", "module_load"])
def test_executors_that_take_longer_than_a_place_is_kept(start: Start, client: NewClient, gate: str) -> None:
    machine = start(isolate="connection", maximum=ONE_PLACE, spares=0)
    a, b = client(machine, own=True), client(machine, own=True)
    with slow(machine, gate, 2.3) as begun:
        one = ask(a)
        machine.wait(lambda: bool(begun))
        two = ask(b)
        a.connection.reply(one).get()
        b.connection.reply(two).get()
        assert len(begun) <= 4


def test_a_deadline_of_an_opening_that_hangs_while_others_wait(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection", maximum=ONE_PLACE)
    other, stranger, one = client(machine, own=True), client(machine), client(machine, own=True)
    stranger.square()
    more = tensor(register(one.connection, vector(one.exporter.alloc(4 * N))), [N])
    pid = [row.pid for row in machine.control.rows() if row.pid in machine.executors()][-1]
    with machine.control.gate("ipc_open", pid):
        launch = {"kernel": one.custom, "args": [one.tensors[1], more, N], "deadline_ms": 4000}
        msgid = one.connection.request("launch", launch)
        machine.reaches("ipc_open", pid=pid)
        waiting = ask(other)
        error = one.connection.reply_error(msgid)
        assert error.code == "deadline_exceeded" and error.detail["ended"] is True, error
        other.connection.reply(waiting).get()


def test_an_opening_that_hangs_gives_its_place_up(start: Start, client: NewClient) -> None:
    machine = start(isolate="connection", maximum=ONE_PLACE)
    other, stranger, one = client(machine, own=True), client(machine), client(machine, own=True)
    stranger.square()
    more = tensor(register(one.connection, vector(one.exporter.alloc(4 * N))), [N])
    pid = [row.pid for row in machine.control.rows() if row.pid in machine.executors()][-1]
    with machine.control.gate("ipc_open", pid):
        msgid = one.connection.request("launch", {"kernel": one.custom, "args": [one.tensors[1], more, N]})
        machine.reaches("ipc_open", pid=pid)
        other.connection.reply(ask(other)).get()
    one.connection.reply(msgid).get()
