"""The asyncio client."""

from __future__ import annotations

import asyncio
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from which import compiled_only, unanswered, wait_for


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_calls(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path) as k:
        assert k.info.server.startswith("kopsd") and k.devices[0].uuid == "host" and "add" in k.ops
        assert await k.ping({"a": 1}) == {"a": 1}
        a = k.array(numpy.arange(6, dtype="float32").reshape(2, 3))
        assert (await k.add(a, a) == 2 * a).all()
        result, timings = await k.gemm(a, a, trans_b=True, timing=True)
        assert numpy.allclose(result, a @ a.T) and timings.host_us == 10
        out = numpy.zeros((2, 3), "float32")
        assert await k.run("square", a, out=out) is out and (out == a * a).all()
        profile = await k.profile("add", a, a, repeat=8)
        assert profile.median == 4
        assert (await k.stats("add"))["asked"] == {"op": "add"} and "freed" in await k.trim()
    with pytest.raises(kops.ConnectionLost):
        await k.ping()


async def test_errors_and_timeouts(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        with pytest.raises(kops.UnknownOp):
            await k.run("nothing", [1.0], out=k.empty(1))
        daemon.gate.clear()
        with pytest.raises(TimeoutError):
            await k.square([1.0], timeout=0.5)
        daemon.gate.set()
        assert (await k.square([3.0])).tolist() == [9]
        assert await k.ping({"still": "here"}) == {"still": "here"}
    assert daemon.count("cancel") == 1 and len(daemon.peers) == 1


async def test_cancelling_a_task_cancels_the_request(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path) as k:
        daemon.gate.clear()
        task = asyncio.create_task(k.square([1.0]))
        await until(lambda: daemon.count("run") == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: daemon.count("cancel") == 1)
        await until(lambda: not unanswered(k._connection))
        daemon.gate.set()
        assert (await k.square([2.0])).tolist() == [4]


@compiled_only
def test_a_client_outlives_its_loop(daemon: FakeDaemon) -> None:
    k = kops.AsyncClient(daemon.path)
    for i in range(2):
        assert asyncio.run(k.ping({"a": i})) == {"a": i}
    asyncio.run(k.close())


async def test_the_end_of_a_client_is_the_end_of_its_connection(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path) as k:
        await k.ping()
    wait_for(lambda: daemon.peers[0].ended.is_set())


async def test_no_more_are_under_way_than_the_daemon_takes(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        a = k.array([1.0, 2.0])
        await k.square(a)
        limit = k.info.limits["inflight"] - 1
        daemon.gate.clear()
        tasks = [asyncio.create_task(k.add(a, float(i))) for i in range(4 * limit)]
        with pytest.raises(kops.Timeout, match="no reply to run within 0.2"):
            await k.square(a, timeout=0.2)
        assert daemon.count("run") == 1 + limit
        with pytest.raises(kops.Timeout):
            await k.ping(timeout=0.05)
        tasks[-1].cancel()
        daemon.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [list(result) for result in results[:-1]] == [[1 + i, 2 + i] for i in range(4 * limit - 1)]
        assert isinstance(results[-1], asyncio.CancelledError)
        assert list(await k.square(a)) == [1, 4]
