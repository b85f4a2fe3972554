"""`wall_us`: what the daemon's own clock says of a run, beside what the process that ran it claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from domains import FIXTURES, Client, Domains
from gpu_machine import N, only_with_the_standin
from support import memfd
from support.daemon import Daemon
from support.raw import tensor
from user_kernels import hostile_kernel, only_with_nvrtc

start, client = FIXTURES


def check(times: dict[str, Any]) -> None:
    """All executions are within the wall time, which is within the request."""
    claimed = sum(times.get("samples", [times.get("gpu_us", times.get("host_us"))]))
    assert claimed <= times["wall_us"] <= times["total_us"], times


@only_with_the_standin
@only_with_nvrtc
def test_a_kernel_takes_as_long_as_the_daemon_waits(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start())
    kernel = hostile_kernel(own.connection, "run_for")
    runs = {**own.tensors[1], "dtype": "u32", "shape": [1]}
    for us in (20_000, 100_000):
        own.memory[1].write(bytes(4 * N))
        times = own.connection.call("launch", {"kernel": kernel, "args": [runs, us], "timing": True})["timings"]
        assert times["wall_us"] >= us
        check(times)
    assert "wall_us" not in own.connection.call("launch", {"kernel": kernel, "args": [runs, 1], "timing": False})["timings"]
    own.own()
    args = [own.tensors[1], own.tensors[0], N]
    times = own.connection.call("launch", {"kernel": own.custom, "args": args, "repeat": 200, "warmup": 3})["timings"]
    assert len(times["samples"]) == 200
    check(times)
    step = {"kernel": own.custom, "args": [1, 0, N]}
    steps = {"tensors": own.tensors[:2], "ops": [step, step]}
    check(own.connection.call("sequence", {**steps, "repeat": 50})["timings"])
    program = own.connection.call("program", steps)["program"]
    check(own.connection.call("run_program", {"program": program, "timing": True})["timings"])


def test_on_the_host() -> None:
    with Daemon() as daemon, daemon.connect() as connection:
        shared = memfd.Shared(8 * N)
        buffer = connection.register(shared)
        np.frombuffer(shared.map, np.float32)[:] = 3
        run = {"op": "square", "in": [tensor(buffer, [N])], "out": [tensor(buffer, [N], offset=4 * N)], "repeat": 20}
        check(connection.call("run", run)["timings"])
