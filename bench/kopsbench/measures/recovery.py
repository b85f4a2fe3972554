"""What one client's trouble costs the others: how long they are without answers, and what they see of it. The daemon
does the GPU's work itself, without executors, and is supervised: after a fault, which costs the device's context, its socket stays and a
new one takes over."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from support import raw
from support.daemon import ROOT

from ..context import Context, Skipped
from ..record import Record, Summary
from ..recovery_process import SIDE
from . import add

ROUNDS = 3
TARGET_S = 1.5
SECONDS = 30.0  # in which all is as before, or will not be
BYSTANDERS = ("bystander_torch", "bystander_numpy")
GIB = 1 << 30
GEMM_BYTES = 3 * SIDE * SIDE * 4

# What happens while the others add.
TROUBLES = {
    "fault": "a kernel of another client writes where no memory is",
    "killed": "another client is killed (SIGKILL) while its gemms run",
    "freed": "another client frees the memory that its gemms run on",
    "no_memory": "another client allocates all of the GPU's memory",
}


class Other:
    """A client in a process of its own."""

    def __init__(self, role: str, socket: str) -> None:
        paths = [str(ROOT / "client_py"), str(Path(__file__).resolve().parents[2]), str(ROOT / "tests"), str(ROOT / "tests/gpu")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kopsbench.recovery_process", role, socket],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.role = role
        self.hear()

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.role} ended with status {self.process.wait()}")
        return json.loads(line)

    def tell(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Held(NamedTuple):
    """What the daemon has of clients, and what it leaves of the GPU's memory, in bytes."""

    mapped: int
    allocated: int
    free: int

    @classmethod
    def now(cls, connection: raw.Connection) -> Held:
        said = connection.call("clients")
        free = next(int(row["memory_free"]) for row in said["devices"] if row["uuid"].startswith("GPU-"))
        return cls(*(sum(row[key] for row in said["users"]) for key in ("mapped_bytes", "allocated_bytes")), free)

    def less(self, trouble: str) -> Held:
        """The same without what the one that makes trouble had, or nearly."""
        if trouble == "no_memory":
            return self._replace(free=self.free - GIB)
        return self._replace(mapped=self.mapped - GEMM_BYTES, free=self.free + GEMM_BYTES // 2)

    def within(self, other: Held) -> bool:
        return self.mapped <= other.mapped and self.allocated <= other.allocated and self.free >= other.free


def make_trouble(other: Other) -> dict[str, Any]:
    other.tell()
    if other.role != "killed":
        return other.hear()
    assert other.hear() == "running"
    other.process.kill()
    return {"error": "killed"}


def wait_for_a_new_daemon(daemon: Any, instance: int) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:  # a connection in the gap waits in the socket's queue
        with daemon.connect() as connection:
            try:
                if connection.call("hello")["instance"] != instance:
                    return
            except (raw.Closed, raw.RpcError, OSError):
                pass  # the old daemon's last moments
    raise RuntimeError(f"no new daemon within {SECONDS:g} s")


def wait_until_given_back(daemon: Any, expected: Held) -> float:
    """Seconds until the daemon has nothing more of a client that ends now; its process's end is part of it."""
    start = time.monotonic()
    with daemon.connect() as connection:
        while time.monotonic() < start + SECONDS:
            if Held.now(connection).within(expected):
                return time.monotonic() - start
    raise RuntimeError(f"the daemon still has something of a client that ended {SECONDS:g} s ago")


def one(context: Context, trouble: str) -> dict[str, Any]:
    """What each client said, by its role."""
    with ExitStack() as stack:
        daemon = stack.enter_context(context.daemon("--supervise", "--set", "executors.isolate=off", cuda=True))
        with daemon.connect() as connection:
            hello = connection.call("hello")
            if "kernels" not in hello["features"]:
                raise Skipped("this daemon takes no kernels of users, so none can fault")
        others = [Other(role, daemon.socket_path) for role in (trouble, *BYSTANDERS)]
        for other in others:
            stack.callback(other.kill)
        culprit, *rest = others
        with daemon.connect() as connection:
            held = Held.now(connection)
        found = {"culprit": make_trouble(culprit)}
        if trouble == "fault":
            wait_for_a_new_daemon(daemon, hello["instance"])
        else:
            found["culprit"]["given_back_s"] = wait_until_given_back(daemon, held.less(trouble))
        time.sleep(1.0)  # calls as usual again, so that the longest wait is that of the trouble
        for other in rest:
            if other.process.poll() is None:
                with suppress(BrokenPipeError):
                    other.tell()
            found[other.role] = other.hear()
        with daemon.connect() as connection:
            found["restarted"] = connection.call("hello")["instance"] != hello["instance"]
    return found


def run(context: Context, trouble: str) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for a GPU does not fault")
    found = [one(context, trouble) for _ in range(ROUNDS)]
    bystanders = [its[role] for its in found for role in BYSTANDERS]
    waits = sorted(its["longest_s"] for its in bystanders if "longest_s" in its)
    return Record(
        f"recovery_{trouble}_mps" if context.mps else f"recovery_{trouble}",
        "s",
        "lower",
        Summary(median(waits), waits[-1], len(waits)) if waits else Summary(math.nan, math.nan, 0),
        None,
        {
            "measured": "the longest time from one right answer to the next of clients that add all the time, while"
            f" {TROUBLES[trouble]}; kopsd --supervise, executors.isolate = off",
            "p99": "the longest",
            "errors_of_bystanders": [its["errors"] for its in bystanders],
            "lost_their_own_context": [role for its in found for role in BYSTANDERS if "own_context" in its[role]],
            "wrong_answers": sum(its["wrong"] for its in bystanders),
            "culprit": [its["culprit"] for its in found],
            "daemon_restarted": [its["restarted"] for its in found],
            "peer": "none: without a daemon each process has its own device memory and its own faults",
        },
        target=TARGET_S if trouble == "fault" and not context.mps else None,
        absolute=True,
        statistic="p99",
    )


for _trouble in TROUBLES:
    add(f"recovery_{_trouble}", partial(run, trouble=_trouble), on_gpu=True, seconds=120)
    add(f"recovery_{_trouble}_mps", partial(run, trouble=_trouble), on_gpu=True, mps=True, seconds=120)
