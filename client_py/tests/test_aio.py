"""The asyncio client."""

from __future__ import annotations

import asyncio
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, Peer, Refused
from test_recovery import always, hang_up, lose_device, once, refuse
from which import compiled_only, unanswered


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


# When the daemon goes away: the same rules, and the order of calls that were under way

@pytest.mark.parametrize("how", [hang_up, lose_device])
async def test_async_calls_are_repeated_as_well(how: Any, daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        a = k.array([1.0, 2.0, 3.0])
        asked = once(daemon, "run", how)
        assert list(await k.square(a)) == [1, 4, 9] and asked == [2]
        async with k.sequence() as s:
            b = s.square(s.add(a, a))
        assert list(b) == [4, 16, 36]
        asked = once(daemon, "run", how)
        with pytest.raises(kops.ConnectionLost if how is hang_up else kops.DeviceLost, match="memory that it reads"):
            await k.square(a, out=a)
        assert asked == [1]
        asked = always(daemon, "run", how)
        with pytest.raises((kops.ConnectionLost, kops.DeviceLost)):
            await k.square(a)
        assert asked == [2]


async def test_async_calls_are_repeated_in_order(daemon: FakeDaemon) -> None:
    """Each reads what the one before it writes."""

    async with kops.connect_async(daemon.path, timeout=20) as k:
        chain = [k.array([2.0])] + [k.zeros(1) for _ in range(5)]
        for one in chain:
            await k.square(one)
        before = daemon.count("run")
        daemon.gate.clear()
        tasks = [asyncio.create_task(k.add(chain[i], chain[i], out=chain[i + 1])) for i in range(5)]
        await until(lambda: daemon.count("run") == before + 5)
        daemon.hang_up()
        daemon.gate.set()
        await asyncio.gather(*tasks)
        assert [float(one[0]) for one in chain] == [2, 4, 8, 16, 32, 64]


async def test_async_clients_give_up(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20, reconnect_timeout=0.3) as k:
        daemon.stop()
        with pytest.raises(kops.ConnectFailed, match=r"within 0\.3 s"):
            await k.ping()
        daemon.start()
        assert await k.ping({"x": 1}) == {"x": 1}
        asked = always(daemon, "run", refuse)
        with pytest.raises(kops.ShuttingDown, match="Nothing ran"):
            await k.square([1.0])
        assert asked[0] > 2


async def test_a_call_that_is_cancelled_leaves_the_new_connection_to_others(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        await k.ping()
        daemon.stop()
        first, second = (asyncio.create_task(k.ping({"x": i})) for i in range(2))
        await until(lambda: k._making is not None or k._connection is None or not k._connection.alive)
        first.cancel()
        await asyncio.wait([first])
        daemon.start()
        assert await second == {"x": 1} and await k.ping({"x": 2}) == {"x": 2}


async def test_a_repeated_run_holds_up_no_other_call(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        a = k.array([1.0, 2.0])
        await k.square(a)
        daemon.gate.clear()
        daemon.script["ping"] = lambda *_: NotImplemented
        long, quick = asyncio.create_task(k.square(a)), asyncio.create_task(k.ping({"x": 1}))
        await until(lambda: daemon.count("run") == 2 and daemon.count("ping") == 1)
        del daemon.script["ping"]
        daemon.hang_up()
        assert await asyncio.wait_for(quick, 20) == {"x": 1} and not long.done()
        daemon.gate.set()
        assert list(await long) == [1, 4]


async def test_a_daemon_that_lost_its_device_still_answers(daemon: FakeDaemon) -> None:
    slow_ones: list[tuple[Peer, int | None]] = []

    def ping(peer: Peer, params: Any, fds: Any) -> Any:
        if "slow" in params:
            slow_ones.append((peer, peer.msgid))
            return NotImplemented
        raise Refused("device_lost", "the device is lost", daemon="ends")

    async with kops.connect_async(daemon.path, timeout=20, reconnect_timeout=20) as k:
        daemon.script["ping"] = ping
        slow = asyncio.create_task(k.ping({"slow": 1}))
        await until(lambda: slow_ones)
        lost = asyncio.create_task(k.ping())
        connection = k._connection
        await until(lambda: connection.doomed and k._connecting.locked())  # the lost call looks for the next daemon
        peer, msgid = slow_ones[0]
        peer.send([1, msgid, None, {"slow": 1}])
        assert await asyncio.wait_for(slow, 20) == {"slow": 1} and not lost.done()
        assert connection.failure is None  # it is read as it comes, not at the connection's end
        daemon.script.clear()
        daemon.hang_up()
        assert await lost == {}
