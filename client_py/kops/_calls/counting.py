"""What a GPU's own counters say of one op or one launch."""

from __future__ import annotations

from typing import Any, Protocol

from .._base.counters import CACHES, Counters
from .._base.errors import BadArgument
from .._session.link import Link
from .plans import Plan, Prepared, execute

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
