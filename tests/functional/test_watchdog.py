"""The watchdog: a loop that does not turn ends the daemon, a GPU that is busy does not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
from pathlib import Path
from typing import Any

import pytest
from gpu_machine import DEVICE_LOST_STATUS, UNKNOWN, Machine, only_with_the_standin, register, square, vector
from support import backends, proc, raw
from support.daemon import Daemon

CONFIG = backends.config(backends.HOST)
LOOP_BLOCKED_STATUS = 70


def test_says_that_it_lives() -> None:
    with Daemon(config=CONFIG, manager=True, env={"WATCHDOG_USEC": "150000"}) as daemon:
        for _ in range(3):
            assert daemon.heard("WATCHDOG=1") == "WATCHDOG=1"


@pytest.mark.parametrize("env", [{}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"}], ids=["nobody", "another"])
def test_says_it_to_who_asked(env: dict[str, str]) -> None:
    """The status alone is told where nobody wants to hear more, or where that was somebody else."""
    with Daemon("--set", "server.loop_timeout_s=1", config=CONFIG, manager=True, env=env) as daemon:
        daemon.heard("STATUS=serving")
        with daemon.connect() as connection:
            assert connection.alive()
            daemon.heard("STATUS=serving; 1 client")
        assert not [m for m in daemon.heard_of_late() if "WATCHDOG" in m and env]


def test_the_end_takes_its_time() -> None:
    """A manager is told how long it may take, so that it does not lose its patience."""
    with Daemon("--set", "server.shutdown_grace_ms=1234567", config=CONFIG, manager=True) as daemon:
        os.kill(daemon.pid, signal.SIGTERM)
        message = daemon.heard("STOPPING=1")
        found = re.search(r"^EXTEND_TIMEOUT_USEC=(\d+)$", message, re.MULTILINE)
        assert found and int(found[1]) >= 1234567000


def test_a_blocked_loop_ends_the_daemon(tmp_path: Path) -> None:
    """Here by its log, a pipe that nobody reads. The watchdog is not caught by the same."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    settings = ["server.loop_timeout_s=1", "server.log_level=debug", "server.max_connections=100000"]
    daemon = Daemon(*[a for s in settings for a in ("--set", s)], config=CONFIG, start=False)
    daemon.log_path = tmp_path / "pipe"
    with daemon:
        daemon.start()
        daemon.log_path = tmp_path / "none"
        while not select.select([daemon.pidfd], [], [], 0.005)[0]:  # each is a line or two of the log, of some a second
            with contextlib.suppress(OSError), raw.Connection(daemon.socket_path):
                pass
        assert daemon.wait() == LOOP_BLOCKED_STATUS
        daemon.process = None
    os.close(pipe)


def test_a_daemon_that_was_stopped_is_not_blocked() -> None:
    """Nor one on a machine that slept: it has not had the time."""
    with Daemon("--set", "server.loop_timeout_s=1", config=CONFIG) as daemon, daemon.connect() as connection:
        os.kill(daemon.pid, signal.SIGSTOP)
        assert not connection.readable(2.5)  # longer than a loop may be blocked
        os.kill(daemon.pid, signal.SIGCONT)
        assert connection.alive()
        assert daemon.running()


# ---- with a GPU ----

CHANNEL = 4  # entries
JOBS = 12


def machine_of(job_timeout_s: int) -> Machine:
    """Its driver blocks who queues more than a few operations, as a real one does after some 1000."""
    machine = Machine(f"[server]\nloop_timeout_s = 1\njob_timeout_s = {job_timeout_s}\n")
    machine.control.set_channels(True, CHANNEL)
    return machine


def job(machine: Machine, connection: raw.Connection) -> dict[str, Any]:
    """On memory that is open."""
    exporter = machine.exporter()
    a, b = vector(exporter.alloc(4096)), vector(exporter.alloc(4096))
    for memory in (a, b):
        register(connection, memory)
    return square(a, b)


def fill(machine: Machine, connection: raw.Connection) -> list[int]:
    """Jobs until a call of the driver blocks; the gate of kernels is closed. Their msgids."""
    params = job(machine, connection)
    sent = [connection.request("run", params) for _ in range(JOBS)]
    machine.wait(lambda: any(row.blocked_launches > 0 for row in machine.control.rows()))
    return sent


@only_with_the_standin
def test_a_driver_that_waits_for_a_busy_gpu_is_waited_for() -> None:
    """The executor stands in a launch for longer than a loop may, because the GPU has much to do. All of it is done."""
    machine = machine_of(job_timeout_s=600)
    with machine.daemon as daemon, daemon.connect() as connection:
        with machine.control.gate("kernel"):
            sent = fill(machine, connection)
            assert not connection.readable(2.5)  # longer than a loop may be blocked
            assert daemon.running()
        assert all(connection.reply(msgid).error is None for msgid in sent)


@only_with_the_standin
def test_a_driver_that_waits_for_a_kernel_that_never_ends() -> None:
    """The executor's loop stands in a launch: another one takes its place, and the log says whose the kernel is."""
    machine = machine_of(job_timeout_s=2)
    with machine.daemon as daemon, daemon.connect() as connection:
        with machine.control.gate("kernel"):
            first = fill(machine, connection)[0]
            assert connection.reply_error(first).code == "job_timeout"
        log = daemon.log()
        assert f"event=job_timeout uuid={machine.gpu} pid={os.getpid()} uid={os.getuid()}" in log
        assert 'what="square [1024] f32 [1024] f32"' in log and "event=loop_blocked" not in log


@only_with_the_standin
def test_a_driver_that_never_returns() -> None:
    """With nothing on the device to wait for. The daemon's loop does not stand."""
    machine = machine_of(job_timeout_s=2)
    with machine.daemon as daemon, daemon.connect() as connection:
        params = job(machine, connection)
        with machine.control.gate("stream_create"):
            assert connection.error("run", params).code == "job_timeout"
        connection.call("run", params)
        assert "event=loop_blocked" not in daemon.log()


@only_with_the_standin
def test_under_a_supervisor_clients_are_served_again() -> None:
    """The GPU is gone for a while: the daemon ends, and the next one has it."""
    machine = machine_of(job_timeout_s=60)
    machine.daemon.stop()
    machine.daemon.command.append("--supervise")
    with machine.daemon as daemon:
        daemon.start()
        with daemon.connect() as connection:
            server = connection.call("hello")["pid"]
            connection.call("run", job(machine, connection))
            gone = machine.control.fail("cuDeviceGetCount", UNKNOWN, times=100)
            os.kill(next(iter(proc.executors(server))), signal.SIGKILL)
            proc.eventually(lambda: f"pid={server} status={DEVICE_LOST_STATUS}" in daemon.log(), "it ends")
            gone.disarm()
        with daemon.connect() as connection:
            assert connection.call("hello")["pid"] != server
