"""The op copy between a client's shared memory and memory of `alloc` on a GPU: what it may touch, and what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_machine import FIXTURES, Machine, only_with_the_standin
from support import memfd, raw
from support.raw import tensor

pytestmark = only_with_the_standin
shared_machine, machine, connect, connection, exporter = FIXTURES
BYTES = 1 << 16


def alloc(connection: raw.Connection, machine: Machine, size: int = BYTES) -> int:
    reply = connection.reply(connection.request("alloc", {"size": size, "device": machine.gpu}))
    result = reply.get()
    assert result["kind"] == "cuda_vmm"
    for fd in reply.fds:
        os.close(fd)
    reply.fds.clear()
    return int(result["buffer"])


class Pair:
    """Shared memory, registered, and as much on the GPU."""

    def __init__(self, connection: raw.Connection, machine: Machine) -> None:
        self.connection = connection
        self.shared = memfd.Shared(BYTES)
        self.shared.bytes[:] = np.random.default_rng().integers(0, 256, BYTES)
        self.host = connection.register(self.shared)
        self.gpu = alloc(connection, machine)

    def copy(self, a: dict[str, Any], out: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.connection.run("copy", [a], [out], **more)

    def error(self, a: dict[str, Any], out: dict[str, Any], **more: Any) -> raw.RpcError:
        return self.connection.run_error("copy", [a], [out], **more)


@pytest.fixture
def pair(connection: raw.Connection, machine: Machine) -> Iterator[Pair]:
    made = Pair(connection, machine)
    yield made
    for buffer in (made.host, made.gpu):
        connection.call("release", {"buffer": buffer})
    assert connection.alive()


def test_the_second_copy_is_not_prepared_again(pair: Pair, machine: Machine) -> None:
    view = tensor(pair.host, [16]), tensor(pair.gpu, [16])
    pair.copy(*view)
    registered = machine.row.live_host_registrations
    for _ in range(50):
        pair.copy(*view)
    assert machine.row.live_host_registrations == registered


def test_what_is_no_copy_is_refused(pair: Pair, connection: raw.Connection) -> None:
    host, gpu = tensor(pair.host, [16]), tensor(pair.gpu, [16])
    for a, out, code in (
        (tensor(pair.host, [BYTES // 4 + 1]), tensor(pair.gpu, [BYTES // 4 + 1]), "out_of_bounds"),
        (tensor(pair.host, [16], offset=BYTES - 60), gpu, "out_of_bounds"),
        (host, tensor(pair.gpu, [16], "i32"), "dtype_mismatch"),
        (tensor(pair.host, [1]), gpu, "shape_mismatch"),
        (host, tensor(pair.gpu, [16], strides=[0]), "overlap"),
        (gpu, tensor(pair.gpu, [16], offset=4), "overlap"),
        (tensor(pair.host, [16], offset=2), gpu, "misaligned"),
    ):
        error = pair.error(a, out)
        assert error.code == code, (a, out, error)
    read_only = connection.register(pair.shared, access="r")
    assert pair.error(gpu, tensor(read_only, [16])).code == "read_only"
    before = pair.shared.view(np.float32, 16).copy()
    pair.copy(tensor(read_only, [16]), gpu)
    pair.shared.bytes[:64] = 0
    pair.copy(gpu, host)
    assert (pair.shared.view(np.float32, 16) == before).all() or np.isnan(before).any()
    connection.call("release", {"buffer": read_only})


def test_variants_say_where_they_cannot(pair: Pair, machine: Machine) -> None:
    host, gpu = tensor(pair.host, [16]), tensor(pair.gpu, [16])
    for a, out, more in ((gpu, tensor(pair.gpu, [16], offset=64), {}), (host, tensor(pair.host, [16], offset=64), {"device": machine.gpu}),
                         (tensor(pair.host, [8], strides=[2]), tensor(pair.gpu, [8]), {})):  # fmt: skip
        error = pair.error(a, out, attrs={"variant": "transfer"}, **more)
        assert error.code == "invalid_argument" and "transfer" in str(error)
    assert pair.copy(host, gpu, attrs={"variant": "transfer"})["variant"] == "transfer"
    assert pair.copy(host, gpu, attrs={"variant": "strided"})["variant"] == "strided"


def test_several_in_a_sequence_keep_their_order(pair: Pair, connection: raw.Connection) -> None:
    values = pair.shared.view(np.float32, 48)
    values[:] = np.arange(48)
    tensors = [tensor(pair.host, [16]), tensor(pair.gpu, [16]), tensor(pair.gpu, [16], offset=64), tensor(pair.host, [16], offset=128)]
    ops = [
        {"op": "copy", "in": [0], "out": [1]},
        {"op": "square", "in": [1], "out": [2]},
        {"op": "copy", "in": [2], "out": [3]},
        {"op": "copy", "in": [3], "out": [1]},
        {"op": "square", "in": [1], "out": [1]},
        {"op": "copy", "in": [1], "out": [0]},
    ]
    connection.call("sequence", {"tensors": tensors, "ops": ops})
    assert (values[32:] == np.arange(16) ** 2).all() and (values[:16] == np.arange(16) ** 4).all()
