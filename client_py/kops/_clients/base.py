"""What both clients are: the daemon that they found, the time in which they find it again, the arrays that they make, and their methods for
administrators.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._base.compiled import native
from .._base.errors import BadArgument, ConnectionLost, UnknownMethod, Unsupported
from .._base.record import Record
from .._base.records import ClientInfo, Device, Drained, UserInfo
from .._base.results import Info, Op, Reading
from .._base.texts import log
from .._base.twins import DEFAULT_TIMEOUT, DefaultTimeout, Steps, awaited
from .._calls import plans
from .._calls.pending import Link
from .._calls.plans import Plan
from .._calls.recording import BaseProgram
from .._session.link import Call
from .._session.native_link import NativeLink
from .._session.plain import connect as connect_plainly
from .._session.recovery import no_hazard, shorter
from .._tensors import adapters, device_array


class BaseClient(DefaultTimeout):
    """The part of a client that is the same with and without `await`."""

    reconnect_timeout: float
    autostart: bool
    isolate: str | None
    spin_us: float = 0
    _connection: Link | None
    _live: Callable[[], Any]
    _take: Any

    def _begin(self, socket: Any) -> None:
        self._path = socket
        self._closed = False
        self._found: str | None = None  # path at which a daemon has answered
        self._keys: deque[int] = deque(maxlen=8)  # keys of the connections so far
        self._making: Any = None  # the client of the extension that connects at present
        _clients.add(self)

    def _begun(self, making: Any) -> None:
        self._making = making
        if self._closed:
            making.close()

    def _stop_connecting(self) -> None:
        making = self._making
        if making is not None:
            making.close()

    def _forked(self) -> None:
        """In a child process: the parent's connection is none of ours."""
        raise NotImplementedError

    # The daemon

    @property
    def info(self) -> Info:
        """The daemon's description of itself, from when the connection was made."""
        raise NotImplementedError

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where ops can run."""
        return self.info.devices

    @property
    def ops(self) -> dict[str, Op]:
        """The daemon's ops by name."""
        return self.info.ops

    # Memory

    def empty(self, shape: Any, dtype: Any = "f32", *, device: Any = None) -> Any:
        """An array in shared memory, which ops use where it is: nothing is copied, for it or for any view of it. Its
        content is whatever was there. `dtype`: "f32", "f64", "f16", "bf16" (with ml_dtypes), a NumPy dtype; with a
        torch dtype the result is a torch CPU tensor. The memory is freed with the last reference to it, and outlives
        the client.

        With `device`, one of `k.devices`, its index or UUID, the result is a `kops.Array` in memory of the daemon's on that device,
        a GPU or the host, and raises `OutOfMemory` where that has none left. This process needs no CUDA for it. With asyncio such a
        call is awaited."""
        return adapters.empty(shape, dtype) if device is None else self._on_device(device, shape, dtype)

    def zeros(self, shape: Any, dtype: Any = "f32", *, device: Any = None) -> Any:
        """As `empty`, filled with zeros."""
        return adapters.zeros(shape, dtype) if device is None else self._on_device(device, shape, dtype, (0,))

    def array(self, value: Any, dtype: Any = None, *, device: Any = None) -> Any:
        """A copy of `value` in shared memory, see `empty`, or with `device` there. Without `dtype` that of `value` when it is an
        array of a supported one, else f32. Without `device` a torch tensor gives a torch CPU tensor."""
        if device is None:
            return adapters.array(value, dtype)
        made = device_array.dtype_of(value) if dtype is None else dtype
        return self._on_device(device, device_array.shape_of(value), made, (value,))

    def guarded(self, shape: Any, dtype: Any = "f32", device: Any = 0, side: str = "end") -> Any:
        """A zeroed `kops.Array` on a GPU in an allocation of its own, between addresses without memory: at least 16 MiB of them on
        each side, in every process of the daemon that works on it. With `side="end"` the array's last byte is the memory's last one,
        with "start" its first byte is the first one. A kernel that goes one element too far on that side faults (`DeviceFault`) and
        neither reads nor changes anything else; on the other side there are at most 2 MiB of the allocation's own.

        At the start the address is a multiple of 2 MiB. At the end it is a multiple of the greatest power of two that divides the
        array's bytes, up to 2 MiB: always of the element's size, and of 16, which kernels with vector loads want, where `nbytes` is.
        Memory is taken in multiples of 2 MiB and given back after the last reference is gone, not kept for reuse: at the next call
        that takes memory, or `trim()`. With asyncio the call is awaited. Raises `Unsupported` on the host device, whose kernels the
        interpreter checks, and where the daemon is older."""
        if side not in ("start", "end"):
            raise BadArgument(f'side is "start" or "end", not {side!r}')
        return self._ask(lambda link: plans.make_guarded(link, device, shape, dtype, side == "end", self), DEFAULT_TIMEOUT)

    def _ask(self, plan_of: Callable[[Any], plans.Plan], timeout: Any, hazard: Callable[[], str | None] = no_hazard) -> Any:
        """Carries a plan out on the connection; with asyncio a coroutine."""
        raise NotImplementedError

    def _tell_launched(self) -> None:
        """Tells the daemon of launches in this process that its statistics do not have yet."""

    def _on_device(self, device: Any, shape: Any, dtype: Any, values: tuple[Any, ...] = ()) -> Any:
        """A `kops.Array`, set to a value where one is given."""

        def steps() -> Steps:
            yield self._live
            made = device_array.new(self, device_array.find_device(self.devices, device), shape, device_array.dtype_name(dtype))
            yield partial(self._ask, lambda link: plans.make_array(link, made), DEFAULT_TIMEOUT)
            for value in values:
                yield partial(made.set, value)
            return made

        return self._take(steps())

    def _define(self, program: BaseProgram) -> Any:
        return self._ask(program.define, DEFAULT_TIMEOUT)

    # Connecting

    def __repr__(self) -> str:
        connection = self._connection
        state = "closed" if self._closed else "not connected" if connection is None else connection.path
        return f"<kops.{type(self).__name__} {state}>"

    def _connected(self, before: Link | None, socket_only: bool = False) -> Link:
        """A new connection. Waits for the daemon that follows an earlier one."""
        if self._closed:
            raise ConnectionLost("the client was closed", {"closed": True})
        follows, patience = self._found is not None, shorter(self.reconnect_timeout, self.timeout)
        path = self._found if follows else self._path
        if follows:
            log.info("the connection to kopsd at %s is over: connecting anew, for %g s at most", path, patience)
        made: Link
        if native is None:
            if before is not None:
                before.close()
            made = connect_plainly(path, self.autostart, self.timeout, self.isolate)
        else:
            earlier = before if isinstance(before, NativeLink) else None
            try:
                made = NativeLink(
                    path, self.timeout, patience, self.spin_us, earlier, follows, self.autostart, socket_only, self.isolate, self._begun
                )  # fmt: skip
            finally:
                self._making = None
        if follows:
            log.info("connected to kopsd at %s again", made.path)
        self._found = made.path
        made.earlier = set(self._keys)
        self._keys.append(made.key)
        return made


_clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)


# For administrators: the users of a daemon, its metrics, and its draining


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
