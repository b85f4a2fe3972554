"""Executors that are killed at every point of their work: nobody else notices, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from domains import Plain
from gpu_machine import N, only_with_the_standin, values, vector
from killed import FIXTURES, Point, Scene, Start, Victim, finish
from standin_cuda.control import has_ended
from support import memfd, proc
from support.raw import tensor
from test_memory_kinds import CHUNK, Segment, taken
from test_ordered import Timelines
from user_kernels import CUSTOM_PARAMS, declare, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
(start,) = FIXTURES

ROUNDS = 2


# ---- the points: each gets there, yields for the kill, and sees that all is as it should be ----


def idle(scene: Scene, victim: Victim) -> Iterator[None]:
    yield


def opening_an_ipc_handle(scene: Scene, victim: Victim) -> Iterator[None]:
    a, out = vector(scene.exporter.alloc(4 * N)), scene.exporter.alloc(4 * N)
    with victim.held("ipc_open"):
        msgid = victim.connection.request("run", {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]})
        victim.reaches("ipc_open")
        yield
    victim.connection.reply(msgid).get()
    assert (values(out) == 9).all()
    a.free(), out.free()


def allocating(scene: Scene, victim: Victim) -> Iterator[None]:
    """In a domain's executor: memory that the common one made is mapped."""
    gate = "vmm_map" if victim.domain else "allocate"
    with victim.held(gate):
        if victim.domain:
            memory = Plain(victim.connection, scene.gpu, 2 * N)
            memory.data[:] = 3
            msgid = victim.connection.request("run", {"op": "square", "in": [memory.tensor(N)], "out": [memory.tensor(N, N)]})
            victim.reaches(gate)
            yield
            victim.connection.reply(msgid).get()
            assert (memory.data[N:] == 9).all()
            return
        msgid = victim.connection.request("alloc", {"size": 4 * N, "device": scene.gpu})
        victim.reaches(gate)
        yield
    reply = victim.connection.reply(msgid)
    made = tensor(reply.get()["buffer"], [N])
    victim.connection.run("square", [victim.a], [made])
    victim.connection.run("add", [made, made], [victim.c])
    assert (victim.memory.data[2 * N :] == 18).all()
    os.close(reply.fds[0])


def extending(scene: Scene, victim: Victim) -> Iterator[None]:
    """The common executor maps at once, another one for the next job."""
    segment = Segment(scene.exporter, [CHUNK] * 2)
    with taken(scene.exporter, segment.fds) as fds:
        buffer = victim.connection.call("register", segment.params(0, 1), fds[:1])["buffer"]
        victim.connection.run("square", [victim.a], [tensor(buffer, [N])])
        more = {**segment.params(1, 1), "extend": buffer}
        border = tensor(buffer, [N], offset=CHUNK - 2 * N)
        run = {"op": "square", "in": [victim.a], "out": [border]}
        with victim.held("vmm_map"):
            if victim.domain:
                victim.connection.call("register", more, fds[1:])
            msgid = victim.connection.request(*(("run", run) if victim.domain else ("register", more, fds[1:])))
            victim.reaches("vmm_map")
            yield
    victim.connection.reply(msgid).get()
    victim.connection.call("run", run)
    assert (segment.read(N, CHUNK - 2 * N) == 9).all()
    victim.connection.call("release", {"buffer": buffer})
    segment.free()


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


def mapping_host_memory(scene: Scene, victim: Victim) -> Iterator[None]:
    yield from copying(scene, victim, "host_register", N)


def making_a_stream(scene: Scene, victim: Victim) -> Iterator[None]:
    with victim.held("stream_create"):
        # Those of a client that is gone serve the next one: more than there were.
        scene.streams += 48
        run = {"op": "square", "in": [victim.a], "out": [victim.b]}
        sent = [victim.connection.request("run", {**run, "stream": 8 + i}) for i in range(scene.streams)]
        victim.reaches("stream_create")
        yield
    for msgid in sent:
        victim.connection.reply(msgid).get()
    assert (victim.memory.data[N : 2 * N] == 9).all()


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


def reading_what_it_writes(scene: Scene, victim: Victim) -> Iterator[None]:
    with victim.held("kernel"):
        msgid = victim.connection.request("run", {"op": "square", "in": [victim.a], "out": [victim.a]})
        victim.connection.call("ping", {})  # it is on its way: what waits at the gate may be the calculator's
        victim.reaches("kernel")
        yield
    assert victim.connection.reply_error(msgid).code == "device_lost"
    assert (victim.memory.data[:N] == 3).all()


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
    """Ordered work: one that runs, one whose word is not reached."""
    page = Timelines(victim.connection)
    page.reach(0, 1)
    victim.memory.data[N:] = 0
    with victim.held("kernel"):
        run = {"op": "square", "in": [victim.a], "out": [victim.b], "ready": 1, "done": 1}
        add = {"op": "add", "in": [victim.a, victim.b], "out": [victim.c], "ready": 2, "done": 2}
        sent = [victim.connection.request("run", params) for params in (run, add)]
        victim.reaches("kernel")
        yield
        page.wait_done(0, 1)
        assert (victim.memory.data[N : 2 * N] == 9).all()
    assert page.done(0) == 1
    page.reach(0, 2)
    page.wait_done(0, 2)
    assert (victim.memory.data[2 * N :] == 12).all()
    for msgid in sent:
        victim.connection.reply(msgid).get()


def with_a_full_ring(scene: Scene, victim: Victim) -> Iterator[None]:
    many = Plain(victim.connection, scene.gpu, 64 * N)
    many.data[:N] = 2
    parts = [many.tensor(N, N * i) for i in range(64)]
    ops = [{"op": "square", "in": [0], "out": [1 + i % 63]} for i in range(500)]
    victim.connection.call("run", {"op": "square", "in": [parts[0]], "out": [parts[1]]})
    many.data[N:] = 0
    os.kill(victim.pid, signal.SIGSTOP)
    sent = [victim.connection.request("sequence", {"tensors": parts, "ops": ops, "stream": i}) for i in range(16)]
    assert victim.connection.alive()
    yield
    for msgid in sent:
        victim.connection.reply(msgid).get()
    assert (many.data[N:] == 4).all()


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


def closing(scene: Scene, victim: Victim) -> Iterator[None]:
    """What it had open is released meanwhile."""
    memory = vector(scene.exporter.alloc(4 * N))
    buffer = victim.connection.call("register", memory.register_params())["buffer"]
    victim.connection.run("square", [tensor(buffer, [N])], [victim.b])
    os.kill(victim.pid, signal.SIGSTOP)
    victim.connection.call("release", {"buffer": buffer})
    yield
    memory.free()


POINTS: list[Point] = [
    idle, opening_an_ipc_handle, allocating, extending, loading_code, mapping_host_memory, copying, making_a_stream,
    running_a_program, waiting_for_its_word, closing,
]  # fmt: skip

# These take no turns. A turn may end before a job is sent, which then runs elsewhere: the first three tell what has begun. The last
# one has many jobs, and those that outlast their turn by two seconds are ended.
AT_ONCE = (having_completed, reading_what_it_writes, running, with_a_full_ring)
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
