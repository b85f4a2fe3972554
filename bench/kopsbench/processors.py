"""Which processors a measure on two of them has, and what processes used of them."""

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


def processor_ns(pid: int | None = None) -> int:
    """Processor time so far of a process and its living descendants; without a pid of this process alone."""
    if pid is None:
        return _of_threads(os.getpid())
    parents = {int(folder.name): _parent(int(folder.name)) for folder in Path("/proc").iterdir() if folder.name.isdecimal()}
    family, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - family
        family |= more
    return sum(map(_of_threads, family))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _of_threads(pid: int) -> int:
    total = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
    except OSError:
        pass
    return total
