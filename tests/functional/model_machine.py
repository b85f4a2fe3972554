"""The half of the model test that is no work: who is connected, what memory there is, and what is wrong by itself."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model import NEW_WORK, Client
from model_faults import SINGLE, VIOLATIONS, bad_registration
from standin_cuda.control import Control
from support import proc, raw
from support.cuda_exporter import Exporter
from support.daemon import Daemon

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
    exporter: Exporter | None = None  # of device memory, where there is a stand-in driver
    control: Control | None = None  # of that driver

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

    def settled(self, more: int = 0) -> None:
        """The daemon has noticed whoever went; `more` are connected beside the model's clients."""

        def rows() -> list[dict[str, Any]]:
            return [row for row in self.watch.call("clients")["clients"] if row["client"] != "watch"]

        wanted = len(self.clients) + more
        proc.eventually(lambda: len(rows()) == wanted, lambda: f"{wanted} clients, but {rows()}")

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
