"""Ordered calls with the real daemon, both on the stand-in CUDA driver: what runs, in what order, on whose memory."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from built import Daemon, backends
from kops._tensors import operands as cached_numbers
from standin_driver import driver
from which import compiled_only

__all__ = ["driver"]

if (why := backends.missing(backends.STANDIN)) is not None:
    pytest.skip(why, allow_module_level=True)


@pytest.fixture
def real(driver: Any) -> Iterator[Daemon]:
    running = Daemon(config=backends.config(backends.STANDIN))
    yield running
    running.cleanup()  # some tests kill it


@pytest.fixture
def k(real: Daemon, driver: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[kops.Client]:
    driver.make_current()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(torch.cuda, "driver", driver)
    monkeypatch.setattr(torch.cuda, "handle", 0)
    with kops.connect(real.socket_path, timeout=120) as client:
        if "ordered" not in client.info.features:
            pytest.skip("the daemon offers no ordered calls")
        yield client
    gc.collect()


def tensor(driver: Any, *values: float) -> torch.Tensor:
    return torch.Tensor(driver.array(numpy.asarray(values, "float32")), torch.float32, torch.device("cuda", 0))


def numbers(driver: Any, value: torch.Tensor) -> list[float]:
    """Once the caller's stream has got there: the client is not asked."""
    driver.synchronize()
    found: list[float] = value.array.numpy().tolist()
    return found


def test_many_in_a_row(k: kops.Client, driver: Any) -> None:
    x, a = tensor(driver, 0, 0), tensor(driver, 1, 2)
    for _ in range(400):
        k.add(x, a, out=x)
    assert numbers(driver, x) == [400, 800]
    with k.batch():
        for _ in range(300):
            k.add(x, a, out=x)
    assert numbers(driver, x) == [700, 1400]
    k.synchronize()


def test_numbers_beside_tensors(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_numbers, "CACHED", 8)  # each is memory of its own here, with descriptors
    x = tensor(driver, 1, 2)
    for _ in range(3):
        k.add(x, 0.5, out=x)
    assert numbers(driver, k.add(-1, x)) == [1.5, 2.5]
    with k.batch():
        for i in range(20):
            k.add(x, i, out=x)
    assert numbers(driver, x) == [2.5 + 190, 3.5 + 190]
    with k.program() as p:
        y = k.add(x, 0.25)
    for i in range(20):
        k.add(x, -i)  # the cache forgets the program's number
    p.run()
    assert numbers(driver, y) == [2.75 + 190, 3.75 + 190]
    with k.sequence():
        z = k.add(4, x)
    assert numbers(driver, z) == [6.5 + 190, 7.5 + 190]


def timed_program(k: kops.Client, a: torch.Tensor) -> kops.Timings:
    with k.program() as p:
        k.square(a)
        k.square(a)
    timings = p.run(timing=True)
    assert timings is not None
    return timings


@compiled_only
def test_a_timed_call_goes_the_short_way_too(k: kops.Client, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tensor(driver, 1, 2, 3), tensor(driver, 10, 20, 30)
    c, long = k.add(a, b, timing=True)
    k.square(a, out=c)  # behind which it must come
    with monkeypatch.context() as patch:
        patch.setattr(k, "_drive", None)  # the long way's
        same, short = k.add(c, b, out=c, timing=True)
    assert same is c and numbers(driver, c) == [11, 24, 39]
    assert isinstance(short, kops.Timings) and replace(short) == short and pickle.loads(pickle.dumps(short)) == short
    assert (short.device, short.variant, short.host_us, short.samples) == (long.device, long.variant, None, ())
    assert short.gpu_us and short.total_us and short.queue_us is not None and short.map_us is None and short.h2d_us is None
    assert short.timer == long.timer == "kernel" and timed_program(k, a).timer == "events"
    assert short.exec_us == short.gpu_us and "gpu_us" in repr(short) and short != long
    with pytest.raises(AttributeError):
        short.gpu_us = 1.0  # type: ignore[misc]


@compiled_only
def test_a_refused_op_lets_the_stream_go_on(k: kops.Client, driver: Any) -> None:
    a = tensor(driver, 1, 2, 3, 4)
    k.square(a[:3], out=a[1:])
    assert numbers(driver, a) == [1, 2, 3, 4]
    with pytest.raises(kops.Overlap, match="square"):
        k.synchronize()
    assert numbers(driver, k.add(a, a)) == [2, 4, 6, 8]
