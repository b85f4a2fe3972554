"""Plans of profiles: an op, or a kernel, again and again inside the daemon."""

from __future__ import annotations

from itertools import chain
from typing import Any

from .._base import intervals
from .._base.results import Profile, Timings
from .._session.connection import Peer
from . import conditions, rules
from .counting import count
from .plans import Plan, Prepared, Request, execute


def _samples(timings: Timings) -> tuple[float, ...]:
    return timings.samples or ((timings.exec_us,) if timings.exec_us is not None else ())


def repeated(connection: Peer, request: Prepared, until: float | None) -> Plan:
    """Runs what the request says, and again until the interval of the median is narrow enough, or there are enough samples: the Timings
    with all of them, and the interval."""
    reply = yield from execute(connection, request)
    timings = Timings.of(reply)
    first = _samples(timings)
    if until is None or not first:
        return timings, intervals.of_median(first)
    rounds = [first]
    while not intervals.enough(rounds, until):
        reply = yield from execute(connection, request)
        rounds.append(_samples(Timings.of(reply)))
    return timings.with_samples(tuple(chain.from_iterable(rounds))), intervals.of_rounds(rounds)


def measure(connection: Peer, request: Any, until: float | None, watch: bool, counters: str | None = None) -> Plan:
    """What `repeated` does; and, to `watch`, what the device's speed depended on before and after; and what its counters say
    with these caches: a dict of members of a Profile."""
    intervals.check(until)
    found = None
    earlier = (yield from conditions.before(connection, request)) if watch else None
    timings, interval = yield from repeated(connection, request, until)
    if earlier is not None:
        found = yield from conditions.around(connection, earlier, timings.device)
    counted = None if counters is None else (yield from count(connection, request, counters))
    return {"timings": timings, "interval": interval, "conditions": found, "counters": counted}


def profile(connection: Peer, request: Request, until: float | None = None, watch: bool = True, counters: str | None = None) -> Plan:
    """Runs an op repeatedly: a Profile. `counters`: with these caches."""
    measured = yield from measure(connection, request, until, watch, counters)
    shapes = [tuple(o.shape) for o in request.inputs]
    out = tuple(request.outputs[0].shape)
    every = request.inputs + request.outputs
    return Profile(
        op=request.op,
        dtype=every[0].dtype,
        shapes=tuple(tuple(o.shape) for o in every),
        bytes=sum(rules.operand_bytes(o.shape, o.dtype) for o in every),
        operations=rules.operations(request.declared, request.rule, shapes, out, request.attrs),
        **measured,
    )
