"""Plans of profiles: an op, or a kernel, again and again inside the daemon."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from .._base.intervals import Goal
from .._base.results import Profile, Timings
from .._session.link import Link
from . import conditions, rules
from .counting import count
from .plans import Plan, Prepared, Request, execute


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
    earlier = (yield from conditions.before(connection, request)) if watch else None
    timings, interval = yield from repeated(connection, request, goal)
    if earlier is not None:
        found = yield from conditions.around(connection, earlier, timings.device)
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
