"""That a daemon which nobody asks for anything uses no CPU."""

from __future__ import annotations

import select

from . import proc
from .daemon import Daemon, thread_sanitized

WINDOW_S = 2.0  # in which nothing happens; not a limit on anything
WINDOWS = 3  # one that is quiet will do: a clock tick may fall due at any wake-up, and a busy machine is late
WAKE_UPS = 4  # that are no poll: housekeeping, the watchdog


def assert_idle(daemon: Daemon) -> None:
    """What polls, or works off what it should not have kept, is never quiet."""
    if thread_sanitized():  # whose own thread wakes up all the time
        return
    seen = []
    for _ in range(WINDOWS):
        ticks, switches = proc.cpu_ticks(daemon.pid), proc.context_switches(daemon.pid)
        assert not select.select([daemon.pidfd], [], [], WINDOW_S)[0]
        seen.append((proc.cpu_ticks(daemon.pid) - ticks, proc.context_switches(daemon.pid) - switches))
        if seen[-1][0] == 0 and seen[-1][1] <= WAKE_UPS:
            return
    raise AssertionError(f"CPU ticks and wake-ups in {WINDOW_S} s: {seen}")
