"""Profiles with cold caches, of kernels and of the asynchronous client, and comparisons of kernels, ops and variants."""

from __future__ import annotations

from typing import Any

import kops
import pytest
from fake_daemon import FakeDaemon
from test_kernels import ADD2, add2, sent, vectors

OUT = "out float* c, const float* a, const float* b, int n"


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("kops._calls.measure.host_cache", lambda: 1 << 20)
    return 1 << 20


def places(launches: list[dict[str, Any]]) -> list[tuple[tuple[int, int], ...]]:
    return [tuple((arg["buffer"], arg["offset"]) for arg in launch["args"] if isinstance(arg, dict)) for launch in launches]


def test_cold_profiles(k: kops.Client, daemon: FakeDaemon, small_cache: int) -> None:
    """Each launch has other copies of all tensors, with what they contain; the numbers are as they were."""
    kern, (c, a, b) = add2(k, signature=OUT), vectors(k, 20_000)
    profile = kern[7, 64].profile(c, a, b, 20_000, cache="cold", repeat=30)
    sets = -(-2 * small_cache // profile.bytes) + 1
    warm, *cold = sent(daemon, "launch")
    assert warm["warmup"] == 3 and len(cold) == sets + 30 and len(profile.samples) == 30 and profile.median == 10
    used = places(cold)
    assert len(set(used)) == sets and used[0] == used[sets] and places([warm])[0] not in used
    assert all((launch["grid"], launch["block"], launch["args"][3]) == ([7], [64], 20_000) for launch in cold)
    assert (c == a + b).all()
    until = kern.profile(c, a, b, 20_000, cache="cold", repeat=10, until=0.01)
    assert len(until.samples) == 80 and until.interval == (10, 10), "as many rounds as an interval takes"
    for cache in ("warm", "cold"):
        short = kern.profile(c, a, b, 20_000, cache=cache, repeat=10, until=0.01, at_most=1e-9)
        assert len(short.samples) == 10 and short.reached == (cache == "cold"), "where the times are all the same"


async def test_cold_profiles_of_the_asynchronous_client(daemon: FakeDaemon, small_cache: int) -> None:
    async with await kops.connect_async(daemon.path, timeout=20) as k:
        arrays = vectors(k, 20_000)
        kern = await k.kernel(ADD2, "add2_kernel", OUT, grid=1, block=64)
        profile = await kern.profile(*arrays, 20_000, cache="cold", repeat=30)
        sets = -(-2 * small_cache // profile.bytes) + 1
        assert len(set(places(sent(daemon, "launch")[1:]))) == sets and len(profile.samples) == 30
        profile = await k.profile("add", *arrays[1:], cache="cold", repeat=10, until=0.5)
        assert len(profile.samples) == 80 and len({run["out"][0]["offset"] for run in daemon.runs()}) > sets
        for cache in ("warm", "cold"):
            short = await kern.profile(*arrays, 20_000, cache=cache, repeat=10, until=0.01, at_most=1e-9)
            assert len(short.samples) == 10
        with pytest.raises(kops.BadArgument, match="warm"):
            await k.profile("add", *arrays[1:], cache="hot")


def test_comparing(k: kops.Client, daemon: FakeDaemon) -> None:
    """Kernels, ops and variants are given as they are, with arguments for both or of their own."""
    kern, (c, a, b) = add2(k, signature=OUT), vectors(k)
    found = k.compare(kern, kern[7, 64], c, a, b, 100, rounds=6, repeat=5)
    assert not found.real and found.first.op == found.second.op == "add2_kernel" and len(found.first.samples) == 5
    launches = sent(daemon, "launch")
    assert [launch.get("grid") for launch in launches] == [None, [7], *[None, [7], [7], None] * 3]
    found = k.compare("add", ("add", {"variant": "theirs", "repeat": 8}), a, b, rounds=6, repeat=5)
    assert (found.first.variant, found.second.variant) == ("fake", "theirs")
    assert (len(found.first.samples), len(found.second.samples)) == (5, 8)
    found = k.compare((kern, c, a, b, 100), ("add", a, b), rounds=6)
    assert (found.first.op, found.second.op) == ("add2_kernel", "add")
    for wrong in (7, (), (7, a), (lambda: None, a)):
        with pytest.raises(kops.BadArgument, match="compare takes"):
            k.compare(wrong, "add", a, b)
    with pytest.raises(kops.BadArgument, match="compare takes"):
        k.compare(lambda: k.profile("add", a, b), "add", a, b)
    with pytest.raises(StopIteration):  # of the caller's own function
        k.compare(lambda: next(iter(())), lambda: None)


async def test_comparing_with_the_asynchronous_client(daemon: FakeDaemon) -> None:
    async with await kops.connect_async(daemon.path, timeout=20) as k:
        c, a, b = vectors(k)
        kern = await k.kernel(ADD2, "add2_kernel", OUT, grid=1, block=64)
        found = await k.compare((kern, c, a, b, 100), ("add", a, b), rounds=6)
        assert (found.first.op, found.second.op, found.rounds) == ("add2_kernel", "add", 6)
        with pytest.raises(kops.BadArgument, match="rounds"):
            await k.compare("add", "add", a, b, rounds=5)


def test_the_daemon_s_own_clock_goes_on_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from kops._base.intervals import Goal
    from kops._calls import measure

    replies = [{"timings": {"samples": [1.0, 2.0, 3.0], "host_us": 2.0, "wall_us": 7.5}} for _ in range(3)]

    class Rounds(Goal):
        def begin(self) -> None:
            pass

        def over(self, rounds: Any) -> bool:
            return len(rounds) == 3

        def interval(self, rounds: Any) -> Any:
            return None

    def plan(connection: Any, request: Any) -> Any:
        return replies.pop()
        yield

    monkeypatch.setattr(measure, "execute", plan)
    with pytest.raises(StopIteration) as ended:
        next(measure.repeated(None, None, Rounds.__new__(Rounds)))  # type: ignore[arg-type]
    timings, _ = ended.value.value
    assert len(timings.samples) == 9 and timings.wall_us == 22.5
