"""A daemon, clients that work, and one that does harm, each in a process of its own.

With root's rights harm is done by another user than the one that works. Without them both have one user, and each
connection has its own executor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from support import raw
from support.daemon import Daemon

from ..children import READY_S, Child
from ..context import Context, Skipped
from ..executors import wait_for_spares
from ..record import Record, Summary, summarise

CULPRIT_UID = 64001
STALL_US = 5000
SETTLED_S, SETTLE_S = 0.3, 20.0
# The clients that work while harm is done. `kernel` has a domain of its own, the others work in the common executor.
SOME = ("torch", "torch", "shared", "shared", "kernel")


@dataclass
class Heard:
    """The reports of the clients that work, added up."""

    calls_us: list[float] = field(default_factory=list)  # of the latest calls of each
    waits_us: list[float] = field(default_factory=list)  # the longest of each for a right answer
    kernel_waits_us: list[float] = field(default_factory=list)  # the same of those that launch kernels
    stalled_us: list[float] = field(default_factory=list)
    elapsed_us: list[float] = field(default_factory=list)
    calls: int = 0
    errors: int = 0
    wrong: int = 0
    first_errors: list[str] = field(default_factory=list)
    reconnects: int = 0

    def add(self, role: str, said: dict[str, Any]) -> None:
        if role == "kernel":
            self.kernel_waits_us.append(said["longest_us"])
        else:
            self.calls_us += said["us"]
            self.waits_us.append(said["longest_us"])
        self.stalled_us.append(said["stalled_us"])
        self.elapsed_us.append(said["elapsed_us"])
        self.calls += said["calls"]
        self.errors += said["errors"]
        self.wrong += said["wrong"]
        if said["first_error"]:
            self.first_errors.append(f"{role}: {said['first_error']}")

    @property
    def trouble(self) -> int:
        return self.errors + self.wrong + self.reconnects

    def stalled_percent(self) -> float:
        return 100 * sum(self.stalled_us) / sum(self.elapsed_us)

    def detail(self) -> dict[str, Any]:
        return {
            "calls_of_others": self.calls,
            "errors_of_others": self.errors,
            "first_errors": self.first_errors[:5],
            "wrong_answers": self.wrong,
            "connections_anew": self.reconnects,
            "stalled_percent": self.stalled_percent(),
        }


class Scene(ExitStack):
    """Everything that was started has ended when it is left."""

    def __init__(self, context: Context, isolate: str = "user", spares: int = 1) -> None:
        super().__init__()
        self.context = context
        self.isolate = "connection" if isolate == "user" and os.getuid() else isolate
        self.spares = spares
        settings = [f"executors.isolate={self.isolate}", f"executors.spares={spares}", "executors.faults=0"]
        settings += ["kernels.user_kernels=all", "server.socket_mode=0666"]
        settings += ["executors.max=16"] if self.isolate == "connection" else []  # a user has a part of them
        arguments = [word for setting in settings for word in ("--set", setting)]
        self.daemon: Daemon = self.enter_context(context.daemon(*arguments, cuda=True))
        try:
            os.chmod(self.daemon.folder, 0o755)
            self.control: raw.Connection = self.enter_context(self.daemon.connect())
            hello = self.control.call("hello")
            if "kernels" not in hello["features"]:
                raise Skipped("the daemon runs no kernels of users: it has no CUDA device or no NVRTC, or its policy says so")
        except BaseException:
            self.daemon.cleanup()
            raise
        self.gpu = next(device["uuid"] for device in hello["devices"] if device["backend"] == "cuda")
        self.bystanders: list[tuple[str, Child]] = []
        self.known = 0  # connections

    # ---- processes ----

    def _start(self, what: str, module: str, *arguments: str) -> Child:
        process = Child([sys.executable, "-m", f"kopsbench.harm.{module}", *arguments], what, self.context.of_children())
        self.callback(process.end)
        return process

    def add_bystanders(self, roles: Iterable[str]) -> None:
        path = self.daemon.socket_path
        made = [(role, self._start(f"the client that works ({role})", "bystander", role, path, self.gpu, str(STALL_US))) for role in roles]
        for _, process in made:
            process.hear(READY_S)
        self.bystanders += made

    def add_culprit(self) -> Child:
        uid = CULPRIT_UID if os.getuid() == 0 else 0
        culprit = self._start("the client that does harm", "culprit", self.daemon.socket_path, str(uid))
        said = culprit.hear(READY_S)
        if not said["right"]:
            raise RuntimeError(f"the first launch of the client that does harm: {said}")
        return culprit

    # ---- observations ----

    def mark(self) -> None:
        for _, process in self.bystanders:
            process.tell("mark")
        for _, process in self.bystanders:
            process.hear()
        self.known = self.connections()

    def report(self, into: Heard) -> Heard:
        """Since the mark."""
        for _, process in self.bystanders:
            process.tell("report")
        for role, process in self.bystanders:
            into.add(role, process.hear())
        into.reconnects += self.connections() - self.known
        return into

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.control.call("stats")
        return found

    def connections(self) -> int:
        """All that there have been."""
        return int(self.stats()["counters"]["connections_total"])

    def settle(self) -> None:
        """Until there are as many spare executors as there are to be, and nobody makes or ends a context any more: the memory of
        the GPU that is free stays the same for a while."""
        wait_for_spares(self.stats, self.spares)
        quiet = 0.02 if self.context.smoke else SETTLED_S
        until = time.monotonic() + SETTLE_S
        since, free = time.monotonic(), -1
        while time.monotonic() < min(until, since + quiet):
            now = int(self.context.torch.cuda.mem_get_info()[0])
            if now != free:
                since, free = time.monotonic(), now
            time.sleep(quiet / 10)


# ---- records ----

Row = dict[str, Any]


def in_ms(samples_us: Iterable[float]) -> Summary:
    return summarise(us * 1e-3 for us in samples_us)


def bounded(name: str, unit: str, ours: Summary, detail: Row, target: float | None = None, statistic: Any = "p50") -> Record:
    """A record whose target bounds our own number."""
    return Record(name, unit, "lower", ours, None, detail, target, absolute=True, statistic=statistic)


def counted(name: str, unit: str, n: float, detail: Row, target: float | None = None) -> Record:
    return bounded(name, unit, Summary(n, n, 1, max=n), detail, target)
