"""`exclusive=True`: launches, programs and sequences that are alone on the daemon's GPUs. With the real daemon on the stand-in driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kops
import numpy
import pytest
from test_daemon_cuda import Daemon, backends, driver, k

__all__ = ["driver", "k"]

ADD = """extern "C" __global__ void vector_add(float* c, const float* a, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }"""
SIGNATURE = "out float* c[n], const float* a[n], const float* b[n], int n"
HOW = {"grid": "ceil_div(n, 256)", "block": 256}


@pytest.fixture
def real(driver: Any) -> Iterator[Daemon]:
    running = Daemon(config=backends.config(backends.STANDIN) + "[executors]\nisolate = user\n")
    yield running
    running.cleanup()


def arrays(client: Any) -> tuple[Any, Any, Any]:
    return client.zeros(8, device=0), client.array(numpy.arange(8, dtype="f4"), device=0), client.array(numpy.ones(8, "f4"), device=0)


def test_kernels(k: kops.Client) -> None:
    add = k.kernel(ADD, "vector_add", SIGNATURE, **HOW)
    c, a, b = arrays(k)
    assert add(c, a, b, 8, exclusive=True) is c and c.get().tolist() == list(range(1, 9))
    timings = add(c, a, b, 8, exclusive=True, timing=True)
    assert timings.exclusive is True and timings.wall_us >= timings.gpu_us
    assert add(c, a, b, 8, timing=True).exclusive is None
    assert add[1, 256](c, a, b, 8, exclusive=True, timing=True).exclusive is True
    profile = add.profile(c, a, b, 8, exclusive=True, warmup=0, repeat=20)
    assert profile.timings.exclusive is True and len(profile.samples) == 20
    assert sum(profile.samples) <= profile.timings.wall_us
    assert add.profile(c, a, b, 8, exclusive=True, repeat=5, until=1e-9, at_most=0.05).timings.exclusive is True
    pending = add.submit(c, a, b, 8, exclusive=True, timing=True)
    pending.result()
    with pytest.raises(kops.BadArgument, match="blocking=False"):
        add(c, a, b, 8, exclusive=True, blocking=False)
    with k.sequence(), pytest.raises(kops.BadArgument, match="recorded"):
        add(c, a, b, 8, exclusive=True)
    with pytest.raises(kops.BadArgument, match="exclusive"):
        add(c, a, b, 8, exclusive=True, where="here")


def test_programs_and_sequences(k: kops.Client) -> None:
    add = k.kernel(ADD, "vector_add", SIGNATURE, **HOW)
    c, a, b = arrays(k)
    with k.sequence(exclusive=True, timing=True) as s:
        add(c, a, b, 8)
        k.square(c, out=b)
    assert s.timings.exclusive is True and b.get().tolist() == [(i + 1.0) ** 2 for i in range(8)]
    with k.program() as p:
        add(c, a, b, 8)
    assert p.run(exclusive=True, timing=True).exclusive is True and p.run(timing=True).exclusive is None
    assert p.run(exclusive=True) is None
    with pytest.raises(kops.BadArgument):
        p.run(exclusive=True, blocking=False)
