"""Executors and a daemon that poll when work is likely to end, on the stand-in driver: a forecast that is wrong costs processor time or
a moment, and never an answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from domains import FIXTURES, Client, Domains
from gpu_machine import N, only_with_the_standin, values
from support import proc

pytestmark = only_with_the_standin
start, client = FIXTURES
POLLS = {"KOPSD_SERVER_SPIN_US": "100"}  # also on a machine with few processors
HELD = 0.4  # seconds


def processor_seconds(pids: set[int]) -> float:
    return sum(proc.cpu_ticks(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def held(machine: Domains, one: Client) -> float:
    """A square whose kernel does not end for a while; how long the answer took."""
    began = time.monotonic()
    one.memory[2].write(bytes(4 * N))
    with machine.control.gate("kernel"):
        msgid = one.connection.request("run", {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]]})
        assert not one.connection.readable(HELD)
    one.connection.reply(msgid).get()
    assert (values(one.memory[2]) == 9).all()
    return time.monotonic() - began


def test_work_that_takes_longer_than_it_did(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Nobody polls for it all that time."""
    machine = start(env=POLLS)
    one = client(machine)
    for _ in range(20):
        one.square()
    pids = {machine.daemon.pid, *machine.executors()}
    before = processor_seconds(pids)
    wall = held(machine, one) + held(machine, one)
    assert processor_seconds(pids) - before < wall / 2


def test_work_that_takes_less_time_than_it_did(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Nobody sleeps as long as it took before."""
    machine = start(env=POLLS)
    one = client(machine)
    shortest = min(held(machine, one) for _ in range(3))
    began = time.monotonic()
    one.square()
    assert time.monotonic() - began < shortest / 2
