"""Executors that are killed at points of their work: nobody else notices, and nothing is left. The simulation and the model test kill
them anywhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from gpu_machine import N, only_with_the_standin, values, vector
from killed import FIXTURES, Point, Scene, Start, Victim, finish
from standin_cuda.control import has_ended
from support import memfd, proc
from support.raw import tensor
from test_ordered import Timelines
from user_kernels import CUSTOM_PARAMS, declare, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
(start,) = FIXTURES

ROUNDS = 2


# ---- the points: each gets there, yields for the kill, and sees that all is as it should be ----


def opening_an_ipc_handle(scene: Scene, victim: Victim) -> Iterator[None]:
    a, out = vector(scene.exporter.alloc(4 * N)), scene.exporter.alloc(4 * N)
    with victim.held("ipc_open"):
        msgid = victim.connection.request("run", {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]})
        victim.reaches("ipc_open")
        yield
    victim.connection.reply(msgid).get()
    assert (values(out) == 9).all()
    a.free(), out.free()


def loading_code(scene: Scene, victim: Victim) -> Iterator[None]:
    source = 'extern "C" __global__ void custom_kernel(float* out, const float* in_, int n) { if (n) out[0] = in_[0]; }'
    with victim.held("module_load"):
        msgid = victim.connection.request("compile", {"source": source, "entries": ["custom_kernel"]})
        victim.reaches("module_load")
        yield
    module = victim.connection.reply(msgid).get()["module"]
    kernel = declare(victim.connection, module, entry="custom_kernel", params=CUSTOM_PARAMS)
    victim.connection.call("launch", {"kernel": kernel, "args": [victim.c, victim.a, N]})
    assert (victim.memory.data[2 * N :] == 6).all()


def copying(scene: Scene, victim: Victim, gate: str = "copy", n: int = 1 << 15) -> Iterator[None]:
    """So much that no kernel copies it."""
    shared = memfd.Shared(8 * n)
    view = shared.view(np.float32, 2 * n)
    view[:] = 3
    buffer = victim.connection.register(shared)
    first, second = (tensor(buffer, [n], offset=4 * n * i) for i in range(2))
    with victim.held(gate):
        msgid = victim.connection.request("run", {"op": "square", "in": [first], "out": [second], "device": scene.gpu})
        victim.reaches(gate)
        yield
    victim.connection.reply(msgid).get()
    assert (view == np.repeat(np.float32([3, 9]), n)).all()
    victim.connection.call("release", {"buffer": buffer})


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


def running_a_program(scene: Scene, victim: Victim) -> Iterator[None]:
    ops = [{"op": "square", "in": [0], "out": [1]}, {"op": "add", "in": [0, 1], "out": [2]}]
    program = victim.connection.call("program", {"tensors": [victim.a, victim.b, victim.c], "ops": ops})["program"]
    victim.connection.call("run_program", {"program": program})
    victim.memory.data[N:] = 0
    with victim.held("kernel"):
        sent = [victim.connection.request("run_program", {"program": program}) for _ in range(3)]
        victim.reaches("kernel")
        yield
    for msgid in sent:
        victim.connection.reply(msgid).get()
    assert (victim.memory.data == np.repeat(np.float32([3, 9, 12]), N)).all()
    victim.memory.data[N:] = 0
    victim.connection.call("run_program", {"program": program})
    assert (victim.memory.data == np.repeat(np.float32([3, 9, 12]), N)).all()
    victim.connection.call("release", {"program": program})


def waiting_for_its_word(scene: Scene, victim: Victim) -> Iterator[None]:
    """Ordered work: one that runs, one that is refused, whose word the next waits for, and one whose word is not reached.
    The first has waited for its own word, and begins anew without another."""
    page = Timelines(victim.connection)
    page.reach(0, 1)
    victim.memory.data[N:] = 0
    with victim.held("kernel"):
        run = {"op": "square", "in": [victim.a], "out": [victim.b], "ready": 1, "done": 1}
        refused = {"op": "square", "in": [victim.a], "out": [victim.count.tensor()], "ready": 2}
        add = {"op": "add", "in": [victim.a, victim.b], "out": [victim.c], "done": 2}
        sent = [victim.connection.request("run", params) for params in (run, refused, add)]
        victim.reaches("kernel")
        assert victim.connection.reply_error(sent.pop(1)).code == "dtype_mismatch"
        yield
        page.wait_done(0, 1)
        assert (victim.memory.data[N : 2 * N] == 9).all()
    assert page.done(0) == 1
    page.reach(0, 2)
    page.wait_done(0, 2)
    assert (victim.memory.data[2 * N :] == 12).all()
    for msgid in sent:
        victim.connection.reply(msgid).get()


def having_completed(scene: Scene, victim: Victim) -> Iterator[None]:
    """The executor has said that the jobs are done, but the daemon has not read it: they are done.

    Both are in the executor only where every domain has a turn: the daemon sends nothing more after a turn's end.
    """
    pid = victim.pid
    with victim.held("kernel"):
        victim.memory.data[:N] = 2
        square = victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.a]})
        launched = [victim.launch(stream=1)] if victim.domain else []
        # Of the stream of the launch, or of the calculator, which is never without work.
        scene.machine.wait(lambda: scene.control.row(pid).waiting("kernel") == 2)
        assert victim.connection.alive()
        os.kill(scene.daemon.pid, signal.SIGSTOP)
    proc.eventually(lambda: victim.memory.data[0] == 4 and victim.count.data[0] == victim.counted, "the kernels have run")
    proc.eventually(lambda: proc.states(pid) == {"S"} and proc.is_polling(pid), "the executor has nothing more to do")
    yield
    proc.eventually(lambda: has_ended(pid), "it has ended")
    os.kill(scene.daemon.pid, signal.SIGCONT)
    for msgid in (square, *launched):
        victim.connection.reply(msgid).get()
    assert (victim.memory.data[:N] == 4).all()
    victim.memory.data[:N] = 3


POINTS: list[Point] = [opening_an_ipc_handle, loading_code, copying, running_a_program, waiting_for_its_word]

# These take no turns. A turn may end before a job is sent, which then runs elsewhere: they tell what has begun.
AT_ONCE = (having_completed, running)
CASES = [(point, domain) for point in (*POINTS, *AT_ONCE) for domain in (False, True) if domain or point is not loading_code]


@pytest.mark.parametrize(
    ("point", "domain"), CASES, ids=[f"{point.__name__}-{'domain' if domain else 'common'}" for point, domain in CASES]
)
def test_killed(start: Start, point: Point, domain: bool) -> None:
    scene = start(more="active = 8\n") if point in AT_ONCE else start()
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
        victim.has_another_than(pid)
        assert f"event=executor_lost pid={pid} " in scene.daemon.log()
        scene.others_go_on()
        victim.connection.close()
        if not before:
            before = scene.holdings()
    scene.settle(before)


def test_a_run_that_comes_back_is_not_stalled_by_the_word_of_another(start: Start) -> None:
    """A later run, which is refused, leaves a word that the client reaches only after the first one."""
    scene = start(quiet=True, more="[server]\nstall_timeout_ms = 1500\n")
    victim = Victim(scene, False)
    page = Timelines(victim.connection)
    page.reach(0, 1)
    run = {"op": "square", "in": [victim.a], "out": [victim.b], "ready": 1, "done": 1}
    refused = {"op": "square", "in": [victim.a], "out": [victim.count.tensor()], "ready": 2}
    add = {"op": "add", "in": [victim.a, victim.b], "out": [victim.c], "done": 2}
    with victim.held("kernel"):
        first, second, third = (victim.connection.request("run", params) for params in (run, refused, add))
        victim.reaches("kernel")
        assert victim.connection.reply_error(second).code == "dtype_mismatch"
        with scene.control.gate("init"):
            os.kill(victim.pid, signal.SIGKILL)
            assert not victim.connection.readable(2)  # longer than a client may keep a stream waiting
    page.wait_done(0, 1)
    page.reach(0, 2)
    for msgid in (first, third):
        victim.connection.reply(msgid).get()
    victim.connection.close()
