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
from collections.abc import Iterator
from typing import Any

import numpy as np
import prometheus
import pytest
from arrays import BACKEND
from gpu_machine import Machine as GpuMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from model import Client, Memory, Program, Step, View, body, bound, carry_out, refill, tensors_of
from model_machine import BUFFERS, CONFIG, FAULTS, SEEDS, Base, answers, executed, made
from support import backends, memfd, proc, raw, records
from support.daemon import Daemon
from user_kernels import ARCH, CUSTOM_PARAMS, HOSTILE_PARAMS, OTHERS

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
SCALE = """extern "C" __global__ void scale(float *y, const float *x, int n)
{{
    if (threadIdx.x < n)
        y[threadIdx.x] = {factor} * x[threadIdx.x];
}}
"""
SCALE_PARAMS = [
    {"name": "y", "kind": "out", "dtype": "f32"},
    {"name": "x", "kind": "in", "dtype": "f32"},
    {"name": "n", "kind": "scalar", "dtype": "i32"},
]


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

    @rule(seed=SEEDS)
    def write_where_it_must_not(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        if not client.roomy():
            return
        memory = rng.choice(client.roomy())
        at = raw.tensor(memory.buffer, [16])
        code, out = rng.choice([("overlap", {**at, "offset": 4}), ("out_of_bounds", {**at, "offset": len(memory.data) - 60}),
                                ("misaligned", {**at, "offset": 1026}), ("overlap", {**at, "strides": [0], "offset": 512})])  # fmt: skip
        code = "read_only" if memory.access == "r" else code
        codes = (code, "out_of_bounds", "misaligned", "overlap") if code == "read_only" else (code,)
        reply = self.ask(client, "run", {"op": "square", "in": [at], "out": [out]}, bad=codes)
        if reply is not None:
            assert reply.error is not None
            self.refused(reply.error, *codes)
            memory.check()

    @precondition(lambda self: not self.draining)
    @rule(seed=SEEDS)
    def pipeline(self, seed: int) -> None:
        """Several requests before the first reply: they take effect in order, the bad ones not at all."""
        rng = random.Random(seed)
        client = self.pick(rng)
        work = [[step] for step in client.steps(rng, rng.randint(2, 6))]  # whose numbers are there before the first is sent
        sent: list[tuple[int, list[Step], str | None]] = []
        for steps in work:
            method = rng.choice(["run", "sequence"])
            params = dict(steps[0].wire()) if method == "run" else body(steps)
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

    @rule(seed=SEEDS)
    def ordered_work_needs_device_memory(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.pick(rng)
        reply = self.ask(client, "timelines", {})
        if reply is None:
            return
        if reply.error is not None:
            self.refused(reply.error, "unsupported", "invalid_argument", "quota_exceeded")
            return
        for fd in reply.fds:
            os.close(fd)
        reply.fds.clear()
        client.paged = True
        steps = client.steps(rng, 1)
        if steps and all(view.count for view in steps[0].views):
            refused = self.ask(client, "run", {**steps[0].wire(), "stream": 9, "done": 1 + len(client.gone) * 1000 + rng.randint(0, 999)})
            assert refused is not None and refused.error is not None
            self.refused(refused.error, "unsupported", "invalid_argument")
            steps[0].out.memory.check()

    # Kernels

    @rule(seed=SEEDS)
    def compile(self, seed: int) -> None:
        """Code that is compiled once and then known, and what is made of it where there is a GPU."""
        rng = random.Random(seed)
        client = self.pick(rng)
        factor = rng.choice([2, 3])
        params = {"source": SCALE.format(factor=factor), "entries": ["scale"], **({"arch": ARCH} if BACKEND == backends.HOST else {})}
        reply = self.ask(client, "compile", params)
        if reply is None:
            return
        if reply.error is not None:
            self.refused(reply.error, "unsupported")  # there is no compiler here
            return
        module = reply.get()["module"]
        made = self.ask(client, "kernel", {"module": module, "entry": "scale", "params": SCALE_PARAMS, "grid": [1], "block": [64]})
        assert made is not None
        if made.error is not None:
            assert BACKEND == backends.HOST
            self.refused(made.error, "unsupported")
        elif BACKEND == backends.CUDA:
            self.launch(client, made.get()["kernel"], factor, rng)
        if made.error is None:
            self.ask(client, "release", {"kernel": made.get()["kernel"]})
        assert self.ask(client, "release", {"module": module}).get() == {}  # type: ignore[union-attr]
        gone = self.ask(client, "release", {"module": module})
        assert gone is not None
        self.refused(gone.error, "unknown_kernel")

    # Watching

    @rule(seed=SEEDS)
    def look(self, seed: int) -> None:
        """What only looks, or tidies up."""
        rng = random.Random(seed)
        rng.choice([self.greet, self.trim, self.stats, self.count, self.measure, self.cache])(rng)

    def greet(self, rng: random.Random) -> None:
        client = self.pick(rng)
        reply = self.ask(client, "hello", {"client": client.name, "protocol": 1})
        assert reply is not None
        assert reply.get()["instance"] == self.hello["instance"] and reply.get()["pid"] == self.daemon.pid

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

    def measure(self, rng: random.Random) -> None:
        reply = self.ask(self.pick(rng), "metrics", {})
        assert reply is not None
        families = prometheus.parse(reply.get()["text"])
        assert sum(families["kopsd_connections"].samples.values()) == len(self.clients) + 1

    def cache(self, rng: random.Random) -> None:
        reply = self.ask(self.pick(rng), "cache", {"action": "list"})
        assert reply is not None
        if reply.error is not None:
            self.refused(reply.error, "unsupported")

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
