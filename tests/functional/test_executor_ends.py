"""Executors that are killed while they start, and the end of a daemon whose executors hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from domains import Domains, Plain
from gpu_machine import N, only_with_the_standin, values, vector
from killed import FIXTURES, Point, Scene, Start, Victim, finish
from standin_cuda.control import has_ended
from support import memfd, proc
from support.raw import tensor
from user_kernels import OTHERS, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
(start,) = FIXTURES

ROUNDS = 2
common_or_domain = pytest.mark.parametrize("domain", [False, True], ids=["common", "domain"])
while_it_starts = pytest.mark.parametrize("gate", ["init", "context"])


def waiting_at(scene: Scene, gate: str, spared: set[int] = frozenset()) -> int:  # type: ignore[assignment]
    """The executor that waits there, another one than `spared`."""

    def known() -> set[int]:
        return {row.pid for row in scene.control.rows()}

    def look() -> list[int]:
        return [pid for pid in scene.machine.executors() - spared if pid in known() and scene.control.row(pid).waiting(gate)]

    return proc.eventually(look, f"an executor at {gate}")[0]


def wait_until_gone(machine: Domains, pid: int) -> None:
    proc.eventually(lambda: pid not in machine.executors(), "it is gone")


@while_it_starts
def test_killed_at_the_daemons_start(gate: str) -> None:
    machine = Domains(start=False)
    with machine.control.gate(gate):
        with ThreadPoolExecutor(1) as other:
            started = other.submit(machine.daemon.start)
            proc.eventually(lambda: machine.daemon.process and machine.control.waiting(gate) == 1, "the executor starts")
            (pid,) = machine.executors()
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(machine, pid)
            machine.control.gate(gate).open()
            started.result()
    with machine.daemon, machine.daemon.connect() as connection:
        memory = Plain(connection, machine.find_gpu(), 2 * N)
        memory.data[:] = 3
        connection.run("square", [memory.tensor(N)], [memory.tensor(N, N)])
        assert (memory.data[N:] == 9).all()


# ---- the daemon's end ----


def a_stopped_one(scene: Scene, victim: Victim) -> Iterator[None]:
    os.kill(victim.pid, signal.SIGSTOP)
    yield


def a_stopped_one_in_a_call(scene: Scene, victim: Victim) -> Iterator[None]:
    memory = vector(scene.exporter.alloc(4 * N))
    os.kill(victim.pid, signal.SIGSTOP)
    victim.connection.request("register", memory.register_params())
    victim.connection.request("run", {"op": "square", "in": [memory.inline([N])], "out": [victim.b]})
    assert victim.connection.alive()
    yield


def one_that_is_not_ready(scene: Scene, victim: Victim, gate: str) -> Iterator[None]:
    dead = {victim.pid}
    with scene.control.gate(gate):
        os.kill(victim.pid, signal.SIGKILL)
        victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.b]})
        waiting_at(scene, gate, dead)
        yield


def one_that_starts(scene: Scene, victim: Victim) -> Iterator[None]:
    yield from one_that_is_not_ready(scene, victim, "init")


def one_that_makes_its_context(scene: Scene, victim: Victim) -> Iterator[None]:
    yield from one_that_is_not_ready(scene, victim, "context")


def one_that_is_killed_in_its_work(scene: Scene, victim: Victim) -> Iterator[None]:
    with victim.held("kernel"):
        for i in range(8):
            victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.b], "stream": i})
        victim.reaches("kernel")
        pid = victim.pid
        yield
        proc.eventually(lambda: "event=stop" in scene.daemon.log(), "the daemon has the signal")
        os.kill(pid, signal.SIGKILL)


ENDS: list[Point] = [
    a_stopped_one, a_stopped_one_in_a_call, one_that_starts, one_that_makes_its_context, one_that_is_killed_in_its_work,
]  # fmt: skip


@common_or_domain
@pytest.mark.parametrize("point", ENDS, ids=lambda point: point.__name__)
def test_the_daemon_ends(point: Point, domain: bool) -> None:
    """It does not wait for an executor that does not answer, and leaves none behind."""
    scene = Scene(quiet=True, more="[server]\nshutdown_grace_ms = 300\n")
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
    for one in scene.bystanders:
        one.close()
    scene.exporter.close()
    scene.daemon.cleanup()


# ---- who waits for an executor that hangs ----


def close(*victims: Victim) -> None:
    for one in victims:
        one.connection.close()


def test_memory_that_a_stopped_one_opens(start: Start) -> None:
    """Others open it meanwhile."""
    scene = start()
    victim, other = Victim(scene, domain=True), Victim(scene, domain=True)
    a, out = vector(scene.exporter.alloc(4 * N)), scene.exporter.alloc(4 * N)
    run = {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]}
    with victim.held("ipc_open"):
        msgid = victim.connection.request("run", run)
        victim.reaches("ipc_open")
        other.connection.call("run", run)  # before it is its turn to wait for the other one's kernel
        assert (values(out) == 9).all()
    victim.connection.reply(msgid).get()
    close(victim, other)


@pytest.mark.parametrize("common", [True, False], ids=["the common one", "others"])
def test_many_calls_into_a_stopped_one(start: Start, common: bool) -> None:
    """They take no threads away that others need."""
    scene = start()
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
    close(first, victim, other)


def test_many_clients_wait_for_an_executor(start: Start) -> None:
    """All are busy: others go on, and these when one is free again."""
    scene = start(maximum=8, more="[server]\njob_timeout_s = 600\n")
    busy = [Victim(scene, domain=True) for _ in range(2)]
    other = Victim(scene, domain=False)
    with busy[0].held("kernel"):
        launched = busy[0].launch()
        busy[0].reaches("kernel")
        second = busy[1].launch()
        waiting = [scene.daemon.connect() for _ in range(12)]
        sent = [connection.request("compile", {"source": OTHERS, "entries": ["custom_kernel"]}) for connection in waiting]
        for _ in range(3):
            Plain(other.connection, scene.gpu, N)
            other.works()
    busy[0].connection.reply(launched)
    busy[1].connection.reply(second).get()
    for connection, msgid in zip(waiting, sent):
        connection.reply(msgid).get()
        connection.close()
    close(*busy, other)
