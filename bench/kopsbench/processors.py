"""Which processors a measure on two of them has."""

from __future__ import annotations

import os
from pathlib import Path


def two_processors() -> set[int]:
    """Of two cores, where the machine has them: not two threads of one."""
    allowed = sorted(os.sched_getaffinity(0))
    try:
        folder = Path(f"/sys/devices/system/cpu/cpu{allowed[0]}/topology")
        same_core = (folder / "core_id").read_text(), (folder / "physical_package_id").read_text()
        others = [
            cpu
            for cpu in allowed[1:]
            if tuple(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}").read_text() for name in ("core_id", "physical_package_id"))
            != same_core
        ]
    except OSError:
        others = []
    return {allowed[0], *(others or allowed[1:])[:1]}
