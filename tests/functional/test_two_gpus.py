"""Two GPUs in one daemon that sleeps between requests: every call of the driver is made in the context of its device. Tensors of
one request may be on both, where they have peer access.

The stand-in driver counts calls with a handle of another context, on which a real driver does what it likes. `machine`
checks after each test that there were none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gpu_machine import Machine, N, only_with_the_standin, register, square, values, vector
from support import raw
from support.cuda_exporter import Exporter, Memory
from support.raw import tensor
from test_memory_kinds import CHUNK, Segment, taken

pytestmark = only_with_the_standin
ROUNDS = 100


@pytest.fixture(scope="module", params=["flags", "events"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """`events`: devices without words that the GPU writes, so that events tell what has ended."""
    env = {"KOPS_STANDIN_DEVICES": "2"}
    if request.param == "events":
        env["KOPS_STANDIN_ATTRIBUTES"] = "122=0"
    machine = Machine(more="[server]\nspin_us = 0\n", env=env)
    with machine.daemon:
        yield machine
    assert not machine.control.misuses()


@pytest.fixture
def exporters(machine: Machine) -> Iterator[tuple[Exporter, Exporter]]:
    both = machine.exporter(0), machine.exporter(1)
    yield both
    for exporter in both:
        exporter.close()


@pytest.fixture
def connection(machine: Machine) -> Iterator[raw.Connection]:
    with machine.daemon.connect() as made:
        yield made


@pytest.fixture(autouse=True)
def used_as_it_should_be(machine: Machine) -> Iterator[None]:
    yield
    assert not machine.control.misuses()


def pair(exporter: Exporter) -> tuple[Memory, Memory]:
    return vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)


def test_the_loop_sleeps_for_work_of_both(
    machine: Machine, connection: raw.Connection, exporters: tuple[Exporter, Exporter]
) -> None:
    """With one execution in flight on each GPU the loop hands an event of each to a thread, and sleeps."""
    memory = [pair(e) for e in exporters]
    for n in range(ROUNDS):
        with machine.control.gate("kernel") as gate:
            asked = [
                connection.request("run", square(a, out, stream=i, timing=False, repeat=1))
                for i, (a, out) in enumerate(memory)
            ]
            connection.call("ping")
            if n == 0:
                machine.wait(lambda: machine.row.calls("cuEventSynchronize") > 0)  # a thread sleeps on an event
            gate.open()
            for request in asked:
                connection.reply(request).get()
    assert all((values(out) == 9).all() for _, out in memory)


# ---- tensors of one request on both ----


def test_runs_where_the_output_is(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    assert "peer" in connection.call("hello")["features"]
    for here, there in (exporters, exporters[::-1]):
        a, out = vector(here.alloc(4 * N)), there.alloc(4 * N)
        result = connection.call("run", {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]})
        assert result["device"] == there.device
        assert (values(out) == 9).all()


def test_virtual_memory_of_a_peer(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    """Also what was added after the peer got access."""
    segment = Segment(exporters[0], [CHUNK] * 2)
    out = exporters[1].alloc(4 * N)
    segment.write(np.full(N, 5, np.float32), CHUNK)
    with taken(exporters[0], segment.fds) as fds:
        buffer = connection.call("register", {**segment.params(0, 1), "size": segment.size}, fds[:1])["buffer"]
        connection.run("square", [tensor(buffer, [N])], [out.inline([N])])
        connection.call("register", {**segment.params(1, 1), "extend": buffer}, fds[1:])
    connection.run("square", [tensor(buffer, [N], offset=CHUNK)], [out.inline([N])])
    assert (values(out) == 25).all()
    segment.free()


def test_memory_that_the_daemon_made(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    made = connection.reply(connection.request("alloc", {"size": 4 * N, "device": exporters[0].device}))
    buffer, a = made.get()["buffer"], vector(exporters[1].alloc(4 * N))
    out = exporters[1].alloc(4 * N)
    connection.run("square", [a.inline([N])], [tensor(buffer, [N])])
    connection.run("square", [tensor(buffer, [N])], [out.inline([N])])
    assert (values(out) == 81).all()


def test_sequence_across_devices(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    a, b = vector(exporters[0].alloc(4 * N)), exporters[1].alloc(4 * N)
    tensors = [tensor(register(connection, m), [N]) for m in (a, b)]
    ops = [{"op": "square", "in": [0], "out": [1]}, {"op": "square", "in": [1], "out": [0]}]
    assert connection.call("sequence", {"tensors": tensors, "ops": ops})["device"] == exporters[1].device
    assert (values(a) == 81).all()


def test_without_peer_access() -> None:
    machine = Machine(env={"KOPS_STANDIN_DEVICES": "2", "KOPS_STANDIN_NO_PEER": "1"})
    with machine.daemon:
        assert "peer" not in machine.hello()["features"]
        first, second = machine.exporter(0), machine.exporter(1)
        a, out = vector(first.alloc(4 * N)), second.alloc(4 * N)
        with machine.daemon.connect() as connection:
            error = connection.error("run", {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]})
            assert (error.code, error.key) == ("device_mismatch", "in")
            assert first.device in error.message and second.device in error.message
            tensors = [tensor(register(connection, m), [N]) for m in (a, out)]
            error = connection.error("sequence", {"tensors": tensors, "ops": [{"op": "square", "in": [0], "out": [1]}]})
            assert (error.code, error.key) == ("device_mismatch", "tensors[0]")
        first.close()
        second.close()
