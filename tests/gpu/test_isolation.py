"""Kernels of users in executors of their own: faults, endless kernels and spies meet only their own user.

The tests of this file run on a GPU, and on the stand-in driver, where KOPS_CUDA_DRIVER names it, so that they are tried
where there is no GPU. Tests of a real driver alone are in test_isolation_torch.py and
test_isolation_mps.py."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isolated import BYTES, Client, N, pid_of, start, wait_for_spares, word
from support import proc
from support.daemon import Daemon
from support.kernels import add_kernel
from support.raw import tensor

SECRET = 0x5EC2E700
MIB = 1 << 20
REPLACEMENTS = 30
DRIVER_KEEPS = 8 * MIB  # at most, of 30 processes that have ended
DEADLINE_MS = 5000  # of a kernel that is to be ended before


@pytest.fixture
def isolated(backend: str, driver: Any) -> Iterator[Daemon]:
    with start(backend) as daemon:
        yield daemon


@pytest.fixture
def client(driver: Any) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def new(daemon: Daemon, **hello: Any) -> Client:
        made.append(Client(daemon, driver, **hello))
        return made[-1]

    yield new
    for one in made:
        one.close()


def instance(one: Client) -> Any:
    return one.connection.call("hello")["instance"]


# ---- faults ----


def test_a_fault_is_a_reply_that_names_it(isolated: Daemon, client: Callable[..., Client]) -> None:
    """All ids are good afterwards, of the kernel that faulted, too; the others' work is right all the time."""
    culprit, other = client(isolated), client(isolated)
    other.square()
    culprit.launch_own()
    before, domain = instance(culprit), pid_of(other.connection, "user")
    common = pid_of(other.connection, "common")
    bad = culprit.kernel("fault_kernel")
    for _ in range(3):
        error = culprit.fault(bad)
        assert error.detail["driver"] == "CUDA_ERROR_ILLEGAL_ADDRESS" and error.detail["kernel"] == "fault_kernel", error
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in error.message
        assert not Path(f"/proc/{domain}").exists(), "the reply comes when the executor has ended"
        other.square()
        culprit.launch_own()
        culprit.launch_shared(5)
        culprit.square()
        domain = pid_of(other.connection, "user")
    assert pid_of(other.connection, "common") == common and instance(culprit) == before
    assert other.connection.call("stats")["executor_counts"]["faults"] == 3


def test_allocated_memory_keeps_its_contents(isolated: Daemon, client: Callable[..., Client], driver: Any) -> None:
    """Its descriptor is the daemon's and the client's, and no executor's."""
    one = client(isolated)
    reply = one.connection.reply(one.connection.request("alloc", {"size": 2 * MIB, "device": one.gpu}))
    made = reply.get()
    pointer = driver.map_fd(reply.fds[0], made["size"])
    try:
        one.launch_own()
        a, out = (tensor(made["buffer"], [N], offset=i * BYTES) for i in range(2))
        driver.write(pointer, np.arange(N, dtype=np.float32).tobytes())
        one.launch(one.custom, out, a, N)
        one.fault()
        expected = np.arange(N, dtype=np.float32)
        assert (np.frombuffer(driver.read(pointer, BYTES), np.float32) == expected).all()
        assert (np.frombuffer(driver.read(pointer + BYTES, BYTES), np.float32) == 2 * expected).all()
        one.launch(one.custom, a, out, N)
        one.connection.run("add", [a, out], [one.other])
        assert (one.read(2) == 6 * expected).all()
    finally:
        driver.unmap(pointer, made["size"])
        os.close(reply.fds.pop())


def test_the_domain_of_another_user_does_not_notice(backend: str, driver: Any, client: Callable[..., Client]) -> None:
    with start(backend, "connection") as daemon:
        culprit, other = client(daemon), client(daemon)
        for one in (culprit, other):
            one.launch_own()
            one.square()
        pids = {row["pid"] for row in other.connection.call("stats")["executors"] if row.get("domain") == "connection"}
        assert len(pids) == 2
        for _ in range(2):
            culprit.fault()
            other.launch_own()
        left = {row["pid"] for row in other.connection.call("stats")["executors"]} & pids
        assert len(left) == 1, "the other's executor is the same"
        culprit.launch_own()


def test_a_connection_may_ask_for_an_executor(isolated: Daemon, client: Callable[..., Client]) -> None:
    shared, own = client(isolated), client(isolated, isolate="connection")
    shared.launch_own()
    own.launch_own()
    user = pid_of(shared.connection, "user")
    own.fault()
    assert pid_of(shared.connection, "user") == user
    shared.launch_own()
    own.launch_own()
    assert {"user", "connection"} <= {row.get("domain") for row in shared.connection.call("stats")["executors"]}


# ---- kernels that do not end ----


def test_an_endless_kernel_has_ended_at_its_deadline(isolated: Daemon, client: Callable[..., Client], driver: Any) -> None:
    """The reply comes when nothing writes any more."""
    culprit, other = client(isolated), client(isolated)
    other.square()
    culprit.launch_own()
    domain = pid_of(other.connection, "user")
    endless = {"kernel": culprit.kernel("count_forever"), "args": [culprit.counter()], "deadline_ms": 200}
    msgid = culprit.connection.request("launch", endless)
    while not culprit.connection.readable(0):
        other.square()
    error = culprit.connection.reply_error(msgid)
    assert error.code == "deadline_exceeded" and error.detail["ended"] is True, error
    assert not Path(f"/proc/{domain}").exists(), "the executor has been reaped"
    counted = word(driver, culprit.pointer + BYTES)
    assert counted > 0
    for _ in range(50):
        other.square()
    assert word(driver, culprit.pointer + BYTES) == counted
    culprit.launch_own()
    culprit.square()


def test_an_endless_kernel_ends_after_its_client(isolated: Daemon, client: Callable[..., Client], driver: Any) -> None:
    other, leaving = client(isolated), client(isolated)
    leaving.launch_own()
    domain = pid_of(other.connection, "user")
    leaving.connection.request("launch", {"kernel": leaving.kernel("count_forever"), "args": [leaving.counter()]})
    proc.eventually(lambda: word(driver, leaving.pointer + BYTES) > 0, "it has begun")
    leaving.connection.close()
    proc.eventually(lambda: not Path(f"/proc/{domain}").exists(), "its executor ends")
    other.square()
    other.launch_own()


@pytest.mark.parametrize("others_work", [False, True])
def test_an_endless_kernel_is_ended_by_the_watchdog(backend: str, driver: Any, client: Callable[..., Client], others_work: bool) -> None:
    with start(backend, KOPSD_SERVER_JOB_TIMEOUT_S="1") as daemon:
        culprit, other = client(daemon), client(daemon)
        culprit.launch_own()
        spin = culprit.kernel("spin_forever")
        msgid = culprit.connection.request("launch", {"kernel": spin, "args": [culprit.scratch], "deadline_ms": DEADLINE_MS})
        while others_work and not culprit.connection.readable(0):
            other.square()
        error = culprit.connection.reply_error(msgid)
        assert error.code == "job_timeout" and error.detail["daemon"] == "goes_on", error
        culprit.launch_own()
        other.square()


# ---- spies ----


def places(driver: Any, victim: Client) -> list[int]:
    """Where the victim's memory lies: in its own executor, by its own kernel's word, and in this process."""
    where = victim.kernel("tell_address")
    out = tensor(victim.other["buffer"], [1], "u64", offset=victim.other["offset"])
    victim.launch(where, out, victim.a)
    (mapped,) = struct.unpack("<Q", driver.read(victim.pointer + 2 * BYTES, 8))
    return [mapped, victim.pointer]


def test_memory_of_others_is_not_there(backend: str, driver: Any, client: Callable[..., Client]) -> None:
    """A kernel reads all around the places where another client's memory lies. It faults, or finds its own executor's
    memory, and never the other's data."""
    with start(backend, "connection") as daemon:
        victim, spy = client(daemon), client(daemon)
        victim.launch_own()
        driver.write(victim.pointer, struct.pack("<I", SECRET) * N)
        victim.connection.run("square", [victim.a], [victim.other])  # the common executor has it, too
        reply = spy.connection.reply(spy.connection.request("alloc", {"size": 4 * MIB, "device": spy.gpu}))
        made = reply.get()
        pointer = driver.map_fd(reply.fds[0], made["size"])
        read, words = spy.kernel("read_range"), 2 * MIB // 4
        out = tensor(made["buffer"], [words], "u32")
        faults = 0
        try:
            for place in places(driver, victim):
                for away in (0, -4 * MIB, 4 * MIB, 1024 * MIB):
                    address = (place + away) & -(2 * MIB)
                    driver.write(pointer, bytes(made["size"]))
                    msgid = spy.connection.request("launch", {"kernel": read, "args": [out, address, words]})
                    error = spy.connection.reply(msgid).error
                    assert error is None or error["code"] == "device_fault", error
                    faults += error is not None
                    found = np.frombuffer(driver.read(pointer, made["size"]), np.uint32)
                    assert not (found == SECRET).any(), f"the other client's memory can be read at {address:#x}"
        finally:
            driver.unmap(pointer, made["size"])
            os.close(reply.fds.pop())
        assert faults
        # The same kernel reads the secret where the memory is its own: it would have found it.
        mine = client(daemon)
        driver.write(mine.pointer, struct.pack("<I", SECRET) * N)
        mine.launch_own()
        address = places(driver, mine)[0]
        mine.launch(mine.kernel("read_range"), tensor(mine.out["buffer"], [16], "u32", offset=mine.out["offset"]), address, 16)
        assert (np.frombuffer(driver.read(mine.pointer + BYTES, 64), np.uint32) == SECRET).all()


# ---- too far ----


def test_one_element_too_far(backend: str, driver: Any, client: Callable[..., Client]) -> None:
    """Memory of `alloc` ends where it ends: the last word can be read, the next one faults. The same at its beginning."""
    with start(backend, "connection") as daemon:
        one = client(daemon)
        reply = one.connection.reply(one.connection.request("alloc", {"size": 1, "device": one.gpu}))
        made = reply.get()
        os.close(reply.fds.pop())
        out = tensor(one.out["buffer"], [1], "u32", offset=one.out["offset"])
        told = tensor(one.other["buffer"], [1], "u64", offset=one.other["offset"])
        # One past the end, and up to 16 MiB farther; one before the start.
        for away, fine in ((0, True), (made["size"] - 4, True), (made["size"], False), (made["size"] + 16 * MIB - 4, False), (-4, False)):
            one.launch(one.kernel("tell_address"), told, tensor(made["buffer"], [1]))
            (address,) = struct.unpack("<Q", driver.read(one.pointer + 2 * BYTES, 8))
            msgid = one.connection.request("launch", {"kernel": one.kernel("read_range"), "args": [out, address + away, 1]})
            error = one.connection.reply(msgid).error
            assert error is None if fine else error is not None and error["code"] == "device_fault", (away, error)


# ---- alone ----


def test_exclusive_work_is_alone(backend: str, driver: Any, client: Callable[..., Client]) -> None:
    """Beside a client that never rests: each round has the GPU for itself, and its times are within what the daemon waited."""
    with start(backend, "connection", more="exclusive_ms = 1000\n") as daemon:
        one, other = client(daemon), client(daemon)
        one.launch_own()
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                other.connection.run("square", [other.a], [other.other])

        busy = threading.Thread(target=work)
        busy.start()
        try:
            for _ in range(10):
                request = {"kernel": one.custom, "args": [one.out, one.a, N], "repeat": 100, "exclusive": True}
                result = one.connection.call("launch", request)
                times = result["timings"]
                assert result["exclusive"] is True, times
                assert sum(times["samples"]) <= times["wall_us"] <= times["total_us"], times
        finally:
            over.set()
            busy.join()
        other.square()


# ---- executors that are killed ----


@pytest.mark.parametrize("domain", ["common", "user"])
def test_an_idle_executor_is_killed(isolated: Daemon, client: Callable[..., Client], domain: str) -> None:
    one, other = client(isolated), client(isolated)
    one.launch_own()
    other.square()
    before = instance(one)
    killed = pid_of(other.connection, domain)
    os.kill(killed, signal.SIGKILL)
    proc.eventually(lambda: not Path(f"/proc/{killed}").exists(), "it is reaped")
    other.square()
    one.launch_own()
    one.square()
    assert pid_of(other.connection, domain) != killed and instance(one) == before


def test_the_common_executor_is_killed_at_work(isolated: Daemon, client: Callable[..., Client]) -> None:
    """Ops that may be repeated are: their client does not notice."""
    clients = [client(isolated) for _ in range(3)]
    for one in clients:
        one.square()
    for _ in range(3):
        killed = pid_of(clients[0].connection, "common")
        sent = []
        for one in clients:
            one.clear(2)
            params = {"op": "square", "in": [one.a], "out": [one.other], "repeat": 200}
            sent += [one.connection.request("run", {**params, "stream": stream}) for stream in range(4)]
        os.kill(killed, signal.SIGKILL)
        for one, msgids in zip(clients, (sent[:4], sent[4:8], sent[8:]), strict=True):
            for msgid in msgids:
                one.connection.reply(msgid).get()
            assert (one.read(2) == 9).all()


def test_a_spare_is_killed(isolated: Daemon, client: Callable[..., Client]) -> None:
    one = client(isolated)
    one.square()
    wait_for_spares(one.connection)
    (spare,) = (row["pid"] for row in one.connection.call("stats")["executors"] if row["state"] == "spare")
    os.kill(spare, signal.SIGKILL)
    one.launch_own()
    wait_for_spares(one.connection)


# ---- programs, and nothing left over ----


def test_programs_go_on(isolated: Daemon, client: Callable[..., Client]) -> None:
    """A program that has become a graph, with a kernel and ops, on the memory that it names and on other memory."""
    one, beside = client(isolated), client(isolated)
    add = add_kernel(one.connection)
    ops = [{"kernel": add, "args": [2, 0, 1, N]}, {"op": "square", "in": [2], "out": [1]}]
    made = {"tensors": [one.a, one.out, one.other], "ops": ops}
    program = one.connection.call("program", made)["program"]

    def run(expected: float, **more: Any) -> None:
        one.connection.call("run_program", {"program": program, **more})
        assert (one.read(1) == expected).all(), one.read(1)[:4]

    def prepare() -> None:
        for which in (1, 2):
            one.driver.write(one.pointer + which * BYTES, np.full(N, 3, np.float32).tobytes())

    for _ in range(3):
        for _ in range(4):
            prepare()
            run(36)
        bound = [{"index": 0, "buffer": one.other["buffer"], "offset": one.out["offset"]}]
        prepare()
        run(36, bind=bound)
        one.fault()
    prepare()
    run(36)
    domain = pid_of(beside.connection, "user")
    os.kill(domain, signal.SIGKILL)
    proc.eventually(lambda: not Path(f"/proc/{domain}").exists(), "it is reaped")
    prepare()
    run(36)


def test_nothing_is_left_of_many_replacements(isolated: Daemon, client: Callable[..., Client], driver: Any) -> None:
    culprit, other = client(isolated), client(isolated)
    bad = culprit.kernel("fault_kernel")

    def cycle() -> None:
        culprit.fault(bad)
        culprit.launch_own()
        other.square()

    for _ in range(2):
        cycle()
    wait_for_spares(other.connection)
    driver.settle()
    free, held, rss = driver.free_bytes(), isolated.holdings(), proc.status(isolated.pid, "VmRSS")
    for _ in range(REPLACEMENTS):
        cycle()
    wait_for_spares(other.connection)
    driver.settle()
    assert driver.free_bytes() >= free - DRIVER_KEEPS, f"{(free - driver.free_bytes()) / MIB} MiB are lost"
    isolated.wait_holdings(held)
    assert proc.status(isolated.pid, "VmRSS") < rss + 16 * 1024
    assert other.connection.call("stats")["executor_counts"]["replaced"] == REPLACEMENTS + 2
