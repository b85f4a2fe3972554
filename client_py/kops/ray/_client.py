"""The client of a worker: its calls run on the worker's device unless they name another."""

from __future__ import annotations

from functools import wraps
from typing import Any

from .. import Client, Device
from .._companions import Code, inline, on_device
from ._place import node_environment


class WorkerClient(Client):
    """`own_device` is the worker's; None: the daemon's default. Arrays that lie on a GPU are worked on there."""

    own_device: Device | None = None
    instance = ""  # of the daemon; known also when the client is closed

    @property
    def path(self) -> str | None:
        """Where the daemon has answered."""
        return self._found

    def _usually(self, device: Any, values: tuple[Any, ...]) -> Any:
        if device is not None or self.own_device is None or self._scopes or any(map(on_device, values)):
            return device
        return self.own_device.uuid

    def _op(self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any], device: Any, *how: Any, **more: Any) -> Any:
        return super()._op(op, values, out, attrs, self._usually(device, values), *how, **more)


def _on_the_usual(name: str, begin: int) -> Any:
    """A method of a client's with `device=`, whose arrays are its arguments from `begin` on."""
    method = getattr(Client, name)

    @wraps(method)
    def wrapped(self: WorkerClient, *values: Any, device: Any = None, **how: Any) -> Any:
        return method(self, *values, device=self._usually(device, values[begin:]), **how)

    return wrapped


for _name, _begin in {"submit": 1, "profile": 1, "tune": 1, "sequence": 1, "program": 0}.items():
    setattr(WorkerClient, _name, _on_the_usual(_name, _begin))


def connect() -> WorkerClient:
    """A client of this node's daemon, started where there is none, as this process's own: kernels and functions that refer to
    `kops.default_client()`, or to a client of the driver's, go through it."""
    with node_environment():
        made = WorkerClient(reconnect_timeout=0)
    made.instance = made.info.instance
    inline._default = made
    return made


def use_device(client: WorkerClient, place: Device | None) -> None:
    """Lets the calls of the client, and this process's kernels that name no device, run there."""
    client.own_device = place
    Code.usual_device = None if place is None else place.uuid
