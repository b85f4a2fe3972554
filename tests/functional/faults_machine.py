"""A daemon whose GPU is none, and clients with kernels that hang and fault, for the tests of what these cost.

On a fake GPU, whose kernels hang and fault as their names say; with KOPS_TEST_BACKEND=standin on the stand-in driver, in
real executors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus import parse
from standin_cuda.control import Control
from support import backends, memfd, proc, raw
from support.daemon import Daemon
from support.raw import tensor
from user_kernels import CUSTOM_PARAMS, compile_source, declare, pointer

STANDIN = os.environ.get("KOPS_TEST_BACKEND") == backends.STANDIN
only_on_the_fake = pytest.mark.skipif(STANDIN, reason="needs the fake GPU")
N = 256
SHORT = 200  # ms, a deadline that passes
SOURCE = """
extern "C" __global__ void custom_kernel(float* out, const float* in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2 * in[i];
}
extern "C" __global__ void spin_forever(float* p)
{
    while (atomicAdd(p, 0.0f) == 0) {
    }
}
extern "C" __global__ void fault_kernel(float* p)
{
    p[1ull << 40] = 1;
}
"""


class Machine:
    """A daemon whose GPU is none."""

    def __init__(self, folder: Path, isolate: str = "user", more: str = "") -> None:
        self.gate_file = folder / "gate"
        config = f"[server]\nspin_us = 0\n[executors]\nisolate = {isolate}\n{more}"
        if STANDIN:
            self.control = Control()
            self.daemon = Daemon(config=backends.config(backends.STANDIN) + config, env=self.control.env)
        else:
            env = {"KOPS_FAKE_GATE": str(self.gate_file)}
            self.daemon = Daemon(config=config, env=env, program="kopsd_fake_gpu")

    @contextlib.contextmanager
    def gate(self) -> Iterator[Callable[[], None]]:
        """Built-in ops do not end, until it is opened."""
        if STANDIN:
            with self.control.gate("kernel") as gate:
                yield lambda: gate.let(1000)
        else:
            self.gate_file.touch()
            try:
                yield lambda: self.gate_file.unlink(missing_ok=True)
            finally:
                self.gate_file.unlink(missing_ok=True)


    @contextlib.contextmanager
    def kernels(self) -> Iterator[Callable[[int], None]]:
        """What is given waits until so many kernels have begun on the GPU. None ends by itself."""
        with contextlib.ExitStack() as stack:
            watcher = stack.enter_context(self.daemon.connect())
            if STANDIN:
                stack.enter_context(self.control.gate("kernel"))

            def begun(count: int) -> None:
                if STANDIN:
                    self.control.wait_for(lambda: self.control.waiting("kernel") == count, raw.PATIENCE)
                else:
                    proc.eventually(lambda: jobs_running(watcher) == count, f"{count} jobs are on the GPU")
                    assert watcher.alive()  # the fake GPU has been asked since

            yield begun


def metric(connection: raw.Connection, name: str, **labels: str) -> float:
    samples = parse(connection.call("metrics")["text"])[name].samples
    return sum(value for (_, of), value in samples.items() if set(labels.items()) <= of)


def jobs_running(connection: raw.Connection) -> float:
    return metric(connection, "kopsd_jobs_running")


class Client:
    """A connection with two vectors and the kernels that misbehave."""

    def __init__(self, machine: Machine, **hello: Any) -> None:
        self.connection = machine.daemon.connect()
        self.hello = self.connection.call("hello", hello)
        shared = memfd.Shared(8 * N)
        buffer = self.connection.register(shared)
        self.a, self.b = tensor(buffer, [N]), tensor(buffer, [N], offset=4 * N)
        self.kernels: dict[str, int] = {}
        self.module = 0

    def kernel(self, entry: str) -> int:
        if not self.module:
            names = ["custom_kernel", "spin_forever", "fault_kernel"]
            self.module = compile_source(self.connection, SOURCE, *names)["module"]
        if entry not in self.kernels:
            params = CUSTOM_PARAMS if entry == "custom_kernel" else [pointer("p", "inout")]
            self.kernels[entry] = declare(self.connection, self.module, entry=entry, params=params, grid=[1], block=[1])
        return self.kernels[entry]

    def args(self, entry: str, *tensors: Any) -> list[Any]:
        return [*tensors, N] if entry == "custom_kernel" else [tensors[0]]

    def launch(self, entry: str, **more: Any) -> int:
        params = {"kernel": self.kernel(entry), "args": self.args(entry, self.a, self.b), **more}
        return self.connection.request("launch", params)

    def good(self, **more: Any) -> None:
        self.connection.reply(self.launch("custom_kernel", **more)).get()

    def bad(self, entry: str, **more: Any) -> raw.RpcError:
        return self.connection.reply_error(self.launch(entry, **more))

    def square(self, **more: Any) -> int:
        return self.connection.request("run", {"op": "square", "in": [self.a], "out": [self.b], **more})

    def steps(self, *entries: str) -> dict[str, Any]:
        """The keys of a sequence or program: kernels, and square as itself."""
        ops: list[dict[str, Any]] = []
        for entry in entries:
            if entry == "square":
                ops.append({"op": "square", "in": [0], "out": [1]})
            else:
                ops.append({"kernel": self.kernel(entry), "args": self.args(entry, 0, 1)})
        return {"tensors": [self.a, self.b], "ops": ops}

    def error_of(self, msgid: int) -> raw.RpcError:
        return self.connection.reply_error(msgid)

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.connection, name, **labels)

    def wait_running(self, jobs: int) -> None:
        proc.eventually(lambda: self.metric("kopsd_jobs_running") == jobs, f"{jobs} jobs are on devices")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def new(isolate: str = "user", more: str = "") -> Machine:
        folder = tmp_path / str(len(machines))
        folder.mkdir()
        machines.append(Machine(folder, isolate, more))
        return machines[-1]

    yield new
    for machine in machines:
        machine.daemon.stop()


@pytest.fixture
def clients() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def new(machine: Machine, **hello: Any) -> Client:
        made.append(Client(machine, **hello))
        return made[-1]

    yield new
    for client in made:
        client.connection.close()


@pytest.fixture
def client(start: Callable[..., Machine], clients: Callable[..., Client]) -> Client:
    """Of a daemon that refuses no kernels."""
    return clients(start(more="faults = 0\n"))


# A test module binds these names, which is how pytest finds them.
FIXTURES = (start, clients, client)
