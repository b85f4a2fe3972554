"""Daemons whose users' kernels run in executors of their own, on the stand-in driver, and clients with memory and kernels."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpu_machine import Machine, N, register, values, vector
from support import proc, raw
from support.cuda_exporter import Exporter, Memory
from support.kernels import custom_kernel, hostile_kernel
from support.raw import tensor

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

    def executor_of(self, client: Client) -> int:
        """The executor of a client that has none yet; the common one is begun before, as it would be by a stranger's call."""
        client.square()
        before = self.executors()
        client.own()
        return self.new_executor(before)


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
        self.kernels: dict[str, int] = {}
        self.memory: list[Memory] = [vector(self.exporter.alloc(4 * N)) for _ in range(3)]
        self.tensors = [tensor(register(self.connection, m), [N]) for m in self.memory]

    def own(self) -> None:
        """A kernel of its own: out = 2 · in."""
        self.custom = custom_kernel(self.connection)
        self.launch_own()

    def launch_own(self) -> None:
        self.memory[1].write(bytes(4 * N))
        self.connection.reply(self.ask()).get()
        assert (values(self.memory[1]) == 6).all()

    def launch_params(self, **how: Any) -> dict[str, Any]:
        return {"kernel": self.custom, "args": [self.tensors[1], self.tensors[0], N], **how}

    def ask(self, **how: Any) -> int:
        """A launch of its own kernel: the request's number."""
        return self.connection.request("launch", self.launch_params(**how))

    def square(self) -> None:
        self.memory[2].write(bytes(4 * N))
        self.connection.reply(self.ask_square()).get()
        assert (values(self.memory[2]) == 9).all()

    def square_params(self, **how: Any) -> dict[str, Any]:
        return {"op": "square", "in": [self.tensors[0]], "out": [self.tensors[2]], **how}

    def ask_square(self, **how: Any) -> int:
        return self.connection.request("run", self.square_params(**how))

    def ask_for(self, us: int) -> int:
        """A kernel that takes so long."""
        args = [{**self.tensors[1], "dtype": "u32", "shape": [1]}, us]
        return self.connection.request("launch", {"kernel": self.hostile("run_for"), "args": args})

    def ask_endless(self, **how: Any) -> int:
        self.memory[1].write(bytes(4 * N))
        return self.connection.request("launch", {"kernel": self.hostile("spin_forever"), "args": [self.tensors[1]], **how})

    def cancel(self, msgid: int) -> None:
        self.connection.call("cancel", {"msgid": msgid})
        assert self.connection.reply_error(msgid).code == "cancelled"

    def hostile(self, entry: str) -> int:
        if entry not in self.kernels:
            self.kernels[entry] = hostile_kernel(self.connection, entry)
        return self.kernels[entry]

    def fault(self, **how: Any) -> raw.RpcError:
        return self.connection.error("launch", {"kernel": self.hostile("fault_kernel"), "args": [self.tensors[1]], **how})

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


# A test module binds these names, which is how pytest finds them.
FIXTURES = (start, client)
