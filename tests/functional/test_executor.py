"""The common executor, on the stand-in driver: what it has and costs, how it is counted, and its end with the whole service.
test_executor_kills.py kills it."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import prometheus
import pytest
from domains import FIXTURES, Client, Domains, NewClient, Start
from gpu_machine import DEVICE_LOST_STATUS, ILLEGAL_ADDRESS, UNKNOWN, Machine, N, only_with_the_standin, square, values
from support import memfd, proc, raw
from support.raw import tensor
from user_kernels import custom_kernel, only_with_nvrtc

pytestmark = only_with_the_standin
start, client = FIXTURES
POLLS = {"KOPSD_SERVER_SPIN_US": "100"}  # also on a machine with few processors
HELD = 0.4  # seconds


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine("[executors]\nisolate = none\n")
    with machine.daemon:
        yield machine


def executor_of(machine: Machine) -> int:
    (pid,) = proc.executors(machine.daemon.pid)
    return pid


def test_the_daemon_has_no_driver(machine: Machine) -> None:
    def loaded(pid: int) -> bool:
        return "libcuda_standin" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    assert loaded(executor_of(machine))
    assert not loaded(machine.daemon.pid)


def test_an_idle_executor_costs_nothing(machine: Machine) -> None:
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        pid = executor_of(machine)
        proc.eventually(lambda: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] == "S", "it sleeps")
        seen = []
        while not seen or seen[-1] >= 10:  # what ends some work after the last job is over by one of these seconds
            assert len(seen) < 5, f"wake-ups in a second each: {seen}"
            before, ticks = proc.context_switches(pid), proc.cpu_ticks(machine.daemon.pid)
            assert not connection.readable(1)
            seen.append(proc.context_switches(pid) - before)
        assert proc.cpu_ticks(machine.daemon.pid) - ticks <= 1, "the daemon is idle, too"


def test_a_signal_to_the_whole_service(machine: Machine) -> None:
    """A service manager ends all processes of a service. Jobs that run are finished first."""
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        pid = executor_of(machine)
        pidfd = os.pidfd_open(pid)
        with machine.control.gate("kernel"):
            msgid = connection.request("run", square(a, out))
            machine.reaches("kernel")
            os.kill(pid, signal.SIGTERM)
            os.kill(machine.daemon.pid, signal.SIGTERM)
            proc.eventually(lambda: "event=stop" in machine.daemon.log(), "the daemon has the signal")
        connection.reply(msgid).get()
        assert (values(out) == 9).all()
    assert machine.daemon.wait() == 0
    assert select.select([pidfd], [], [], raw.PATIENCE)[0], "the executor ends, too"
    os.close(pidfd)
    machine.daemon.stop(expect=0)


def test_one_file_under_two_buffers(machine: Machine) -> None:
    """What lies in both is known for the same: a sequence that reads what it overwrites is not repeated."""
    with machine.daemon.connect() as connection:
        shared = memfd.Shared(8 * N)
        shared.view(np.float32, N)[:] = 3
        one, two = (tensor(connection.register(shared), [N]) for _ in range(2))
        out = {**one, "offset": 4 * N}
        connection.run("square", [one], [out], device=machine.gpu)
        ops = [{"op": "square", "in": [0], "out": [1]}, {"op": "square", "in": [1], "out": [2]}]
        with machine.control.gate("kernel"):
            sequence = {"tensors": [one, two, out], "ops": ops, "device": machine.gpu}
            msgid = connection.request("sequence", sequence)
            machine.reaches("kernel")
            os.kill(executor_of(machine), signal.SIGKILL)
            assert connection.reply_error(msgid).code == "device_lost"


@only_with_nvrtc
@pytest.mark.parametrize("_time", range(5))  # the executor may tell the daemon first, which proves less
@pytest.mark.parametrize("how", ["cuIpcOpenMemHandle", "cuMemCreate", "cuModuleLoadData"])
def test_a_broken_context_is_the_loss_of_its_executor(machine: Machine, how: str, _time: int) -> None:
    """Another one's kernel has broken it: the call that is told so first is no error, but done by the next executor."""
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        before = executor_of(machine)
        fault = machine.control.fail(how, ILLEGAL_ADDRESS, sticky=True, pid=before)
        if how == "cuMemCreate":
            os.close(connection.reply(connection.request("alloc", {"size": 4096, "device": machine.gpu})).fds[0])
        elif how == "cuModuleLoadData":
            custom_kernel(connection)
        connection.call("run", square(a, out))
        assert fault.fired and (values(out) == 9).all()
        assert executor_of(machine) != before


def test_a_gpu_that_no_executor_can_open_any_more_ends_the_daemon(machine: Machine) -> None:
    with machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        machine.control.fail("cuDeviceGetCount", UNKNOWN, times=100)
        os.kill(executor_of(machine), signal.SIGKILL)
        error = connection.error("run", square(a, out))
        assert error.code == "device_lost" and "daemon" not in error.detail
        connection.wait_closed()
    machine.daemon.stop(expect=DEVICE_LOST_STATUS)
    assert f"event=device_lost uuid={machine.gpu} action=exit status={DEVICE_LOST_STATUS}" in machine.daemon.log()


@pytest.mark.parametrize("isolation", ["none", "user"])
def test_statistics(isolation: str) -> None:
    """It runs the ops of all users; kernels of a user that has launched none are nowhere yet."""
    machine = Machine(f"[executors]\nisolate = {isolation}\nspares = 0\n")
    with machine.daemon, machine.daemon.connect() as connection, machine.operands() as (a, out):
        connection.call("run", square(a, out))
        pid = executor_of(machine)

        stats = connection.call("stats")
        (row,) = stats["executors"]
        assert (row["pid"], row["state"], row["domain"], row["jobs"]) == (pid, "serving", "common", 0)
        assert 0 < row["device_us"] < 1e6 * row["uptime_s"]
        assert stats["executor_counts"] == {"started": 1, "replaced": 0, "faults": 0, "jobs_ended": 0}

        (client,) = connection.call("clients")["clients"]
        assert client["isolation"] == isolation
        assert client.get("executor") == (pid if isolation == "none" else None)

        metrics = prometheus.parse(connection.call("metrics")["text"])
        states = {s: metrics["kopsd_executors"].value(state=s) for s in ("starting", "spare", "serving", "ending")}
        assert states == {"starting": 0, "spare": 0, "serving": 1, "ending": 0}
        assert metrics["kopsd_executors_started_total"].value() == 1
        device = metrics["kopsd_device_busy_seconds_total"].value(device="0")
        of = metrics["kopsd_executor_device_seconds_total"]
        seconds = {domain: of.value(domain=domain) for domain in ("common", "user", "connection")}
        assert seconds == {"common": device, "user": 0, "connection": 0} and device > 0

        with machine.control.gate("kernel"):
            msgid = connection.request("run", square(a, out))
            machine.reaches("kernel")
            with machine.daemon.connect() as watcher:
                assert [x["jobs"] for x in watcher.call("stats")["executors"]] == [1]
        connection.reply(msgid).get()


# ---- polling when work is likely to end: a wrong forecast costs processor time or a moment, and never an answer ----


def processor_seconds(pids: set[int]) -> float:
    return sum(proc.cpu_ticks(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def held(machine: Domains, one: Client) -> float:
    """A square whose kernel does not end for a while; how long the answer took."""
    began = time.monotonic()
    one.memory[2].write(bytes(4 * N))
    with machine.control.gate("kernel"):
        msgid = one.connection.request("run", {"op": "square", "in": [one.tensors[0]], "out": [one.tensors[2]]})
        assert not one.connection.readable(HELD)
    one.connection.reply(msgid).get()
    assert (values(one.memory[2]) == 9).all()
    return time.monotonic() - began


def test_work_that_takes_longer_than_it_did(start: Start, client: NewClient) -> None:
    """Nobody polls for it all that time."""
    machine = start(env=POLLS)
    one = client(machine)
    for _ in range(20):
        one.square()
    pids = {machine.daemon.pid, *machine.executors()}
    before = processor_seconds(pids)
    wall = held(machine, one) + held(machine, one)
    assert processor_seconds(pids) - before < wall / 2


def test_work_that_takes_less_time_than_it_did(start: Start, client: NewClient) -> None:
    """Nobody sleeps as long as it took before."""
    machine = start(env=POLLS)
    one = client(machine)
    shortest = min(held(machine, one) for _ in range(3))
    began = time.monotonic()
    one.square()
    assert time.monotonic() - began < shortest / 2
