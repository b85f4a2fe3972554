"""A timeout is seconds above 0 or None, wherever it is given."""

from __future__ import annotations

from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon

WRONG = (-1, 0, "1", True, float("nan"), [1])
SOURCE = 'extern "C" __global__ void f(float* y, int n) {}'
SAYS = "timeout is a number of seconds above 0, or None for no limit, not"


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_ones_are_value_errors(k: kops.Client, daemon: FakeDaemon, wrong: Any) -> None:
    a = k.array([1.0])
    kern = k.kernel(SOURCE, "f", "float* y, int n", grid=1, block=32)
    with k.program() as p:
        k.square(a)
    before = len(daemon.requests)
    for call in (
        lambda: k.add(a, a, timeout=wrong), lambda: k.ping(timeout=wrong), lambda: k.run("add", a, a, timeout=wrong),
        lambda: k.submit("add", a, a, timeout=wrong), lambda: k.profile("add", a, a, timeout=wrong), lambda: k.stats(timeout=wrong),
        lambda: k.clients(timeout=wrong), lambda: k.trim(timeout=wrong), lambda: k.synchronize(timeout=wrong),
        lambda: k.sequence([("add", a, a)], timeout=wrong), lambda: p.run(timeout=wrong), lambda: kern(a, 1, timeout=wrong),
        lambda: kern.submit(a, 1, timeout=wrong), lambda: setattr(k, "timeout", wrong), lambda: kops.connect(daemon.path, timeout=wrong),
        lambda: kops.connect_async(daemon.path, timeout=wrong),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=SAYS) as caught:
            call()
        assert isinstance(caught.value, kops.BadArgument) and caught.value.detail["key"] == "timeout"
    assert len(daemon.requests) == before
    assert k.timeout == 20


async def test_asyncio(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path) as k:
        a = k.array([1.0])
        for call in (lambda: k.add(a, a, timeout=0), lambda: k.ping(timeout=0), lambda: k.drain(timeout=0)):
            with pytest.raises(ValueError, match=SAYS):
                await call()


def test_right_ones(daemon: FakeDaemon) -> None:
    with kops.connect(daemon.path) as k:
        assert k.timeout is None, "there is no limit"
        for right in (20, 20.5, numpy.float32(20), None, float("inf"), 1e300):
            assert k.square([2.0], timeout=right).tolist() == [4]
