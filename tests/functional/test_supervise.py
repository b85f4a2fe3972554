"""kopsd --supervise: a parent that holds the socket, where there is no service manager. The watchdog: a loop that does not turn ends
the daemon, a GPU that is busy does not."""

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
from arrays import LongRun
from gpu_machine import Machine, only_with_the_standin, register, square, vector
from support import backends, proc, raw
from support.daemon import Daemon, sanitized
from support.idle import assert_idle
from support.users import as_root

CONFIG = backends.config(backends.HOST)
NOBODY = 65534


def server_of(daemon: Daemon) -> int:
    """The pid of the one that serves."""
    with daemon.connect() as connection:
        return int(connection.call("hello")["pid"])


def supervised(*args: str, config: str = CONFIG, **options: object) -> Daemon:
    return Daemon("--supervise", *args, config=config, **options)  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_serves_and_ends() -> None:
    """Whatever signals come astray, and without processor time while it waits. SIGTERM to the parent: both end, with status 0, and
    nothing is left."""
    with supervised() as daemon:
        server = server_of(daemon)
        proc.send_stray(daemon.pid, server)
        assert server_of(daemon) == server and list(proc.children(daemon.pid)) == [server]
        assert_idle(daemon)
        daemon.stop()
        assert gone(server)
        assert not os.path.exists(daemon.socket_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_server_that_dies_is_started_again(number: signal.Signals) -> None:
    if sanitized() and number == signal.SIGSEGV:
        pytest.skip("the sanitizer takes it for a fault of the daemon's")
    with supervised() as daemon:
        with daemon.connect() as connection:
            before = connection.call("hello")
            os.kill(before["pid"], number)
            connection.wait_closed()
        with daemon.connect() as connection:
            after = connection.call("hello")
        assert after["instance"] != before["instance"]
        assert list(proc.children(daemon.pid)) == [after["pid"]]
        assert f"event=supervise_exit pid={before['pid']} signal={int(number)}\n" in daemon.log()


def test_who_connects_in_the_gap_waits_and_is_served() -> None:
    """The socket stays, and so does what was sent to it while there was no server."""
    with supervised() as daemon:
        server = server_of(daemon)
        os.kill(daemon.pid, signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        proc.eventually(lambda: proc.children(daemon.pid).get(server) == b"Z", "the server has ended")
        with daemon.connect() as connection:
            connection.request("ping", {"in": "the gap"}, msgid=7)
            os.kill(daemon.pid, signal.SIGCONT)
            assert connection.reply(7).get() == {"in": "the gap"}
        proc.eventually(lambda: gone(server), "it is no zombie")


def restarts(daemon: Daemon) -> list[int]:
    """The delays so far, in ms."""
    return [int(d) for d in re.findall(r"event=supervise_restart delay_ms=(\d+)", daemon.log())]


def started(daemon: Daemon) -> list[int]:
    """The pids of all servers so far."""
    return [int(pid) for pid in re.findall(r"event=supervise_start pid=(\d+)", daemon.log())]


def end_before_it_answers(daemon: Daemon) -> None:
    """Kills the server as soon as there is one, and waits until its end is known.

    The parent names it: helpers that a killed server left are children of the parent's too.
    """
    before = len(restarts(daemon))
    proc.eventually(lambda: len(started(daemon)) > before, "there is a server")
    os.kill(started(daemon)[-1], signal.SIGKILL)
    proc.eventually(lambda: len(restarts(daemon)) > before, "it has ended")


def test_waits_longer_each_time() -> None:
    """For servers that answered nothing: at once first, then after ever longer waits; the parent sleeps meanwhile."""
    with supervised() as daemon:
        for _ in range(3):
            end_before_it_answers(daemon)
        assert server_of(daemon)
        assert restarts(daemon) == [0, 100, 200]
        # One that was killed before it was ready makes one gap of several restarts.
        last = rf"event=recover pid={server_of(daemon)} gap_ms=\d+ restarts=3\n"
        proc.eventually(lambda: bool(re.search(last, daemon.log())), "the parent says that it serves again")


def test_a_server_that_had_served_is_started_at_once() -> None:
    """However often it is killed, unless that goes on without a pause; then the waits are short."""
    with supervised() as daemon:
        for _ in range(8):
            os.kill(server_of(daemon), signal.SIGKILL)
        assert server_of(daemon)
        assert restarts(daemon) == [0] * 8
        while len(restarts(daemon)) < 100 and not restarts(daemon)[-1]:
            os.kill(server_of(daemon), signal.SIGKILL)
        assert server_of(daemon)
        assert 0 < restarts(daemon)[-1] <= 2000


@pytest.mark.parametrize("config", [CONFIG, pytest.param(CONFIG + "[server]\nuser = nobody\n", marks=as_root)], ids=["same", "user"])
def test_the_server_does_not_outlive_its_parent(config: str) -> None:
    """Also where it gives its rights up. The parent needs root's rights to start another."""
    with supervised(config=config) as daemon:
        for _ in range(2):
            server = server_of(daemon)
            if "nobody" in config:
                assert (proc.status(server, "Uid"), proc.status(daemon.pid, "Uid")) == (NOBODY, 0)
            os.kill(server, signal.SIGKILL)
        pidfd = os.pidfd_open(server_of(daemon))
        daemon.process.kill()
        daemon.process.wait()
        proc.wait_exit(pidfd)
        os.close(pidfd)
        daemon.start()  # the lock and the socket are no obstacle
        assert server_of(daemon)
        daemon.stop()
        assert not os.path.exists(daemon.socket_path)


def test_nobody_waits_for_a_server_that_ends() -> None:
    """Who comes while the last work is done is refused at once, not when all has ended."""
    with supervised("--set", "server.shutdown_grace_ms=3600000") as daemon:
        connection = daemon.connect()
        LongRun(connection)
        os.kill(daemon.pid, signal.SIGTERM)
        proc.eventually(lambda: not os.path.exists(daemon.socket_path), "the socket is gone")
        assert daemon.running()
        connection.close()
        assert daemon.wait() == 0


def test_end_in_the_gap() -> None:
    """SIGTERM while there is no server: an end, with status 0."""
    with supervised() as daemon:
        end_before_it_answers(daemon)
        end_before_it_answers(daemon)  # from now on it waits before it starts another
        assert restarts(daemon) == [0, 100]
        daemon.stop()
        assert not os.path.exists(daemon.socket_path)


@pytest.mark.parametrize("config, status", [("[server]\nbackend = cuda\n[cuda]\ndriver = /none\n", 1), ("[nonsense]\nx = 1\n", 2)])
def test_a_server_that_cannot_start_at_all(config: str, status: int) -> None:
    """There is no use in trying again what never worked."""
    with supervised(config=config, start=False) as daemon:
        with pytest.raises(AssertionError, match="did not get ready"):
            daemon.start()
        assert daemon.wait() == status
        assert daemon.log().count("event=supervise_exit") == 2 - status
        assert not os.path.exists(daemon.socket_path)
        daemon.process = None


def test_settings_that_become_wrong_are_waited_out() -> None:
    """Once it has worked, a server that cannot start is tried again: an administrator may be at it."""
    with supervised() as daemon:
        server = server_of(daemon)
        (daemon.folder / "kopsd.conf").write_text("[nonsense]\nx = 1\n", encoding="utf-8")
        os.kill(server, signal.SIGKILL)
        proc.eventually(lambda: "status=2" in daemon.log(), "the next one has failed")
        (daemon.folder / "kopsd.conf").write_text(CONFIG, encoding="utf-8")
        assert server_of(daemon) != server


def test_settings_are_read_again() -> None:
    """SIGHUP is passed on, and the server stays the same."""
    with supervised() as daemon:
        server = server_of(daemon)
        (daemon.folder / "kopsd.conf").write_text(CONFIG + "[limits]\ninflight = 7\n", encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        proc.eventually(lambda: "event=reload done=true" in daemon.log(), "the settings are read")
        with daemon.connect() as connection:
            hello = connection.call("hello")
        assert (hello["limits"]["inflight"], hello["pid"]) == (7, server)


def test_a_server_that_is_not_heard_of_is_ended() -> None:
    """Stopped as a whole it cannot even watch itself. SIGABRT waits with it, SIGKILL does not."""
    with supervised("--set", "server.loop_timeout_s=1") as daemon:
        server = server_of(daemon)
        os.kill(server, signal.SIGSTOP)
        assert server_of(daemon) != server
        assert f"event=supervise_hung pid={server}" in daemon.log()
        assert gone(server)


def test_passes_on_what_the_server_says() -> None:
    with supervised(manager=True, env={"WATCHDOG_USEC": "300000"}) as daemon:
        assert daemon.ready_text.count("READY=1") == 1
        daemon.heard("STATUS=serving")
        daemon.heard("WATCHDOG=1")
        os.kill(server_of(daemon), signal.SIGKILL)
        daemon.heard("STATUS=the server ended with signal 9")
        assert "STOPPING" not in daemon.heard("READY=1")  # it is we who are, not the server
        daemon.process.send_signal(signal.SIGTERM)
        daemon.heard("STOPPING=1")
        daemon.heard("EXTEND_TIMEOUT_USEC=")


def test_only_the_server_is_heard() -> None:
    """Where it is heard has no name, under which others could speak for it, or keep it from being heard."""
    with supervised(manager=True) as daemon:
        links = [os.readlink(entry) for entry in Path(f"/proc/{daemon.pid}/fd").iterdir()]
        held = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
        lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
        names = [fields[7] for fields in map(str.split, lines) if fields[6] in held and len(fields) > 7]
        assert names == [daemon.socket_path]
        daemon.heard("STATUS=serving")


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
