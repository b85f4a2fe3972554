"""An executor's process, on the stand-in driver: the daemon has no driver, and the end of either side is the other's too."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu_machine import Machine, N, only_with_the_standin, register, square, values, vector
from support import memfd, proc, raw
from support.raw import tensor

pytestmark = only_with_the_standin


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine("[executors]\nisolate = none\n")
    with machine.daemon:
        yield machine


def executor_of(machine: Machine) -> int:
    (pid,) = proc.executors(machine.daemon.pid)
    return pid


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], raw.PATIENCE)[0])


def test_the_daemon_has_no_driver(machine: Machine) -> None:
    def loaded(pid: int) -> bool:
        return "libcuda_standin" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    assert loaded(executor_of(machine))
    assert not loaded(machine.daemon.pid)


def test_an_idle_executor_costs_nothing(machine: Machine) -> None:
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        connection.call("run", square(a, out))
        pid = executor_of(machine)
        proc.eventually(lambda: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] == "S", "it sleeps")
        seen = []
        while not seen or seen[-1] >= 10:  # what ends some work after the last job is over by one of these seconds
            assert len(seen) < 5, f"wake-ups in a second each: {seen}"
            before = proc.context_switches(pid)
            assert not connection.readable(1)
            seen.append(proc.context_switches(pid) - before)
        exporter.close()


def test_an_idle_one_ends(machine: Machine) -> None:
    """It is replaced: the connection, its buffers and its programs go on."""
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        memory, out = vector(exporter.alloc(4 * N)), vector(exporter.alloc(4 * N))
        a, b = (tensor(register(connection, m), [N]) for m in (memory, out))
        op = {"op": "square", "in": [0], "out": [1]}
        program = connection.call("program", {"tensors": [a, b], "ops": [op]})["program"]
        connection.call("run_program", {"program": program})
        before = executor_of(machine)
        os.kill(before, signal.SIGKILL)
        proc.eventually(lambda: proc.executors(machine.daemon.pid) not in ([before], []), "another one comes")
        out.write(bytes(4 * N))
        connection.call("run_program", {"program": program})
        assert (values(out) == 9).all()
        connection.run("add", [a, b], [b])
        assert (values(out) == 12).all()
        exporter.close()
    assert "event=executor_lost" in machine.daemon.log()


def test_it_ends_in_the_middle_of_jobs(machine: Machine) -> None:
    """Jobs that can be repeated without harm are, unseen; one that reads what it writes is lost."""
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), [exporter.alloc(4 * N) for _ in range(4)]
        connection.call("run", square(a, out[0]))
        out[0].write(bytes(4 * N))
        vector(out[3])
        with machine.control.gate("kernel"):
            sent = [connection.request("run", square(a, out[i], stream=i)) for i in range(3)]
            in_place = connection.request("run", square(out[3], out[3], stream=3))
            machine.wait(lambda: machine.row.waiting("kernel") == 4)
            os.kill(executor_of(machine), signal.SIGKILL)
            error = connection.reply_error(in_place)
            assert error.code == "device_lost", error
        for msgid, memory in zip(sent, out):
            connection.reply(msgid).get()
            assert (values(memory) == 9).all()
        connection.call("run", square(a, out[3], stream=3))
        assert (values(out[3]) == 9).all()
        exporter.close()


def test_it_ends_while_memory_is_opened(machine: Machine) -> None:
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        with machine.control.gate("ipc_open"):
            msgid = connection.request("run", square(a, out))
            machine.wait(lambda: machine.row.waiting("ipc_open") >= 1)
            os.kill(executor_of(machine), signal.SIGKILL)
        connection.reply(msgid).get()
        assert (values(out) == 9).all()
        exporter.close()


def test_memory_of_the_daemon_keeps_its_contents(machine: Machine) -> None:
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        made = tensor(connection.call("alloc", {"size": 4 * N, "device": machine.gpu})["buffer"], [N])
        connection.run("square", [a.inline([N])], [made])
        before = executor_of(machine)
        os.kill(before, signal.SIGKILL)
        connection.run("add", [made, made], [out.inline([N])])
        assert (values(out) == 18).all()
        exporter.close()


def test_it_ends_again_and_again(machine: Machine) -> None:
    """Nothing stays behind."""
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        connection.call("run", square(a, out))
        holdings = machine.daemon.holdings()
        for _ in range(8):
            os.kill(executor_of(machine), signal.SIGKILL)
            out.write(bytes(4 * N))
            connection.call("run", square(a, out))
            assert (values(out) == 9).all()
        machine.daemon.wait_holdings(holdings)
        exporter.close()


def test_the_daemon_is_killed(machine: Machine) -> None:
    pidfd = os.pidfd_open(executor_of(machine))
    machine.daemon.process.kill()
    machine.daemon.process.wait()
    machine.daemon.process = None
    assert ended(pidfd), "the executor ends with the daemon"
    os.close(pidfd)


def test_a_signal_to_the_whole_service(machine: Machine) -> None:
    """A service manager ends all processes of a service. Jobs that run are finished first."""
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        connection.call("run", square(a, out))
        pid = executor_of(machine)
        pidfd = os.pidfd_open(pid)
        with machine.control.gate("kernel"):
            msgid = connection.request("run", square(a, out))
            machine.wait(lambda: machine.row.waiting("kernel") >= 1)
            os.kill(pid, signal.SIGTERM)
            os.kill(machine.daemon.pid, signal.SIGTERM)
            proc.eventually(lambda: "event=stop" in machine.daemon.log(), "the daemon has the signal")
        connection.reply(msgid).get()
        assert (values(out) == 9).all()
        exporter.close()
    assert machine.daemon.wait() == 0
    assert ended(pidfd)
    os.close(pidfd)
    machine.daemon.stop(expect=0)


def test_more_jobs_than_the_ring_holds(machine: Machine) -> None:
    """What an executor does not take waits in the daemon, whose loop goes on, and nothing is lost."""
    with machine.daemon.connect() as connection:
        exporter = machine.exporter()
        memory = vector(exporter.alloc(4 * N * 64), np.full(64 * N, 4, np.float32))
        buffer = connection.call("register", memory.register_params())["buffer"]
        parts = [{**tensor(buffer, [N]), "offset": 4 * N * i} for i in range(64)]
        connection.call("run", {"op": "square", "in": [parts[0]], "out": [parts[1]]})
        ops = [{"op": "add", "in": [0, 0], "out": [1 + i % 63]} for i in range(500)]
        pid = executor_of(machine)
        os.kill(pid, signal.SIGSTOP)
        sent = [connection.request("sequence", {"tensors": parts, "ops": ops, "stream": i}) for i in range(16)]
        assert connection.alive()
        os.kill(pid, signal.SIGCONT)
        for msgid in sent:
            connection.reply(msgid).get()
        assert (values(memory, 63 * N, 4 * N) == 8).all()
        exporter.close()


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
            machine.wait(lambda: machine.row.waiting("kernel") >= 1)
            os.kill(executor_of(machine), signal.SIGKILL)
            assert connection.reply_error(msgid).code == "device_lost"
