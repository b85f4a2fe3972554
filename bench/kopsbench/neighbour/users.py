"""Processes of other users, in control groups as a machine with systemd has them.

    system/kopsd    the daemon, with the unit's CPUWeight
    users/<name>    each user

A process is a fork of this one that has become the user: it needs no file of this checkout any more, which may lie where
that user cannot reach. All of it is root's alone to do."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "deploy" / "kopsd.service"
CGROUPS = Path("/sys/fs/cgroup")
DESCRIPTORS = 524288  # as the unit has it
PR_SET_PDEATHSIG = 1
GIB = 1 << 30
OWN_WEIGHT = 1000  # of all of a run's groups, beside the rest of the machine


def lift_descriptors() -> None:
    """As many as the unit has, or as this process may; for all that is started from now on."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    want = DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (want, most))


class Gone(Exception):
    """A user's process ended, or said nothing for too long; the message says which."""


def unit_weight() -> int:
    """The unit's CPUWeight, 100 where it says nothing."""
    found = re.search(r"^CPUWeight=(\d+)", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    return int(found.group(1)) if found else 100


class Groups:
    """Control groups of one run. Where they cannot be made `missing` says why, and nothing is bounded."""

    def __init__(self) -> None:
        name = f"kops-neighbours-{os.getpid()}"
        self.made: list[Path] = []
        self.missing: str | None = None
        self.weight = unit_weight()
        self.v2 = (CGROUPS / "cgroup.controllers").exists()
        self.roots = [CGROUPS / controller / name for controller in ([""] if self.v2 else ["cpu", "memory"])]
        try:
            for root in self.roots:
                if self.v2:
                    self._pass_on(root.parent)
                # A higher priority: other programs of the machine disturb the measure less.
                for path, weight in ((root, OWN_WEIGHT), (root / "system", 100), (root / "users", 100)):
                    self._make(path, weight)
                    if self.v2:
                        self._pass_on(path)
        except OSError as error:
            self.missing = f"{error.strerror}: {error.filename}"
            self.close()

    def _pass_on(self, path: Path) -> None:
        (path / "cgroup.subtree_control").write_text("+cpu +memory", encoding="ascii")

    def _make(self, path: Path, weight: int, memory_bytes: int | None = None) -> None:
        path.mkdir(exist_ok=True)
        self.made.append(path)
        files = {"cpu.shares": weight * 1024 // 100, "cpu.weight": weight}
        files |= {} if memory_bytes is None else {"memory.limit_in_bytes": memory_bytes, "memory.max": memory_bytes}
        for file, value in files.items():
            if (path / file).exists():
                (path / file).write_text(str(value), encoding="ascii")

    def group(self, name: str, memory_bytes: int, weight: int = 100) -> list[Path]:
        """`system/kopsd` or `users/…`: its folders, to be joined by a process."""
        paths = [] if self.missing else [root / name for root in self.roots]
        for path in paths:
            self._make(path, weight, memory_bytes)
        return paths

    @staticmethod
    def join(paths: list[Path], pid: int) -> None:
        for path in paths:
            (path / "cgroup.procs").write_text(str(pid), encoding="ascii")

    @staticmethod
    def peak_memory(paths: list[Path]) -> int | None:
        for path in paths:
            for name in ("memory.max_usage_in_bytes", "memory.peak"):
                with suppress(OSError):
                    return int((path / name).read_text(encoding="ascii"))
        return None

    def detail(self) -> dict[str, Any]:
        if self.missing:
            return {"control_groups": f"none: {self.missing}"}
        kind = "v2" if self.v2 else "v1"
        return {"control_groups": f"{kind}: system/kopsd weight {self.weight}, users/* weight 100 each, system and users 100 each"}

    def close(self) -> None:
        """Processes must have ended."""
        for path in sorted(set(self.made), key=lambda p: -len(p.parts)):
            with suppress(OSError):
                path.rmdir()
        self.made = []


def become(uid: int) -> None:
    """For good: this process is that user, with no other group than its own, and ends with its parent."""
    lift_descriptors()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.chdir("/")


class User:
    """A process that runs `work(link)` as a user. The two talk over `link`: one sends, the other recv()s."""

    def __init__(self, uid: int, work: Callable[[Connection], None], paths: list[Path]) -> None:
        context = multiprocessing.get_context("fork")
        self.link, far = context.Pipe()
        self.process = context.Process(target=self._run, args=(uid, work, paths, far), daemon=True)
        self.process.start()
        far.close()

    def _run(self, uid: int, work: Callable[[Connection], None], paths: list[Path], link: Connection) -> None:
        self.link.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            Groups.join(paths, os.getpid())
            become(uid)
            work(link)
        except BaseException:
            with suppress(OSError):
                link.send({"failed": traceback.format_exc(limit=-3)})
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def hear(self, seconds: float) -> Any:
        """What it says next."""
        if not self.link.poll(seconds):
            raise Gone(f"nothing within {seconds:.0f} s")
        try:
            said = self.link.recv()
        except EOFError:
            raise Gone("the process ended") from None
        if isinstance(said, dict) and "failed" in said:
            raise Gone(said["failed"])
        return said

    def tell(self, what: Any) -> None:
        self.link.send(what)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()
