"""A daemon that keeps users' kernels apart, clients that work, and clients that do harm, each in a process of its own.

With root's rights harm is done by other users than the one that works. Without them all have one user, and each
connection has its own executor."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import memfd, proc, raw
from support.daemon import ROOT, Daemon

from ..context import Context, Skipped
from ..executors import wait_for_spares
from ..record import Record, Summary, summarise

BENCH = Path(__file__).resolve().parents[2]
FIRST_UID = 64001
STALL_US = 5000
READY_S, ANSWER_S = 60.0, 60.0
SETTLED_S, SETTLE_S = 0.3, 20.0
# The clients that work while harm is done. `kernel` has a domain of its own, the others work in the common executor.
SOME = ("torch", "shared", "c", "c", "kernel")
EIGHT = ("torch", "torch", "shared", "c", "c", "c", "c", "kernel")


class Process:
    """A program that answers lines with lines of JSON. The first one says that it is ready."""

    def __init__(self, command: Sequence[str], what: str, environment: Mapping[str, str]) -> None:
        self.what, self.rest = what, b""
        self.said: dict[str, Any] = {}  # when it was ready
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment})

    def hear(self, seconds: float = ANSWER_S) -> dict[str, Any]:
        assert self.process.stdout
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RuntimeError(f"{self.what}: no answer within {seconds:g} s")
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                raise RuntimeError(f"{self.what} ended with status {self.process.wait()}")
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def tell(self, order: str | dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write((order if isinstance(order, str) else json.dumps(order)).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, order: str | dict[str, Any], seconds: float = ANSWER_S) -> dict[str, Any]:
        self.tell(order)
        return self.hear(seconds)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()


@dataclass
class Bystander:
    role: str
    process: Process


@dataclass
class Heard:
    """The reports of the clients that work, added up."""

    calls_us: list[float] = field(default_factory=list)  # of the latest calls of each
    waits_us: list[float] = field(default_factory=list)  # the longest of each for a right answer
    kernel_waits_us: list[float] = field(default_factory=list)  # the same of those that launch kernels
    stalled_us: list[float] = field(default_factory=list)
    elapsed_us: list[float] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
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
        self.roles.append(role)
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

    def stalled(self) -> list[float]:
        """Per cent of each one's time."""
        return [100 * stalled / elapsed for stalled, elapsed in zip(self.stalled_us, self.elapsed_us, strict=True)]

    def stalled_of_all(self) -> float:
        return 100 * sum(self.stalled_us) / sum(self.elapsed_us)

    def detail(self) -> dict[str, Any]:
        return {
            "calls_of_others": self.calls,
            "errors_of_others": self.errors,
            "first_errors": self.first_errors[:5],
            "wrong_answers": self.wrong,
            "connections_anew": self.reconnects,
            "stalled_percent": self.stalled_of_all(),
            "stalled_percent_of_each": [f"{role} {one:.1f}" for role, one in zip(self.roles, self.stalled(), strict=True)],
        }


@dataclass
class Held:
    """Resources of the daemon, and free memory of the GPU."""

    descriptors: int
    mappings: int
    rss_kb: int
    threads: int
    gpu_free: int
    executors: list[str]
    kinds: dict[str, int]


class Scene(ExitStack):
    """Everything that was started has ended when it is left."""

    def __init__(self, context: Context, *more: str, isolate: str = "user", spares: int = 1, unbounded: bool = True) -> None:
        super().__init__()
        self.context = context
        self.isolate = "connection" if isolate == "user" and os.getuid() else isolate
        self.spares = spares if self.isolate in ("user", "connection") else 0
        settings = [f"executors.isolate={self.isolate}", f"executors.spares={spares}"]
        settings += ["kernels.user_kernels=all", "server.socket_mode=0666"]
        settings += ["executors.faults=0"] if unbounded else []
        settings += ["executors.max=16"] if self.isolate == "connection" else []  # a user has a part of them
        settings += ["executors.user=none"] if context.mps else []  # an MPS server has clients of one user
        arguments = [word for setting in (*settings, *more) for word in ("--set", setting)]
        start = time.perf_counter()
        self.daemon: Daemon = self.enter_context(context.daemon(*arguments, cuda=True))
        self.ready_s = time.perf_counter() - start
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
        self.bystanders: list[Bystander] = []
        self.known = 0  # connections

    # ---- processes ----

    def _start(self, what: str, command: Sequence[str]) -> Process:
        paths = [str(BENCH), str(ROOT / "client_py"), str(ROOT / "tests")]
        environment = {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        if self.context.smoke:
            environment["KOPS_BENCH_SMOKE"] = "1"
        process = Process(command, what, environment)
        self.callback(process.end)
        return process

    def add_bystanders(self, roles: Iterable[str]) -> None:
        socket = self.daemon.socket_path
        made = []
        for role in roles:
            if role == "c":
                program = str(self.context.program("bench_bystander"))
                command = [program, "--socket", socket, "--device", self.gpu, "--stall-us", str(STALL_US)]
            else:
                command = [sys.executable, "-m", "kopsbench.isolation.bystander", role, socket, self.gpu, str(STALL_US)]
            made.append(Bystander(role, self._start(f"the client that works ({role})", command)))
        for one in made:
            one.process.hear(READY_S)
        self.bystanders += made

    def add_culprits(self, users: Sequence[int]) -> list[Process]:
        """One for each number of a user."""
        uids = [FIRST_UID + user if os.getuid() == 0 else 0 for user in users]
        command = [sys.executable, "-m", "kopsbench.isolation.culprit", self.daemon.socket_path]
        made = [self._start(f"the client of user {uid} that does harm", [*command, str(uid)]) for uid in uids]
        for one in made:
            one.said = one.hear(READY_S)
            if not one.said["right"]:
                raise RuntimeError(f"{one.what}: its first launch: {one.said}")
        return made

    # ---- observations ----

    def mark(self) -> None:
        for one in self.bystanders:
            one.process.tell("mark")
        for one in self.bystanders:
            one.process.hear()
        self.known = self.connections()

    def report(self, into: Heard) -> Heard:
        """Since the mark."""
        for one in self.bystanders:
            one.process.tell("report")
        for one in self.bystanders:
            into.add(one.role, one.process.hear())
        into.reconnects += self.connections() - self.known
        return into

    def wait(self, seconds: float) -> None:
        """As long as the daemon runs."""
        if select.select([self.daemon.pidfd], [], [], seconds)[0]:
            raise RuntimeError(f"the daemon ended; its log:\n{self.daemon.log()[-2000:]}")

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.control.call("stats")
        return found

    def connections(self) -> int:
        """All that there have been."""
        return int(self.stats()["counters"]["connections_total"])

    def gpu_free(self) -> int:
        return int(self.context.torch.cuda.mem_get_info()[0])

    def wait_until_free(self) -> None:
        """The memory of the GPU that is free stays the same for a while: nobody makes or ends a context."""
        quiet = 0.02 if self.context.smoke else SETTLED_S
        until = time.monotonic() + SETTLE_S
        since, free = time.monotonic(), self.gpu_free()
        while time.monotonic() < min(until, since + quiet):
            time.sleep(quiet / 10)
            now = self.gpu_free()
            if now != free:
                since, free = time.monotonic(), now

    def settle(self) -> None:
        wait_for_spares(self.stats, self.spares)
        self.wait_until_free()

    def work(self) -> float:
        """An add in shared memory on the GPU; its microseconds. The first one waits for a context."""
        shared = memfd.Shared(2 * 4 * 1024)
        buffer = self.control.register(shared)
        a, out = (raw.tensor(buffer, [1024], offset=4096 * i) for i in range(2))
        start = time.perf_counter()
        self.control.run("square", [a], [out], device=self.gpu)
        us = (time.perf_counter() - start) * 1e6
        self.control.call("release", {"buffer": buffer})
        return us

    def wait_for_work(self) -> None:
        """Until all contexts that there are to be are made."""
        self.work()
        self.settle()

    def held(self) -> Held:
        pid = self.daemon.pid
        held = self.daemon.holdings()
        kinds = {kind.replace(f"{self.daemon.folder}/", ""): n for kind, n in held.items()}   # a record tells no machine's paths
        mappings = len(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines())
        rows = sorted(f"{row['state']} {row.get('domain', '')}".strip() for row in self.stats()["executors"])
        descriptors = sum(n for kind, n in kinds.items() if kind.startswith("fd "))
        return Held(descriptors, mappings, proc.status(pid, "VmRSS"), proc.status(pid, "Threads"), self.gpu_free(), rows, kinds)


# ---- records ----

Row = dict[str, Any]


def in_ms(samples_us: Iterable[float]) -> Summary:
    return summarise(us * 1e-3 for us in samples_us)


def bounded(name: str, unit: str, ours: Summary, detail: Row, target: float | None = None, statistic: Any = "p50") -> Record:
    """A record whose target bounds our own number."""
    return Record(name, unit, "lower", ours, None, detail, target, absolute=True, statistic=statistic)


def counted(name: str, unit: str, n: float, detail: Row, target: float | None = None) -> Record:
    return bounded(name, unit, Summary(n, n, 1, max=n), detail, target)
