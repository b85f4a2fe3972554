"""Users' kernels on two GPUs run at the same time. The rest of what a GPU has of its own is tested on the stand-in driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from isolated import start
from support.daemon import Daemon
from support.kernels import hostile_kernel
from support.raw import tensor

LONG_US = 300_000


class Client:
    """A connection with an executor of its own and, on each GPU, a kernel that takes as long as it is told."""

    def __init__(self, daemon: Daemon, gpus: list[str]) -> None:
        self.connection = daemon.connect()
        self.kernels = [hostile_kernel(self.connection, "run_for", gpu) for gpu in gpus]
        self.runs = [tensor(self.connection.call("alloc", {"size": 4, "device": gpu})["buffer"], [1], "u32") for gpu in gpus]
        for at in range(len(gpus)):
            self.wait(self.ask(at, 1))

    def ask(self, at: int, us: int = LONG_US, **more: Any) -> int:
        return self.connection.request("launch", {"kernel": self.kernels[at], "args": [self.runs[at], us], "stream": at, **more})

    def wait(self, msgid: int) -> dict[str, Any]:
        result: dict[str, Any] = self.connection.reply(msgid).get()
        return result


Pair = tuple[Client, Client]


@pytest.fixture
def pair(backend: str, driver: Any) -> Iterator[Pair]:
    with start(backend, "connection", spares=0, more="exclusive_ms = 5000\nlate_ms = 60000\n") as daemon:
        with daemon.connect() as connection:
            gpus = [d["uuid"] for d in connection.call("hello")["devices"] if d["backend"] == "cuda"]
        if len(gpus) < 2:
            pytest.skip("needs two GPUs")
        both = Client(daemon, gpus[:2]), Client(daemon, gpus[:2])
        yield both
        for one in both:
            one.connection.close()


def seconds_of(pair: Pair, *gpus: int) -> float:
    """A long kernel of each client on that GPU."""
    begin = time.perf_counter()
    asked = [(one, one.ask(at)) for one, at in zip(pair, gpus)]
    for one, msgid in asked:
        one.wait(msgid)
    return time.perf_counter() - begin


def test_two_gpus_take_no_longer_than_one(pair: Pair) -> None:
    one, apart, together = seconds_of(pair, 0), seconds_of(pair, 0, 1), seconds_of(pair, 1, 1)
    assert apart < 1.5 * one, (one, apart)
    assert together > 1.8 * one, (one, together)
