"""A daemon whose executors are killed, beside clients that must not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from domains import Bystander, Calculator, Counter, Domains, Plain, Watcher
from gpu_machine import N
from support import proc
from user_kernels import custom_kernel, hostile_kernel

# What an executor opens for its clients. Streams, events and scratch are kept for the next ones.
OPENED = (
    "live_ipc_mappings", "live_vmm_handles", "live_vmm_reservations", "live_vmm_maps", "live_host_registrations",
    "live_pool_imports", "live_modules", "live_graphs", "live_graph_execs", "live_captures",
)  # fmt: skip


class Scene:
    """A daemon whose clients have an executor each once they have kernels. Two of them work all the time: one in the
    common executor, one in its own."""

    def __init__(self, quiet: bool = False, **how: Any) -> None:
        self.machine = Domains(**{"isolate": "connection", "maximum": 12, "faults": 0, **how})
        self.control, self.daemon, self.gpu = self.machine.control, self.machine.daemon, self.machine.gpu
        self.exporter = self.machine.exporter()
        self.watcher = Watcher(self.machine)
        self.bystanders: list[Bystander] = [] if quiet else [Calculator(self.machine), Counter(self.machine)]
        self.named, self.streams = 0, 0

    def others_go_on(self, rounds: int = 2) -> None:
        for one in self.bystanders:
            one.goes_on(rounds)

    def holdings(self) -> dict[str, int]:
        """Of the daemon, and of what its executor has open for the clients that are there, while no executor comes or goes."""
        return proc.eventually(self._look, "all executors serve")

    def _look(self) -> dict[str, int] | None:
        """None: one came or went meanwhile."""
        pid, executors = self.daemon.pid, self._steady()
        live = self.control.row(self.watcher.common()).live()
        found = {
            **self.daemon.holdings(),
            "threads": proc.status(pid, "Threads") - 2 * len(executors),  # a keeper, and who reads what it says
            "zombies": proc.zombies(pid),
            **{key: live[key] for key in OPENED},
        }
        return found if executors and executors == self._steady() else None

    def _steady(self) -> set[int]:
        """The executors; none while one comes or goes."""
        return set() if self.watcher.rows("starting") or self.watcher.rows("ending") else self.machine.executors()

    def settle(self, before: dict[str, int]) -> None:
        proc.eventually(lambda: proc.no_more(self.holdings(), before), lambda: f"{before}, but {self.holdings()}")

    def close(self) -> None:
        for one in self.bystanders:
            one.close()
        for one in self.bystanders:
            one.check()
        self.watcher.connection.close()
        self.exporter.close()
        self.daemon.stop()
        assert not self.control.misuses()


class Victim:
    """A client of the executor that is killed. With a `domain`, that is its own one; the counter of its kernel's launches
    then says whether any was repeated."""

    def __init__(self, scene: Scene, domain: bool) -> None:
        scene.named += 1
        self.scene, self.domain, self.name = scene, domain, f"victim-{scene.named}"
        self.connection = scene.daemon.connect()
        self.connection.call("hello", {"client": self.name})
        self.memory = Plain(self.connection, scene.gpu, 3 * N)
        self.a, self.b, self.c = (self.memory.tensor(N, N * i) for i in range(3))
        self.count, self.counted = Plain(self.connection, scene.gpu, 1, "u32"), 0
        if domain:
            self.custom = custom_kernel(self.connection)
            self.counter = hostile_kernel(self.connection, "run_for")
        self.works()

    @property
    def pid(self) -> int:
        return self.scene.watcher.of(self.name) if self.domain else self.scene.watcher.common()

    def has_another_than(self, pid: int) -> None:
        proc.eventually(lambda: self.pid not in (0, pid), "another executor")

    def works(self) -> None:
        """With ids that it got long ago."""
        self.memory.data[:] = np.repeat(np.float32([3, 0, 0]), N)
        self.connection.run("square", [self.a], [self.b])
        self.connection.run("add", [self.a, self.b], [self.c])
        assert (self.memory.data == np.repeat(np.float32([3, 9, 12]), N)).all()
        if self.domain:
            self.connection.call("launch", {"kernel": self.custom, "args": [self.c, self.b, N]})
            assert (self.memory.data[2 * N :] == 18).all()
            self.connection.reply(self.launch()).get()
            assert self.count.data[0] == self.counted

    def launch(self, stream: int = 0, us: int = 1) -> int:
        """The counter's kernel."""
        self.counted += 1
        return self.connection.request("launch", {"kernel": self.counter, "args": [self.count.tensor(), us], "stream": stream})

    @contextmanager
    def held(self, gate: str) -> Iterator[None]:
        """Whatever its executor does there waits; another executor does not."""
        pid = self.pid
        with self.scene.control.gate(gate, pid):
            yield

    def reaches(self, gate: str) -> None:
        self.scene.machine.reaches(gate, pid=self.pid)


Start = Callable[..., Scene]
# Gets to a point, yields for the kill, and sees that all is as it should be.
Point = Callable[[Scene, Victim], Iterator[None]]


def finish(point: Iterator[None]) -> None:
    for _ in point:
        raise AssertionError("a point yields once")


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """A scene with these settings: the one of the test before, if that had the same."""
    made: list[tuple[dict[str, Any], Scene]] = []

    def scene(**how: Any) -> Scene:
        if not made or made[-1][0] != how:
            close()
            made.append((how, Scene(**how)))
        return made[-1][1]

    def close() -> None:
        while made:
            made.pop()[1].close()

    yield scene
    close()


# A test module binds this name, which is how pytest finds it.
FIXTURES = (start,)
