"""Methods for administrators: the users of a daemon, its metrics, and its draining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._base.errors import BadArgument, UnknownMethod, Unsupported
from .._base.record import Record
from .._base.records import ClientInfo, Drained, UserInfo
from .._base.results import Reading
from .._base.twins import DEFAULT_TIMEOUT, awaited
from .._calls.plans import Plan
from .._session.link import Call


@dataclass(frozen=True)
class DeviceLoad(Record):
    """How busy a device is: `busy_us` for this daemon's clients since its start, `running` jobs. Memory in bytes, None
    where it is not known."""

    index: int
    name: str = ""
    uuid: str = ""
    busy_us: float = 0.0
    running: int = 0
    memory_total: int | None = None
    memory_free: int | None = None
    conditions: Reading | None = None  # clocks, temperature, power; None: the daemon is older
    _converted = {"conditions": Reading.read}

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> DeviceLoad:
        conditions = reply.get("conditions")
        return cls.read({**reply, "conditions": {**conditions, "device": reply.get("uuid", "")}} if conditions else reply)


@dataclass(frozen=True)
class Clients:
    """The users of the daemon. `state` is "serving", "draining" or "stopping"."""

    clients: tuple[ClientInfo, ...]
    users: tuple[UserInfo, ...]
    devices: tuple[DeviceLoad, ...]
    state: str
    uptime_s: float


def _ask(method: str, params: dict[str, Any]) -> Plan:
    try:
        return (yield Call(method, params))
    except UnknownMethod:
        raise Unsupported(f"this daemon is older than the method `{method}`: install a newer one") from None


def clients() -> Plan:
    reply = yield from _ask("clients", {})
    return Clients(
        clients=tuple(map(ClientInfo.read, reply["clients"])),
        users=tuple(map(UserInfo.read, reply.get("users", ()))),
        devices=tuple(map(DeviceLoad.of, reply.get("devices", ()))),
        state=reply.get("state", ""),
        uptime_s=reply.get("uptime_s", 0.0),
    )


def metrics() -> Plan:
    reply = yield from _ask("metrics", {})
    return reply["text"]


def drain(stop: bool, resume: bool, wait: float | None) -> Plan:
    if stop and resume:
        raise BadArgument("a daemon can stop or resume, not both")
    if wait is not None and not 0 < wait <= 86400:
        raise BadArgument(f"the time to drain is seconds above 0, up to a day, or None for no limit, not {wait!r}")
    params: dict[str, Any] = {key: True for key, value in (("stop", stop), ("resume", resume)) if value}
    if wait is not None:
        params["timeout_ms"] = max(1, round(wait * 1000))
    reply = yield from _ask("drain", params)
    return Drained.read(reply)


def drain_patience(wait: float | None, timeout: float | None) -> float | None:
    """How long to wait for the answer to a drain: the daemon answers when its own time is over."""
    return None if wait is None or timeout is None else wait + timeout


def drain_hazard() -> str:
    return "the daemon that comes next is not the one that was to drain"


class AdminMethods:
    """Methods of `Client`. A daemon that is older than one raises `Unsupported`."""

    _ask: Any
    _timeout_of: Any

    def clients(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> Clients:
        """The connections, the memory that each one uses and how it is served. Administrators (by default root and the user that
        the daemon runs as) see everybody, others the connections of their own uid, or identity."""
        answer: Clients = self._ask(lambda _: clients(), timeout)
        return answer

    def metrics(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> str:
        """All metrics in Prometheus' text format 0.0.4."""
        answer: str = self._ask(lambda _: metrics(), timeout)
        return answer

    def drain(
        self, *, stop: bool = False, resume: bool = False, wait: float | None = None, timeout: float | None = DEFAULT_TIMEOUT
    ) -> Drained:
        """Lets the daemon take no new work, and waits `wait` seconds at most (None: as long as it takes) until no job is
        in flight. With `stop` the daemon ends then, with `resume` it takes new work again, at once. `timeout` comes on
        top of `wait`. For administrators; not repeated when the connection is lost."""
        patience = drain_patience(wait, self._timeout_of(timeout))
        answer: Drained = self._ask(lambda _: drain(stop, resume, wait), patience, drain_hazard)
        return answer


class AsyncAdminMethods:
    """Methods of `AsyncClient`."""

    clients = awaited(AdminMethods.clients)
    metrics = awaited(AdminMethods.metrics)
    drain = awaited(AdminMethods.drain)
