"""Work of one client on the pool while the loop serves another: the build with ThreadSanitizer ends a daemon that has
two threads at one thing with status 99, which the end of each test looks at. Elsewhere it is the answers that count."""

from __future__ import annotations

import concurrent.futures
import os
import random
from collections.abc import Callable

import numpy as np
from gpu_machine import FIXTURES, Machine, N, only_with_the_standin, square, vector
from support import memfd, raw
from support.cuda_exporter import Exporter
from test_ordered import Timelines

__all__ = ["connect", "connection", "exporter", "machine", "shared_machine"]
pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES

ROUNDS = 60
EACH = 8  # pipelined requests


def test_memory_is_given_back_while_others_register_theirs(
    machine: Machine, connect: Callable[[], raw.Connection]
) -> None:
    """A descriptor that is registered is compared with those of all memory that the daemon made."""
    comes_and_goes, registers = connect(), connect()
    params = {"kind": "cuda_vmm", "size": 4096, "device": machine.gpu, "fd": 0}
    foreign = memfd.Shared(4096)
    for _ in range(ROUNDS):
        buffers, fds = [], []
        for msgid in [comes_and_goes.request("alloc", {"size": 4096, "device": machine.gpu}) for _ in range(EACH)]:
            reply = comes_and_goes.reply(msgid)
            buffers.append(reply.get()["buffer"])
            fds += reply.fds
        known = registers.call("register", params, [fds[0]])["buffer"]
        gone = [comes_and_goes.request("release", {"buffer": b}) for b in buffers]
        unknown = [registers.request("register", params, [foreign.fd]) for _ in range(EACH)]
        for msgid in gone:
            comes_and_goes.reply(msgid).get()
        for msgid in unknown:
            registers.reply_error(msgid)
        registers.call("release", {"buffer": known})
        for fd in fds:
            os.close(fd)


def test_a_page_is_asked_for_twice_while_ordered_work_runs(connection: raw.Connection, exporter: Exporter) -> None:
    memory = vector(exporter.alloc(4 * N), np.full(N, 3, np.float32))
    out = vector(exporter.alloc(4 * N))
    page = Timelines(connection)
    for value in range(1, ROUNDS):
        again = [connection.request("timelines", {}) for _ in range(2)]
        run = connection.request("run", {**square(memory, out), "stream": 5, "ready": value, "done": value})
        page.reach(5, value)
        for msgid in again:
            reply = connection.reply(msgid)
            assert reply.get()["size"] == 4096
            os.close(reply.fds[0])
        connection.reply(run).get()
        page.wait_done(5, value)


def test_a_page_that_is_asked_for_several_times_at_first_is_one(connect: Callable[[], raw.Connection]) -> None:
    for _ in range(ROUNDS // 4):
        connection = connect()
        inodes = set()
        for msgid in [connection.request("timelines", {}) for _ in range(4)]:
            reply = connection.reply(msgid)
            assert reply.get()["streams"]
            inodes.add(os.fstat(reply.fds[0]).st_ino)
            os.close(reply.fds[0])
        assert len(inodes) == 1
        connection.close()


def misbehave(machine: Machine, seed: int, rounds: int) -> None:
    """Right and wrong requests about memory, many at a time; now and then the connection is cut with all under way."""
    rng = random.Random(seed)
    foreign, shared = memfd.Shared(4096), memfd.Shared(8192)
    for _ in range(rounds):
        connection = machine.daemon.connect()
        buffers: list[int] = []
        fds: list[int] = []
        for _ in range(rng.randrange(1, 6)):
            asked = []
            for _ in range(rng.randrange(1, EACH)):
                kind = rng.randrange(7)
                if kind == 0:
                    asked.append(connection.request("alloc", {"size": rng.choice((1, 4096, 1 << 20)), "device": machine.gpu}))
                elif kind == 1:
                    asked.append(connection.request("timelines", {}))
                elif kind == 2 and buffers:
                    asked.append(connection.request("release", {"buffer": buffers.pop(rng.randrange(len(buffers)))}))
                elif kind == 3:
                    params = {"kind": "cuda_vmm", "size": rng.choice((4096, 1 << 30)), "device": machine.gpu, "fd": 0}
                    asked.append(connection.request("register", params, [rng.choice([foreign.fd, *fds])]))
                elif kind == 4:
                    params = {"kind": "memfd", "size": rng.choice((4096, 8192, 8193)), "fd": 0}
                    asked.append(connection.request("register", params, [shared.fd]))
                elif kind == 5:
                    params = {"kind": "cuda_ipc", "size": 4096, "device": machine.gpu, "handle": bytes(64),
                              "alloc_id": rng.randrange(4)}  # fmt: skip
                    asked.append(connection.request("register", params))
                else:
                    asked.append(connection.request("trim", {}))
            if rng.random() < 0.15:
                break
            for msgid in asked:
                reply = connection.reply(msgid)
                fds += reply.fds
                if reply.error is None and "buffer" in (reply.result or {}):
                    buffers.append(reply.result["buffer"])
        connection.close()
        for fd in fds:
            os.close(fd)


def test_hostile_clients_beside_each_other(machine: Machine, connection: raw.Connection, exporter: Exporter) -> None:
    memory = vector(exporter.alloc(4 * N), np.full(N, 3, np.float32))
    out = vector(exporter.alloc(4 * N))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(misbehave, machine, seed, ROUNDS // 4) for seed in range(4)]
        answers = 0
        while answers < ROUNDS or not all(o.done() for o in others):
            connection.call("run", square(memory, out))
            answers += 1
        for other in others:
            other.result()
    assert (np.frombuffer(out.read(4 * N), np.float32) == 9).all()
