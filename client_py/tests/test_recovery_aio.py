"""The asyncio client when its daemon goes away: the same rules, and the order of calls that were under way."""

from __future__ import annotations

import asyncio
from typing import Any

import kops
import pytest
from fake_daemon import FakeDaemon, Peer, Refused
from test_recovery import always, hang_up, lose_device, once, refuse
from which import compiled_only

pytestmark = compiled_only


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


@pytest.mark.parametrize("code", ["device_lost", "job_timeout"])
async def test_the_error_of_a_daemon_that_goes_on_is_the_callers(code: str, daemon: FakeDaemon) -> None:
    def refuse_once(peer: Peer) -> Any:
        raise Refused(code, "a kernel beside it faulted", daemon="goes_on")

    async with kops.connect_async(daemon.path, timeout=20) as k:
        a = k.array([1.0, 2.0, 3.0])
        asked = once(daemon, "run", refuse_once)
        with pytest.raises((kops.DeviceLost, kops.JobTimeout), match="^a kernel beside it faulted$"):
            await k.square(a)
        assert asked == [1]
        assert list(await k.square(a)) == [1, 4, 9] and len(daemon.peers) == 1


async def test_async_calls_are_repeated_in_order(daemon: FakeDaemon) -> None:
    """Each reads what the one before it writes."""

    async with kops.connect_async(daemon.path, timeout=20) as k:
        chain = [k.array([2.0])] + [k.zeros(1) for _ in range(5)]
        for one in chain:
            await k.square(one)
        before = daemon.count("run")
        daemon.gate.clear()
        tasks = [asyncio.create_task(k.add(chain[i], chain[i], out=chain[i + 1])) for i in range(5)]
        while daemon.count("run") < before + 5:
            await asyncio.sleep(0.001)
        daemon.hang_up()
        daemon.gate.set()
        await asyncio.gather(*tasks)
        assert [float(one[0]) for one in chain] == [2, 4, 8, 16, 32, 64]


async def test_async_clients_wait_for_a_socket(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path, timeout=20) as k:
        a = k.array([1.0, 2.0])
        await k.square(a)
        daemon.stop()
        task = asyncio.create_task(k.square(a))
        while not task.done() and k._connection is not None and k._connection.alive:
            await asyncio.sleep(0.001)
        daemon.start()
        assert list(await task) == [1, 4]


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
        while k._making is None and k._connection is not None and k._connection.alive:
            await asyncio.sleep(0.001)
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
        while not (daemon.count("run") == 2 and daemon.count("ping") == 1):
            await asyncio.sleep(0.001)
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
        while not slow_ones:
            await asyncio.sleep(0.001)
        lost = asyncio.create_task(k.ping())
        while not k._connection.doomed:
            await asyncio.sleep(0.001)
        peer, msgid = slow_ones[0]
        peer.send([1, msgid, None, {"slow": 1}])
        assert await asyncio.wait_for(slow, 20) == {"slow": 1} and not lost.done()
        daemon.script.clear()
        daemon.hang_up()
        assert await lost == {}
