"""Daemons whose users' kernels run in executors of their own, on the stand-in driver, and clients with memory and kernels."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpu_machine import Machine, N, register, values, vector
from support import proc, raw, users
from support.cuda_exporter import Exporter, Memory
from support.raw import tensor
from user_kernels import OTHERS, compile_source, custom_kernel, declare, hostile_kernel, pointer

CONFIG = "[executors]\nisolate = {isolate}\nspares = {spares}\nmax = {max}\nfaults = {faults}\n"


class Domains(Machine):
    def __init__(
        self, isolate: str = "user", spares: int = 0, maximum: int = 8, faults: int = 3, more: str = "",
        env: dict[str, str] | None = None, start: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(CONFIG.format(isolate=isolate, spares=spares, max=maximum, faults=faults) + more, env, start=start)

    def executors(self) -> set[int]:
        return set(proc.executors(self.daemon.pid))

    def new_executor(self, before: set[int]) -> int:
        """The one that has come since."""
        (pid,) = proc.eventually(lambda: self.executors() - before, "an executor comes")
        return pid


Start = Callable[..., Domains]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Domains] = []

    def new(**how: Any) -> Domains:
        made.append(Domains(**how))
        return made[-1]

    yield new
    for machine in made:
        machine.daemon.stop()


class Client:
    """A connection with memory and kernels."""

    def __init__(self, machine: Domains, path: str | None = None) -> None:
        self.exporter: Exporter = machine.exporter()
        self.connection = machine.daemon.connect() if path is None else raw.Connection(path)
        self.memory: list[Memory] = [vector(self.exporter.alloc(4 * N)) for _ in range(3)]
        self.tensors = [tensor(register(self.connection, m), [N]) for m in self.memory]

    def own(self) -> None:
        """A kernel of its own: out = 2 · in."""
        self.custom = custom_kernel(self.connection)
        self.launch_own()

    def launch_own(self) -> None:
        self.memory[1].write(bytes(4 * N))
        self.connection.call("launch", {"kernel": self.custom, "args": [self.tensors[1], self.tensors[0], N]})
        assert (values(self.memory[1]) == 6).all()

    def square(self) -> None:
        self.memory[2].write(bytes(4 * N))
        self.connection.run("square", [self.tensors[0]], [self.tensors[2]])
        assert (values(self.memory[2]) == 9).all()

    def kernel(self, entry: str) -> int:
        module = compile_source(self.connection, OTHERS, entry)["module"]
        return declare(self.connection, module, entry=entry, params=[pointer("p", "inout")], grid=[1], block=[1])

    def fault(self) -> raw.RpcError:
        return self.connection.error("launch", {"kernel": self.kernel("fault_kernel"), "args": [self.tensors[1]]})

    def close(self) -> None:
        self.connection.close()
        self.exporter.close()


NewClient = Callable[..., Client]


@pytest.fixture
def client() -> Iterator[NewClient]:
    """Makes a client; `own`: which has launched a kernel of its own."""
    made: list[Client] = []

    def new(machine: Domains, own: bool = False) -> Client:
        made.append(Client(machine))
        if own:
            made[-1].own()
        return made[-1]

    yield new
    for one in made:
        one.close()


class Plain:
    """Device memory of the daemon's that this process sees, too: the stand-in's is a memfd."""

    def __init__(self, connection: raw.Connection, gpu: str, count: int, dtype: str = "f32") -> None:
        kind = np.dtype({"f32": np.float32, "u32": np.uint32}[dtype])
        reply = connection.reply(connection.request("alloc", {"size": count * kind.itemsize, "device": gpu}))
        self.buffer, self.dtype = reply.get()["buffer"], dtype
        (fd,) = reply.fds
        self.map = mmap.mmap(fd, count * kind.itemsize)
        os.close(fd)
        self.data = np.frombuffer(self.map, kind)

    def tensor(self, count: int = 0, offset: int = 0) -> dict[str, Any]:
        """From element `offset` on."""
        shape = [count or len(self.data) - offset]
        return tensor(self.buffer, shape, self.dtype, offset=offset * self.data.itemsize)


class Watcher:
    """Asks a daemon which executors it has. A connection of its own: stats waits for the runs of its connection."""

    def __init__(self, machine: Domains) -> None:
        self.connection = machine.daemon.connect()
        self.connection.call("hello", {"client": "watcher"})

    def rows(self, state: str = "serving") -> list[dict[str, Any]]:
        return [row for row in self.connection.call("stats")["executors"] if row["state"] == state]

    def common(self) -> int:
        """Once there is one."""
        return self.wait(lambda: next((row["pid"] for row in self.rows() if row["domain"] == "common"), 0))

    def of(self, client: str) -> int:
        """The executor that a client's jobs run in, once there is one."""
        return self.wait(lambda: self.executor_of(client))

    def executor_of(self, client: str) -> int:
        (row,) = [row for row in self.connection.call("clients")["clients"] if row["client"] == client]
        return row.get("executor") or 0

    def wait(self, ask: Callable[[], int]) -> int:
        return proc.eventually(ask, "an executor serves")


class Bystander:
    """A client that works all the time, on a thread, and must notice nothing."""

    def __init__(self, machine: Domains, uid: int = 0) -> None:
        self.connection = users.connect(machine.daemon, uid) if uid else machine.daemon.connect()
        self.rounds, self.stopping = 0, False
        self.error: BaseException | None = None
        self.prepare(machine)
        self.round()
        self.thread = threading.Thread(target=self.work, name=type(self).__name__, daemon=True)
        self.thread.start()

    def prepare(self, machine: Domains) -> None:
        raise NotImplementedError

    def round(self) -> None:
        """Some work, and whether it was right."""
        raise NotImplementedError

    def work(self) -> None:
        try:
            while not self.stopping:
                self.round()
                self.rounds += 1
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        assert self.error is None, f"{type(self).__name__}: {self.error!r}"

    def goes_on(self, rounds: int = 2) -> None:
        wanted = self.rounds + rounds
        proc.eventually(lambda: self.error is not None or self.rounds >= wanted, f"{type(self).__name__} goes on")
        self.check()

    def close(self) -> None:
        self.stopping = True
        self.thread.join()
        self.connection.close()


class Calculator(Bystander):
    """Only ops of the daemon's own, several at one time, later ones on results of earlier ones: all may be repeated unseen."""

    def prepare(self, machine: Domains) -> None:
        self.rng = np.random.default_rng(1)
        self.memory = Plain(self.connection, machine.gpu, 4 * N)

    def round(self) -> None:
        a, b, c, d = (self.memory.tensor(N, N * i) for i in range(4))
        x = self.rng.integers(0, 9, N).astype(np.float32)
        self.memory.data[:N] = x
        self.memory.data[N:] = np.nan
        ops = [("square", [a], b), ("add", [b, a], c), ("add", [c, b], d)]
        sent = [self.connection.request("run", {"op": op, "in": i, "out": [out]}) for op, i, out in ops]
        for msgid in sent:
            self.connection.reply(msgid).get()
        want = np.concatenate([x, x * x, x * x + x, 2 * x * x + x])
        assert (self.memory.data == want).all()


class Counter(Bystander):
    """A kernel of its own, which counts how often it has run."""

    def prepare(self, machine: Domains) -> None:
        self.count, self.sent = Plain(self.connection, machine.gpu, 1, "u32"), 0
        self.kernel = hostile_kernel(self.connection, "run_for")

    def round(self) -> None:
        sent = [
            self.connection.request("launch", {"kernel": self.kernel, "args": [self.count.tensor(), 1], "stream": i % 2})
            for i in range(4)
        ]
        for msgid in sent:
            self.connection.reply(msgid).get()
        self.sent += 4
        assert self.count.data[0] == self.sent


# A test module binds these names, which is how pytest finds them.
FIXTURES = (start, client)
