"""Daemons whose users' kernels run in executors of their own, on the stand-in driver, and clients with memory and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_machine import Machine, N, register, values, vector
from support import proc, raw
from support.cuda_exporter import Exporter, Memory
from support.raw import tensor
from user_kernels import OTHERS, compile_source, custom_kernel, declare, pointer

CONFIG = "[executors]\nisolate = {isolate}\nspares = {spares}\nmax = {max}\n"


class Domains(Machine):
    def __init__(
        self, folder: Path, isolate: str = "user", spares: int = 0, maximum: int = 8, more: str = ""
    ) -> None:
        super().__init__(folder, CONFIG.format(isolate=isolate, spares=spares, max=maximum) + more)

    def executors(self) -> set[int]:
        return set(proc.executors(self.daemon.pid))

    def new_executor(self, before: set[int]) -> int:
        """The one that has come since."""
        found: set[int] = set()

        def look() -> bool:
            found.update(self.executors() - before)
            return bool(found)

        proc.eventually(look, "an executor comes")
        (pid,) = found
        return pid


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Domains]]:
    made: list[Domains] = []

    def new(**how: Any) -> Domains:
        made.append(Domains(tmp_path, **how))
        return made[-1]

    yield new
    for machine in made:
        machine.daemon.stop()


class Client:
    """A connection with memory and kernels."""

    def __init__(self, machine: Domains) -> None:
        self.exporter: Exporter = machine.exporter()
        self.connection = machine.daemon.connect()
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


@pytest.fixture
def client() -> Iterator[Callable[[Domains], Client]]:
    made: list[Client] = []

    def new(machine: Domains) -> Client:
        made.append(Client(machine))
        return made[-1]

    yield new
    for one in made:
        one.close()


# A test module binds these names, which is how pytest finds them.
FIXTURES = (start, client)
