"""What /proc says about a process."""

from __future__ import annotations

import os
import platform
import re
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from . import raw

T = TypeVar("T")


def _file_of(pid: int, name: str) -> bytes:
    """Of at most 4 KiB; nothing when the process has ended. All processes are looked at many times: pathlib would take most of that."""
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return b""
    try:
        return os.read(file, 4096)
    except ProcessLookupError:
        return b""
    finally:
        os.close(file)


def children(pid: int) -> dict[int, bytes]:
    """With the state of each. (A task's `children` may leave some out while others end.)"""
    wanted, found = str(pid).encode(), {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _file_of(int(name), "stat").rpartition(b")")[2].split(maxsplit=2)
            if fields[1:2] == [wanted]:
                found[int(name)] = fields[0]
    return found


def executors(pid: int, role: str = "executor") -> list[int]:
    """The processes that do the daemon's GPU work; role "tuner": that tune."""
    return [child for child in children(pid) if _file_of(child, "cmdline").split(b"\0")[1:2] == [f"--{role}".encode()]]


STRAY = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR),
    *(signal.SIGSTKFLT, signal.SIGPIPE, signal.SIGURG),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)


def send_stray(*pids: int, more: Iterable[int] = ()) -> None:
    """Sends each process all signals that mean nothing to it. One that would end a process does so before the process runs on: so
    any answer of it that comes later says that none has."""
    for pid in pids:
        for number in (*STRAY, *more):
            os.kill(pid, number)


def own_sockets(pid: int) -> int:
    """Sockets of a daemon without clients: it listens, tells its manager how it goes, and has ten to an executor."""
    return 2 + 10 * len(executors(pid))


# Scratch memory of the stand-in driver's, which a daemon keeps: a GPU's has no descriptors, and the driver counts it.
POOLED = "standin-pool-memory"


def fds(pid: int) -> Counter[str]:
    """Open descriptors by kind: "socket", "memfd", "eventfd", "pidfd", …, or a path."""
    kinds: Counter[str] = Counter()
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(f"/memfd:{POOLED}"):
            continue
        if target.startswith("/memfd:"):
            kinds["memfd"] += 1
        else:
            kinds[re.sub(r"^anon_inode:\[?(\w+)\]?$", r"\1", target.split(":[")[0])] += 1
    return kinds


# What a daemon shares with its executors for as long as both live: calls and answers, and what was tuned.
OWN_MAPPINGS = ("kopsd-executor", "kops-tuning", POOLED)


def maps(pid: int) -> int:
    """How many mappings are of shared memory of clients' tensors."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return sum("/memfd:" in line and not any(own in line for own in OWN_MAPPINGS) for line in file)


def memfd_bytes(pid: int) -> int:
    """Bytes of address space mapped from memfds."""
    total = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        for line in file:
            if "/memfd:" in line:
                low, high = line.split()[0].split("-")
                total += int(high, 16) - int(low, 16)
    return total


def status(pid: int, key: str) -> int:
    """A number of /proc/<pid>/status, such as VmRSS (kB) or Threads."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    raise KeyError(key)


def cpu_ticks(pid: int) -> int:
    """User and system time of all threads, in clock ticks."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def states(pid: int) -> set[str]:
    """Of all its threads: R, S, T when stopped, …"""
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as file:
            found.add(file.read().rsplit(")", 1)[1].split()[0])
    return found


def closing(pid: int) -> int:
    """How many of its threads wait in close()."""
    number, found = "3" if platform.machine() == "x86_64" else "57", 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            found += Path(f"/proc/{pid}/task/{thread}/syscall").read_text(encoding="utf-8").split()[0] == number
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def zombies(pid: int) -> int:
    """Children that it has not waited for."""
    return sum(state == b"Z" for state in children(pid).values())


def context_switches(pid: int) -> int:
    """Voluntary ones, of all threads: how often something woke up and slept again."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return total


def holdings(pid: int) -> dict[str, int]:
    """What must return to where it was: descriptors by kind, and mapped memfds. Executors come and go."""
    kinds, n = fds(pid), len(executors(pid))
    kinds["socket"] -= 10 * n
    kinds["anon_inode"] -= n  # the pidfd
    kinds["pipe"] -= n  # what it says for the log
    return {**{f"fd {kind}": n for kind, n in sorted(kinds.items())}, "memfd maps": maps(pid)}


def no_more(now: Mapping[str, int], before: Mapping[str, int]) -> bool:
    """Nothing has leaked; what was looked at while an earlier user's things still went may have become less."""
    return all(n <= before.get(what, 0) for what, n in now.items())


def eventually(condition: Callable[[], T], what: str | Callable[[], str] = "") -> T:
    """Waits for a state of another process that no descriptor announces, and returns what the condition said of it."""
    deadline = time.monotonic() + raw.PATIENCE
    while not (said := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what() if callable(what) else what}")
        select.select([], [], [], 0.005)
    return said


def only(find: Callable[[], Iterable[T]], what: str) -> T:
    """The one that is found, once it is one. A second look could find another."""

    def look() -> list[T]:
        found = list(find())
        return found if len(found) == 1 else []

    return eventually(look, what)[0]


def wait_exit(pidfd: int) -> None:
    assert select.select([pidfd], [], [], raw.PATIENCE)[0], "the process does not end"


def loop_ns(pid: int) -> int:
    """Processor time that a daemon's loop, its first thread, has had."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
