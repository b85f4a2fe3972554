"""Every allocation and every system call of the start fails once, in turn: the daemon says why it cannot start, with
its status for that, or starts and serves."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
from faults import ALL, FaultyDaemon, Outcomes, describe, points
from scenario import fresh_client

LIBUV = ("pipe", 2)  # it makes one when first called, and aborts without; the daemon has tried whether there is one
CANNOT_START = (1, 2)  # the second: its settings could not be read


def one_point(daemon: FaultyDaemon, kind: str, nth: int, how: int) -> str:
    status = daemon.try_start(kind, nth, how)
    fired = daemon.faults.fired > 0
    daemon.faults.disarm()
    log = daemon.log()
    if status is None:
        fresh_client(daemon)
        daemon.stop()
    else:
        assert fired, "it ended without a fault"
        if status == -signal.SIGABRT and (kind, nth) == LIBUV:
            return "libuv's own pipe"
        assert status in CANNOT_START, f"status {status}"
        assert "event=start why=" in log or "kopsd: " in log, "it does not say why"
    daemon.check_log()
    return "not reached" if not fired else "served" if status is None else f"status {status}"


@pytest.mark.skipif("KOPS_FAULTS_SKIP_STARTUP" in os.environ, reason="asked for")
def test_every_point_of_the_start() -> None:
    outcomes = Outcomes()
    daemon = FaultyDaemon(start=False)
    try:
        assert daemon.try_start() is None
        counts = daemon.faults.disarm()
        daemon.stop()
        for point in points(counts, offset=5):
            outcomes.take(daemon, describe(*point), partial(one_point, daemon, *point))
    finally:
        daemon.cleanup()
    outcomes.tell("faults_start")
    assert outcomes.total() > (100 if ALL else 5)
    assert outcomes["status 1"] > 0
