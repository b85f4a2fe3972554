"""Which processors a measure on two of them has, and what processes used of them."""

from __future__ import annotations

import os
from pathlib import Path

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def two_processors() -> set[int]:
    """Of two cores, where the machine has them: not two threads of one."""
    allowed = sorted(os.sched_getaffinity(0))

    def core(cpu: int) -> tuple[str, ...]:
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        return tuple((folder / name).read_text() for name in ("core_id", "physical_package_id"))

    try:
        others = [cpu for cpu in allowed[1:] if core(cpu) != core(allowed[0])]
    except OSError:
        others = []
    return {allowed[0], *(others or allowed[1:])[:1]}


def processor_ns(pid: int | None = None) -> int:
    """Processor time so far of a process and its living descendants; without a pid of this process alone."""
    return sum(map(_of_threads, _family(pid) if pid else [os.getpid()]))


def tree_ms(pid: int) -> float:
    """Processor time of a process and all its descendants, those that have ended and were waited for included, in milliseconds."""
    return sum(sum(map(int, fields[11:15])) for fields in _family(pid).values()) * TICK_MS


def _family(pid: int) -> dict[int, list[str]]:
    """A process and its descendants, each with what its `stat` says behind its name."""
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
    members, more = {pid}, {pid}
    while more:
        more = {child for child, fields in found.items() if int(fields[1]) in members} - members
        members |= more
    return {member: found[member] for member in members if member in found}


def _of_threads(pid: int) -> int:
    total = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
    except OSError:
        pass
    return total
