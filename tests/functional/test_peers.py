"""Tensors of one request on several GPUs, with peer access between them and without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_machine import Machine, only_with_the_standin, register, values, vector
from support import raw
from support.cuda_exporter import Exporter
from support.raw import tensor
from test_memory_kinds import CHUNK, PooledMemory, Segment, taken

pytestmark = only_with_the_standin
N = 1024


@pytest.fixture(scope="module")
def pair() -> Iterator[Machine]:
    machine = Machine(env={"KOPS_STANDIN_DEVICES": "2"})
    with machine.daemon:
        yield machine
    assert not machine.control.misuses()


@pytest.fixture
def exporters(pair: Machine) -> Iterator[tuple[Exporter, Exporter]]:
    both = pair.exporter(0), pair.exporter(1)
    yield both
    for exporter in both:
        exporter.close()


@pytest.fixture
def connection(pair: Machine) -> Iterator[raw.Connection]:
    with pair.daemon.connect() as made:
        yield made


def test_announced(pair: Machine) -> None:
    assert "peer" in pair.hello()["features"]


def test_runs_where_the_output_is(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    for here, there in (exporters, exporters[::-1]):
        a, out = vector(here.alloc(4 * N)), there.alloc(4 * N)
        result = connection.call("run", {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])]})
        assert result["device"] == there.device
        assert (values(out) == 9).all()


def test_device_decides(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    a, out = vector(exporters[0].alloc(4 * N)), exporters[1].alloc(4 * N)
    for device in (exporters[0].device, exporters[1].device):
        params = {"op": "square", "in": [a.inline([N])], "out": [out.inline([N])], "device": device}
        assert connection.call("run", params)["device"] == device
        assert (values(out) == 9).all()
    error = connection.error("run", {**params, "device": "host"})
    assert (error.code, error.key) == ("device_mismatch", "device")


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


def test_memory_of_a_peers_pool(connection: raw.Connection, exporters: tuple[Exporter, Exporter]) -> None:
    pool = exporters[0].ask("pool_create")
    with taken(exporters[0], [exporters[0].ask("pool_export", pool)]) as fds:
        a, out = PooledMemory(exporters[0], pool, 4 * N), exporters[1].alloc(4 * N)
        a.write(np.full(N, 4, np.float32))
        buffer = connection.call("register", a.params(), fds)["buffer"]
    connection.run("square", [tensor(buffer, [N])], [out.inline([N])])
    assert (values(out) == 16).all()


def test_memory_that_the_daemon_made(pair: Machine, connection: raw.Connection, exporters: Any) -> None:
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
            ops = [{"op": "square", "in": [0], "out": [1]}]
            error = connection.error("sequence", {"tensors": tensors, "ops": ops})
            assert (error.code, error.key) == ("device_mismatch", "tensors[0]")
        first.close()
        second.close()
