"""What one user may have of the daemon, all of its connections together, and all users of the host's memory: counted before a page is
touched; what programs and waiting bytes take; and that the daemon gives memory back."""

from __future__ import annotations

import itertools
import mmap
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from arrays import LongRun, Vectors
from gpu_machine import Machine, N, only_with_nvrtc, only_with_the_standin, square, vector
from quotas import HOST, check, daemons, eventually_accepted, large_code, refusals, register, register_error
from support import memfd, proc, raw, users
from support.daemon import Daemon, sanitized
from support.kernels import ARCH
from support.users import as_root

ALICE, BOB = 54001, 54002
MIB = 1 << 20
ALL_MAPPINGS = 49152  # that the daemon holds for everybody
REGISTER = {"kind": "memfd", "size": 4096, "fd": 0}


@pytest.fixture
def start() -> Iterator[Callable[[str], Daemon]]:
    yield from daemons()


def test_connections(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nconnections = 2\n")
    with daemon.connect() as first, daemon.connect() as second:
        assert first.alive() and second.alive()
        with daemon.connect() as third:
            check(third.wait_closed(), "connections", 2, 2)
        assert first.alive()
        (line,) = refusals(daemon, "connections")
        assert f"pid={os.getpid()} uid={os.getuid()} current=2 limit=2" in line
        second.close()

        def again() -> bool:
            with daemon.connect() as connection:
                return connection.alive()

        assert eventually_accepted(again)


@pytest.mark.parametrize("quota", ["buffers", "mappings"])
def test_buffers_and_mappings(start: Callable[[str], Daemon], quota: str) -> None:
    daemon = start(f"[quota]\n{quota} = 3\n")
    with daemon.connect() as one, daemon.connect() as other:
        buffer = register(one, 4096)
        register(other, 4096)
        made = other.call("alloc", {"size": 4096})["buffer"]
        check(register_error(one, 4096), quota, 3, 3)
        check(other.error("alloc", {"size": 4096}), quota, 3, 3)
        one.call("release", {"buffer": buffer})
        register(other, 4096)
        check(register_error(one, 4096), quota, 3, 3)
        other.call("release", {"buffer": made})
        eventually_accepted(lambda: register(one, 4096))
    with daemon.connect() as connection:
        eventually_accepted(lambda: [register(connection, 4096) for _ in range(3)])


@as_root
def test_one_user_does_not_take_all_mappings(start: Callable[[str], Daemon]) -> None:
    """With the settings as they are when nobody says anything."""
    daemon = start("")
    with users.connect(daemon, BOB) as bob, ExitStack() as hers:
        fd = memfd.make(4096)
        hers.callback(os.close, fd)
        connections = [hers.enter_context(users.connect(daemon, ALICE)) for _ in range(8)]
        taken, refused = 0, None
        while connections and refused is None:
            connection = connections.pop()
            for _ in range(8192):  # of a connection
                reply = connection.reply(connection.request("register", REGISTER, [fd]))
                refused = refused or reply.error
                if refused:
                    break
                taken += 1
        assert refused is not None, f"she has {taken} mappings"
        check(refused, "mappings", taken, taken)
        assert taken <= ALL_MAPPINGS // 3
        register(bob, 4096)


def test_mapped_bytes(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nmapped_mib = 4\n")
    with daemon.connect() as one, daemon.connect() as other:
        buffer = register(one, 3 * MIB)
        check(register_error(other, MIB + 1), "mapped_bytes", 3 * MIB, 4 * MIB)
        register(other, MIB)
        check(register_error(other, 1), "mapped_bytes", 4 * MIB, 4 * MIB)
        one.call("release", {"buffer": buffer})
        register(other, 3 * MIB)
        # What alloc makes is counted elsewhere.
        one.call("alloc", {"size": 8 * MIB})


def test_allocated_bytes(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nallocated_mib = 2\n")
    with daemon.connect() as one, daemon.connect() as other:
        check(one.error("alloc", {"size": 3 * MIB}), "allocated_bytes", 0, 2 * MIB)
        got = one.call("alloc", {"size": MIB})
        check(other.error("alloc", {"size": 2 * MIB}), "allocated_bytes", got["size"], 2 * MIB)
        other.call("alloc", {"size": 2 * MIB - got["size"]})
        one.call("release", {"buffer": got["buffer"]})
        eventually_accepted(lambda: one.call("alloc", {"size": MIB}))
    with daemon.connect() as connection:
        eventually_accepted(lambda: connection.call("alloc", {"size": 2 * MIB}))


def test_an_alloc_that_fails_costs_nothing(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nallocated_mib = 1073741824\nhost_mib = 0\nhost_all_mib = 0\nbuffers = 1\n")
    with daemon.connect() as connection:
        assert connection.error("alloc", {"size": 1 << 49}).code in ("out_of_memory", "invalid_argument")
        kept = connection.call("alloc", {"size": 4096})
        for _ in range(3):
            assert connection.error("alloc", {"size": 4096}).detail["quota"] == "buffers"
        connection.call("release", {"buffer": kept["buffer"]})
        connection.call("alloc", {"size": 4096})


def test_requests_in_flight(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\ninflight = 2\n")
    with daemon.connect() as one, daemon.connect() as other:
        mine, run = Vectors(other, 2, 8), LongRun(one)
        params = {"op": "square", "in": [mine.tensor(0)], "out": [mine.tensor(1)]}
        waiting = LongRun(one, wait=False, stream=0)
        assert one.alive()  # and it has read them
        check(other.error("run", params), "inflight", 2, 2)
        # What ends at once is served: or nobody could give anything back.
        assert other.alive()
        assert other.call("hello")
        assert one.call("cancel", {"msgid": waiting.msgid})["cancelled"]
        assert one.reply_error(waiting.msgid).code == "cancelled"
        mine[0][:] = 3
        other.call("run", params)
        np.testing.assert_array_equal(mine[1], 9)
        one.call("cancel", {"msgid": run.msgid})
        assert one.reply_error(run.msgid).code == "cancelled"


def test_descriptors(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nfds = 7\n")
    with daemon.connect() as one, daemon.connect() as other:  # two each
        reply = one.reply(one.request("hello", {"shm": True}))
        assert reply.error is None
        check(other.error("hello", {"shm": True}), "fds", 6, 7)
        with daemon.connect() as third:
            check(third.wait_closed(), "fds", 6, 7)
        assert other.alive()
        for fd in reply.fds:
            os.close(fd)
        one.close()
        eventually_accepted(lambda: other.reply(other.request("hello", {"shm": True})).get())


def test_messages_a_second(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nmessages_per_s = 20\n")
    with daemon.connect() as one, daemon.connect() as other:
        replies = [c.reply(c.request("ping", {"i": i})) for i in range(30) for c in (one, other)]
        served = sum(r.error is None for r in replies)
        assert 20 <= served < 60
        errors = [r.error for r in replies if r.error]
        for error in errors:
            assert error["code"] == "quota_exceeded"
            detail = error["detail"]
            assert detail["quota"] == "messages_per_s" and detail["limit"] == 20
            assert 19 <= detail["current"] <= 20 and 1 <= detail["retry_after_ms"] <= 50
        # A new connection has no second to itself.
        with daemon.connect() as third:
            refused = [third.reply(third.request("ping")).error for _ in range(10)]
        assert any(refused)
        # Nor is there another way around.
        names = [one.error("no_such_method").detail.get("quota") for _ in range(10)]
        assert "messages_per_s" in names
        # And what it was told is true.
        eventually_accepted(lambda: one.call("ping"))
        assert len(refusals(daemon, "messages_per_s")) >= 1


@as_root
def test_users_that_another_may_become_count_as_that_one(start: Callable[[str], Daemon], tmp_path: Path) -> None:
    """By /etc/subuid, as if newuidmap had let them."""
    subuid = tmp_path / "subuid"
    subuid.write_text(f"nonsense\n{ALICE}:100000:3\n{BOB}:100003:65536\n", encoding="utf-8")
    access = f"[access]\nsubuid = {subuid}\n"
    daemon = start("[quota]\nconnections = 3\n" + access)
    with ExitStack() as there:
        hers = [there.enter_context(users.connect(daemon, uid)) for uid in (ALICE, 100000, 100002)]
        assert all(connection.alive() for connection in hers)
        with users.connect(daemon, 100001) as more:
            check(more.wait_closed(), "connections", 3, 3)
        his = there.enter_context(users.connect(daemon, 100003))
        assert his.alive()
        rows = {row["uid"]: row["connections"] for row in hers[0].call("clients")["users"]}
        assert rows == {ALICE: 3}
        assert [row["uid"] for row in hers[1].call("clients")["users"]] == [ALICE]  # the account that she is charged to
        # Another file counts from the next connection on.
        subuid.write_text("", encoding="utf-8")
        users.reload(daemon, HOST + users.OPEN + "[quota]\nconnections = 3\n" + access)
        assert there.enter_context(users.connect(daemon, 100001)).alive()


def keep_busy(connection: raw.Connection, vectors: Vectors, until: float) -> raw.RpcError | None:
    """Runs one after the other; the first refusal."""
    params = {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)], "repeat": 20}
    while time.monotonic() < until:
        reply = connection.reply(connection.request("run", params))
        if reply.error:
            return raw.RpcError(reply.error)
    return None


@as_root
def test_connections_of_all_users_are_shared(start: Callable[[str], Daemon]) -> None:
    """Without a quota one user has two thirds of them."""
    daemon = start("[server]\nmax_connections = 9\n[quota]\nconnections = 0\n")
    with ExitStack() as there:
        for _ in range(6):
            assert there.enter_context(users.connect(daemon, ALICE)).alive()
        with users.connect(daemon, ALICE) as more:
            error = more.wait_closed()
        assert error is not None and error["code"] == "quota_exceeded"
        assert error["detail"]["users"] == "all" and error["detail"]["limit"] == 9
        assert there.enter_context(users.connect(daemon, BOB)).alive()


def test_connections_of_the_daemon_have_a_bound(start: Callable[[str], Daemon]) -> None:
    daemon = start("[server]\nmax_connections = 2\n[quota]\nconnections = 0\n")
    with daemon.connect() as one, daemon.connect() as two:
        assert one.alive() and two.alive()
        with daemon.connect() as more:
            error = more.wait_closed()
        assert error is not None and error["code"] == "quota_exceeded"
        assert error["detail"] == {"quota": "max_connections", "current": 2, "limit": 2}


@as_root
def test_a_share_of_the_device_while_others_wait(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\ndevice_share = 10\n")
    with users.connect(daemon, ALICE) as alice, users.connect(daemon, BOB) as bob:
        vectors = Vectors(alice, 2, 1 << 20)
        # Alone she may have it all.
        assert keep_busy(alice, vectors, time.monotonic() + 1) is None
        run = LongRun(bob)
        error = keep_busy(alice, vectors, time.monotonic() + raw.PATIENCE)
        assert error is not None and error.code == "quota_exceeded"
        assert error.detail["quota"] == "device_share" and error.detail["limit"] == 10
        assert error.detail["current"] > 10 and 1 <= error.detail["retry_after_ms"] <= 1000
        assert alice.alive()  # only runs are refused
        # What she had is forgotten within a second.
        params = {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]}
        eventually_accepted(lambda: alice.call("run", params))
        assert refusals(daemon, "device_share")
        bob.call("cancel", {"msgid": run.msgid})
        bob.reply_error(run.msgid)
        assert keep_busy(alice, vectors, time.monotonic() + 0.5) is None


def test_quotas_are_read_again(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\nbuffers = 2\n")
    with daemon.connect() as connection:
        buffers = [register(connection, 4096) for _ in range(2)]
        check(register_error(connection, 4096), "buffers", 2, 2)
        users.reload(daemon, HOST + users.OPEN + "[quota]\nbuffers = 3\n")
        buffers.append(register(connection, 4096))
        users.reload(daemon, HOST + users.OPEN + "[quota]\nbuffers = 1\n")
        # What is there stays.
        check(register_error(connection, 4096), "buffers", 3, 1)
        for buffer in buffers:
            connection.call("release", {"buffer": buffer})
        register(connection, 4096)
        check(register_error(connection, 4096), "buffers", 1, 1)


def test_what_a_connection_may_have_is_in_the_log_too(start: Callable[[str], Daemon]) -> None:
    daemon = start("")
    with daemon.connect() as connection:
        most = connection.call("hello")["limits"]["buffers"]
        shared = memfd.Shared(4096)
        for _ in range(most):
            connection.register(shared)
        check(register_error(connection, 4096), "buffers", most, most)
    (line,) = refusals(daemon, "limits")
    assert f"pid={os.getpid()} uid={os.getuid()} current={most} limit={most}" in line


# ---- kernels ----


@only_with_nvrtc
def test_compiled_code(start: Callable[[str], Daemon]) -> None:
    daemon = start("[quota]\ndaemon_mib = 1\n")
    one_of, another = ({"source": large_code(i), "entries": ["add2_kernel"], "arch": ARCH} for i in (1, 2))
    with daemon.connect() as one, daemon.connect() as other:
        first = one.call("compile", one_of)
        assert 700000 < first["image_bytes"] < MIB
        again = other.call("compile", one_of)  # the same code
        check(other.error("compile", another), "kernel_bytes", first["image_bytes"], MIB)
        one.call("release", {"module": first["module"]})
        check(one.error("compile", another), "kernel_bytes", first["image_bytes"], MIB)
        other.call("release", {"module": again["module"]})
        one.call("compile", another)


# ---- a GPU's memory, with a driver that stands in for one ----


@pytest.fixture
def gpu() -> Iterator[Callable[[str], Machine]]:
    machines: list[Machine] = []

    def new(config: str) -> Machine:
        machines.append(Machine(users.OPEN + config))
        return machines[-1]

    yield new
    for machine in machines:
        with machine.daemon:
            pass


@only_with_the_standin
def test_a_mapping_is_counted_once_and_by_its_true_size(gpu: Callable[[str], Machine]) -> None:
    machine = gpu("[quota]\nmapped_mib = 5\n")
    exporter = machine.exporter()
    large, small, rest = (exporter.alloc(mib * MIB) for mib in (3, 1, 2))
    with machine.daemon.connect() as one, machine.daemon.connect() as other:
        buffers = [one.call("register", {**large.register_params(), "size": 4096})["buffer"] for _ in range(3)]
        kept = other.call("register", large.register_params())["buffer"]
        one.call("register", small.register_params())
        check(one.error("register", rest.register_params()), "mapped_bytes", 4 * MIB, 5 * MIB)
        # Less is declared than there is, which is known once it is open.
        check(one.error("register", {**rest.register_params(), "size": 4096}), "mapped_bytes", 4 * MIB, 5 * MIB)
        for buffer in buffers:
            one.call("release", {"buffer": buffer})
        check(one.error("register", rest.register_params()), "mapped_bytes", 4 * MIB, 5 * MIB)
        other.call("release", {"buffer": kept})
        one.call("register", rest.register_params())
        check(other.error("register", large.register_params()), "mapped_bytes", 3 * MIB, 5 * MIB)
    exporter.close()


@only_with_the_standin
def test_inline_references_are_counted(gpu: Callable[[str], Machine]) -> None:
    machine = gpu("[quota]\nmapped_mib = 2\n")
    exporter = machine.exporter()
    a, b, large = (vector(exporter.alloc(mib * MIB)) for mib in (1, 1, 2))
    with machine.daemon.connect() as connection, machine.daemon.connect() as other:
        connection.call("run", square(a, b))
        error = connection.error("run", square(a, large))
        assert error.code == "quota_exceeded" and error.detail["quota"] == "mapped_bytes" and error.key == "out[0]"
        one = {**large.inline([N]), "size": 4 * N}  # declared smaller than it is
        connection.call("release", {"ipc": b.handle})
        error = connection.error("run", {"op": "square", "in": [a.inline([N])], "out": [one]})
        assert error.code == "quota_exceeded" and error.detail["quota"] == "mapped_bytes"
        machine.wait(lambda: machine.row.live_ipc_mappings == 1)  # it is not left open
        other.call("trim")  # nothing of hers, but it waits until the daemon, too, knows what is closed
        # A program's, which nobody waits for before it runs, is counted as what it is and not left open either.
        params = {"tensors": [a.inline([N]), one], "ops": [{"op": "square", "in": [0], "out": [1]}]}
        program = connection.call("program", params)["program"]
        machine.wait(lambda: machine.row.live_ipc_mappings == 2)
        for _ in range(2):
            error = connection.error("run_program", {"program": program})
            check(error, "mapped_bytes", MIB, 2 * MIB)
            machine.wait(lambda: machine.row.live_ipc_mappings == 1)
        connection.call("release", {"program": program})
        program = connection.call(
            "program",
            {"tensors": [a.inline([N]), b.inline([N])], "ops": [{"op": "square", "in": [0], "out": [1]}]},
        )["program"]
        for memory in (a, b):
            connection.call("release", {"ipc": memory.handle})
        check(connection.error("register", large.register_params()), "mapped_bytes", 2 * MIB, 2 * MIB)
        connection.call("run_program", {"program": program})
        connection.call("release", {"program": program})
        connection.call("register", large.register_params())
    exporter.close()


@only_with_the_standin
@as_root
def test_who_allocated_pays_until_the_daemon_lets_go(gpu: Callable[[str], Machine]) -> None:
    machine = gpu("[quota]\nallocated_mib = 3\nmapped_mib = 2\n")
    with (users.connect(machine.daemon, ALICE) as alice, users.connect(machine.daemon, BOB) as bob):
        params = {"size": 2 * MIB, "device": machine.gpu}
        reply = alice.reply(alice.request("alloc", params))
        assert reply.get()["kind"] == "cuda_vmm" and reply.get()["size"] == 2 * MIB
        shared = {"kind": "cuda_vmm", "size": 2 * MIB, "device": machine.gpu, "fd": 0}
        # Her own memory is not mapped for her in addition.
        again = alice.call("register", shared, [reply.fds[0]])["buffer"]
        register(alice, 2 * MIB)
        his = bob.call("register", shared, [reply.fds[0]])["buffer"]
        check(register_error(bob, 1), "mapped_bytes", 2 * MIB, 2 * MIB)
        alice.call("release", {"buffer": again})
        alice.call("release", {"buffer": reply.get()["buffer"]})
        small = {**params, "size": MIB}  # which the device rounds up
        check(alice.error("alloc", small), "allocated_bytes", 2 * MIB, 3 * MIB)
        bob.call("alloc", params)
        bob.call("release", {"buffer": his})
        register(bob, 2 * MIB)
        eventually_accepted(lambda: alice.call("alloc", params))
        os.close(reply.fds[0])


GIB = 1 << 30


Start = Callable[[str], Daemon]
Sparse = Callable[[int], int]


def register_fd(connection: raw.Connection, fd: int, size: int) -> raw.Reply:
    return connection.reply(connection.request("register", {"kind": "memfd", "size": size, "fd": 0}, [fd]))


@pytest.fixture
def sparse() -> Iterator[Sparse]:
    """Memfds with nothing but a hole in them."""
    made: list[int] = []

    def new(size: int) -> int:
        made.append(memfd.make(size))
        return made[-1]

    yield new
    for fd in made:
        os.close(fd)


def check_host(error: dict[str, object] | None, quota: str, current: int, limit: int, asked: int) -> None:
    assert error is not None and error["code"] == "quota_exceeded"
    assert error["detail"] == {"quota": quota, "current": current, "limit": limit, "asked": asked}
    assert f"{asked}" in str(error["message"]) and "quota.host_" in str(error["message"])


def square_of_halves(connection: raw.Connection, buffer: int, n: int) -> None:
    """Of the first n elements, into the n behind them."""
    first, second = (raw.tensor(buffer, [n], offset=4 * n * i) for i in range(2))
    connection.run("square", [first], [second])


def pages(fd: int) -> int:
    """Bytes that the file has, holes apart."""
    return os.fstat(fd).st_blocks * 512


def test_a_hole_is_counted_in_full(start: Start, sparse: Sparse) -> None:
    daemon = start("[quota]\nhost_mib = 64\n")
    with daemon.connect() as connection:
        large = sparse(6 * GIB)
        check_host(register_fd(connection, large, 6 * GIB).error, "host_bytes", 0, 64 * MIB, 6 * GIB)
        assert not pages(large)
        # A part of it is as good as any.
        buffer = register_fd(connection, large, 16 * MIB).get()["buffer"]
        check_host(register_fd(connection, large, 65 * MIB).error, "host_bytes", 0, 64 * MIB, 65 * MIB)
        check_host(register_fd(connection, sparse(49 * MIB), 49 * MIB).error, "host_bytes", 16 * MIB, 64 * MIB, 49 * MIB)
        # Holes are served within the quota.
        square_of_halves(connection, buffer, 4 * MIB // 4)
        with mmap.mmap(large, 8 * MIB) as mapped:
            assert not np.frombuffer(mapped[:], np.float32).any()
        connection.call("release", {"buffer": buffer})
        buffer = register_fd(connection, sparse(64 * MIB), 64 * MIB).get()["buffer"]
        connection.call("release", {"buffer": buffer})


def test_a_file_is_counted_once(start: Start, sparse: Sparse) -> None:
    """By as much of it as was named at most, however many connections of the user's have it."""
    daemon = start("[quota]\nhost_mib = 64\n")
    with daemon.connect() as one, daemon.connect() as other:
        fd = sparse(48 * MIB)
        buffers = [register_fd(c, fd, size).get()["buffer"] for c in (one, other) for size in (MIB, 48 * MIB)]
        check_host(register_fd(one, sparse(17 * MIB), 17 * MIB).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        for connection, buffer in zip((one, one, other), buffers, strict=False):
            connection.call("release", {"buffer": buffer})
        check_host(register_fd(one, sparse(17 * MIB), 17 * MIB).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        other.call("release", {"buffer": buffers[3]})
        register_fd(one, sparse(17 * MIB), 17 * MIB).get()


def test_alloc_is_counted_with_it(start: Start, sparse: Sparse) -> None:
    daemon = start("[quota]\nhost_mib = 64\n")
    with daemon.connect() as one, daemon.connect() as other:
        made = one.reply(one.request("alloc", {"size": 48 * MIB}))
        check_host(other.reply(other.request("alloc", {"size": 17 * MIB})).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        register_fd(other, made.fds[0], 48 * MIB).get()  # it is the same
        check_host(register_fd(other, sparse(17 * MIB), 17 * MIB).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        one.call("release", {"buffer": made.get()["buffer"]})
        check_host(one.reply(one.request("alloc", {"size": 17 * MIB})).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        os.close(made.fds[0])


def test_no_more_is_allocated_than_there_is(start: Start) -> None:
    """Whatever the quotas are; and at once, without a page of it."""
    daemon = start("[quota]\nhost_mib = 0\nhost_all_mib = 0\n")
    with daemon.connect() as connection:
        for size in (1 << 40, 1 << 42):
            error = connection.error("alloc", {"size": size})
            assert error.code == "out_of_memory" and str(size) in error.message and "available" in error.message
        connection.call("alloc", {"size": MIB})


def test_shared_memory_of_connections_counts(start: Start) -> None:
    daemon = start("[quota]\nhost_mib = 1\n")
    with daemon.connect() as one, daemon.connect() as other:
        reply = one.reply(one.request("hello", {"shm": True}))
        error = other.error("hello", {"shm": True})
        assert error.code == "quota_exceeded" and error.detail["quota"] == "host_bytes"
        assert error.detail["current"] == error.detail["asked"] > 0
        for fd in reply.fds:
            os.close(fd)
        one.close()
        proc.eventually(lambda: other.reply(other.request("hello", {"shm": True})).error is None, "there is room again")


# ---- in a control group of its own ----

GROUP = 512 * MIB
CGROUP = Path("/sys/fs/cgroup/memory")
in_a_group = pytest.mark.skipif(
    not os.access(CGROUP / "cgroup.procs", os.W_OK), reason="no control groups of memory (version 1) may be made here"
)


@pytest.fixture
def group() -> Iterator[Path]:
    own = re.search(r":memory:(.*)", Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    above = CGROUP / own[1].lstrip("/") if own else CGROUP
    made = (above if above.is_dir() else CGROUP) / f"kops-test-{uuid.uuid4().hex[:8]}"
    made.mkdir()
    (made / "memory.limit_in_bytes").write_text(str(GROUP), encoding="utf-8")
    yield made
    proc.eventually(lambda: not (made / "cgroup.procs").read_text(encoding="utf-8"), "the group is empty")
    made.rmdir()


def inside(group: Path, command: list[str]) -> list[str]:
    return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]


def start_inside(group: Path) -> Daemon:
    daemon = Daemon(config=HOST + users.OPEN, start=False)
    daemon.command = inside(group, daemon.command)
    daemon.start()
    return daemon


def fill_all_that_may_be(connection: raw.Connection, sparse: Sparse) -> int:
    """Registers files of holes, whose pages the daemon then touches first, until it refuses. Returns how many it took."""
    for count in itertools.count():
        made = register_fd(connection, sparse(16 * MIB), 16 * MIB)
        if made.error:
            assert made.error["code"] in ("quota_exceeded", "out_of_memory")
            return count
        square_of_halves(connection, made.get()["buffer"], 8 * MIB // 4)
    raise AssertionError


@as_root
@in_a_group
def test_holes_do_not_end_the_daemon(group: Path, sparse: Sparse) -> None:
    """Whoever touches a page first is charged for it by the kernel, for as long as there is the file: here the daemon,
    although it has let go of the first user's when the other comes."""
    with start_inside(group) as daemon:
        for uid in (ALICE, BOB):  # the second one's find the first one's pages charged to the daemon
            with users.connect(daemon, uid) as connection:
                assert register_fd(connection, sparse(6 * GIB), 6 * GIB).error is not None
                fill_all_that_may_be(connection, sparse)
                assert connection.alive()
                # Memory of which the pages are there, whoever touched them, is taken on all the same.
                filled = memfd.make(MIB)
                os.write(filled, bytes(MIB))
                register_fd(connection, filled, MIB)
                os.close(filled)
        assert int((group / "memory.max_usage_in_bytes").read_text(encoding="utf-8")) < GROUP


# ---- programs, and memory given back ----


def big_program(n: int) -> dict[str, object]:
    """One of many tensors, without memory: they are empty."""
    tensors = [{"shape": [0], "dtype": "f32"} for _ in range(n)]
    return {"tensors": tensors, "ops": [{"op": "square", "in": [i], "out": [i + 1]} for i in range(0, n // 2, 2)]}


def resident(daemon: Daemon) -> int:
    return proc.status(daemon.pid, "VmRSS") << 10


def test_programs_are_bounded_per_user_and_given_back(start: Start) -> None:
    daemon = start("[quota]\ndaemon_mib = 64\n")
    with daemon.connect() as probe:
        assert probe.alive()
        before = resident(daemon)
        connections = [daemon.connect() for _ in range(12)]
        refused = 0
        for connection in connections:
            for _ in range(1000):
                reply = connection.reply(connection.request("program", big_program(512)))
                if reply.error:
                    assert reply.error["code"] == "quota_exceeded"
                    assert reply.error["detail"]["quota"] == "program_bytes"
                    refused += 1
                    break
        assert refused == len(connections)
        grown = resident(daemon) - before
        assert sanitized() or grown < 2 * 64 * MIB
        (me,) = probe.call("clients")["users"]
        assert 0 < me["program_bytes"] <= me["limits"]["program_bytes"] == 64 * MIB
        for connection in connections:
            connection.close()
        if not sanitized():  # which keep what is freed
            proc.eventually(lambda: resident(daemon) < before + grown // 3, lambda: f"{resident(daemon)}, was {before}")
        probe.call("program", big_program(512))


# ---- what waits ----


@as_root
def test_messages_of_which_a_part_has_come(start: Start) -> None:
    """Of many connections together they take no more than the quota, and all come to their end."""
    daemon = start("[quota]\ndaemon_mib = 8\n[limits]\nmessage_bytes = 1048576\n")
    message = raw.pack_request(1, "ping", {"x": bytes(1000000)})
    with daemon.connect() as probe:
        assert probe.alive()
        before = resident(daemon)
        connections = [users.connect(daemon, ALICE) for _ in range(64)]
        left = []
        for connection in connections:
            connection.socket.setblocking(False)
            left.append(send_some(connection, message[:-1]))

        def waiting() -> int:
            (hers,) = (u for u in probe.call("clients")["users"] if u["uid"] == ALICE)
            return hers["waiting_bytes"]

        proc.eventually(lambda: waiting() >= 8 * MIB, "it has read what it reads")
        assert waiting() < 3 * 8 * MIB
        assert sanitized() or resident(daemon) - before < 4 * 8 * MIB
        pending = {c: memoryview(message)[sent:] for c, sent in zip(connections, left, strict=True)}
        got = dict.fromkeys(connections, 0)

        def all_through() -> bool:
            for c in connections:
                pending[c] = pending[c][send_some(c, pending[c]) :]
                got[c] += receive_some(c)
            return min(got.values()) > 1000000

        proc.eventually(all_through, lambda: f"{sorted(got.values())}")
        for connection in connections:
            connection.close()


def send_some(connection: raw.Connection, data: bytes | memoryview) -> int:
    sent = 0
    try:
        while sent < len(data):
            sent += connection.socket.send(data[sent : sent + 65536])
    except BlockingIOError:
        pass
    return sent


def receive_some(connection: raw.Connection) -> int:
    try:
        return len(connection.socket.recv(1 << 20))
    except BlockingIOError:
        return 0


@as_root
def test_replies_that_are_not_read_take_no_more_than_the_quota(start: Start) -> None:
    """A `ping` needs no credit, so nothing but what waits for the user bounds what is answered."""
    daemon = start("[quota]\ndaemon_mib = 4\n")
    message = raw.pack_request(1, "ping", {"x": bytes(1000000)})
    with daemon.connect() as probe:
        assert probe.alive()
        before = proc.status(daemon.pid, "RssAnon")
        left = {}
        for _ in range(150):
            connection = users.connect(daemon, ALICE)
            connection.socket.setblocking(False)
            left[connection] = memoryview(message)
        idle = 0
        while idle < 100 and any(left.values()):  # each round waits for a turn of the loop, and some for the timer
            sent = {c: send_some(c, data) for c, data in left.items()}
            left = {c: data[sent[c] :] for c, data in left.items()}
            assert probe.alive()
            idle = 0 if any(sent.values()) else idle + 1
        assert sanitized() or proc.status(daemon.pid, "RssAnon") - before < 40 << 10
        for connection in left:
            connection.close()
