"""Methods that measure: profiles, comparisons, and what a device's speed depends on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from .._base import intervals
from .._base.errors import BadArgument
from .._base.records import Choice, Device
from .._base.results import Comparison, Conditions, Profile, Reading, Tuned
from .._base.twins import DEFAULT_TIMEOUT, Steps, awaited
from .._calls import measure, plans
from .._calls.measure import caches_of
from .._calls.ops import check_attrs


def way_of(client: Any, way: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes a Profile: of an op by name, a kernel, one of them with arguments and options of its own, or a function as it is."""
    head, own, keywords = way, list(arguments), dict(options)
    if isinstance(way, tuple) and way:
        head, *given = way
        if given and isinstance(given[-1], Mapping):
            keywords.update(given.pop())
        own = [*given, *arguments]
    keywords.setdefault("conditions", False)  # compare reads them itself, once
    if isinstance(head, str):
        return partial(client.profile, head, *own, **keywords)
    profile = getattr(head, "profile", None)
    if callable(profile):
        return partial(profile, *own, **keywords)
    if callable(head) and head is way and not arguments and not options:
        made: Callable[[], Any] = head
        return made
    raise BadArgument(
        "compare takes an op's name, a kernel, a tuple of one of them with its arguments and a dict of its keywords, or a function "
        f"without arguments that makes a Profile, not {way!r}"
    )


class Turns:
    """The rounds of a comparison."""

    def __init__(self, rounds: int) -> None:
        if rounds < intervals.FEWEST:
            raise BadArgument(f"rounds={rounds}: at least {intervals.FEWEST}, or nothing can be told from noise")
        self.rounds = rounds
        self._ratios: list[float] = []

    def took(self, one: Profile, other: Profile) -> None:
        if not one.median or other.median is None:
            raise BadArgument("compare: a profile without times; profiles of ops on nothing cannot be compared")
        self._ratios.append(other.median / one.median)

    def result(self, one: Profile, other: Profile, found: Conditions | None) -> Comparison:
        interval = intervals.of_median(self._ratios)
        assert interval is not None
        return Comparison(one, other, median(self._ratios), interval, self.rounds, found)


class MeasureMethods:
    """Methods of `Client`."""

    _ask: Any
    _live: Any
    _drive: Any
    _take: Any
    _start: Any
    run: Any

    def conditions(self, device: Device | str | int | None = None, *, timeout: float | None = DEFAULT_TIMEOUT) -> Reading:
        """What a device's speed depends on at this time: clocks, temperature, power, and what keeps the clocks down. A
        `Reading`, whose `missing` says why where nothing is known. Without `device`: the default device."""
        reference = None if device is None else plans.device_ref(device)
        answer: Reading = self._ask(lambda link: measure.reading(link, reference), timeout)
        return answer

    def tune(
        self, /, op: str, *inputs: Any, out: Any = None, device: Device | str | int | None = None,
        timeout: float | None = DEFAULT_TIMEOUT, **attrs: Any,
    ) -> Tuned:
        """Has the daemon measure what runs an op fastest on arrays like these (their shapes, strides, dtypes and alignments count,
        their values do not), and keep that for every client, also in later daemons. A `Tuned`, which prints as a table. It
        takes less than a second (the daemon's `tuning.budget_ms`); other work goes first. Where that was not enough for all
        candidates (`Tuned.tried`), the others are tried by the next call, or while the GPU is idle. Raises `Unsupported` where
        there is nothing to choose among."""
        attrs = check_attrs(op, attrs, None)
        options = {} if device is None else {"device": plans.device_ref(device)}
        request = plans.Request(op, inputs, out, attrs, options)
        answer: Tuned = self._ask(partial(measure.tune, request=request), timeout)
        return answer

    def tuning(self, *, clear: bool = False, timeout: float | None = DEFAULT_TIMEOUT) -> list[Choice]:
        """What tuning has chosen for problems of this user, for administrators all of it, the newest first. `clear` forgets all of
        it first, for administrators."""
        answer: list[Choice] = self._ask(partial(measure.tuning, clear=clear), timeout)
        return answer

    def profile(
        self,
        /,
        op: str,
        *inputs: Any,
        warmup: int = 3,
        repeat: int = 20,
        until: float | None = None,
        at_most: float = intervals.SECONDS_MOST,
        cache: str = "warm",
        conditions: bool = True,
        counters: bool | str = False,
        out: Any = None,
        variant: str | None = None,
        device: Device | str | int | None = None,
        stream: int = 0,
        deadline_ms: int | None = None,
        priority: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        **attrs: Any,
    ) -> Profile:
        """Runs an op `warmup` times untimed, then `repeat` times timed, inside the daemon: a `Profile`. With `until`, say 0.01,
        it goes on in rounds of as many until the median is known within that part of itself with 95 % confidence. Where `at_most`
        seconds or 200,000 samples are not enough, `reached` is False and the printed profile says so; `interval` says what is known.

        `cache="cold"`: each execution finds its operands in no cache. They are copied, in as many sets as two caches hold,
        and each execution takes the next set; for NumPy arrays and torch tensors that lie on the device.

        The profile's `conditions` are the device's clocks, temperature and power before and after, with a warning where the clocks
        were kept down. Reading them takes some milliseconds; `conditions=False`: not read.

        `counters=True`: `Profile.counters` has what the GPU's own counters say, read while the op runs alone on copies of its
        operands, with cold caches; `counters="warm"` keeps what an execution before has left in them."""
        attrs = check_attrs(op, attrs, variant)
        caches, goal = caches_of(counters, cache), intervals.Goal(until, at_most)
        cold = measure.is_cold(cache)
        how: dict[str, Any] = {"device": device, "stream": stream, "deadline_ms": deadline_ms, "priority": priority}

        def again(operands: tuple[Any, ...], n: int, g: intervals.Goal) -> Any:
            return self.profile(
                op, *operands[:-1], out=operands[-1], warmup=warmup, repeat=n, until=g.until, at_most=g.at_most, conditions=conditions,
                timeout=timeout, **how, **attrs,
            )  # fmt: skip

        def steps() -> Steps:
            connection = yield self._live
            timing = plans.truest(connection)
            if cold:
                target = (yield partial(self.run, op, *inputs, timeout=timeout, **how, **attrs)) if out is None else out
                operands = (*inputs, target)
                start = lambda *some: self._start(op, *some[:-1], out=some[-1], timing=timing, timeout=timeout, **how, **attrs)  # noqa: E731
                return (yield from measure.profile_cold(self, partial(again, operands), start, operands, repeat, goal))
            options = plans.options_of(connection, device, stream, timing, deadline_ms, priority, warmup, repeat)
            request = plans.Request(op, inputs, out, attrs, options)
            plan = partial(measure.profile, request=request, goal=goal, watch=conditions, counters=caches)
            return (yield partial(self._drive, connection, plan, timeout, lambda: request.hazard))

        answer: Profile = self._take(steps())
        return answer

    def compare(self, /, first: Any, second: Any, *arguments: Any, rounds: int = 21, **options: Any) -> Comparison:
        """Measures two ways to do something in turns, so that clocks, heat and other clients meet both alike, and says
        whether the difference is real:

            k.compare(mine, theirs, y, x, n)                             # two kernels, with the same arguments
            k.compare("gemm", ("gemm", {"variant": "tiled"}), a, b)      # two variants of an op
            k.compare(("add", a, b), (mine[64, 256], c, a, b, n))        # each with its own arguments
            k.compare(lambda: k.profile(…), lambda: k.profile(…))        # any two functions that make a Profile

        A way is an op's name, a kernel, or a tuple: one of these, arguments of its own, a dict of keywords of its own. `arguments`
        and `options`, keywords of `profile` such as `repeat=50` or `cache="cold"`, are for both. The order changes from round to
        round; the first round, which warms up, is not counted. At least 6 rounds."""
        turns = Turns(rounds)
        ways = [way_of(self, way, arguments, options) for way in (first, second)]

        def steps() -> Steps:
            made: list[Profile] = []
            for way in ways:
                made.append((yield way))
            before = yield partial(self.conditions, made[0].device or None)
            for turn in range(rounds):
                for i in (1, 0) if turn % 2 else (0, 1):
                    made[i] = yield ways[i]
                turns.took(made[0], made[1])
            after = yield partial(self.conditions, made[0].device or None)
            return turns.result(made[0], made[1], Conditions(before, after))

        answer: Comparison = self._take(steps())
        return answer


class AsyncMeasureMethods:
    """Methods of `AsyncClient`. The functions that it compares are coroutine functions."""

    conditions = awaited(MeasureMethods.conditions)
    tune = awaited(MeasureMethods.tune)
    tuning = awaited(MeasureMethods.tuning)
    profile = awaited(MeasureMethods.profile)
    compare = awaited(MeasureMethods.compare)
