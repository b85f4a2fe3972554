"""Random sequences of every method, good and bad, on several connections, beside a model of what should come of them.

KOPS_MODEL_STEPS is how many steps are made, in runs of STEPS_OF_A_RUN; without it a few, always the same ones. Clients that do not
wait for replies are those of tests/soak and tests/simulation.
KOPS_TEST_BACKEND says what the daemon has: on a GPU the same memory is staged.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import golden
import numpy as np
import pytest
from arrays import BACKEND
from gpu_machine import Machine as GpuMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from model import NEW_WORK, Client, Memory, Program, Step, View, body, bound, carry_out, refill, tensors_of
from standin_cuda.control import Control
from support import backends, memfd, proc, raw, records
from support.daemon import Daemon
from support.kernels import CUSTOM_PARAMS, HOSTILE_PARAMS, OTHERS

Params = dict[str, Any]
Fault = tuple[Callable[[Params], None], str]


def put(key: str, value: Any) -> Callable[[Params], None]:
    return lambda params: params.__setitem__(key, value)


def drop(key: str) -> Callable[[Params], None]:
    return lambda params: params.__delitem__(key)


def shaped(shape: list[int]) -> Callable[[Params], None]:
    """Row-major, whatever it was."""

    def act(params: Params) -> None:
        params["shape"] = shape
        params.pop("strides", None)

    return act


def attribute(name: str, value: Any) -> Callable[[Params], None]:
    return lambda params: params.__setitem__("attrs", {**params.get("attrs", {}), name: value})


def of_first(name: str, change: Callable[[Params], None]) -> Callable[[Params], None]:
    """In a copy of the first map of a list."""

    def act(params: Params) -> None:
        params[name] = [dict(params[name][0]), *params[name][1:]]
        change(params[name][0])

    return act


OPTIONS: list[Fault] = [
    (put("colour", 1), "unknown_key"),
    (put("stream", "0"), "wrong_type"),
    (put("stream", 256), "out_of_range"),
    (put("stream", -1), "out_of_range"),
    (put("repeat", 0), "out_of_range"),
    (put("warmup", 10001), "out_of_range"),
    (put("deadline_ms", 0), "out_of_range"),
    (put("priority", "urgent"), "invalid_argument"),
    (put("timing", 1), "wrong_type"),
    (put("ready", 0), "out_of_range"),
]
BODY: list[Fault] = [
    (drop("tensors"), "missing_key"),
    (drop("ops"), "missing_key"),
    (put("ops", []), "invalid_argument"),
    (put("tensors", {}), "wrong_type"),
    (put("device", 99), "unknown_device"),
    (of_first("ops", put("op", "cube")), "unknown_op"),
    (of_first("ops", put("op", 7)), "wrong_type"),
    (of_first("ops", put("in", [])), "invalid_argument"),
    (of_first("ops", put("out", [5000])), "out_of_range"),
    (of_first("ops", put("colour", 0)), "unknown_key"),
    (of_first("ops", attribute("nosuch", 1)), "unknown_key"),
]
# Of the first input of a run, which has elements.
TENSOR: list[Fault] = [
    (put("buffer", 2**40), "unknown_buffer"),
    (put("buffer", "1"), "wrong_type"),
    (drop("buffer"), "missing_key"),
    (drop("shape"), "missing_key"),
    (put("dtype", "bool"), "unknown_dtype"),
    (put("dtype", "f12"), "unknown_dtype"),
    (put("offset", 1 << 40), "out_of_bounds"),
    (put("offset", 2**63), "out_of_range"),
    (shaped([-1]), "out_of_range"),
    (shaped([1] * 9), "limit_exceeded"),
    (shaped([2**62, 2**62]), "out_of_range"),
    (put("strides", [1] * 5), "invalid_argument"),
    (put("colour", 1), "unknown_key"),
]
RUN: list[Fault] = [
    *OPTIONS,
    *((of_first("in", change), code) for change, code in TENSOR),
    (put("op", "cube"), "unknown_op"),
    (put("op", 1), "wrong_type"),
    (drop("op"), "missing_key"),
    (drop("in"), "missing_key"),
    (drop("out"), "missing_key"),
    (put("in", []), "invalid_argument"),
    (lambda params: params.__setitem__("in", params["in"] * 3), "limit_exceeded"),
    (put("device", 99), "unknown_device"),
    (put("device", "GPU-none"), "unknown_device"),
    (attribute("nosuch", 1), "unknown_key"),
    (attribute("variant", "nosuch"), "invalid_argument"),
    (put("attrs", []), "wrong_type"),
]
FAULTS: dict[str, list[Fault]] = {
    "run": RUN,
    "sequence": [*OPTIONS, *BODY],
    "program": [(put("colour", 1), "unknown_key"), *BODY],
    "run_program": [
        *OPTIONS,
        (put("program", 2**40), "unknown_program"),
        (drop("program"), "missing_key"),
        (put("program", "1"), "wrong_type"),
        (put("bind", [{"index": 5000, "buffer": 1}]), "invalid_argument"),
        (put("bind", [{"buffer": 1}]), "missing_key"),
        (put("bind", [{"index": 0, "buffer": 2**40}]), "unknown_buffer"),
    ],
}

# Whole requests, of nobody's memory.
OF_THE_GOLDEN = ("no_such_method", "hello", "alloc", "release", "ping", "cancel", "stats", "drain", "trim", "trace", "tuning")


def whole(vector: dict[str, Any]) -> bool:
    """Nothing of it is bytes, or says more than a map can, or depends on how the daemon isolates."""
    _, _, method, params = vector["message"]
    plain = "fds" not in vector and vector["canonical"] and "$" not in str(params) and "isolate" not in str(params)
    return plain and method in OF_THE_GOLDEN and isinstance(params, list) and list(map(type, params)) == [dict]


SINGLE: list[tuple[str, Params, str]] = [
    (v["message"][2], v["message"][3][0], v["expect"]["code"]) for v in golden.load("request_errors") if whole(v)
] + [
    ("release", {"program": 2**40}, "unknown_program"),
    ("release", {"module": 2**40}, "unknown_kernel"),
    ("release", {"kernel": 2**40}, "unknown_kernel"),
    ("stats", {"op": "nosuch"}, "unknown_op"),
    ("clients", {"colour": 1}, "unknown_key"),
    ("metrics", {"colour": 1}, "unknown_key"),
    ("drain", {"timeout_ms": "1"}, "wrong_type"),
    ("cache", {}, "missing_key"),
    ("cache", {"action": "nosuch"}, "invalid_argument"),
    ("timelines", {"colour": 1}, "unknown_key"),
    ("compile", {"source": ""}, "missing_key"),
    ("kernel", {"module": 2**40, "entry": "f", "params": []}, "unknown_kernel"),
    ("kernel", {"entry": "f", "params": []}, "missing_key"),
    ("launch", {"kernel": 2**40, "args": []}, "unknown_kernel"),
    ("launch", {"kernel": 1}, "missing_key"),
]
# After which a connection is closed.
VIOLATIONS: list[bytes] = [v["bytes"] for v in golden.load("invalid") if v["expect"]["kind"] == "close" and "fds" not in v]


BUFFERS, CONNECTIONS, ALLOCATED_MIB = 12, 6, 8
CONFIG = f"""[quota]
buffers = {BUFFERS}
connections = {CONNECTIONS}
allocated_mib = {ALLOCATED_MIB}
[kernels]
keep_s = 1
"""
SEEDS = st.integers(0, 2**32 - 1)
VALUES = st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.none()

executed: Counter[str] = Counter()
answers: Counter[str] = Counter()
made: Counter[str] = Counter()


class Base(RuleBasedStateMachine):
    """A daemon, as its clients see it: who is connected, what memory there is, and what is wrong by itself. Each rule is one or several
    requests of one client."""

    daemon: Daemon  # set before it is run
    control: Control | None = None  # of the stand-in driver, where there is one

    @initialize()
    def begin(self) -> None:
        self.clients: list[Client] = []
        self.draining = False
        self.named = 0
        self.watch = self.daemon.connect()
        self.hello = self.watch.call("hello", {"client": "watch"})
        self.names = {device["uuid"] for device in self.hello["devices"]}
        self.settled()
        self.join(0)
        self.register(0)
        self.register(1)

    def teardown(self) -> None:
        if isinstance(sys.exc_info()[1], (AssertionError, raw.RpcError, raw.Closed, OSError)):
            traceback.print_exc()  # hypothesis keeps to itself what does not happen again
        if not hasattr(self, "watch"):
            return
        try:
            if self.draining:
                self.watch.call("drain", {"resume": True})
            for client in self.clients:
                client.close()
            self.clients.clear()
            self.settled()
            assert self.watch.alive()
        finally:
            self.watch.close()

    # What is known

    def settled(self) -> None:
        """The daemon has noticed whoever went."""

        def rows() -> list[dict[str, Any]]:
            return [row for row in self.watch.call("clients")["clients"] if row["client"] != "watch"]

        proc.eventually(lambda: len(rows()) == len(self.clients), lambda: f"{len(self.clients)} clients, but {rows()}")

    def user(self) -> dict[str, Any]:
        """What the daemon counts for everybody here."""
        (row,) = [row for row in self.watch.call("clients")["users"] if row["uid"] == os.getuid()]
        return row

    @property
    def held(self) -> int:
        return sum(client.held for client in self.clients)

    def pick(self, rng: random.Random) -> Client:
        return rng.choice(self.clients)

    def device(self, rng: random.Random) -> dict[str, Any]:
        some = rng.choice([None, *self.hello["devices"]])
        return {} if some is None else {"device": rng.choice([some["uuid"], some["index"]])}

    def refused(self, error: raw.RpcError | dict[str, Any], *codes: str) -> None:
        code, detail, message = (
            (error["code"], error["detail"], error["message"])
            if isinstance(error, dict)
            else (error.code, error.detail, error.message)
        )
        assert code in codes, f"{code} ({message}) in place of {codes}"
        assert message
        if code == "quota_exceeded":
            assert detail["current"] >= 0 and detail["limit"] > 0
        if code == "shutting_down":
            assert detail["draining"] is True
        answers[code] += 1

    def ask(
        self, client: Client, method: str, params: dict[str, Any], fds: list[int] | None = None, bad: tuple[str, ...] = ()
    ) -> raw.Reply | None:
        """None: it was refused because the daemon drains, as all new work is, or for what is `bad` about it."""
        reply = client.connection.reply(client.connection.request(method, params, fds or []))
        executed[method] += 1
        if not (self.draining and method in NEW_WORK):
            answers["ok" if reply.error is None else "error"] += 1
            return reply
        assert reply.error is not None, f"{method} was accepted while the daemon drains"
        self.refused(reply.error, "shutting_down", *bad)
        return None

    # Connections

    @precondition(lambda self: len(self.clients) < CONNECTIONS)
    @rule(seed=SEEDS)
    def join(self, seed: int) -> None:
        executed["connect"] += 1
        connection = self.daemon.connect()
        if len(self.clients) + 1 == CONNECTIONS:  # the watching one is of the same user
            notification = connection.wait_closed()
            assert notification is not None
            self.refused(notification, "quota_exceeded")
            assert notification["detail"] == {"quota": "connections", "current": CONNECTIONS, "limit": CONNECTIONS}
            connection.close()
            return
        self.named += 1
        self.clients.append(Client(f"model-{self.named}", connection))

    @precondition(lambda self: len(self.clients) > 1)
    @rule(seed=SEEDS)
    def leave(self, seed: int) -> None:
        """Also with requests under way."""
        rng = random.Random(seed)
        client = self.pick(rng)
        executed["disconnect"] += 1
        for _ in range(rng.choice([0, 0, 1, 5])):
            step = client.step(rng, "f32")
            if step is not None:
                client.connection.request("run", step.wire())
        client.close()
        self.clients.remove(client)
        self.settled()

    @precondition(lambda self: len(self.clients) > 1)
    @rule(seed=SEEDS)
    def violate(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        executed["violation"] += 1
        client.connection.send(rng.choice(VIOLATIONS))
        notification = client.connection.wait_closed()
        assert notification is not None
        self.refused(notification, "protocol_error")
        client.close()
        self.clients.remove(client)
        self.settled()

    @rule(seed=SEEDS, sent=st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
    def ping(self, seed: int, sent: dict[str, Any]) -> None:
        sent.pop("nfds", None)
        reply = self.ask(self.pick(random.Random(seed)), "ping", sent)
        assert reply is not None and reply.get() == sent

    @rule(seed=SEEDS)
    def mistake(self, seed: int) -> None:
        """A request that is wrong by itself."""
        rng = random.Random(seed)
        method, params, code = rng.choice(SINGLE)
        reply = self.ask(self.pick(rng), method, params, bad=(code,))
        if reply is not None:
            assert reply.error is not None, f"{method} {params} was accepted"
            self.refused(reply.error, code)

    # Memory

    @rule(seed=SEEDS)
    def register(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        params, shared = client.register_params(rng)
        reply = self.ask(client, "register", params, [shared.fd])
        if reply is None:
            return
        if self.held >= BUFFERS:
            assert reply.error is not None and reply.error["detail"] == {"quota": "buffers", "current": BUFFERS, "limit": BUFFERS}
            self.refused(reply.error, "quota_exceeded")
        else:
            client.registered(params, shared, reply.get())

    @rule(seed=SEEDS)
    def alloc(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        size = rng.choice([1, 4096, 10000, 300_000, 3 << 20])
        used, limit, params = sum(c.allocated for c in self.clients), ALLOCATED_MIB << 20, {"size": size, **self.device(rng)}
        reply = self.ask(client, "alloc", params)
        if reply is None:
            return
        if reply.error is not None and reply.error["detail"].get("quota") == "allocated_bytes":
            # What was released counts until the daemon has let go of it.
            proc.eventually(lambda: self.user()["allocated_bytes"] == used, lambda: f"{used}, but {self.user()}")
            reply = client.connection.reply(client.connection.request("alloc", params))
        if reply.error is not None:
            self.refused(reply.error, "quota_exceeded")
            detail = reply.error["detail"]
            if detail["quota"] == "buffers":
                assert self.held == BUFFERS == detail["current"]
            else:
                assert (detail["quota"], detail["limit"]) == ("allocated_bytes", limit)
                assert detail["current"] == used
                assert used + size > limit - (2 << 20), "refused before it is too much"
        else:
            assert self.held < BUFFERS and reply.get()["size"] >= size
            client.allocated_memory(reply.get(), reply.fds)
            assert sum(c.allocated for c in self.clients) <= ALLOCATED_MIB << 20

    @rule(seed=SEEDS)
    def release(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        buffers = [*client.buffers, *client.opaque]
        if not buffers:
            return
        buffer = rng.choice(buffers)
        if rng.random() < 0.3:  # as a notification
            client.connection.send(raw.pack([2, "release", [{"buffer": buffer}]]))
            client.connection.call("hello", {"client": client.name})
            executed["release"] += 1
        else:
            reply = self.ask(client, "release", {"buffer": buffer})
            assert reply is not None and reply.get() == {}
        client.released(buffer)

    @rule(seed=SEEDS)
    def release_what_is_gone(self, seed: int) -> None:
        """Never given out, released before, or another connection's."""
        rng = random.Random(seed)
        client = self.pick(rng)
        foreign = {buffer for other in self.clients for buffer in other.buffers} - client.buffers.keys() - client.opaque.keys()
        reply = self.ask(client, "release", {"buffer": rng.choice([*client.gone, *sorted(foreign)])})
        assert reply is not None and reply.error is not None
        self.refused(reply.error, "unknown_buffer")

    @invariant()
    def nothing_else_was_written(self) -> None:
        made["steps"] += 1
        for client in getattr(self, "clients", ()):
            for memory in client.buffers.values():
                memory.check()


OWN_EXECUTORS = BACKEND == backends.STANDIN and os.environ.get("KOPS_TEST_ISOLATE") != "none"
KERNELS = {"custom_kernel": CUSTOM_PARAMS, "fault_kernel": HOSTILE_PARAMS["fault_kernel"], "spin_forever": HOSTILE_PARAMS["spin_forever"]}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # one that was about to end


class Executors(Base):
    """Rules of a machine with a stand-in driver: faults, hangs, and executors that are killed. Only what says so fails. Every id, buffer
    and program stays what it is, and memory too, but for the outputs of what failed."""

    killed = False  # an executor, since the last launch

    def kernels(self, client: Client) -> dict[str, int]:
        """Of its own, made when they are first needed: from then on its work has an executor of its own, or its user's."""
        if not client.own:
            compiled = client.connection.call("compile", {"source": OTHERS, "entries": list(KERNELS)})
            for entry, params in KERNELS.items():
                params = {"module": compiled["module"], "entry": entry, "params": params, "grid": [1], "block": [64]}
                client.own[entry] = client.connection.call("kernel", params)["kernel"]
        return client.own

    def two_views(self, client: Client, rng: random.Random) -> tuple[View, View] | None:
        """One to write, one to read, with numbers."""
        writable = [memory for memory in client.roomy() if memory.access == "rw"]
        if not writable:
            return None
        memory: Memory = rng.choice(writable)
        out, read = (View(memory, slot * 1024, (64,), None, "f32") for slot in rng.sample(range(4), 2))
        for view in (out, read):
            view.fill(rng)
        return out, read

    def launch(self, client: Client, kernel: int, factor: int, rng: random.Random) -> None:
        """A kernel that multiplies 64 numbers."""
        views = self.two_views(client, rng)
        if views is None:
            return
        out, read = views
        reply = self.ask(client, "launch", {"kernel": kernel, "args": [out.wire(), read.wire(), 64]})
        assert reply is not None
        if reply.error is not None and self.killed:  # while the daemon did not know of it: what came of the kernel is not known
            self.refused(reply.error, "device_lost")
            out.numbers[...] = out.of(out.memory.data)
        else:
            assert reply.get()["device"] in self.names
            out.numbers[...] = factor * read.numbers
            out.settle()
        self.killed = False
        out.memory.check()

    @precondition(lambda self: OWN_EXECUTORS and not self.draining)
    @rule(seed=SEEDS)
    def launch_own(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        self.launch(client, self.kernels(client)["custom_kernel"], 2, rng)

    @precondition(lambda self: OWN_EXECUTORS and not self.draining)
    @rule(seed=SEEDS)
    def fault(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        views = self.two_views(client, rng)
        if views is None:
            return
        reply = self.ask(client, "launch", {"kernel": self.kernels(client)["fault_kernel"], "args": [views[0].wire()]})
        assert reply is not None and reply.error is not None
        # Killed while the daemon did not know of it: what came of the kernel is not known.
        self.refused(reply.error, "device_fault", *(["device_lost"] if self.killed else []))
        self.killed = False
        views[0].memory.check()

    @precondition(lambda self: OWN_EXECUTORS and not self.draining)
    @rule(seed=SEEDS)
    def hang(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        views = self.two_views(client, rng)
        if views is None:
            return
        params: dict[str, Any] = {"kernel": self.kernels(client)["spin_forever"], "args": [views[0].wire()]}
        if rng.random() < 0.3:
            # What runs by then goes on until its deadline.
            msgid = client.connection.request("launch", {**params, "deadline_ms": 2000})
            executed.update(["launch", "cancel"])
            assert client.connection.call("cancel", {"msgid": msgid}) == {"cancelled": True}
            reply = client.connection.reply(msgid)
            code = "cancelled"
        else:
            reply = self.ask(client, "launch", {**params, "deadline_ms": rng.choice([1, 20])})
            code = "deadline_exceeded"
        assert reply is not None and reply.error is not None
        self.refused(reply.error, code)
        views[0].memory.check()

    def executors(self) -> list[int]:
        return sorted(proc.executors(self.daemon.pid))

    @precondition(lambda self: self.control is not None)
    @rule(seed=SEEDS)
    def replace(self, seed: int) -> None:
        """Some executors end while nobody asks for anything."""
        rng = random.Random(seed)
        pids = self.executors()
        for pid in rng.sample(pids, rng.randint(0, len(pids))):
            executed["kill"] += 1
            kill(pid)
            self.killed = True

    @precondition(lambda self: self.control is not None and not self.draining)
    @rule(seed=SEEDS)
    def replace_at_work(self, seed: int) -> None:
        """The executor ends in the middle of an op, which is done all the same if that gives the same."""
        rng = random.Random(seed)
        client = self.pick(rng)
        step = client.step(rng)
        gpu = [device["uuid"] for device in self.hello["devices"] if device["backend"] == "cuda"]
        if step is None or not gpu:
            return
        assert self.control is not None
        control = self.control
        with control.gate("kernel"):
            msgid = client.connection.request("run", {**step.wire(), "device": gpu[0]})
            executed.update(["run", "kill"])
            # An op on nothing needs no executor.
            proc.eventually(lambda: control.waiting("kernel") > 0 or client.connection.readable(0), "it runs, or has ended")
            for row in control.rows():
                if row.waiting("kernel"):
                    kill(row.pid)
                    lost = step.reads_what_it_writes
                    break
            else:
                lost = False
        reply = client.connection.reply(msgid)
        if not lost:
            reply.get()
            carry_out([step])
        else:
            assert reply.error is not None, f"{step} was done again"
            self.refused(reply.error, "device_lost")
            step.out.memory.check()


LONG = "KOPS_MODEL_STEPS" in os.environ
STEPS = int(os.environ.get("KOPS_MODEL_STEPS", "1500"))
STEPS_OF_A_RUN = 50
MUST_END = {"live_ipc_mappings", "live_host_registrations", "live_graphs", "live_graph_execs", "live_captures"}


class Machine(Executors):
    """Work, and watching it."""

    # Work

    def options(self, rng: random.Random, steps: list[Step]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["stream"] = rng.choice([0, 1, 7, 255])
        if rng.random() < 0.5:
            options["timing"] = rng.random() < 0.5
        if rng.random() < 0.2:
            options["priority"] = rng.choice(["low", "normal", "high"])
        if rng.random() < 0.1:
            options["deadline_ms"] = 86400000
        if len(steps) == 1 and not steps[0].reads_what_it_writes and rng.random() < 0.3:
            options["repeat"], options["warmup"] = rng.choice([1, 2, 20]), rng.choice([0, 3])
        return options

    def answered(self, reply: Any, options: dict[str, Any]) -> None:
        assert reply["device"] in self.names
        timings = reply["timings"]
        assert all(value >= 0 for value in timings.values() if isinstance(value, float))
        assert len(timings.get("samples", [None] * options.get("repeat", 1))) == options.get("repeat", 1)

    @rule(seed=SEEDS)
    def run(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        step = client.step(rng)
        if step is None:
            return
        options = {**self.options(rng, [step]), **self.device(rng)}
        reply = self.ask(client, "run", {**step.wire(), **options})
        if reply is not None:
            self.answered(reply.get(), options)
            carry_out([step])

    @rule(seed=SEEDS)
    def sequence(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        steps = client.steps(rng, rng.randint(1, 4))
        if not steps:
            return
        options = {**self.options(rng, steps), **self.device(rng)}
        reply = self.ask(client, "sequence", {**body(steps), **options})
        if reply is not None:
            self.answered(reply.get(), options)
            assert len(reply.get()["variants"]) == len(steps)
            carry_out(steps)

    @rule(seed=SEEDS)
    def program(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        steps = client.steps(rng, rng.randint(1, 4))
        if not steps:
            return
        reply = self.ask(client, "program", {**body(steps), **self.device(rng)})
        if reply is None:
            return
        made = reply.get()["program"]
        assert made not in client.programs
        client.programs[made] = Program(made, tensors_of(steps), steps)
        for step in steps:
            step.out.memory.check()

    @rule(seed=SEEDS)
    def run_program(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        if not client.programs:
            return
        program = rng.choice(list(client.programs.values()))
        options = self.options(rng, [])
        params: dict[str, Any] = {"program": program.id, **options}
        if client.missing(program):
            reply = self.ask(client, "run_program", params)
            if reply is not None:
                assert reply.error is not None
                self.refused(reply.error, "unknown_buffer")
            return
        free = [m for m in client.roomy() if m.access == "rw" and not any(view.memory is m for view in program.tensors)]
        if free and rng.random() < 0.5:
            index = rng.choice([i for i, view in enumerate(program.tensors) if view.count] or [0])
            if program.tensors[index].count:
                offset = rng.choice([0, 1024 // 4 * 4])
                with bound(program, index, rng.choice(free), offset) as binding:
                    self.run_bound(client, program, {**params, "bind": [binding]}, rng)
                return
        self.run_bound(client, program, params, rng)

    def run_bound(self, client: Client, program: Program, params: dict[str, Any], rng: random.Random) -> None:
        refill(program.steps, rng)
        reply = self.ask(client, "run_program", params)
        if reply is not None:
            self.answered(reply.get(), params)
            carry_out(program.steps)

    @rule(seed=SEEDS)
    def release_program(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        if client.programs:
            program = rng.choice(list(client.programs))
            reply = self.ask(client, "release", {"program": program})
            assert reply is not None and reply.get() == {}
            del client.programs[program]
            again = self.ask(client, "run_program", {"program": program})
            if again is not None:
                assert again.error is not None
                self.refused(again.error, "unknown_program")

    @precondition(lambda self: not self.draining)
    @rule(seed=SEEDS)
    def work_badly(self, seed: int) -> None:
        """A good request with something wrong in it: refused with the reason, nothing is written."""
        rng = random.Random(seed)
        client = self.pick(rng)
        steps = client.steps(rng, rng.randint(1, 3))
        steps = [step for step in steps if all(view.count for view in step.views)]
        if not steps:
            return
        method = rng.choice(list(FAULTS))
        params = dict(steps[0].wire()) if method == "run" else body(steps)
        if method == "run_program":
            whole = [program.id for program in client.programs.values() if not client.missing(program)]
            if not whole:
                return
            params = {"program": rng.choice(whole)}
        change, code = rng.choice(FAULTS[method])
        change(params)
        reply = self.ask(client, method, params)
        assert reply is not None and reply.error is not None, f"{method} {params} was accepted"
        self.refused(reply.error, code)
        for memory in client.buffers.values():
            memory.check()

    @precondition(lambda self: not self.draining)
    @rule(seed=SEEDS)
    def pipeline(self, seed: int) -> None:
        """Several requests before the first reply: they take effect in order, the bad ones not at all."""
        rng = random.Random(seed)
        client = self.pick(rng)
        work = [[step] for step in client.steps(rng, rng.randint(2, 6))]  # whose numbers are there before the first is sent
        sent: list[tuple[int, list[Step], str | None]] = []
        stream = rng.choice([0, 1, 255])
        for steps in work:
            method = rng.choice(["run", "sequence"])
            how = {"stream": stream, "priority": rng.choice(["low", "normal", "high"]), "timing": rng.random() < 0.5}
            params = {**(steps[0].wire() if method == "run" else body(steps)), **how}
            code = None
            if rng.random() < 0.2 and all(view.count for view in steps[0].views):
                change, code = rng.choice(FAULTS[method])
                change(params)
            sent.append((client.connection.request(method, params), steps, code))
            executed[method] += 1
            if rng.random() < 0.2:
                sent.append((client.connection.request("ping", {}), [], None))
        right: list[Step] = []
        for msgid, steps, code in sent:
            reply = client.connection.reply(msgid)
            if code is None:
                reply.get()
                right += steps
            else:
                assert reply.error is not None
                self.refused(reply.error, code)
        carry_out(right)

    @precondition(lambda self: not self.draining)
    @rule(seed=SEEDS)
    def cancel(self, seed: int) -> None:
        """What waits behind something long: it runs, or it does not, as the answer says."""
        rng = random.Random(seed)
        client = self.pick(rng)
        (step,) = client.steps(rng, 1) or [None]
        if step is None or self.held >= BUFFERS:
            return
        shared = memfd.Shared(1 << 20)
        params = {"kind": "memfd", "size": shared.size, "fd": 0}
        buffer = client.connection.call("register", params, [shared.fd])["buffer"]
        half = [raw.tensor(buffer, [1 << 17], offset=offset) for offset in (0, 1 << 19)]
        long = client.connection.request("run", {"op": "square", "in": half[:1], "out": half[1:], "repeat": 10000})
        behind = client.connection.request("run", step.wire())
        executed.update(["run", "run", "cancel", "cancel"])
        dropped = client.connection.call("cancel", {"msgid": behind})["cancelled"]
        stopped = client.connection.call("cancel", {"msgid": long})["cancelled"]
        reply, before = client.connection.reply(behind), client.connection.reply(long)
        for done, how in ((reply, dropped), (before, stopped)):
            if done.error is not None:
                assert how
                self.refused(done.error, "cancelled")
        if reply.error is None:
            carry_out([step])
        else:
            step.out.memory.check()
        assert client.connection.call("cancel", {"msgid": long}) == {"cancelled": False}
        client.connection.call("release", {"buffer": buffer})
        client.gone.append(buffer)

    # Watching

    @rule(seed=SEEDS)
    def look(self, seed: int) -> None:
        """What only looks, or tidies up."""
        rng = random.Random(seed)
        rng.choice([self.trim, self.stats, self.count])(rng)

    def trim(self, rng: random.Random) -> None:
        reply = self.ask(self.pick(rng), "trim", {})
        assert reply is not None and set(reply.get()) == {"mappings", "unpinned"}

    def stats(self, rng: random.Random) -> None:
        filters = rng.choice([{}, {"op": "add"}, {"dtype": "f32"}, {"device": 0}])
        reply = self.ask(self.pick(rng), "stats", filters)
        assert reply is not None
        rows = reply.get()["ops"]
        assert all(row[key] == value for key, value in filters.items() for row in rows if key != "device")
        assert reply.get()["counters"]["connections"] == len(self.clients) + 1

    def count(self, rng: random.Random) -> None:
        """The daemon's books are the model's."""
        reply = self.ask(self.pick(rng), "clients", {})
        assert reply is not None
        told = reply.get()
        assert told["state"] == ("draining" if self.draining else "serving")
        rows = {row["client"]: row for row in told["clients"]}
        for client in self.clients:
            row = rows[client.name]
            assert (row["buffers"], row["programs"]) == (client.held, len(client.programs)), row
            assert (row["mapped_bytes"], row["allocated_bytes"]) == (client.mapped, client.allocated), row
            assert row["uid"] == os.getuid() and row["pid"] == os.getpid()
        (user,) = [user for user in told["users"] if user["uid"] == os.getuid()]
        assert (user["connections"], user["buffers"]) == (len(self.clients) + 1, self.held)
        assert user["limits"]["buffers"] == BUFFERS

    @rule(seed=SEEDS, drains=st.booleans())
    def drain(self, seed: int, drains: bool) -> None:
        rng = random.Random(seed)
        if drains and rng.random() < 0.6:
            return  # mostly there is work to do
        reply = self.ask(self.pick(rng), "drain", {} if drains else {"resume": True})
        assert reply is not None
        jobs = reply.get()["jobs"]
        assert jobs == 0 or not drains, "only who just left may have one that ends"
        assert reply.get() == {"drained": not jobs, "jobs": jobs, "connections": len(self.clients) + 1}
        self.draining = drains


@contextlib.contextmanager
def device() -> Iterator[Daemon]:
    """A daemon with the backend; a stand-in driver can fail, and must have been used correctly in the end."""
    if BACKEND != backends.STANDIN:
        with Daemon(config=backends.config(BACKEND) + CONFIG) as daemon:
            yield daemon
        return
    machine = GpuMachine(more=CONFIG + "[executors]\nfaults = 0\n")
    with machine.daemon as daemon:
        Base.control = machine.control
        yield daemon
        rows = {pid: machine.control.row(pid) for pid in proc.executors(daemon.pid) or [daemon.pid]}
        proc.eventually(lambda: not any(row.live()[key] for row in rows.values() for key in MUST_END), lambda: str(rows))
        assert not machine.control.misuses()


def until_idle(daemon: Daemon) -> None:
    """Clients have gone, and processes that compile, too."""
    proc.eventually(
        lambda: proc.fds(daemon.pid)["socket"] == proc.own_sockets(daemon.pid), lambda: f"more than its own sockets: {proc.fds(daemon.pid)}"
    )


@pytest.mark.skipif(backends.missing(BACKEND) is not None, reason=str(backends.missing(BACKEND)))
def test_model() -> None:
    with np.errstate(all="ignore"), device() as daemon:
        Base.daemon = daemon
        until_idle(daemon)
        before = daemon.holdings()
        how = settings(
            max_examples=max(1, STEPS // STEPS_OF_A_RUN), stateful_step_count=STEPS_OF_A_RUN, deadline=None, database=None,
            derandomize=not LONG, suppress_health_check=list(HealthCheck), print_blob=LONG,
            phases=(Phase.generate, Phase.shrink)[: 1 + (os.environ.get("KOPS_MODEL_SHRINK", "1") != "0")],
        )  # fmt: skip
        run_state_machine_as_test(Machine, settings=how)
        with daemon.connect() as last:
            proc.eventually(lambda: len(last.call("clients")["clients"]) == 1, "nobody else is left")

            def kept() -> list[int]:
                (user,) = last.call("clients")["users"]
                return [user["buffers"], user["mapped_bytes"], user["allocated_bytes"]]

            proc.eventually(lambda: kept() == [0, 0, 0], lambda: f"nothing is kept, but {kept()}")
        until_idle(daemon)
        daemon.wait_holdings(before)
    requests, said = dict(executed.most_common()), dict(answers.most_common())
    records.keep("model", "steps", made["steps"], BACKEND == backends.CUDA, backend=BACKEND, requests=requests, answers=said)
    print(f"{made['steps']} steps, {sum(requests.values())} requests: {requests}; answers: {said}")


if __name__ == "__main__":
    pytest.main([__file__, "-q", "-s"])
