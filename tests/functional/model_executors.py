"""What the model test does to a daemon whose GPU work is done by executors: faults, hangs, and executors that are killed.

Only what says so fails. Every id, buffer and program stays what it is, and memory too, but for the outputs of what failed.
"""

from __future__ import annotations

import os
import random
import signal
from typing import Any

from arrays import BACKEND
from hypothesis.stateful import precondition, rule
from model import Client, Memory, View, carry_out
from model_machine import SEEDS, Base, executed
from support import backends, proc
from user_kernels import CUSTOM_PARAMS, HOSTILE_PARAMS, OTHERS

OWN_EXECUTORS = BACKEND == backends.STANDIN and os.environ.get("KOPS_TEST_ISOLATE") != "none"
CONFIG = "[executors]\nfaults = 0\n"
KERNELS = {"custom_kernel": CUSTOM_PARAMS, "fault_kernel": HOSTILE_PARAMS["fault_kernel"], "spin_forever": HOSTILE_PARAMS["spin_forever"]}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # one that was about to end


class Executors(Base):
    """Rules of a machine with a stand-in driver and executors."""

    killed = False  # an executor, since the last launch

    def kernels(self, client: Client) -> dict[str, int]:
        """Of its own, made when they are first needed: from then on its work has an executor of its own, or its user's."""
        if not client.own:
            compiled = client.connection.call("compile", {"source": OTHERS, "entries": list(KERNELS)})
            client.modules.append(compiled["module"])
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
            out.of(out.memory.mirror)[...] = out.of(out.memory.data)
        else:
            assert reply.get()["device"] in self.names
            out.write(factor * read.numbers())
            out.settle(None)
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
        step = client.step(rng, rng.choice(["f32", "f64", "f16", "bf16"]))
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
