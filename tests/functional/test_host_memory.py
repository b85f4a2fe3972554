"""The host's memory: what one user, and all of them, may have mapped, counted before a page is touched; what programs
and waiting bytes take; and that the daemon gives memory back."""

from __future__ import annotations

import itertools
import mmap
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from quotas import HOST, daemons
from support import memfd, proc, raw, users
from support.daemon import Daemon, binary, sanitized, thread_sanitized
from support.users import as_root

ALICE, BOB, CAROL = 54001, 54002, 54003
MIB = 1 << 20
GIB = 1 << 30


Start = Callable[[str], Daemon]
Sparse = Callable[[int], int]


@pytest.fixture
def start() -> Iterator[Start]:
    yield from daemons()


def register(connection: raw.Connection, fd: int, size: int) -> raw.Reply:
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


def check(error: dict[str, object] | None, quota: str, current: int, limit: int, asked: int) -> None:
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
        check(register(connection, large, 6 * GIB).error, "host_bytes", 0, 64 * MIB, 6 * GIB)
        assert not pages(large)
        # A part of it is as good as any.
        buffer = register(connection, large, 16 * MIB).get()["buffer"]
        check(register(connection, large, 65 * MIB).error, "host_bytes", 0, 64 * MIB, 65 * MIB)
        check(register(connection, sparse(49 * MIB), 49 * MIB).error, "host_bytes", 16 * MIB, 64 * MIB, 49 * MIB)
        # Holes are served within the quota.
        square_of_halves(connection, buffer, 4 * MIB // 4)
        with mmap.mmap(large, 8 * MIB) as mapped:
            assert not np.frombuffer(mapped[:], np.float32).any()
        connection.call("release", {"buffer": buffer})
        buffer = register(connection, sparse(64 * MIB), 64 * MIB).get()["buffer"]
        connection.call("release", {"buffer": buffer})


def test_a_file_is_counted_once(start: Start, sparse: Sparse) -> None:
    """By as much of it as was named at most, however many connections of the user's have it."""
    daemon = start("[quota]\nhost_mib = 64\n")
    with daemon.connect() as one, daemon.connect() as other:
        fd = sparse(48 * MIB)
        buffers = [register(c, fd, size).get()["buffer"] for c in (one, other) for size in (MIB, 48 * MIB)]
        check(register(one, sparse(17 * MIB), 17 * MIB).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        for connection, buffer in zip((one, one, other), buffers, strict=False):
            connection.call("release", {"buffer": buffer})
        check(register(one, sparse(17 * MIB), 17 * MIB).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        other.call("release", {"buffer": buffers[3]})
        register(one, sparse(17 * MIB), 17 * MIB).get()


def test_alloc_is_counted_with_it(start: Start, sparse: Sparse) -> None:
    daemon = start("[quota]\nhost_mib = 64\n")
    with daemon.connect() as one, daemon.connect() as other:
        made = one.reply(one.request("alloc", {"size": 48 * MIB}))
        check(other.reply(other.request("alloc", {"size": 17 * MIB})).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        register(other, made.fds[0], 48 * MIB).get()  # it is the same
        check(register(other, sparse(17 * MIB), 17 * MIB).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        one.call("release", {"buffer": made.get()["buffer"]})
        check(one.reply(one.request("alloc", {"size": 17 * MIB})).error, "host_bytes", 48 * MIB, 64 * MIB, 17 * MIB)
        os.close(made.fds[0])


def test_no_more_is_allocated_than_there_is(start: Start) -> None:
    """Whatever the quotas are; and at once, without a page of it."""
    daemon = start("[quota]\nhost_mib = 0\nhost_all_mib = 0\n")
    with daemon.connect() as connection:
        for size in (1 << 40, 1 << 42):
            error = connection.error("alloc", {"size": size})
            assert error.code == "out_of_memory" and str(size) in error.message and "available" in error.message
        connection.call("alloc", {"size": MIB})


@as_root
def test_all_users_together(start: Start, sparse: Sparse) -> None:
    daemon = start("[quota]\nhost_mib = 64\nhost_all_mib = 96\n")
    with users.connect(daemon, ALICE) as alice, users.connect(daemon, BOB) as bob:
        buffer = register(alice, sparse(64 * MIB), 64 * MIB).get()["buffer"]
        for size in (33 * MIB, 22 * MIB):
            check(register(bob, sparse(size), size).error, "host_all_bytes", 64 * MIB, 96 * MIB, size)
        register(bob, sparse(21 * MIB), 21 * MIB).get()  # two thirds of what is left: the next one finds the rest
        alice.call("release", {"buffer": buffer})
        register(bob, sparse(32 * MIB), 32 * MIB).get()


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


@as_root
@in_a_group
def test_the_group_is_the_memory(group: Path) -> None:
    command = inside(group, [str(binary()), "--print-config", "--config", "/dev/null"])
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^(\w+) = (\d+)$", printed, re.MULTILINE))
    assert (found["host_mib"], found["host_all_mib"]) == ("256", "384")


def fill_all_that_may_be(connection: raw.Connection, sparse: Sparse) -> int:
    """Registers files of holes, whose pages the daemon then touches first, until it refuses. Returns how many it took."""
    for count in itertools.count():
        made = register(connection, sparse(16 * MIB), 16 * MIB)
        if made.error:
            assert made.error["code"] in ("quota_exceeded", "out_of_memory")
            return count
        square_of_halves(connection, made.get()["buffer"], 8 * MIB // 4)
    raise AssertionError


@as_root
@in_a_group
@pytest.mark.skipif(thread_sanitized(), reason="ThreadSanitizer takes four bytes of the group's memory for each byte used")
def test_who_fills_all_that_may_be_leaves_room_for_the_next(group: Path, sparse: Sparse) -> None:
    daemon = start_inside(group)
    with daemon, users.connect(daemon, ALICE) as alice, users.connect(daemon, BOB) as bob:
        first = fill_all_that_may_be(alice, sparse)
        assert 0 < fill_all_that_may_be(bob, sparse) < first
        with users.connect(daemon, CAROL) as carol:
            size = 4 * MIB
            tensor = raw.tensor(register(carol, sparse(size), size).get()["buffer"], [size // 4])
            carol.run("square", [tensor], [tensor])
            carol.call("alloc", {"size": size})


@as_root
@in_a_group
def test_holes_do_not_end_the_daemon(group: Path, sparse: Sparse) -> None:
    """Whoever touches a page first is charged for it by the kernel, for as long as there is the file: here the daemon,
    although it has let go of the first user's when the other comes."""
    with start_inside(group) as daemon:
        for uid in (ALICE, BOB):  # the second one's find the first one's pages charged to the daemon
            with users.connect(daemon, uid) as connection:
                assert register(connection, sparse(6 * GIB), 6 * GIB).error is not None
                fill_all_that_may_be(connection, sparse)
                assert connection.alive()
                # Memory of which the pages are there, whoever touched them, is taken on all the same.
                filled = memfd.make(MIB)
                os.write(filled, bytes(MIB))
                register(connection, filled, MIB)
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
