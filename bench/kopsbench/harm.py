"""A daemon, clients that work, and one that does harm, each in a process of its own.

With root's rights harm is done by another user than the one that works. Without them both have one user, and each connection has its own
executor. The clients:

    python -m kopsbench.harm working ROLE SOCKET DEVICE STALL_US
        Small blocking calls, each of other numbers and each checked, until stdin ends. `torch`: adds of tensors in CUDA memory of its
        own; `shared`: adds in shared memory; `kernel`: launches of a kernel of its own there.
    python -m kopsbench.harm culprit SOCKET UID
        Becomes that user (0: it stays who it is), and does harm on request. It speaks the protocol itself.

Orders come as lines on stdin, and each is answered with a line of JSON. To a client that works: `mark` forgets all calls until now,
`report` tells of those since. To the culprit: `fault`, `hang`, a kernel that faults, or does not end before its deadline, then launches
until one has a right result."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
from support import raw
from support.daemon import Daemon
from support.kernels import OTHERS, custom_kernel, hostile_kernel
from support.memfd import Shared

from .children import READY_S, Child
from .context import Context, Skipped, torch_of_a_child
from .neighbour.users import become
from .record import Record, Summary, summarise

ELEMENTS = 1024
CULPRIT_UID = 64001
DEADLINE_MS = 100
STALL_US = 5000
SETTLED_S, SETTLE_S, SPARES_S = 0.3, 20.0, 30.0
GIVE_UP_S = 30.0
# The clients that work while harm is done. `kernel` has a domain of its own, the others work in the common executor.
SOME = ("torch", "torch", "shared", "shared", "kernel")

# ---- a client that works ----

SAMPLES = 4096  # the latest ones are told
PAUSE_S = 0.0005


def calls_of(role: str, client: Any, device: str) -> Callable[[int], tuple[float, float, bool]]:
    """A call with a number: when it began and ended, in seconds, and whether its answer is right."""
    torch = torch_of_a_child() if role == "torch" else None
    memory = client.empty((3, ELEMENTS), "f32") if role != "torch" else None
    if role == "kernel":
        kernel = client.kernel(OTHERS, "custom_kernel", "out float* out[n], const float* in[n], int n", "ceil_div(n, 256)", 256)

    def run(number: int) -> tuple[float, float, bool]:
        values = float(number), 3.0, float("nan")
        if torch:
            a, b, out = (torch.full((ELEMENTS,), value, device="cuda") for value in values)
            torch.cuda.synchronize()
        else:
            memory[:] = np.float32(values)[:, None]
            a, b, out = memory
        start = time.perf_counter()
        if role == "kernel":
            kernel(out, a, ELEMENTS)
        else:
            client.add(a, b, out=out, **({"device": device} if role == "shared" else {}))
        end = time.perf_counter()
        if torch:
            return start, end, bool(torch.equal(out, torch.full((ELEMENTS,), number + 3.0, device="cuda")))
        return start, end, bool((out == (2 * number if role == "kernel" else number + 3)).all())

    return run


class Tally:
    """The calls since the latest mark."""

    def __init__(self, stall_us: float) -> None:
        self.stall_us = stall_us
        self.start = time.perf_counter()
        self.waiting: float | None = None  # since when for a right answer
        self.calls = self.wrong = 0
        self.errors: list[str] = []
        self.longest_us = self.stalled_us = 0.0
        self.us: deque[float] = deque(maxlen=SAMPLES)

    def note(self, start: float, end: float, right: bool) -> None:
        self.us.append(round((end - start) * 1e6, 1))
        if not right:
            self.wrong += 1
            self.waiting = self.waiting or start
            return
        waited_us = (end - (self.waiting or start)) * 1e6
        self.waiting = None
        self.longest_us = max(self.longest_us, waited_us)
        if waited_us >= self.stall_us:
            self.stalled_us += waited_us

    def note_error(self, start: float, error: str) -> None:
        self.errors.append(error)
        self.waiting = self.waiting or start

    def report(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "errors": len(self.errors),
            "wrong": self.wrong,
            "first_error": self.errors[0] if self.errors else "",
            "longest_us": self.longest_us,
            "stalled_us": self.stalled_us,
            "elapsed_us": (time.perf_counter() - self.start) * 1e6,
            "us": list(self.us),
        }


def working(role: str, socket: str, device: str, stall_us: str) -> None:
    import kops

    with kops.connect(socket, timeout=60, blocking=True) as client:
        run = calls_of(role, client, device)
        if not run(1)[2]:
            sys.exit("the first answer is wrong")
        print('"ready"', flush=True)
        tally, number = Tally(float(stall_us)), 0
        while True:
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                order = sys.stdin.readline()
                if not order:
                    return
                if order.strip() == "mark":
                    tally = Tally(float(stall_us))
                print(json.dumps(tally.report() if order.strip() == "report" else {}), flush=True)
            number = number % 1000 + 1
            tally.calls += 1
            start = time.perf_counter()
            try:
                tally.note(*run(number))
            except kops.KopsError as error:
                tally.note_error(start, f"{error.code}: {error}"[:200])


# ---- the client that does harm ----


class Culprit:
    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0
        self.connect()

    def connect(self) -> None:
        """Also when the daemon has ended and a new one has taken over."""
        self.connection = raw.Connection(self.path)
        device = next(device["uuid"] for device in self.connection.call("hello")["devices"] if device["backend"] == "cuda")
        self.shared = Shared(2 * 4 * ELEMENTS)
        self.values = self.shared.view(np.float32, 2 * ELEMENTS).reshape(2, ELEMENTS)
        buffer = self.connection.register(self.shared)
        self.input, self.output = (raw.tensor(buffer, [ELEMENTS], offset=4 * ELEMENTS * i) for i in range(2))
        self.words = raw.tensor(self.connection.call("alloc", {"size": 4096, "device": device})["buffer"], [16])
        self.custom = custom_kernel(self.connection)
        self.fault, self.hang = (hostile_kernel(self.connection, entry) for entry in ("fault_kernel", "spin_forever"))

    def launch(self, kernel: int, arguments: list[Any], **more: Any) -> dict[str, Any] | None:
        """The error."""
        return self.connection.reply(self.connection.request("launch", {"kernel": kernel, "args": arguments, **more})).error

    def good(self) -> tuple[bool, str | None]:
        """Whether the result is right; the error's code."""
        self.number = self.number % 1000 + 1
        self.values[0], self.values[1] = self.number, np.nan
        error = self.launch(self.custom, [self.output, self.input, ELEMENTS])
        return bool((self.values[1] == 2 * self.number).all()), error["code"] if error else None

    def harm(self, what: str) -> dict[str, Any]:
        """The error of a kernel that faults, or never ends; `closed` when the daemon has gone with it."""
        try:
            if what == "fault":
                error = self.launch(self.fault, [self.words])
            else:
                error = self.launch(self.hang, [self.words], deadline_ms=DEADLINE_MS)
        except (raw.Closed, OSError) as closed:
            return {"code": "closed", "detail": {}, "message": str(closed)}
        return error or {"code": None, "detail": {}, "message": ""}

    def do_harm(self, what: str) -> dict[str, Any]:
        start = time.perf_counter()
        error = self.harm(what)
        said: dict[str, Any] = {"reply_us": (time.perf_counter() - start) * 1e6}
        said |= {"code": error["code"], "detail": error["detail"], "message": error["message"]}
        codes = []
        while time.perf_counter() < start + GIVE_UP_S:
            try:
                right, code = self.good()
            except (raw.Closed, raw.RpcError, OSError):
                right, code = False, "closed"
                try:
                    self.connect()
                except (raw.Closed, raw.RpcError, OSError):  # the old daemon's last moments
                    time.sleep(0.01)
            if right and not code:
                said["good_us"] = (time.perf_counter() - start) * 1e6
                break
            codes.append(code or "wrong")
        return {**said, "failed_before_good": codes}


def culprit(path: str, uid: str) -> None:
    if int(uid):
        become(int(uid))
    its = Culprit(path)
    right, code = its.good()
    print(json.dumps({"right": right, "code": code}), flush=True)
    for line in sys.stdin:
        print(json.dumps(its.do_harm(line.strip())), flush=True)


# ---- all of them ----


class Heard:
    """The reports of the clients that work, added up."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []  # the role of each, and its report
        self.reconnects = 0

    def add(self, role: str, said: dict[str, Any]) -> None:
        self.said.append((role, said))

    def waits_us(self, *, of_kernels: bool) -> list[float]:
        """The longest of each for a right answer: of those that launch kernels, or of the others."""
        return [said["longest_us"] for role, said in self.said if (role == "kernel") == of_kernels]

    def calls_us(self) -> list[float]:
        """The latest calls of each that launches no kernels."""
        return [us for role, said in self.said if role != "kernel" for us in said["us"]]

    def sum(self, name: str) -> Any:
        return sum(said[name] for _, said in self.said)

    @property
    def trouble(self) -> int:
        return int(self.sum("errors") + self.sum("wrong") + self.reconnects)

    def stalled_percent(self) -> float:
        return float(100 * self.sum("stalled_us") / self.sum("elapsed_us"))

    def detail(self) -> dict[str, Any]:
        return {
            "calls_of_others": self.sum("calls"),
            "errors_of_others": self.sum("errors"),
            "first_errors": [f"{role}: {said['first_error']}" for role, said in self.said if said["first_error"]][:5],
            "wrong_answers": self.sum("wrong"),
            "connections_anew": self.reconnects,
            "stalled_percent": self.stalled_percent(),
        }


def wait_for_spares(stats: Callable[[], dict[str, Any]], spares: int) -> None:
    """Until so many executors are ready and have no user, and none starts or ends. `stats` asks the daemon for its statistics."""
    until = time.monotonic() + SPARES_S
    while time.monotonic() < until:
        states = [row["state"] if row["pid"] else "starting" for row in stats()["executors"]]
        if states.count("spare") >= spares and not {"starting", "ending"} & set(states):
            return
        time.sleep(0.005)
    raise RuntimeError(f"no {spares} spare executors within {SPARES_S:g} s: {states}")


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

    def _start(self, what: str, *arguments: str) -> Child:
        process = Child([sys.executable, "-m", "kopsbench.harm", *arguments], what, self.context.of_children())
        self.callback(process.end)
        return process

    def add_bystanders(self, roles: Iterable[str]) -> None:
        more = self.daemon.socket_path, self.gpu, str(STALL_US)
        made = [(role, self._start(f"the client that works ({role})", "working", role, *more)) for role in roles]
        for _, process in made:
            process.hear(READY_S)
        self.bystanders += made

    def add_culprit(self) -> Child:
        uid = CULPRIT_UID if os.getuid() == 0 else 0
        process = self._start("the client that does harm", "culprit", self.daemon.socket_path, str(uid))
        said = process.hear(READY_S)
        if not said["right"]:
            raise RuntimeError(f"the first launch of the client that does harm: {said}")
        return process

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

    def stats(self) -> Any:
        return self.control.call("stats")

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


def in_ms(samples_us: Iterable[float]) -> Summary:
    return summarise(us * 1e-3 for us in samples_us)


def bounded(name: str, unit: str, ours: Summary, detail: Any, target: float | None = None, statistic: Any = "p50") -> Record:
    """A record whose target bounds our own number."""
    return Record(name, unit, "lower", ours, None, detail, target, absolute=True, statistic=statistic)


def counted(name: str, unit: str, n: float, detail: Any, target: float | None = None) -> Record:
    return bounded(name, unit, Summary(n, n, 1, max=n), detail, target)


if __name__ == "__main__":
    {"working": working, "culprit": culprit}[sys.argv[1]](*sys.argv[2:])
