"""What both clients are: the daemon that they found, the time in which they find it again, the arrays that they make."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .._base.errors import BadArgument
from .._base.log import log
from .._base.records import Device
from .._base.results import Info, Op
from .._base.timeouts import DefaultTimeout
from .._calls import plans
from .._session.link import Link
from .._session.recovery import CONNECT_LIMIT, Backoff, shorter
from .._tensors import device_array


class BaseClient(DefaultTimeout):
    """The part of a client that is the same with and without `await`."""

    reconnect_timeout: float
    autostart: bool

    def _begin(self, socket: Any) -> None:
        self._path = socket
        self._closed = False
        self._found: str | None = None  # path at which a daemon has answered
        self._keys: deque[int] = deque(maxlen=8)  # keys of the connections so far

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
        return _arrays().empty(shape, dtype) if device is None else self._on_device(device, shape, dtype)

    def zeros(self, shape: Any, dtype: Any = "f32", *, device: Any = None) -> Any:
        """As `empty`, filled with zeros."""
        return _arrays().zeros(shape, dtype) if device is None else self._on_device(device, shape, dtype, (0,))

    def array(self, value: Any, dtype: Any = None, *, device: Any = None) -> Any:
        """A copy of `value` in shared memory, see `empty`, or with `device` there. Without `dtype` that of `value` when it is an
        array of a supported one, else f32. Without `device` a torch tensor gives a torch CPU tensor."""
        if device is None:
            return _arrays().array(value, dtype)
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
        return self._guarded(device, shape, dtype, side == "end")

    def _guarded(self, device: Any, shape: Any, dtype: Any, at_end: bool) -> Any:
        raise NotImplementedError

    def _plan_guarded(self, device: Any, shape: Any, dtype: Any, at_end: bool) -> Callable[[Link], plans.Plan]:
        found, name = device_array.find_device(self.devices, device), device_array.dtype_name(dtype)
        return lambda link: plans.make_guarded(link, found, shape, name, at_end, self)

    def _on_device(self, device: Any, shape: Any, dtype: Any, values: tuple[Any, ...] = ()) -> Any:
        """A `kops.Array`, set to a value where one is given."""
        raise NotImplementedError

    def _new_array(self, device: Any, shape: Any, dtype: Any) -> Any:
        found = device_array.find_device(self.devices, device)
        return device_array.new(self, found, shape, device_array.dtype_name(dtype))

    # Connecting

    def _backoff(self) -> Backoff:
        """The time in which a daemon that has gone away may come back."""
        return Backoff(shorter(self.reconnect_timeout, self.timeout))

    def _connecting_anew(self) -> Backoff:
        backoff = self._backoff()
        if self._found is not None:
            log.info("the connection to kopsd at %s is over: connecting anew, for %g s at most", self._found, backoff.seconds)
        return backoff

    def _where(self) -> Any:
        """The socket to connect to: where a daemon was, its successor is."""
        return self._path if self._found is None else self._found

    def _again(self, backoff: Backoff) -> bool:
        return self._found is not None and backoff.seconds > 0

    def _greeting_time(self, backoff: Backoff) -> float:
        """Seconds that a daemon may take to answer `hello`."""
        return shorter(backoff.left if self._again(backoff) else CONNECT_LIMIT, self.timeout)

    def _remember(self, made: Link) -> None:
        """A daemon has answered on this connection."""
        if self._found is not None:
            log.info("connected to kopsd at %s again", made.path)
        self._found = made.path
        made.earlier = set(self._keys)
        self._keys.append(made.key)


def _arrays() -> Any:
    from .._tensors import arrays

    return arrays
