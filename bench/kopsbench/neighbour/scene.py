"""A daemon with its defaults as the unit would run it, on two processors, and the users beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from support import backends, proc
from support.daemon import Daemon

from ..context import Skipped
from ..processors import two_processors
from .attacks import Attack
from .flood import Flood
from .users import GIB, Groups, User, lift_descriptors

A, B = 64001, 64002  # the uid that works, and the first of those that do not
DAEMON_BYTES, USER_BYTES = 3 * GIB, 2 * GIB
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


class Scene(ExitStack):
    """Everything that was started has ended when it is left. Skipped where it cannot be set up."""

    def __init__(self, binary: Path, *, cuda: bool, memory_bytes: int = DAEMON_BYTES) -> None:
        super().__init__()
        if os.getuid() != 0:
            raise Skipped("only root can become several users")
        self.memory_bytes = memory_bytes
        self.groups = Groups()
        self.callback(self.groups.close)
        self.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, two_processors())
        self.users: set[User] = set()
        self.paths: list[Path] = []
        self.device = "host" if cuda else None
        try:
            self.daemon = self._daemon(binary, cuda)
        except BaseException:
            self.close()
            raise
        self.callback(self._end_users)

    def _daemon(self, binary: Path, cuda: bool) -> Daemon:
        lift_descriptors()
        driver = backends.STANDIN if backends.missing(backends.STANDIN) is None else backends.CUDA
        config = f"{backends.config(driver if cuda else backends.HOST)}[server]\nsocket_mode = 0666\nuser = daemon\n"
        daemon = Daemon("--log-level", "warning", config=config, start=False, steady=False)
        self.callback(daemon.cleanup)
        daemon.command[0] = str(binary)
        os.chmod(daemon.folder, 0o755)
        os.makedirs(daemon.env["CACHE_DIRECTORY"], exist_ok=True)
        os.chmod(daemon.env["CACHE_DIRECTORY"], 0o777)
        self.paths = self.groups.group("system/kopsd", self.memory_bytes, self.groups.weight)
        if self.paths:  # it is in its group from its first moment, and may ask what that bounds
            join = "".join(f"echo $$ > {path}/cgroup.procs; " for path in self.paths)
            daemon.command = ["/bin/sh", "-c", f'{join}exec "$@"', "sh", *daemon.command]
        daemon.start()
        return daemon

    def user(self, uid: int, name: str, work: Callable[[Connection], None]) -> User:
        user = User(uid, work, self.groups.group(f"users/{name}", USER_BYTES))
        self.users.add(user)
        return user

    def end_user(self, user: User) -> None:
        self.users.discard(user)
        user.end()

    def _end_users(self) -> None:
        for user in list(self.users):
            self.end_user(user)

    def cpu_us(self) -> float:
        with suppress(OSError):
            return proc.cpu_ticks(self.daemon.pid) * TICK_US
        return 0.0

    def ended(self) -> int | None:
        assert self.daemon.process is not None
        return self.daemon.process.poll()

    def peak_rss_mib(self) -> float | None:
        with suppress(OSError, KeyError):
            return proc.status(self.daemon.pid, "VmHWM") / 1024
        return None

    def peak_memory(self) -> int | None:
        """Of the daemon's control group, in bytes."""
        return Groups.peak_memory(self.paths)


def as_attacker(path: str, attack: Attack, link: Connection) -> None:
    """Makes ready and says so, is told for how many seconds, and reports."""
    flood = Flood(path)
    attack.build(flood)
    link.send("ready")
    seconds = link.recv()
    attack.run(flood, time.monotonic() + seconds)
    link.send(flood.report())
