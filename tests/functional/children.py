"""Clients in processes of their own, which a test kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from support import raw
from support.daemon import Daemon

Spawn = Callable[[Callable[[], object]], int]


def child_with(daemon: Daemon, work: Callable[[raw.Connection], object], spawn: Spawn) -> int:
    """A process that does `work` on a connection of its own, says so, and then waits to be killed; at SIGUSR1 it exits."""
    ready, done = os.pipe()

    def main() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        connection = daemon.connect()
        keep = work(connection)
        os.write(done, b"x")
        signal.sigwait({signal.SIGUSR1})
        del keep

    pid = spawn(main)
    os.close(done)
    assert os.read(ready, 1) == b"x", "the child failed"
    os.close(ready)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
