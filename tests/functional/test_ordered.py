"""Ordered work: a run starts when its client's stream has come to it, and says by a word that it has ended.

The words are shared memory: a test plays the stream by writing them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from gpu_machine import FIXTURES, ILLEGAL_ADDRESS, Machine, N, only_with_the_standin, square, values, vector
from support import memfd, proc, raw
from support.cuda_exporter import Exporter, Memory

pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES

FAR_END = 2**63 - 1


class Timelines:
    """A connection's page."""

    def __init__(self, connection: raw.Connection) -> None:
        reply = connection.reply(connection.request("timelines", {}))
        result = reply.get()
        assert result["nfds"] == 1 and len(reply.fds) == 1
        self.streams = result["streams"]
        self.map = mmap.mmap(reply.fds[0], result["size"])
        os.close(reply.fds[0])
        self.words = np.frombuffer(self.map, np.int64)

    def reach(self, stream: int, value: int) -> None:
        self.words[stream] = value

    def done(self, stream: int) -> int:
        return int(self.words[self.streams + stream])

    def wait_done(self, stream: int, value: int) -> None:
        proc.eventually(lambda: self.done(stream) >= value, lambda: f"done {self.done(stream)}, wanted {value}")


Alone = tuple[Machine, raw.Connection, Timelines, tuple[Memory, Memory]]


@contextlib.contextmanager
def alone(more: str) -> Iterator[Alone]:
    """A daemon with such settings, a client of it, its page and memory."""
    machine = Machine(more)
    with machine.daemon as daemon, daemon.connect() as client:
        exporter = machine.exporter()
        yield machine, client, Timelines(client), (vector(exporter.alloc(4 * N)), exporter.alloc(4 * N))
        exporter.close()


@pytest.fixture
def memory(exporter: Exporter) -> tuple[Memory, Memory]:
    out = vector(exporter.alloc(4 * N), np.full(N, -1, np.float32))
    return vector(exporter.alloc(4 * N)), out


def test_a_run_waits_for_its_word(connection: raw.Connection, memory: tuple[Memory, Memory]) -> None:
    assert "ordered" in connection.call("hello")["features"]
    page = Timelines(connection)
    msgid = connection.request("run", square(*memory, ready=1, done=1, stream=3))
    assert connection.alive() and msgid not in connection.replies
    assert (values(memory[1]) == -1).all() and page.done(3) == 0
    page.reach(3, 1)
    page.wait_done(3, 1)
    connection.reply(msgid).get()
    assert (values(memory[1]) == 9).all()
    assert page.words[[i for i in range(512) if i not in (3, 259)]].max() == 0


def test_runs_that_wait_are_not_all_looked_at_in_each_turn(
    machine: Machine, connect: Callable[[], raw.Connection], memory: tuple[Memory, Memory]
) -> None:
    def pings_ns() -> int:
        """Of the round in which others' work on the machine, which takes the caches, cost the loop least."""
        rounds = []
        for _ in range(10):
            before = proc.loop_ns(machine.daemon.pid)
            for _ in range(200):
                assert probe.alive()
            rounds.append(proc.loop_ns(machine.daemon.pid) - before)
        return min(rounds)

    def hold(connections: int) -> None:
        for _ in range(connections):
            connection = connect()
            page = Timelines(connection)
            waiting[page] = [
                connection.request("run", square(*memory, stream=i, ready=1, done=1, timing=False)) for i in range(page.streams - 1)
            ]
            assert connection.alive()  # the loop has taken all of them

    probe, waiting = connect(), {}
    pings_ns()
    hold(2)
    few = pings_ns()
    hold(40)
    # Some are looked at, of so many with a cold cache: up to 5 times as long. All of them take 30 times as long and more.
    assert pings_ns() < 12 * few, "what 10,000 streams wait for is looked at for each ping"
    for page, ids in waiting.items():
        for stream in range(len(ids)):
            page.reach(stream, 1)
    for page, ids in waiting.items():
        for stream in range(len(ids)):
            page.wait_done(stream, 1)


def test_sequences_and_programs_are_ordered_too(connection: raw.Connection, memory: tuple[Memory, Memory]) -> None:
    page = Timelines(connection)
    body = {
        "tensors": [m.inline([N]) for m in memory],
        "ops": [{"op": "square", "in": [0], "out": [1]}, {"op": "add", "in": [1, 0], "out": [1]}],
    }
    program = connection.call("program", body)["program"]
    ids = [connection.request("sequence", {**body, "ready": 1, "done": 1})]
    for i in range(2, 6):
        ids.append(connection.request("run_program", {"program": program, "ready": i, "done": i}))
    for i in range(1, 6):
        assert connection.alive() and page.done(0) == i - 1
        page.reach(0, i)
        page.wait_done(0, i)
        assert (values(memory[1]) == 12).all()
        vector(memory[1], np.zeros(N, np.float32))
    for msgid in ids:
        connection.reply(msgid).get()


# ---- whatever happens, the word is written, in its turn


def test_a_refused_op_is_passed_in_its_turn(connection: raw.Connection, memory: tuple[Memory, Memory]) -> None:
    page = Timelines(connection)
    first = connection.request("run", square(*memory, ready=1, done=1))
    wrong = [
        ("run", {**square(*memory), "op": "nosuch"}, "unknown_op"),
        ("run", square(*memory, repeat=0), "out_of_range"),
        ("run", square(*memory, nosuch=1), "unknown_key"),
        ("sequence", {"tensors": [], "ops": []}, "invalid_argument"),
        ("sequence", {"tensors": 3, "ops": []}, "wrong_type"),
        ("run_program", {"program": 77}, "unknown_program"),
        ("run_program", {}, "missing_key"),
    ]
    ids = [connection.request(method, {**params, "ready": 2 + i, "done": 2 + i}) for i, (method, params, _) in enumerate(wrong)]
    assert connection.alive() and page.done(0) == 0 and ids[0] not in connection.replies
    page.reach(0, 1)
    connection.reply(first).get()
    for i, (_, _, code) in enumerate(wrong):
        assert connection.reply_error(ids[i]).code == code
    assert page.done(0) == 1 + len(wrong)
    for i, (method, params, code) in enumerate(wrong):
        assert connection.error(method, {**params, "done": 100 + i}).code == code
        assert page.done(0) == 100 + i


def test_a_failing_kernel_is_passed(connection: raw.Connection, machine: Machine, memory: tuple[Memory, Memory]) -> None:
    page = Timelines(connection)
    connection.call("run", square(*memory))
    machine.control.fail("cuLaunchKernel", 701)
    page.reach(0, 1)
    assert connection.error("run", square(*memory, ready=1, done=1)).code == "device_error"
    page.wait_done(0, 1)


@pytest.mark.parametrize("how", ["refused", "undecoded", "empty", "cancelled", "deadline"])
def test_what_follows_waits_for_a_word_that_an_op_before_it_did_not(
    connection: raw.Connection, exporter: Exporter, memory: tuple[Memory, Memory], how: str
) -> None:
    """The first of a batch has the only `ready` of all; the others may not begin early because it does not run."""
    page, other = Timelines(connection), exporter.alloc(4 * N)
    empty = {"op": "square", "in": [{"shape": [0], "dtype": "f32"}], "out": [{"shape": [0], "dtype": "f32"}]}
    first = {
        "refused": {**square(*memory), "op": "nosuch"},
        "undecoded": square(*memory, nosuch=1),
        "empty": {**empty, "device": memory[0].device},
        "cancelled": square(*memory),
        "deadline": square(*memory, deadline_ms=1),
    }[how]
    head = connection.request("run", {**first, "ready": 3})
    ids = [connection.request("run", square(*memory)), connection.request("run", square(*memory, done=1))]
    if how == "cancelled":
        assert connection.call("cancel", {"msgid": head})["cancelled"] is True
    assert (connection.reply(head).error is None) == (how == "empty")
    for reached in (0, 2):
        page.reach(0, reached)
        for _ in range(2):
            connection.call("run", square(memory[0], other, stream=1))  # takes as long as what would have begun before it
        assert not set(ids) & set(connection.replies)
        assert page.done(0) == 0 and (values(memory[1]) == -1).all()
    page.reach(0, 3)
    for msgid in ids:
        connection.reply(msgid).get()
    assert page.done(0) == 1 and (values(memory[1]) == 9).all()


def test_a_lost_device_passes_what_it_had() -> None:
    """The word is there with the error, not only when the connection ends."""
    with alone("") as (machine, client, page, memory):
        out = memory[1]
        client.call("run", square(out, out))
        held = client.request("run", square(*memory, ready=1, stream=1))
        machine.control.fail("kernel", ILLEGAL_ADDRESS, sticky=True, pid=machine.daemon.gpu_pid)
        page.reach(0, 1)
        assert client.error("run", square(out, out, ready=1, done=1)).code == "device_lost"
        assert page.done(0) == 1
        page.reach(1, 1)
        client.reply(held).get()  # it had not begun, and runs in the next executor


# ---- bad input


def test_values_must_rise(connection: raw.Connection, memory: tuple[Memory, Memory]) -> None:
    page = Timelines(connection)
    page.reach(0, 10)
    connection.call("run", square(*memory, ready=5, done=5))
    for change in ({"ready": 5, "done": 6}, {"ready": 6, "done": 5}, {"ready": 4}, {"done": 1}):
        error = connection.error("run", square(*memory, **change))
        assert error.code == "invalid_argument" and error.key in change
    assert page.done(0) == 5
    connection.call("run", square(*memory, ready=6, done=6))
    page.reach(1, 1)
    connection.call("run", square(*memory, ready=1, done=1, stream=1))


def test_without_the_page(connection: raw.Connection, memory: tuple[Memory, Memory]) -> None:
    error = connection.error("run", square(*memory, ready=1, done=1))
    assert error.code == "invalid_argument" and error.key == "ready"


def test_host_memory_is_refused(connection: raw.Connection, machine: Machine) -> None:
    page = Timelines(connection)
    shared = memfd.Shared(8 * N)
    view = raw.tensor(connection.register(shared), [N])
    params = {"op": "square", "in": [view], "out": [{**view, "offset": 4 * N}], "ready": 1, "done": 1}
    error = connection.error("run", {**params, "device": machine.gpu})
    assert error.code == "invalid_argument"
    assert page.done(0) == 1, "its word is written all the same"
    assert connection.error("run", {**params, "device": "host", "ready": 2, "done": 2}).code == "unsupported"


def test_scribbling_on_the_page_harms_nobody_else(connect: Callable[[], raw.Connection], exporter: Exporter) -> None:
    one, two = connect(), connect()
    page, other = Timelines(one), Timelines(two)
    memory = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
    waiting = two.request("run", square(*memory, ready=1, done=1))
    page.words[:] = np.random.default_rng().integers(-(2**63), 2**63 - 1, 512)
    page.words[0] = FAR_END
    one.call("run", square(*memory, ready=1, done=1))
    assert two.alive() and waiting not in two.replies and other.done(0) == 0
    other.reach(0, 1)
    two.reply(waiting).get()


# ---- the end of connections


def test_the_words_go_to_the_far_end_with_the_connection(connection: raw.Connection, memory: tuple[Memory, Memory]) -> None:
    """Also where the daemon ended it: whoever waits on the GPU goes on."""
    page = Timelines(connection)
    for i in range(1, 50):
        connection.request("run", square(*memory, ready=i, done=i, stream=i % 7))
    page.reach(0, 7)
    connection.send(b"\xc1")
    assert connection.wait_closed() is not None
    proc.eventually(lambda: (page.words[256:] == FAR_END).all(), "every done word is at its far end")


def test_nothing_begins_because_its_connection_ends(
    machine: Machine, connect: Callable[[], raw.Connection], memory: tuple[Memory, Memory]
) -> None:
    """What waits behind a run that waits is dropped with it."""
    one = connect()
    page = Timelines(one)
    one.call("run", square(*memory))  # the memory is open from now on
    vector(memory[1], np.full(N, -1, np.float32))
    before = machine.row.calls("cuLaunchKernel")
    one.request("run", square(*memory, ready=1))
    for _ in range(5):
        one.request("run", square(*memory))
    assert one.alive()
    one.close()
    proc.eventually(lambda: page.done(0) == FAR_END, "the connection has ended")
    assert machine.row.calls("cuLaunchKernel") == before and (values(memory[1]) == -1).all()


def test_stall_timeout() -> None:
    with alone("[server]\nstall_timeout_ms = 1\n") as (machine, client, page, memory), machine.daemon.connect() as other:
        client.request("run", square(*memory, ready=1, done=1))
        notification = client.wait_closed()
        assert notification and notification["code"] == "stalled"
        proc.eventually(lambda: page.done(0) == FAR_END, "its word is at the far end")
        other.call("run", square(*memory))


def test_every_wait_has_the_whole_stall_timeout() -> None:
    """Also where the wait before it ended while the daemon looked elsewhere: here it is stopped meanwhile."""
    with alone("[server]\nstall_timeout_ms = 1800\n") as (machine, client, page, memory):
        pid = machine.daemon.pid
        ids = [client.request("run", square(*memory, ready=1, done=1))]
        for i in range(1, 5):
            assert client.alive()
            time.sleep(0.6)  # of the time that is tested
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            page.reach(0, i)
            ids.append(client.request("run", square(*memory, ready=i + 1, done=i + 1)))
            os.kill(pid, signal.SIGCONT)
        page.reach(0, 5)
        for msgid in ids:
            client.reply(msgid).get()


def test_the_daemon_ends_with_work_that_waits() -> None:
    with alone("[server]\nshutdown_grace_ms = 1\n") as (machine, client, page, memory):
        ids = [client.request("run", square(*memory, ready=i, done=i)) for i in range(1, 100)]
        assert client.alive()
        os.kill(machine.daemon.pid, signal.SIGTERM)
        for msgid in ids:
            assert client.reply_error(msgid).code in ("cancelled", "shutting_down")
        proc.eventually(lambda: page.done(0) == FAR_END, "its word is at the far end")
