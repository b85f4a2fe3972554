"""Every call of the CUDA driver fails once, in turn, by itself and as a fault that breaks the context: the daemon goes
on serving, with the error told to whom it concerns, by the same executor or by the next one.

The driver is the stand-in; its control page has the switches. A sample of the points by default; KOPS_FAULTS=all takes
every one.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
from faults import ALL, STRIDE, Client, FaultyDaemon, Outcomes
from gpu_machine import DEVICE_LOST_STATUS, only_with_the_standin, vector
from scenario import Worker, fresh_client, several_ops, shared_memory, stopped
from standin_cuda.control import Control
from support import backends, proc, raw
from support.cuda_exporter import Exporter, Memory
from support.daemon import Daemon

pytestmark = only_with_the_standin

INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN, ILLEGAL_ADDRESS, LAUNCH_FAILED = 1, 2, 999, 700, 719
# error, and whether the context is broken from then on
ANSWERS = ((OUT_OF_MEMORY, False), (INVALID_VALUE, False), (UNKNOWN, False), (ILLEGAL_ADDRESS, True))
WORK = (("kernel", LAUNCH_FAILED), ("copy", ILLEGAL_ADDRESS))  # on streams: always for good
A_FUNCTION_MAX = 25 if ALL else 3  # calls of one function that fail
FAILURES_MAX = 20
# What these do not give back stays, once.
RELEASES = ("Close", "Free", "Unmap", "Release", "Destroy", "Unregister", "Unload")
KEPT = ("live_streams", "live_events", "live_modules", "live_allocations", "live_allocation_bytes")
EXPECTED = Client.CODES | {"device_lost", "shutting_down", "invalid_handle", "unsupported"}


def calls(control: Control, daemon: Daemon) -> Counter[str]:
    entries = control.row(daemon.gpu_pid)._row.calls
    return Counter({e.function.decode(): int(e.count) for e in entries if e.count})


class Machine:
    """A daemon on the stand-in driver, and a process that has GPU memory."""

    def __init__(self) -> None:
        self.control = Control()
        self.fired = 0  # as a FaultyDaemon's faults have it: whether anything failed
        env = {**self.control.env, "KOPS_CUDA_DRIVER": str(backends.standin_driver())}
        self.daemon: Any = Daemon(config=backends.config(backends.STANDIN), env=env)
        self.daemon.faults = self
        self.exporter = Exporter(env)
        self.ins: Memory = vector(self.exporter.alloc(4096))
        self.out: Memory = self.exporter.alloc(4096)
        self.before: tuple[dict[str, int], dict[str, int]] = ({}, {})

    def live(self) -> dict[str, int]:
        return {k: v for k, v in self.control.row(self.daemon.gpu_pid).live().items() if k not in KEPT}

    def calls(self) -> Counter[str]:
        return calls(self.control, self.daemon)

    def play(self) -> None:
        with contextlib.ExitStack() as stack:
            a, b = Worker(self.daemon, "a"), Worker(self.daemon, "b")
            for client in (a, b):
                client.CODES = EXPECTED  # type: ignore[misc]
                stack.callback(client.close)
            a.prepare()
            b.prepare()
            a.run()
            ring = shared_memory(a)
            if ring:
                stack.callback(ring.close)
            self.gpu_memory(a)
            several_ops(a)
            b.pipeline()
            b.run(stream=3)
            stopped(a)
            b.attempt(self.allocate, b)
            b.attempt(b.connection.call, "trim")
            b.attempt(b.connection.call, "stats")
            b.run()

    def allocate(self, b: Worker) -> None:
        reply = b.connection.reply(b.connection.request("alloc", {"size": 8192, "device": 0}))
        for fd in reply.fds:
            os.close(fd)
        b.connection.call("release", {"buffer": reply.get()["buffer"]})

    def gpu_memory(self, a: Worker) -> None:
        """References to another process's memory: inline, and registered."""
        shape = [1024]
        params = {"op": "square", "in": [self.ins.inline(shape)], "out": [self.out.inline(shape)]}
        for _ in range(2):
            if a.attempt(a.connection.call, "run", params) is not None:
                assert (np.frombuffer(self.out.read(4096), np.float32) == 9).all()
        kept = a.attempt(a.connection.call, "register", self.ins.register_params())
        if kept:
            params = {"op": "add", "in": [raw.tensor(kept["buffer"], shape)] * 2, "out": [self.out.inline(shape)]}
            if a.attempt(a.connection.call, "run", params) is not None:
                assert (np.frombuffer(self.out.read(4096), np.float32) == 6).all()
            a.attempt(a.connection.call, "release", {"buffer": kept["buffer"]})

    def settle(self) -> None:
        """Warm, and what it holds then is what it must hold after every fault."""
        self.fired = 0
        for _ in range(2):
            self.play()
        proc.eventually(
            lambda: self.left() and not self.live()["live_host_registrations"],
            lambda: f"no client is left, but {self.live()} {self.daemon.holdings()}",
        )
        self.before = self.live(), self.daemon.holdings()

    def left(self) -> bool:
        """No client is there, and what clients had on the GPU is closed (which cannot fail without an end)."""
        return proc.fds(self.daemon.pid)["socket"] == proc.own_sockets(self.daemon.pid) and not self.live()["live_ipc_mappings"]

    def restart(self) -> None:
        os.close(self.daemon.pidfd)
        self.daemon.log_path.unlink()
        self.daemon.start()
        self.settle()

    def one_point(self, function: str, nth: int, error: int, sticky: bool) -> str:
        executor = self.daemon.gpu_pid
        fault = self.control.fail(function, error, nth=nth, sticky=sticky, pid=executor)
        self.fired = 1
        self.play()
        fired = fault.fired
        fault.disarm()
        if not fired:
            return "not reached"
        self.fired = 0
        self.play()
        if self.daemon.gpu_pid != executor:
            self.settle()
            return "replaced"
        live, holdings = self.before
        more = 1 if any(word in function for word in RELEASES) else 0

        def settled() -> bool:
            now = self.live()
            if more:
                return self.left() and all(now[k] <= live[k] + more for k in live if not k.endswith("_bytes"))
            return proc.no_more(now, live) and proc.no_more(self.daemon.holdings(), holdings)

        proc.eventually(settled, lambda: f"it held {self.before}, and now {self.live()} {self.daemon.holdings()}")
        if more:
            self.before = self.live(), self.daemon.holdings()
        return "served"

    def close(self) -> None:
        self.exporter.close()
        if self.daemon.running():
            self.daemon.stop()
        self.daemon.cleanup()


def driver_points(counts: Counter[str]) -> list[tuple[str, int, int, bool]]:
    every = [
        (function, nth, error, sticky)
        for error, sticky in ANSWERS
        for function, n in sorted(counts.items())
        for nth in range(1, min(n, A_FUNCTION_MAX) + 1)
    ]
    every += [(work, nth, error, True) for work, error in WORK for nth in range(1, min(20, A_FUNCTION_MAX * 2))]
    return [point for n, point in enumerate(every) if n % (1 if ALL else 7 * STRIDE) == 0]


def told(function: str, nth: int, error: int, sticky: bool) -> str:
    return f"{function} #{nth}: {error}{' for good' if sticky else ''}"


def test_every_call_of_the_driver() -> None:
    outcomes, machine = Outcomes(), Machine()
    try:
        machine.settle()
        start = machine.calls()
        machine.play()
        for point in driver_points(machine.calls() - start):
            if not outcomes.take(machine.daemon, told(*point), partial(machine.one_point, *point)):
                if len(outcomes.failures) == FAILURES_MAX:
                    break
                machine.restart()
    finally:
        machine.close()
    outcomes.tell("faults_driver")
    assert outcomes["served"] > 0 and outcomes["replaced"] > 0
    assert not machine.control.misuses()


def point_of_the_start(daemon: FaultyDaemon, control: Control, function: str, nth: int, error: int, sticky: bool) -> str:
    fault = control.fail(function, error, nth=nth, sticky=sticky)
    try:
        status = daemon.try_start()
        fired = fault.fired
    finally:
        fault.disarm()
    if status is None:
        serves_or_gives_up(daemon)
    else:
        assert status in (1, DEVICE_LOST_STATUS), f"status {status}"
        assert "event=start why=" in daemon.log() or "event=device_lost" in daemon.log(), "it does not say why"
    return "not reached" if not fired else "served" if status is None else f"status {status}"


def test_every_call_of_the_start() -> None:
    """A GPU that cannot be used is no reason not to serve: the daemon says so and has its other devices, or says why it
    cannot start."""
    outcomes, control = Outcomes(), Control()
    daemon = FaultyDaemon(config=backends.config(backends.STANDIN), env=control.env, start=False)
    try:
        assert daemon.try_start() is None
        counts = calls(control, daemon)
        daemon.stop()
        for point in driver_points(counts):
            if point[0] not in ("kernel", "copy"):
                outcomes.take(daemon, told(*point), partial(point_of_the_start, daemon, control, *point))
    finally:
        daemon.cleanup()
    outcomes.tell("faults_driver_start")
    assert outcomes["served"] > 0


def serves_or_gives_up(daemon: FaultyDaemon) -> None:
    """It serves, though its GPU may do less than others, which it says; or it ends, because the GPU is lost."""
    try:
        fresh_client(daemon)
    except (raw.RpcError, raw.Closed, OSError) as error:
        if isinstance(error, raw.RpcError) and error.code == "unsupported":
            daemon.stop()
            return
        assert daemon.wait() == DEVICE_LOST_STATUS
        os.close(daemon.pidfd)
        return
    daemon.stop()
