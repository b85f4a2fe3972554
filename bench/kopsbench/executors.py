"""Waits until a daemon has made its executors ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SETTLE_S = 30.0


def wait_for_spares(stats: Callable[[], dict[str, Any]], spares: int) -> None:
    """Until so many executors are ready and have no user, and none starts or ends. `stats` asks the daemon for its statistics."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        states = [row["state"] if row["pid"] else "starting" for row in stats()["executors"]]
        if states.count("spare") >= spares and not {"starting", "ending"} & set(states):
            return
        time.sleep(0.005)
    raise RuntimeError(f"no {spares} spare executors within {SETTLE_S:g} s: {states}")
