"""Clients of the model test that do not wait: many requests under way at once, good and bad ones, by socket and by ring, on
streams of their own, with connections that end at any time and faults of the driver.

Which request takes effect is known from its reply only: the defined results are compared with NumPy, and the others must be
answered.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_machine import LAUNCH_OUT_OF_RESOURCES, OUT_OF_MEMORY
from standin_cuda.control import Control, Fault
from support import backends, memfd, proc, raw
from support.cuda_exporter import Exporter
from support.daemon import Daemon, binary
from support.ring import Ring
from test_ordered import FAR_END, Timelines
from user_kernels import ADD, ADD_PARAMS, ARCH, CUSTOM_PARAMS, OTHERS

LENGTH, PER_STREAM, STREAMS, IN_FLIGHT = 48, 5, 3, 48
COUNT = PER_STREAM * STREAMS
NEVER_BEGAN = {"unknown_program", "unknown_buffer", "unknown_op", "invalid_argument", "unsupported", "quota_exceeded"}
NEVER_BEGAN |= {"unknown_kernel", "overlap"}
ODD = [None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 1.5, float("nan"), "", "high", b"", [], {}, [[]], [0] * 5000]


FAULTS = [
    ("cuLaunchKernel", LAUNCH_OUT_OF_RESOURCES),
    ("cuGraphInstantiateWithFlags", OUT_OF_MEMORY),
    ("cuStreamBeginCapture", LAUNCH_OUT_OF_RESOURCES),
    ("cuModuleLoadData", OUT_OF_MEMORY),
]
requested: Counter[str] = Counter()


class HostSlab:
    """A client's vectors in shared memory."""

    def __init__(self, client: Pipelined) -> None:
        self.shared = memfd.Shared(4 * COUNT * LENGTH)
        self.buffer = client.connection.register(self.shared)
        self.array = self.shared.view(np.float32, COUNT * LENGTH)

    def read(self) -> np.ndarray:
        return self.array.copy().reshape(COUNT, LENGTH)

    def write(self, values: np.ndarray) -> None:
        self.array[:] = values.ravel()


class DeviceSlab:
    """The same on the GPU that is none."""

    def __init__(self, client: Pipelined, exporter: Exporter) -> None:
        self.memory = exporter.alloc(4 * COUNT * LENGTH)
        self.buffer = client.connection.call("register", self.memory.register_params())["buffer"]

    def read(self) -> np.ndarray:
        return np.frombuffer(self.memory.read(self.memory.size), np.float32).reshape(COUNT, LENGTH)

    def write(self, values: np.ndarray) -> None:
        self.memory.write(values.astype(np.float32).tobytes())


# A client that says a wrong stream has its own vectors written by two streams at once, which is its own fault.
NO_RACES = b"__tsan_init" in binary().read_bytes()

Steps = list[tuple[str, list[int], int]]  # what, vectors read, vector written
MEANING: dict[str, Callable[..., np.ndarray]] = {
    "square": lambda a: a * a,
    "add": lambda a, b: a + b,
    "custom_kernel": lambda a: 2 * a,
    "add2_kernel": lambda a, b: a + b,
}
SOURCES = {"custom_kernel": OTHERS, "add2_kernel": ADD}
PARAMS = {"custom_kernel": CUSTOM_PARAMS, "add2_kernel": ADD_PARAMS}


class Pipelined:
    """One connection. What it sends on a stream works on that stream's vectors alone, so that the order is known."""

    def __init__(self, daemon: Daemon, rng: random.Random, exporter: Exporter | None, spare: int) -> None:
        self.rng = rng
        self.careless = rng.random() < 0.5 and not NO_RACES
        self.connection = daemon.connect()
        self.ring = Ring(self.connection) if rng.random() < 0.5 else None
        self.spare = spare  # buffers that it may have beside its vectors
        self.slab = DeviceSlab(self, exporter) if exporter else HostSlab(self)
        self.device = exporter.device if exporter else "host"
        self.page = Timelines(self.connection) if exporter else None
        self.ready, self.done = [0] * STREAMS, [0] * STREAMS
        self.programs: list[tuple[int, int, Steps]] = []  # id, stream, what it does
        self.spare_buffers: list[int] = []
        self.modules: list[tuple[str, int]] = []
        self.kernels: dict[str, list[int]] = {name: [] for name in SOURCES}
        self.sent: list[tuple[int, Steps | None]] = []  # None: no effect on the vectors
        self.words: dict[int, tuple[int, int]] = {}  # by msgid: stream, done value
        self.tainted = False  # something odd was sent that may have worked
        if self.page and backends.nvrtc() and rng.random() < 0.7:
            for name in SOURCES:
                self.define_kernel(name, {"source": SOURCES[name], "entries": [name]})
        self.refill()

    def refill(self) -> None:
        self.mirror = np.random.default_rng(self.rng.randrange(1 << 32)).integers(1, 5, (COUNT, LENGTH)).astype(np.float32)
        self.slab.write(self.mirror)

    # ---- messages ----

    def request(self, method: str, params: dict[str, Any]) -> int:
        requested[method] += 1
        return (self.ring or self.connection).request(method, params)

    def reply(self, msgid: int) -> raw.Reply:
        return (self.ring or self.connection).reply(msgid)

    def close(self) -> None:
        if self.ring:
            self.ring.close()
        self.connection.close()

    # ---- parts of requests ----

    def vector(self, index: int) -> dict[str, Any]:
        view = raw.tensor(self.slab.buffer, [LENGTH], offset=4 * LENGTH * index)
        if isinstance(self.slab, DeviceSlab) and self.rng.random() < 0.2:
            view = self.slab.memory.inline([LENGTH], offset=4 * LENGTH * index)
        return view

    def steps(self, stream: int, most: int) -> Steps:
        of = range(stream * PER_STREAM, (stream + 1) * PER_STREAM)
        steps: Steps = []
        for _ in range(self.rng.randint(1, most)):
            what = self.rng.choice([name for name in MEANING if self.kernels.get(name, True)])
            ins = [self.rng.choice(of) for _ in range(2 if "add" in what else 1)]
            out = self.rng.choice([i for i in of if what not in SOURCES or i not in ins])
            steps.append((what, ins, out))
        return steps

    def call(self, what: str, ins: list[Any], out: Any) -> dict[str, Any]:
        """What says that an op or a kernel is called: alone or in a sequence."""
        if what not in SOURCES:
            return {"op": what, "in": ins, "out": [out]}
        call = {"kernel": self.rng.choice(self.kernels[what]), "args": [out, *ins, LENGTH]}
        if self.rng.random() < 0.3:
            call.update(grid=[self.rng.choice([2, 3])], block=[64], shared=self.rng.choice([0, 16]))
        return call

    def body(self, stream: int, steps: Steps) -> dict[str, Any]:
        first = stream * PER_STREAM
        return {
            "tensors": [self.vector(first + i) for i in range(PER_STREAM)],
            "ops": [self.call(what, [i - first for i in ins], out - first) for what, ins, out in steps],
            **({"device": self.device} if self.rng.random() < 0.3 else {}),
        }

    def options(self, stream: int) -> dict[str, Any]:
        rng, options = self.rng, {"stream": stream, "timing": self.rng.random() < 0.5}
        if rng.random() < 0.3:
            options["priority"] = rng.choice(["low", "normal", "high"])
        if rng.random() < 0.1:
            options["deadline_ms"] = rng.choice([1, 5, 100000])
        if rng.random() < 0.1:
            options["repeat"] = rng.choice([2, 3, 50])
        if self.page and rng.random() < 0.5:
            self.ready[stream] += rng.randint(1, 3)
            options["ready"] = self.ready[stream]
        if self.page and rng.random() < 0.5:
            self.done[stream] += rng.randint(1, 3)
            options["done"] = self.done[stream]
        return options

    def spoil(self, params: dict[str, Any]) -> dict[str, Any]:
        """Changes something somewhere."""
        rng, params = self.rng, dict(params)
        at: Any = params
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
                at[key] = at[key].copy()
                at = at[key]
                continue
            how = rng.random()
            if how < 0.2:
                del at[key]
            elif how < 0.3 and isinstance(at, dict):
                at[rng.choice(["nosuch", "priority", "ready", "done", "stream", "bind", "repeat"])] = rng.choice(ODD)
            else:
                at[key] = rng.choice(ODD)
            break
        return params

    # ---- what a client does ----

    def submit(self, method: str, params: dict[str, Any], steps: Steps | None) -> None:
        if self.careless and self.rng.random() < 0.3:
            params, self.tainted = self.spoil(params), True
        msgid = self.request(method, params)
        self.sent.append((msgid, steps))
        if not self.tainted and "done" in params:
            self.words[msgid] = params["stream"], params["done"]

    def run(self) -> None:
        stream = self.rng.randrange(STREAMS)
        ((what, ins, out),) = steps = self.steps(stream, 1)
        call = self.call(what, [self.vector(i) for i in ins], self.vector(out))
        self.submit("launch" if what in SOURCES else "run", {**call, **self.options(stream)}, steps)

    def sequence(self) -> None:
        stream = self.rng.randrange(STREAMS)
        steps = self.steps(stream, self.rng.choice([3, 3, 3, 12, 600]))
        self.submit("sequence", {**self.body(stream, steps), **self.options(stream)}, steps)

    def define(self) -> None:
        stream = self.rng.randrange(STREAMS)
        steps = self.steps(stream, self.rng.choice([1, 5, 5, 40]))
        params = self.body(stream, steps)
        if self.careless and self.rng.random() < 0.3:
            self.tainted = True
            params = self.spoil(params)
        reply = self.reply(self.request("program", params))
        if reply.error is None:
            self.programs.append((reply.result["program"], stream, steps))
        elif not self.tainted:
            assert reply.error["code"] == "quota_exceeded", reply.error

    def run_program(self) -> None:
        if not self.programs:
            return
        program, stream, steps = self.rng.choice(self.programs)
        bind, moved = [], {}
        for index in self.rng.sample(range(PER_STREAM), self.rng.choice([0, 0, 1, 2])):
            target = stream * PER_STREAM + self.rng.randrange(PER_STREAM)
            bind.append({"index": index, "buffer": self.slab.buffer, "offset": 4 * LENGTH * target})
            moved[stream * PER_STREAM + index] = target
        steps = [(what, [moved.get(i, i) for i in ins], moved.get(out, out)) for what, ins, out in steps]
        params = {"program": program, **self.options(stream), **({"bind": bind} if bind else {})}
        self.submit("run_program", params, steps)

    def cancel(self) -> None:
        if self.sent:
            self.request("cancel", {"msgid": self.rng.choice(self.sent)[0]})

    def buffers(self) -> None:
        """Registers another buffer, or releases one."""
        if self.spare_buffers and self.rng.random() < 0.6:
            buffer = self.spare_buffers.pop(self.rng.randrange(len(self.spare_buffers)))
            assert self.reply(self.request("release", {"buffer": buffer})).error is None or self.tainted
        elif len(self.spare_buffers) < self.spare:
            self.spare_buffers.append(self.connection.register(memfd.Shared(4096)))

    def code(self) -> None:
        """Compiles, declares or releases, or does not wait to see what comes of it."""
        rng = self.rng
        name = rng.choice(list(SOURCES))
        source = {"source": f"{SOURCES[name]}// {rng.randrange(3)}\n", "entries": [name]}
        if not self.page:
            self.sent.append((self.request("compile", {**source, "arch": ARCH}), None))
        elif rng.random() < 0.15:
            self.sent.append((self.request("compile", {**source, "options": [f"-DNEW={rng.randrange(1000)}"]}), None))
        elif rng.random() < 0.3 and self.modules:
            self.request("release", {"module": self.modules.pop(rng.randrange(len(self.modules)))[1]})
        elif rng.random() < 0.3 and self.kernels[name]:
            self.request("release", {"kernel": self.kernels[name].pop()})
        elif len(self.modules) < 5:
            self.define_kernel(name, source)

    def define_kernel(self, name: str, source: dict[str, Any]) -> None:
        """What is compiled, loaded or known already is declared once more."""
        reply = self.reply(self.request("compile", source))
        if reply.error is not None:
            assert reply.error["code"] == "out_of_memory", reply.error  # of the GPU: a fault of the stand-in's
            return
        self.modules.append((name, reply.result["module"]))
        name, module = self.rng.choice(self.modules)
        params = {"module": module, "entry": name, "params": PARAMS[name], "grid": ["ceil_div(n, 32)"], "block": [32]}
        if self.careless and self.rng.random() < 0.3:
            params, self.tainted = self.spoil(params), True
        reply = self.reply(self.request("kernel", params))
        assert reply.error is None or self.tainted, reply.error
        if reply.error is None and not self.tainted:
            self.kernels[name].append(reply.result["kernel"])

    def forget(self) -> None:
        if self.programs:
            program = self.programs.pop(self.rng.randrange(len(self.programs)))
            self.request("release", {"program": program[0]})

    def other(self) -> None:
        method = self.rng.choice(["trim", "stats", "ping", "hello", "nosuch", "cancel", "release", "run_program", "timelines"])
        if method == "run_program" and NO_RACES:
            return
        self.tainted = self.tainted or method in ("release", "run_program")
        msgid = self.request(method, {self.rng.choice(["msgid", "program", "buffer", "x"]): self.rng.choice(ODD)})
        if method == "timelines":
            self.reach()  # a reply with descriptors is taken in order
            for fd in self.reply(msgid).fds:
                os.close(fd)

    def some_words(self) -> None:
        if self.page:
            stream = self.rng.randrange(STREAMS)
            self.page.reach(stream, self.rng.randint(int(self.page.words[stream]), max(self.ready[stream], int(self.page.words[stream]))))

    def reach(self) -> None:
        for stream in range(self.page.streams if self.page else 0):
            self.page.reach(stream, FAR_END - 1 if self.tainted else self.ready[stream] if stream < STREAMS else 0)

    def settle(self) -> None:
        """Everything is answered, and the memory is what the answers say."""
        self.reach()
        known = np.ones(COUNT, bool)
        history = []
        for msgid, steps in self.sent:
            error = self.reply(msgid).error
            history.append((msgid, error and error["code"], steps))
            for what, ins, out in steps or []:
                if error is None:
                    self.mirror[out] = MEANING[what](*self.mirror[ins])
                    known[out] = known[ins].all()
                elif error["code"] not in NEVER_BEGAN:
                    known[out] = False
            if error is not None and error["detail"].get("key") in ("ready", "done"):
                self.words.pop(msgid, None)
        if not self.tainted:
            got = self.slab.read()
            wrong = [i for i in range(COUNT) if known[i] and (got[i] != self.mirror[i]).any()]
            assert not wrong, f"vectors {wrong} after {history}"
            for stream, done in self.words.values():
                assert self.page and self.page.done(stream) >= done
        assert self.reply(self.request("ping", {"a": 1})).get() == {"a": 1}
        self.sent.clear()
        self.words.clear()
        self.refill()


ACTIONS: list[tuple[Callable[[Pipelined], None], int]] = [
    (Pipelined.run, 6),
    (Pipelined.sequence, 4),
    (Pipelined.define, 3),
    (Pipelined.run_program, 6),
    (Pipelined.cancel, 2),
    (Pipelined.buffers, 1),
    (Pipelined.code, 3),
    (Pipelined.forget, 1),
    (Pipelined.other, 1),
    (Pipelined.some_words, 4),
    (Pipelined.settle, 1),
]


class Burst:
    """Some of them at once, for some steps. `noticed` waits until the daemon knows how many of them there are."""

    def __init__(
        self, daemon: Daemon, rng: random.Random, exporter: Exporter | None, control: Control | None, noticed: Callable[[int], None]
    ) -> None:
        self.daemon, self.rng, self.exporter, self.control, self.noticed = daemon, rng, exporter, control, noticed
        self.clients: list[Pipelined] = []
        self.faults: list[Fault] = []
        compiles = backends.nvrtc() is not None
        self.actions, self.weights = zip(*(a for a in ACTIONS if compiles or a[0] is not Pipelined.code), strict=True)

    def leave(self, client: Pipelined) -> None:
        client.close()
        self.clients.remove(client)
        self.noticed(len(self.clients))

    def repair(self) -> None:
        for armed in self.faults:
            armed.disarm()
        self.faults.clear()

    def step(self, most: int, spare: int) -> None:
        rng = self.rng
        if len(self.clients) < most and (not self.clients or rng.random() < 0.2):
            self.clients.append(Pipelined(self.daemon, rng, self.exporter, spare))
        client = rng.choice(self.clients)
        rng.choices(self.actions, self.weights)[0](client)
        if len(client.sent) > IN_FLIGHT:
            client.settle()
        if rng.random() < 0.03 or (client.tainted and not client.sent):
            self.leave(client)
        if self.control and rng.random() < 0.02:
            for pid in proc.executors(self.daemon.pid):
                if rng.random() < 0.5:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        if self.control and rng.random() < 0.02:
            self.repair()
            self.faults.append(self.control.fail(*rng.choice(FAULTS), pid=self.daemon.gpu_pid))

    def run(self, steps: int, most: int, spare: int) -> None:
        """At most so many at once, with so many buffers beside their vectors each."""
        with np.errstate(over="ignore"):
            try:
                for _ in range(steps):
                    self.step(most, spare)
                for client in self.clients:
                    client.settle()
            finally:
                self.repair()
                for client in self.clients:
                    client.close()
                self.clients.clear()
                self.noticed(0)
