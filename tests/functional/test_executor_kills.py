"""Executors that are killed at points of their work, and the end of a daemon whose executors hang. The simulation and the model test
kill them anywhere, beside clients that must not notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from domains import Domains, Plain, Watcher
from gpu_machine import N, only_with_nvrtc, only_with_the_standin, values, vector
from standin_cuda.control import has_ended
from support import memfd, proc
from support.kernels import custom_kernel, hostile_kernel
from support.raw import tensor
from test_ordered import Timelines

pytestmark = [only_with_the_standin, only_with_nvrtc]

ROUNDS = 2
common_or_domain = pytest.mark.parametrize("domain", [False, True], ids=["common", "domain"])
# What an executor opens for its clients. Streams, events and scratch are kept for the next ones.
OPENED = (
    "live_ipc_mappings", "live_vmm_handles", "live_vmm_reservations", "live_vmm_maps", "live_host_registrations",
    "live_pool_imports", "live_modules", "live_graphs", "live_graph_execs", "live_captures",
)  # fmt: skip


class Scene:
    """A daemon whose clients have an executor each once they have kernels."""

    def __init__(self, **how: Any) -> None:
        self.machine = Domains(**{"isolate": "connection", "maximum": 12, "faults": 0, **how})
        self.control, self.daemon, self.gpu = self.machine.control, self.machine.daemon, self.machine.gpu
        self.exporter = self.machine.exporter()
        self.watcher = Watcher(self.machine)
        self.named = 0

    def holdings(self) -> dict[str, int]:
        """What the daemon has, and what its executor has open for the clients that are there, while no executor comes or goes."""
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

    def close(self) -> None:
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

    def launch(self, stream: int = 0) -> int:
        """The counter's kernel."""
        self.counted += 1
        return self.connection.request("launch", {"kernel": self.counter, "args": [self.count.tensor(), 1], "stream": stream})

    @contextmanager
    def held(self, gate: str) -> Iterator[None]:
        """Whatever its executor does there waits; another executor does not."""
        with self.scene.control.gate(gate, self.pid):
            yield

    def reaches(self, gate: str) -> None:
        self.scene.machine.reaches(gate, pid=self.pid)


# Gets to a point, yields for the kill, and sees that all is as it should be.
Point = Callable[[Scene, Victim], Iterator[None]]


def finish(point: Iterator[None]) -> None:
    for _ in point:
        raise AssertionError("a point yields once")


def opening_an_ipc_handle(scene: Scene, victim: Victim) -> Iterator[None]:
    a, out = vector(scene.exporter.alloc(4 * N)), scene.exporter.alloc(4 * N)
    with victim.held("ipc_open"):
        msgid = victim.connection.request("run", {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]})
        victim.reaches("ipc_open")
        yield
    victim.connection.reply(msgid).get()
    assert (values(out) == 9).all()
    a.free(), out.free()


def running(scene: Scene, victim: Victim) -> Iterator[None]:
    """Ops that may be repeated are; a kernel of the user's is not, nor what stood behind it if it may have begun."""
    counted = victim.counted
    with victim.held("kernel"):
        lost = [victim.launch(stream=1) for _ in range(2)] if victim.domain else []
        if lost:
            victim.reaches("kernel")  # the launch: one that had not begun would run elsewhere
        victim.memory.data[N:] = 0
        first = victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.b]})
        second = victim.connection.request("run", {"op": "add", "in": [victim.a, victim.b], "out": [victim.c]})
        victim.reaches("kernel")
        victim.connection.call("ping", {})  # all that was sent is on its way
        yield
    victim.connection.reply(first).get()
    victim.connection.reply(second).get()
    assert (victim.memory.data == np.repeat(np.float32([3, 9, 12]), N)).all()
    for msgid in lost:  # no kernel is blamed for a kill
        error = victim.connection.reply_error(msgid)
        assert error.code == "device_lost" and "killed from outside" in error.message, error
    assert victim.count.data[0] == counted
    victim.counted = counted


def ordered(victim: Victim) -> list[int]:
    """A run, one that is refused, whose word the next waits for, and one whose word is not reached; until the first is at its kernel."""
    run = {"op": "square", "in": [victim.a], "out": [victim.b], "ready": 1, "done": 1}
    refused = {"op": "square", "in": [victim.a], "out": [victim.count.tensor()], "ready": 2}
    add = {"op": "add", "in": [victim.a, victim.b], "out": [victim.c], "done": 2}
    sent = [victim.connection.request("run", params) for params in (run, refused, add)]
    victim.reaches("kernel")
    assert victim.connection.reply_error(sent.pop(1)).code == "dtype_mismatch"
    return sent


def waiting_for_its_word(scene: Scene, victim: Victim) -> Iterator[None]:
    """The first run has waited for its own word, and begins anew without another."""
    page = Timelines(victim.connection)
    page.reach(0, 1)
    victim.memory.data[N:] = 0
    with victim.held("kernel"):
        sent = ordered(victim)
        yield
        page.wait_done(0, 1)
        assert (victim.memory.data[N : 2 * N] == 9).all()
    assert page.done(0) == 1
    page.reach(0, 2)
    page.wait_done(0, 2)
    assert (victim.memory.data[2 * N :] == 12).all()
    for msgid in sent:
        victim.connection.reply(msgid).get()


@common_or_domain
@pytest.mark.parametrize("point", [opening_an_ipc_handle, running, waiting_for_its_word], ids=lambda point: point.__name__)
def test_killed(point: Point, domain: bool) -> None:
    # Without turns: one may end before a job is sent, which then runs elsewhere.
    scene = Scene(more="active = 8\n" if point is running else "")
    before: dict[str, int] = {}
    for i in range(ROUNDS):
        victim = Victim(scene, domain)
        pid = victim.pid
        steps = point(scene, victim)
        next(steps)
        if i % 2:
            os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        finish(steps)
        victim.works()
        proc.eventually(lambda pid=pid, victim=victim: victim.pid not in (0, pid), "another executor")
        assert f"event=executor_lost pid={pid} " in scene.daemon.log()
        victim.connection.close()
        before = before or scene.holdings()
    proc.eventually(lambda: proc.no_more(scene.holdings(), before), lambda: f"{before}, but {scene.holdings()}")
    scene.close()


def test_a_run_that_comes_back_is_not_stalled_by_the_word_of_another() -> None:
    """A later run, which is refused, leaves a word that the client reaches only after the first one."""
    scene = Scene(more="[server]\nstall_timeout_ms = 1500\n")
    victim = Victim(scene, False)
    page = Timelines(victim.connection)
    page.reach(0, 1)
    with victim.held("kernel"):
        sent = ordered(victim)
        with scene.control.gate("init"):
            os.kill(victim.pid, signal.SIGKILL)
            assert not victim.connection.readable(2)  # longer than a client may keep a stream waiting
    page.wait_done(0, 1)
    page.reach(0, 2)
    for msgid in sent:
        victim.connection.reply(msgid).get()
    victim.connection.close()
    scene.close()


# ---- the daemon's end ----


def a_stopped_one_in_a_call(scene: Scene, victim: Victim) -> Iterator[None]:
    memory = vector(scene.exporter.alloc(4 * N))
    os.kill(victim.pid, signal.SIGSTOP)
    victim.connection.request("register", memory.register_params())
    victim.connection.request("run", {"op": "square", "in": [memory.inline([N])], "out": [victim.b]})
    assert victim.connection.alive()
    yield


def one_that_starts(scene: Scene, victim: Victim) -> Iterator[None]:
    dead = victim.pid

    def waiting() -> bool:
        return any(row.waiting("init") for row in scene.control.rows() if row.pid != dead)

    with scene.control.gate("init"):
        os.kill(dead, signal.SIGKILL)
        victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.b]})
        proc.eventually(waiting, "the next one starts")
        yield


def one_that_is_killed_in_its_work(scene: Scene, victim: Victim) -> Iterator[None]:
    with victim.held("kernel"):
        for i in range(8):
            victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.b], "stream": i})
        victim.reaches("kernel")
        pid = victim.pid
        yield
        proc.eventually(lambda: "event=stop" in scene.daemon.log(), "the daemon has the signal")
        os.kill(pid, signal.SIGKILL)


ENDS: list[Point] = [a_stopped_one_in_a_call, one_that_starts, one_that_is_killed_in_its_work]


@common_or_domain
@pytest.mark.parametrize("point", ENDS, ids=lambda point: point.__name__)
def test_the_daemon_ends(point: Point, domain: bool) -> None:
    """It does not wait for an executor that does not answer, and leaves none behind."""
    scene = Scene(more="[server]\nshutdown_grace_ms = 300\n")
    victim = Victim(scene, domain)
    pids = scene.machine.executors()
    steps = point(scene, victim)
    next(steps)
    pids |= scene.machine.executors()
    os.kill(scene.daemon.pid, signal.SIGTERM)
    finish(steps)
    assert scene.daemon.wait() == 0, scene.daemon.log()
    assert all(has_ended(pid) for pid in pids)
    scene.daemon.stop()
    scene.exporter.close()


def test_what_waits_for_an_executor_has_not_run_when_the_daemon_ends() -> None:
    """Its client sends it again, to the next daemon."""
    scene = Scene(more="[server]\nshutdown_grace_ms = 300\n")
    victim = Victim(scene, domain=False)
    for _ in one_that_starts(scene, victim):
        waits = victim.connection.request("alloc", {"size": 4 * N, "device": scene.gpu})
        assert victim.connection.alive()
        os.kill(scene.daemon.pid, signal.SIGTERM)
        assert victim.connection.reply_error(waits).code == "shutting_down"
    assert scene.daemon.wait() == 0, scene.daemon.log()
    scene.daemon.stop()
    scene.exporter.close()


def test_what_an_ending_daemon_loses_says_not_that_it_goes_on() -> None:
    scene = Scene(more="[server]\nshutdown_grace_ms = 300\n")
    victim = Victim(scene, domain=True)
    pid = victim.pid
    with victim.held("kernel"):
        loses = victim.launch()
        victim.reaches("kernel")
        os.kill(scene.daemon.pid, signal.SIGTERM)
        proc.eventually(lambda: "event=stop" in scene.daemon.log(), "the daemon has the signal")
        os.kill(pid, signal.SIGKILL)
        lost = victim.connection.reply_error(loses)
    assert lost.code == "device_lost" and "daemon" not in lost.detail
    assert scene.daemon.wait() == 0, scene.daemon.log()
    scene.daemon.stop()
    scene.exporter.close()


@common_or_domain
def test_the_daemon_is_killed(domain: bool) -> None:
    """No executor outlives it, whatever it does: the common one ends its jobs first."""
    scene = Scene()
    victim = Victim(scene, domain)
    pids = {pid: os.pidfd_open(pid) for pid in scene.machine.executors()}
    with victim.held("kernel"):
        victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.b]})
        victim.reaches("kernel")
        if domain:
            os.kill(victim.pid, signal.SIGSTOP)
        assert scene.daemon.process is not None
        scene.daemon.process.kill()
        scene.daemon.process.wait()
        scene.daemon.process = None
        for pidfd in pids.values():
            proc.wait_exit(pidfd)
            os.close(pidfd)
    scene.exporter.close()
    scene.daemon.cleanup()


@pytest.mark.parametrize("common", [True, False], ids=["the common one", "others"])
def test_many_calls_into_a_stopped_one(common: bool) -> None:
    """They take no threads away that others need."""
    scene = Scene()
    first, victim, other = Victim(scene, domain=True), Victim(scene, domain=True), Victim(scene, domain=not common)
    sources = [
        f'extern "C" __global__ void custom_kernel(float* out, const float* in_, int n) {{ if (n > {i}) out[0] = in_[0]; }}'
        for i in range(10)
    ]
    requests = [{"source": source, "entries": ["custom_kernel"]} for source in sources]
    for request in requests:
        first.connection.call("compile", request)
    os.kill(victim.pid, signal.SIGSTOP)
    sent = [victim.connection.request("compile", request) for request in requests]
    assert victim.connection.alive()
    for _ in range(3):
        shared = memfd.Shared(8 * N)
        view = tensor(other.connection.register(shared), [N])
        other.connection.run("square", [view], [{**view, "offset": 4 * N}], device=scene.gpu)
        Plain(other.connection, scene.gpu, N)
        other.works()
    os.kill(victim.pid, signal.SIGCONT)
    for msgid in sent:
        victim.connection.reply(msgid).get()
    for one in (first, victim, other):
        one.connection.close()
    scene.close()
