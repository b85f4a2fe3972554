"""A kernel of one client faults, which costs the device's context: how long the others are without answers, and what
they see of it. The daemon is supervised: its socket stays, a new one takes over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support import raw
from support.daemon import ROOT

from ..context import Context, Skipped
from ..record import Record, summarise
from . import add

ROUNDS = 3
TARGET_S = 1.5
SECONDS = 30.0  # in which a daemon is back, or will not be


class Other:
    """A client in a process of its own."""

    def __init__(self, role: str, socket: str) -> None:
        paths = [str(ROOT / "client_py"), str(Path(__file__).resolve().parents[2])]
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


def one_fault(context: Context, bystanders: tuple[str, ...]) -> dict[str, Any]:
    with ExitStack() as stack:
        daemon = stack.enter_context(context.daemon("--supervise", cuda=True))
        with daemon.connect() as connection:
            hello = connection.call("hello")
            if "kernels" not in hello["features"]:
                raise Skipped("this daemon takes no kernels of users, so none can fault")
        others = [Other(role, daemon.socket_path) for role in ("culprit", *bystanders)]
        for other in others:
            stack.callback(other.kill)
        culprit, *rest = others
        culprit.tell()
        found = {"culprit": culprit.hear()}
        until = time.monotonic() + SECONDS
        while True:  # a connection in the gap waits in the socket's queue
            with daemon.connect() as connection:
                try:
                    if connection.call("hello")["instance"] != hello["instance"]:
                        break
                except (raw.Closed, raw.RpcError, OSError):
                    pass  # the old daemon's last moments
            if time.monotonic() > until:
                raise RuntimeError(f"no new daemon within {SECONDS:g} s")
        time.sleep(1.0)  # calls as usual again, so that the longest wait is that of the fault
        for other in rest:
            if other.process.poll() is None:
                try:
                    other.tell()
                except BrokenPipeError:
                    pass
            found[other.role] = other.hear()
    return found


def need_gpu(context: Context) -> None:
    if context.smoke:
        raise Skipped("the stand-in for a GPU does not fault")


def run(context: Context) -> Record:
    need_gpu(context)
    found = [one_fault(context, ("bystander_torch", "bystander_numpy")) for _ in range(ROUNDS)]
    outages = [its[role]["longest_s"] * 1e6 for its in found for role in its if role != "culprit"]
    seconds = summarise(outages)
    seconds.p50, seconds.p99 = seconds.p50 * 1e-6, seconds.p99 * 1e-6
    return Record(
        "recovery_fault",
        "s",
        "lower",
        seconds,
        None,
        {
            "measured": "the longest time from one right answer to the next of clients that add all the time, while a kernel of"
            " another client writes where no memory is; kopsd --supervise",
            "p99": "the longest",
            "errors_of_bystanders": [its[role]["errors"] for its in found for role in its if role != "culprit"],
            "wrong_answers": sum(its[role]["wrong"] for its in found for role in its if role != "culprit"),
            "culprit": [its["culprit"]["error"] for its in found],
            "culprit_after_s": [its["culprit"].get("after_s") for its in found],
            "peer": "none: without a daemon the process that faults has to be started anew",
        },
        target=TARGET_S,
        absolute=True,
        statistic="p99",
    )


def run_mps(context: Context) -> Record:
    """Under MPS a fault takes every client's context along: what is left is measured with clients that have none."""
    found = one_fault(context, ("bystander_torch", "bystander_numpy"))
    outage = summarise([found["bystander_numpy"].get("longest_s", float("nan"))])
    return Record(
        "recovery_fault_mps",
        "s",
        "lower",
        outage,
        None,
        {
            "measured": "as recovery_fault, under MPS, of a client in shared memory without a context of its own",
            "client_with_torch": found["bystander_torch"],
            "client_without_cuda": found["bystander_numpy"],
            "culprit": found["culprit"],
            "peer": "none",
        },
    )


add("recovery_fault", run, on_gpu=True, table=True, seconds=120)
add("recovery_fault_mps", run_mps, on_gpu=True, mps=True, seconds=60)
