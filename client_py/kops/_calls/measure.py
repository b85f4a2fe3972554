"""Measuring: profiles of an op or a kernel inside the daemon, with warm and cold caches, what the device's speed depended on
meanwhile, what a GPU's own counters say, tuning, comparisons: plans, and the methods of the clients. What cannot be read around a
measurement never costs the measurement.

With cold caches each execution works on other copies of the operands, so many of them that the first copy is out of every cache when its
turn comes again.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from .._base import intervals
from .._base.errors import BadArgument, KopsError, Unsupported
from .._base.intervals import Goal
from .._base.records import Choice, Device
from .._base.results import CACHES, Comparison, Conditions, Counters, Profile, Reading, Timings, Tuned, tuned_of
from .._base.twins import DEFAULT_TIMEOUT, Steps, awaited
from .._memory.exports import Allocation
from .._session.link import Call, Link
from .._session.recovery import LOSSES
from .._tensors.device_array import Array
from .._tensors.operands import Operand
from . import plans, rules
from .ops import check_attrs
from .plans import Plan, Prepared, Request, execute

OLDER = "this daemon is older than readings of them"


def reading(connection: Link, device: Any) -> Plan:
    """A device, by UUID or number, at this time; None: the default device."""
    if connection.info is None or "conditions" not in connection.info.features:
        return Reading(missing=OLDER)
    reply = yield Call("conditions", {} if device is None else {"device": device})
    return Reading.of(reply["conditions"], reply["device"])


def conditions_before(connection: Link, request: Any) -> Plan:
    """The device that a request will run on, as far as that is known."""
    device = request.options.get("device")
    for operand in request.inputs:
        if device is None and isinstance(operand.source, Allocation):
            device = operand.source.device
    try:
        return (yield from reading(connection, device))
    except LOSSES:
        raise
    except KopsError as error:
        return Reading(missing=error.message)


def conditions_around(connection: Link, earlier: Reading, device: str) -> Plan:
    """The conditions of a measurement that has just ended on that device."""
    try:
        later = yield from reading(connection, device or None)
    except KopsError as error:
        later = Reading(device, error.message)
    if not earlier.missing and earlier.device != later.device:
        earlier = Reading(earlier.device, "it ran on another device than the one that was read before")
    return Conditions(earlier, later)


COUNTED = ("device", "stream", "deadline_ms")  # options of a request whose counters are read


class Countable(Prepared, Protocol):
    """A request of one op or one launch."""

    options: dict[str, Any]


def caches_of(counters: bool | str, cache: str) -> str | None:
    """The caches with which counters are wanted; None: they are not. `cache`: those of the profile's times."""
    if counters and cache == "cold":
        raise BadArgument('counters are read with cold caches as it is: leave cache="cold" out')
    if isinstance(counters, bool):
        return CACHES[0] if counters else None
    if counters not in CACHES:
        raise BadArgument(f'counters={counters!r}: True, or with which caches, "cold" or "warm"')
    return counters


def count(connection: Link, request: Countable, cache: str) -> Plan:
    """Has the GPU's counters read, in place of what the request says: Counters. It writes nothing here."""
    method, options = request.method, request.options
    request.method = "counters"
    request.options = {key: options[key] for key in COUNTED if key in options} | {"cache": cache}
    try:
        reply = yield from execute(connection, request)
    finally:
        request.method, request.options = method, options
    return Counters.of(reply, cache)


def _samples(timings: Timings) -> tuple[float, ...]:
    return timings.samples or ((timings.exec_us,) if timings.exec_us is not None else ())


def repeated(connection: Link, request: Prepared, goal: Goal) -> Plan:
    """Runs what the request says, and again until the goal is reached or given up: the Timings with all samples, and the interval."""
    goal.begin()
    reply = yield from execute(connection, request)
    timings = Timings.of(reply)
    rounds, walls, alone = [_samples(timings)], [timings.wall_us], timings.exclusive
    while not goal.over(rounds):
        reply = yield from execute(connection, request)
        more = Timings.of(reply)
        rounds.append(_samples(more))
        walls.append(more.wall_us)
        alone = None if alone is None or more.exclusive is None else alone and more.exclusive
    if len(rounds) > 1:
        wall_us = None if None in walls else sum(us for us in walls if us is not None)
        timings = replace(timings.with_samples(tuple(chain.from_iterable(rounds))), wall_us=wall_us, exclusive=alone)
    return timings, goal.interval(rounds)


def measure(connection: Link, request: Any, goal: Goal, watch: bool, counters: str | None = None) -> Plan:
    """What `repeated` does; and, to `watch`, what the device's speed depended on before and after; and what its counters say
    with these caches: a dict of members of a Profile."""
    found = None
    earlier = (yield from conditions_before(connection, request)) if watch else None
    timings, interval = yield from repeated(connection, request, goal)
    if earlier is not None:
        found = yield from conditions_around(connection, earlier, timings.device)
    counted = None if counters is None else (yield from count(connection, request, counters))
    return {"timings": timings, "interval": interval, "until": goal.until, "conditions": found, "counters": counted}


def profile(connection: Link, request: Request, goal: Goal, watch: bool = True, counters: str | None = None) -> Plan:
    """Runs an op repeatedly: a Profile. `counters`: with these caches."""
    measured = yield from measure(connection, request, goal, watch, counters)
    shapes = [tuple(o.shape) for o in request.inputs]
    out = tuple(request.outputs[0].shape)
    every = request.inputs + request.outputs
    return Profile(
        op=request.op,
        dtype=every[0].dtype,
        shapes=tuple(tuple(o.shape) for o in every),
        bytes=sum(rules.operand_bytes(o.shape, o.dtype) for o in every),
        operations=rules.operations(request.declared, request.rule, shapes, out, every[0].dtype, request.attrs),
        **measured,
    )


GPU_CACHE = 128 << 20  # bytes: no GPU has a larger second-level cache
HOST_CACHE = 64 << 20  # bytes, where the system does not tell
SETS_MAX, BYTES_MAX = 512, 4 << 30  # limits of copies
AHEAD = 16  # executions under way at a time


def host_cache() -> int:
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return found if found > 0 else HOST_CACHE


def is_cold(cache: str) -> bool:
    """Whether the keyword asks for cold caches."""
    if cache not in ("warm", "cold"):
        raise BadArgument(f'cache={cache!r}: "warm" or "cold"')
    return cache == "cold"


def copy_of(value: Any, array: Callable[..., Any]) -> Any:
    """A copy of the same layout in memory that the daemon uses in place. Numbers are no operands."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        made.copy_(value)
        return made
    if numpy is not None and isinstance(value, numpy.ndarray) and value.flags.c_contiguous:
        return array(value)
    if value is None or isinstance(value, (int, float, bool)) or (numpy is not None and isinstance(value, numpy.generic)):
        return value
    if isinstance(value, Array) and value.contiguous:
        made = array(value, device=value.device)
        if isinstance(made, Array):
            return made
        made.close()
        raise BadArgument('cache="cold" with asyncio copies NumPy arrays and torch tensors, and no Array: use the other client')
    kind = type(value).__name__
    raise BadArgument(f'cache="cold" copies the operands: contiguous NumPy arrays, kops.Arrays and torch tensors, and no {kind}')


def sets_for(size: int, cache: int) -> int:
    """How many sets of operands of `size` bytes are needed. 1: each execution leaves nothing for the next one."""
    if not size or size >= 2 * cache:
        return 1
    wanted = -(-2 * cache // size) + 1
    if wanted > SETS_MAX or wanted * size > BYTES_MAX:
        raise BadArgument(f'cache="cold" would take {wanted} copies of {size} bytes: such operands are never cold')
    return wanted


class Rotation:
    """Which operands are next, and the times so far. `first` is a profile of one execution on the operands as they are."""

    def __init__(
        self, first: Profile, operands: Sequence[Any], array: Callable[[Any], Any], repeat: int, goal: Goal
    ) -> None:  # fmt: skip
        if first.timings.h2d_us is not None or first.timings.d2h_us is not None:
            raise BadArgument('cache="cold" is for tensors that lie on the device: these are copied to it each time')
        self.first, self.repeat, self.goal = first, repeat, goal
        cache = GPU_CACHE if first.timings.host_us is None else host_cache()
        self.count = sets_for(first.bytes, cache)
        # Without copies the last execution has filled the caches with other parts of these operands.
        self.sets = [tuple(copy_of(value, array) for value in operands) for _ in range(self.count)] if self.count > 1 else []
        self.rounds: list[list[float]] = []
        self._turn = 0
        goal.begin()

    def round(self) -> Iterator[tuple[bool, tuple[Any, ...]]]:
        """The executions of the next round: whether each counts, and its operands."""
        # Runs all sets once before the first that counts: their memory becomes known to the daemon, and leaves the
        # caches.
        unseen = 0 if self.rounds else self.count
        self.rounds.append([])
        for turn in range(unseen + self.repeat):
            yield turn >= unseen, self.sets[self._turn % self.count]
            self._turn += 1

    def took(self, counts: bool, answer: Any) -> None:
        timings = answer[1] if isinstance(answer, tuple) else answer
        if counts and timings.exec_us is not None:
            self.rounds[-1].append(timings.exec_us)

    @property
    def over(self) -> bool:
        return self.goal.over(self.rounds)

    def profile(self, later: Reading | None) -> Profile:
        samples = tuple(chain.from_iterable(self.rounds))
        earlier = self.first.conditions
        conditions = Conditions(earlier.before, later) if earlier is not None and later is not None else earlier
        timings, interval = self.first.timings.with_samples(samples), self.goal.interval(self.rounds)
        return replace(self.first, timings=timings, interval=interval, until=self.goal.until, conditions=conditions)


def profile_cold(
    client: Any, warm: Callable[[int, Goal], Any], start: Callable[..., Any], operands: Sequence[Any], repeat: int, goal: Goal
) -> Steps:
    """`warm(repeat, goal)` profiles as ever, `start(*operands)` starts one timed execution."""
    first = yield partial(warm, 1, Goal())
    rotation = Rotation(first, operands, client.array, repeat, goal)
    if rotation.count == 1:
        return (yield partial(warm, repeat, goal))
    waiting: deque[tuple[bool, Any]] = deque()
    try:
        while not rotation.over:
            for counts, one in rotation.round():
                if len(waiting) == AHEAD:
                    rotation.took(waiting[0][0], (yield partial(client._end, waiting[0][1])))
                    waiting.popleft()
                waiting.append((counts, start(*one)))
            while waiting:
                rotation.took(waiting[0][0], (yield partial(client._end, waiting[0][1])))
                waiting.popleft()
    finally:
        for _, pending in waiting:
            client._give_up(pending)
    return rotation.profile((yield partial(client.conditions, first.device)) if first.conditions is not None else None)


def _check_tunes(connection: Link) -> None:
    if connection.info is None or "tune" not in connection.info.features:
        raise Unsupported("this daemon tunes nothing: it has no GPU, or is older than tuning")


def _layout(operand: Operand) -> dict[str, Any]:
    """The tensor without its memory."""
    layout: dict[str, Any] = {"shape": operand.shape, "dtype": operand.dtype, "offset": operand.offset}
    if operand.strides is not None:
        layout["strides"] = operand.strides
    return layout


def tune(connection: Link, request: Request) -> Plan:
    _check_tunes(connection)
    params: dict[str, Any] = {
        "op": request.op,
        "in": [_layout(operand) for operand in request.inputs],
        "out": [_layout(operand) for operand in request.outputs],
    }
    if request.attrs:
        params["attrs"] = request.attrs
    device = request.options.get("device")
    for operand in (*request.inputs, *request.outputs):
        if device is None and isinstance(operand.source, Allocation):
            device = operand.source.device
    if device is not None:
        params["device"] = device
    return tuned_of((yield Call("tune", params)))


def tuning(connection: Link, clear: bool) -> Plan:
    _check_tunes(connection)
    choices: list[Choice] = []
    while True:
        reply = yield Call("tuning", {"from": len(choices), **({"clear": True} if clear else {})})
        clear = False
        choices += map(Choice.read, reply["choices"])
        if not reply["choices"] or len(choices) >= reply["total"]:
            return choices


# Methods of the clients


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
        return Comparison(one, other, intervals.median(self._ratios), interval, self.rounds, found)


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
        answer: Reading = self._ask(lambda link: reading(link, reference), timeout)
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
        answer: Tuned = self._ask(partial(tune, request=request), timeout)
        return answer

    def tuning(self, *, clear: bool = False, timeout: float | None = DEFAULT_TIMEOUT) -> list[Choice]:
        """What tuning has chosen for problems of this user, for administrators all of it, the newest first. `clear` forgets all of
        it first, for administrators."""
        answer: list[Choice] = self._ask(partial(tuning, clear=clear), timeout)
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
        cold = is_cold(cache)
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
                return (yield from profile_cold(self, partial(again, operands), start, operands, repeat, goal))
            options = plans.options_of(connection, device, stream, timing, deadline_ms, priority, warmup, repeat)
            request = plans.Request(op, inputs, out, attrs, options)
            plan = partial(profile, request=request, goal=goal, watch=conditions, counters=caches)
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
