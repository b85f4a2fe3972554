"""The half of the model test that is no work: who is connected, what memory there is, and what is wrong by itself."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import golden
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model import NEW_WORK, Client
from standin_cuda.control import Control
from support import memfd, proc, raw
from support.daemon import Daemon

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


def bad_registration(rng: random.Random) -> tuple[Params, list[int], str]:
    """Params, descriptors that the caller closes, and the code."""
    params: Params = {"kind": "memfd", "size": 4096, "fd": 0}
    kinds: list[Callable[[], tuple[Params, int, str]]] = [
        lambda: ({**params, "size": 4097}, memfd.make(4096), "invalid_fd"),
        lambda: (params, memfd.make(4096, ()), "invalid_fd"),
        lambda: (params, os.open("/dev/null", os.O_RDWR), "invalid_fd"),
        lambda: ({**params, "size": 0}, memfd.make(4096), "out_of_range"),
        lambda: ({**params, "kind": "paper"}, memfd.make(4096), "invalid_argument"),
        lambda: ({**params, "access": "x"}, memfd.make(4096), "invalid_argument"),
        lambda: ({**params, "fd": 1}, memfd.make(4096), "out_of_range"),
        lambda: ({**params, "fd": "0"}, memfd.make(4096), "wrong_type"),
        lambda: ({"kind": "memfd", "size": 4096}, memfd.make(4096), "missing_key"),
        lambda: ({"kind": "memfd", "fd": 0}, memfd.make(4096), "missing_key"),
        lambda: ({**params, "colour": 1}, memfd.make(4096), "unknown_key"),
        lambda: (params, memfd.make(4096, ("shrink", "write")), "read_only"),
    ]
    made, fd, code = rng.choice(kinds)()
    return made, [fd], code


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
    """A daemon, as its clients see it. Each rule is one or several requests of one client."""

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
    def register_badly(self, seed: int) -> None:
        rng = random.Random(seed)
        params, fds, code = bad_registration(rng)
        reply = self.ask(self.pick(rng), "register", params, fds, (code,))
        for fd in fds:
            os.close(fd)
        if reply is not None:
            assert reply.error is not None, f"{params} was accepted"
            self.refused(reply.error, code, "quota_exceeded")

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
