"""How sure a median is: intervals, profiles that go on until they are narrow, comparisons."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import kops
import numpy
import pytest
from built import k, real
from fake_daemon import FakeDaemon
from kops._base import intervals
from kops._base.results import Profile, Timings
from kops._calls import measure
from test_kernels import ADD2, add2, vectors

__all__ = ["k", "real"]


@pytest.mark.parametrize("n", [6, 10, 51, 400])
def test_an_interval_holds_the_true_median_as_often_as_it_says(n: int) -> None:
    rng = random.Random(n)
    held = 0
    for _ in range(2000):
        low, high = intervals.of_median([rng.expovariate(1) for _ in range(n)]) or (0.0, 0.0)
        held += low <= 0.6931 <= high
    assert 0.94 <= held / 2000


def test_how_wide_an_interval_is() -> None:
    rng = random.Random(1)
    widths = [intervals.width(intervals.of_median([rng.gauss(10, 1) for _ in range(n)]), 10) for n in (20, 200, 2000, 20000)]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.005, "more samples make it narrower"
    assert intervals.of_median([1, 2, 3, 4, 5]) is None and intervals.width(None, 1) == float("inf")
    alike = [[rng.gauss(10, 0.1) for _ in range(100)] for _ in range(10)]
    drifting = [[sample + turn for sample in one] for turn, one in enumerate(alike)]
    assert intervals.width(intervals.of_rounds(alike), 10) < 0.02 and intervals.width(intervals.of_rounds(drifting), 14.5) > 0.2


def test_a_profile_goes_on_until_it_is_sure(k: kops.Client) -> None:
    a = k.array(numpy.ones(1 << 16, "float32"))
    plain = k.profile("square", a, repeat=50)
    assert len(plain.samples) == 50 and plain.interval is not None and plain.interval[0] <= plain.median <= plain.interval[1]
    sure = k.profile("square", a, repeat=50, until=0.2, at_most=float("inf"))  # ends with the samples
    assert len(sure.samples) >= 8 * 50 and sure.interval is not None and sure.median is not None
    assert intervals.width(sure.interval, sure.median) <= 0.2 or len(sure.samples) >= 200_000
    ordered = sorted(sure.samples)
    assert sure.min == ordered[0] and sure.max == ordered[-1] and ordered[0] <= sure.median <= ordered[-1]
    assert sure.timings.host_us == sure.median
    for wrong in (0, -1, 1, 5):
        with pytest.raises(kops.BadArgument, match="until"):
            k.profile("square", a, until=wrong)


class Clock:
    """Goes on by a second each time it is read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


def test_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    monkeypatch.setattr(intervals, "time", Clock())
    goal, rounds = intervals.Goal(until=1e-6, at_most=12), list[list[float]]()
    goal.begin()
    while not goal.over(rounds) and len(rounds) < 100:
        rounds.append([rng.gauss(10, 1) for _ in range(10)])
    assert len(rounds) == 12, "one more would begin after its end"
    endless = intervals.Goal(until=1e-6, at_most=float("inf"))
    endless.begin()
    assert not endless.over(rounds) and endless.over([[1.0] * 200_000])
    assert intervals.Goal().over(rounds[:1]) and not intervals.Goal().over([]), "without a goal one round is enough"


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_a_profile_says_what_was_not_reached(k: kops.Client, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    monkeypatch.setattr("kops._calls.measure.host_cache", lambda: 1 << 20)
    a = k.array(numpy.ones(1 << 20, "float32"))  # of the times of a short op many are the same
    profile = k.profile("square", a, repeat=20, until=1e-9, at_most=1e-9, cache=cache)
    assert len(profile.samples) == 20 and not profile.reached and profile.until == 1e-9
    assert "WARNING: the median is known within" in str(profile) and "1e-07 % of `until`" in str(profile)
    profile = k.profile("square", a, repeat=3, until=0.5, at_most=1e-9, cache=cache)
    assert profile.interval is None and "the median is not known, not within the 50 %" in str(profile)
    profile = k.profile("square", a, repeat=20, cache=cache)
    assert profile.reached and profile.until is None and "WARNING: the median" not in str(profile)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(kops.BadArgument, match="at_most"):
            k.profile("square", a, until=0.5, at_most=wrong, cache=cache)


def made_of(times: Callable[[], float]) -> Callable[[], Profile]:
    def measured() -> Profile:
        samples = tuple(times() for _ in range(9))
        return Profile("x", "f32", (), Timings().with_samples(samples), 1, None)

    return measured


def test_comparing(k: kops.Client) -> None:
    rng = random.Random(3)
    first = made_of(lambda: rng.gauss(10, 0.2))
    same, slower = k.compare(first, first), k.compare(first, made_of(lambda: rng.gauss(10.5, 0.2)))
    assert not same.real and same.interval[0] <= 1 <= same.interval[1] and "noise" in str(same)
    assert slower.real and slower.ratio == pytest.approx(1.05, abs=0.02) and str(slower).endswith("slower")
    with pytest.raises(kops.BadArgument, match="rounds"):
        k.compare(first, first, rounds=5)


def test_cold_profiles_rotate_their_operands(k: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kops._calls.measure.host_cache", lambda: 1 << 20)
    a, b = k.array(numpy.full(10_000, 2, "float32")), k.array(numpy.full(10_000, 3, "float32"))
    used: list[tuple[int, ...]] = []
    submit = k.submit

    def noted(op: str, *inputs: Any, out: Any, **more: Any) -> Any:
        used.append(tuple(array.ctypes.data for array in (*inputs, out)))
        return submit(op, *inputs, out=out, **more)

    monkeypatch.setattr(k, "submit", noted)
    cold = k.profile("add", a, b, repeat=30, cache="cold")
    sets = -(-2 * (1 << 20) // cold.bytes) + 1
    assert len(set(used)) == sets == len({pointer for one in used for pointer in one}) // 3
    assert used[0] == used[sets] and len(used) == sets + 30 == sets + len(cold.samples)
    assert cold.median and cold.interval and cold.bytes == 120_000 and cold.shapes == ((10_000,),) * 3
    used.clear()
    assert len(k.profile("add", a, b, repeat=30).samples) == 30 and not used
    big = k.array(numpy.ones(1 << 20, "float32"))
    assert len(k.profile("square", big, repeat=5, cache="cold").samples) == 5 and not used, "what fills the cache needs no copies"


def test_what_cannot_be_cold(k: kops.Client) -> None:
    a = k.array(numpy.ones(64, "float32"))
    for more in ({"cache": "hot"}, {"cache": "cold", "until": 0.1}, {"cache": "cold"}):
        with pytest.raises(kops.BadArgument, match="cache|cold"):
            k.profile("square", a, **more)
    with pytest.raises(kops.BadArgument, match="no list"):
        k.profile("square", [1.0] * 300_000, cache="cold")


# Kernels, and the asynchronous client

OUT = "out float* c, const float* a, const float* b, int n"


@pytest.fixture
def fake(daemon: FakeDaemon) -> Iterator[kops.Client]:
    with kops.connect(daemon.path, timeout=20) as client:
        yield client


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("kops._calls.measure.host_cache", lambda: 1 << 20)
    return 1 << 20


def places(launches: list[dict[str, Any]]) -> list[tuple[tuple[int, int], ...]]:
    return [tuple((arg["buffer"], arg["offset"]) for arg in launch["args"] if isinstance(arg, dict)) for launch in launches]


def test_cold_profiles(fake: kops.Client, daemon: FakeDaemon, small_cache: int) -> None:
    """Each launch has other copies of all tensors, with what they contain; the numbers are as they were."""
    kern, (c, a, b) = add2(fake, signature=OUT), vectors(fake, 20_000)
    profile = kern[7, 64].profile(c, a, b, 20_000, cache="cold", repeat=30)
    sets = -(-2 * small_cache // profile.bytes) + 1
    warm, *cold = daemon.sent("launch")
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
        assert len(set(places(daemon.sent("launch")[1:]))) == sets and len(profile.samples) == 30
        profile = await k.profile("add", *arrays[1:], cache="cold", repeat=10, until=0.5)
        assert len(profile.samples) == 80 and len({run["out"][0]["offset"] for run in daemon.runs()}) > sets
        for cache in ("warm", "cold"):
            short = await kern.profile(*arrays, 20_000, cache=cache, repeat=10, until=0.01, at_most=1e-9)
            assert len(short.samples) == 10
        with pytest.raises(kops.BadArgument, match="warm"):
            await k.profile("add", *arrays[1:], cache="hot")


def test_comparing_kernels_and_ops(fake: kops.Client, daemon: FakeDaemon) -> None:
    """Kernels, ops and variants are given as they are, with arguments for both or of their own."""
    kern, (c, a, b) = add2(fake, signature=OUT), vectors(fake)
    found = fake.compare(kern, kern[7, 64], c, a, b, 100, rounds=6, repeat=5)
    assert not found.real and found.first.op == found.second.op == "add2_kernel" and len(found.first.samples) == 5
    launches = daemon.sent("launch")
    assert [launch.get("grid") for launch in launches] == [None, [7], *[None, [7], [7], None] * 3]
    found = fake.compare("add", ("add", {"variant": "theirs", "repeat": 8}), a, b, rounds=6, repeat=5)
    assert (found.first.variant, found.second.variant) == ("fake", "theirs")
    assert (len(found.first.samples), len(found.second.samples)) == (5, 8)
    found = fake.compare((kern, c, a, b, 100), ("add", a, b), rounds=6)
    assert (found.first.op, found.second.op) == ("add2_kernel", "add")
    for wrong in (7, (), (7, a), (lambda: None, a)):
        with pytest.raises(kops.BadArgument, match="compare takes"):
            fake.compare(wrong, "add", a, b)
    with pytest.raises(kops.BadArgument, match="compare takes"):
        fake.compare(lambda: fake.profile("add", a, b), "add", a, b)
    with pytest.raises(StopIteration):  # of the caller's own function
        fake.compare(lambda: next(iter(())), lambda: None)


def test_the_daemon_s_own_clock_goes_on_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(connection: Any, request: Any) -> Any:
        return {"timings": {"samples": [1.0, 2.0, 3.0], "host_us": 2.0, "wall_us": 7.5}}
        yield

    monkeypatch.setattr(measure, "execute", plan)
    goal = SimpleNamespace(begin=lambda: None, over=lambda rounds: len(rounds) == 3, interval=lambda rounds: None)
    with pytest.raises(StopIteration) as ended:
        next(measure.repeated(None, None, goal))  # type: ignore[arg-type]
    timings, _ = ended.value.value
    assert len(timings.samples) == 9 and timings.wall_us == 22.5
