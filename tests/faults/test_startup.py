"""Every allocation and every system call of the start fails once, in turn: the daemon says why it cannot start, with
its status for that, or starts and serves."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import traceback

import pytest
from faults import ALL, FaultyDaemon, Outcomes, describe, points
from scenario import fresh_client
from support import raw

LIBUV = ("pipe", 2)  # it makes one when first called, and aborts without; the daemon has tried whether there is one
CANNOT_START = (1, 2)  # the second: its settings could not be read


def start(daemon: FaultyDaemon, kind: str, nth: int, how: int) -> int | None:
    """Its status, or None when it is ready."""
    daemon.log_path.unlink(missing_ok=True)
    daemon.faults.new_process()
    daemon.faults.arm(kind, nth, how)
    path = str(daemon.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        notify.bind(path)
        daemon.env["NOTIFY_SOCKET"] = path
        try:
            with open(daemon.log_path, "ab") as log:
                daemon.process = subprocess.Popen(
                    daemon.command, env=daemon.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            daemon.pidfd = os.pidfd_open(daemon.process.pid)
            while True:
                ready, _, _ = select.select([notify, daemon.pidfd], [], [], 1)
                if notify in ready and "READY=1" in notify.recv(4096).decode():
                    return None
                if daemon.pidfd in ready:
                    os.close(daemon.pidfd)
                    return daemon.wait()
                # Where what fails is the message that it is ready, only trying tells.
                if not ready and "event=ready" in daemon.log():
                    return None
        finally:
            os.unlink(path)


def stop(daemon: FaultyDaemon) -> None:
    assert daemon.process
    daemon.process.terminate()
    status = daemon.wait()
    os.close(daemon.pidfd)
    assert status == 0, f"{status}: {daemon.log()}"


def one_point(daemon: FaultyDaemon, kind: str, nth: int, how: int) -> tuple[bool, str]:
    """Whether it came to it, and what followed."""
    what = describe(kind, nth, how)
    status = start(daemon, kind, nth, how)
    fired = daemon.faults.fired > 0
    daemon.faults.disarm()
    if status is None:
        fresh_client(daemon)
        stop(daemon)
    else:
        assert fired, f"{what}: it ended without a fault\n{daemon.log()}"
        log = daemon.log()
        if status == -signal.SIGABRT and (kind, nth) == LIBUV:
            return fired, "libuv's own pipe"
        assert status in CANNOT_START, f"{what}: status {status}\n{log}"
        assert "event=start why=" in log or "kopsd: " in log, f"{what}: it does not say why\n{log}"
    assert "Sanitizer" not in daemon.log(), f"{what}\n{daemon.log()}"
    return fired, "served" if status is None else f"status {status}"


@pytest.mark.skipif("KOPS_FAULTS_SKIP_STARTUP" in os.environ, reason="asked for")
def test_every_point_of_the_start() -> None:
    outcomes = Outcomes()
    daemon = FaultyDaemon(start=False)
    try:
        assert start(daemon, "none", 1, 0) is None
        counts = daemon.faults.disarm()
        stop(daemon)
        for kind, nth, how in points(counts, offset=5):
            try:
                fired, outcome = one_point(daemon, kind, nth, how)
                outcomes[outcome if fired else "not reached"] += 1
            except (AssertionError, OSError, raw.RpcError, raw.Closed) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                outcomes.failures.append(f"{describe(kind, nth, how)}: {error!r} in {where.name}: {where.line}\n{daemon.log()}")
                if daemon.running() and daemon.process:
                    daemon.process.kill()
                    daemon.process.wait()
    finally:
        daemon.cleanup()
    outcomes.tell("faults_start")
    assert outcomes.total() > (100 if ALL else 5)
    assert outcomes["status 1"] > 0
