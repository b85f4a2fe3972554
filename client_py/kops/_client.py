"""The synchronous client. Its links wait (`_link`), its plans say what is sent (`_plans`)."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from . import _plans
from ._admin import AdminMethods
from ._batch import Batch
from ._calls import Calls
from ._errors import ConnectionLost, KopsError
from ._link import SocketLink
from ._modules import KernelMethods
from ._native_link import NativeLink, native
from ._ops import DEFAULT_TIMEOUT, OpMethods, check_attrs
from ._pending import Link, Pending
from ._recording import Program, Sequence, record
from ._results import Device, Info, Op, Profile
from ._session import Call

LAST_WAIT = 10.0  # seconds that a client which was dropped waits for its ordered calls


class Client(Calls, OpMethods, KernelMethods, AdminMethods):
    """A connection to kopsd. Made by `connect`; a context manager.

    Each op of the daemon is a method: `k.add(a, b)`; `help(k.add)` says what it takes. A lost connection raises
    `ConnectionLost` in the calls that it hits; the next call connects anew and registers memory again. In a
    forked child the client connects anew at its first use and never touches the parent's socket. Thread-safe.

    `timeout` is in seconds, for every call that names none; None waits for ever.
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, spin_us: float = 0, blocking: bool = False
    ) -> None:
        self._prepare(socket, timeout, spin_us, blocking)
        self._live()

    @classmethod
    def unconnected(
        cls, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, spin_us: float = 0, blocking: bool = False
    ) -> Client:
        """A client that connects at its first use."""
        made = cls.__new__(cls)
        made._prepare(socket, timeout, spin_us, blocking)
        return made

    def _prepare(self, socket: Any, timeout: float | None, spin_us: float, blocking: bool) -> None:
        Calls.__init__(self, timeout, blocking)
        self.spin_us = spin_us
        self._path = socket
        self._closed = False
        self._connecting = threading.Lock()
        _clients.add(self)

    # The daemon

    @property
    def info(self) -> Info:
        """What the daemon told when the connection was made."""
        info = self._live().info
        assert info is not None
        return info

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where ops can run."""
        return self.info.devices

    @property
    def ops(self) -> dict[str, Op]:
        """The daemon's ops by name."""
        return self.info.ops

    def ping(self, data: Mapping[str, Any] | None = None, *, timeout: float | None = DEFAULT_TIMEOUT) -> dict[str, Any]:
        """Asks the daemon for an answer, which is `data`."""
        connection = self._live()
        call = Call("ping", data or {})
        connection.exchange(call, self._timeout_of(timeout))
        answer: dict[str, Any] = call.outcome()
        return answer

    def stats(
        self,
        op: str | None = None,
        *,
        dtype: str | None = None,
        device: Device | str | int | None = None,
        reset: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> dict[str, Any]:
        """Counters and timings of the daemon since its start or the last reset: a map with `uptime_s`, `counters`,
        `ops` (a row for each op, device, variant, dtype and shapes) and `mappings`. Filters choose rows; `reset` starts
        them anew."""
        answer: dict[str, Any] = self._drive(self._live(), _plans.stats(op, dtype, device, reset), timeout)
        return answer

    def trim(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> dict[str, int]:
        """Lets go of memory that is not in use: free shared memory of this process (`freed` bytes), registrations of
        device memory that was freed, and the daemon's idle mappings (`unpinned` bytes in `mappings`). Before retrying
        after an out-of-memory error of one's own."""
        connection = self._live()
        answer: dict[str, int] = self._drive(connection, _plans.trim(connection), timeout)
        return answer

    # Ops

    def run(
        self,
        op: str,
        *inputs: Any,
        out: Any = None,
        variant: str | None = None,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: bool = False,
        deadline_ms: int | None = None,
        priority: str | None = None,
        blocking: bool | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        **attrs: Any,
    ) -> Any:
        """Runs an op by name, also one that this client's version does not know (then with `out=`). As the op's
        method."""
        attrs = check_attrs(op, attrs)
        if variant is not None:
            attrs["variant"] = variant
        return self._op(op, inputs, out, attrs, device, stream, timing, deadline_ms, priority, blocking, timeout)

    def submit(
        self,
        op: str,
        *inputs: Any,
        out: Any = None,
        variant: str | None = None,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: bool = False,
        deadline_ms: int | None = None,
        priority: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        **attrs: Any,
    ) -> Pending:
        """As `run`, without waiting for the reply: returns a `Pending`.

        Requests take effect in the order sent (within one `stream`), so a later one may use the output of an earlier
        one that is still pending. Tensors are kept alive until the reply; they must not be written to before. Blocks
        while the daemon's limit of unanswered requests is reached, and while memory that is new is registered.
        """
        attrs = check_attrs(op, attrs)
        if variant is not None:
            attrs["variant"] = variant
        connection = self._live()
        options = _plans.options_of(connection, device, stream, timing, deadline_ms, priority)
        plan = _plans.run(connection, _plans.Request(op, inputs, out, attrs, options), timing, retry=False)
        return self._submit(connection, plan, "run", timeout)

    def profile(
        self,
        op: str,
        *inputs: Any,
        warmup: int = 3,
        repeat: int = 20,
        out: Any = None,
        variant: str | None = None,
        device: Device | str | int | None = None,
        stream: int = 0,
        deadline_ms: int | None = None,
        priority: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        **attrs: Any,
    ) -> Profile:
        """Runs an op `warmup` times untimed, then `repeat` times timed, inside the daemon: a `Profile`."""
        attrs = check_attrs(op, attrs)
        if variant is not None:
            attrs["variant"] = variant
        connection = self._live()
        options = _plans.options_of(connection, device, stream, True, deadline_ms, priority, warmup, repeat)
        plan = _plans.profile(connection, _plans.Request(op, inputs, out, attrs, options))
        answer: Profile = self._drive(connection, plan, timeout)
        return answer

    def synchronize(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Waits until the ordered calls made so far have ended, and raises the first error of one since the last that
        was raised. Does not wait for other work on the CUDA streams."""
        batch = self._batches.get(threading.get_ident()) if self._batches else None
        if batch is not None:
            batch.flush()
        link = self._connection
        if link is not None:
            link.synchronize(self._timeout_of(timeout))

    # Several ops at once

    def batch(self) -> Batch:
        """Gathers ordered calls: `with k.batch(): …`. The ops called inside on torch CUDA tensors run one after the
        other without the stream between them, and travel together, which is the fastest way for many small ones. Other
        work that is put on the stream inside must not touch their tensors: it is ordered with what came before and
        comes after the block, not with its ops. Of the calling thread."""
        return Batch(self)

    def sequence(
        self,
        steps: Iterable[Any] | None = None,
        *,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: bool = False,
        warmup: int = 0,
        repeat: int = 1,
        deadline_ms: int | None = None,
        priority: str | None = None,
        blocking: bool | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Several ops in one request, run in order.

        `with k.sequence() as s:` records the ops that the block calls on `k` or on `s`, and kernels, and sends them at
        its end: what they returned is filled then. With steps, `(op, *inputs)` or `(op, *inputs, {keyword: value})`,
        also with a kernel for the op, sends them at once and returns the list of results, with its Timings for
        `timing=True` (of the whole sequence; in `s.timings` for the other form). The options are those of an op;
        everything is checked before the first one runs.
        """
        options = {
            "stream": stream, "timing": timing, "warmup": warmup, "repeat": repeat, "deadline_ms": deadline_ms,
            "priority": priority, "blocking": blocking, "timeout": timeout,
        }  # fmt: skip
        made = Sequence(self, device, options)
        if steps is None:
            return made
        record(made, steps)
        return self._run_sequence(made)

    def program(self, *, device: Device | str | int | None = None) -> Program:
        """A sequence that the daemon keeps: `with k.program() as p:` records the ops that the block calls on `k` or on
        `p`, and `p.run()` runs them, on a GPU as one CUDA graph. What the ops returned is filled by each run; `bind`
        gives a run other arrays. The arrays must be where the daemon sees them: on a GPU, or made by `k.array`,
        `k.empty` or `k.zeros`; numbers and lists are constants."""
        return Program(self, device)

    # Memory

    def empty(self, shape: Any, dtype: Any = "f32") -> Any:
        """An array in shared memory, which ops use where it is: nothing is copied, for it or for any view of it. Its
        content is whatever was there. `dtype`: "f32", "f64", "f16", "bf16" (with ml_dtypes), a NumPy dtype; with a
        torch dtype the result is a torch CPU tensor. The memory is freed with the last reference to it, and outlives
        the client."""
        return _arrays().empty(shape, dtype)

    def zeros(self, shape: Any, dtype: Any = "f32") -> Any:
        """As `empty`, filled with zeros."""
        return _arrays().zeros(shape, dtype)

    def array(self, value: Any, dtype: Any = None) -> Any:
        """A copy of `value` in shared memory, see `empty`. Without `dtype` that of `value` when it is an array of a
        supported one, else f32. A torch tensor gives a torch CPU tensor."""
        return _arrays().array(value, dtype)

    # Its life

    def close(self) -> None:
        """Ends the connection, once the ordered calls have ended; the daemon releases what it held. Arrays made by
        `empty` stay valid. Idempotent."""
        self._closed = True
        self._settle(self.timeout)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        connection = self.__dict__.get("_connection")
        if connection is not None and not sys.is_finalizing():
            self._settle(LAST_WAIT)
            connection.close()

    def _settle(self, timeout: float | None) -> None:
        """Lets the ordered calls end: what they return is used after the client's end."""
        link = self._connection
        if link is not None and link.alive:
            try:
                link.synchronize(timeout)
            except KopsError:
                pass  # nobody is left to hear it

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled client connects anew where it is unpickled, so it can go to spawned workers."""
        return _connect_again, (self._path, self.timeout, self.spin_us, self.blocking)

    def __repr__(self) -> str:
        connection = self._connection
        state = "closed" if self._closed else "not connected" if connection is None else connection.path
        return f"<kops.Client {state}>"

    def _live(self) -> Link:
        """The connection; a new one when there is none or it was lost."""
        connection = self._connection
        if connection is not None and connection.alive:
            return connection
        with self._connecting:
            connection = self._connection
            if self._closed:
                raise ConnectionLost("the client was closed")
            if connection is not None and connection.alive:
                return connection
            made = self._link(connection)
            try:
                call = made.greet()
                made.exchange(call, self.timeout)
                made.greeted(call.outcome())
            except BaseException:
                made.close("the daemon did not answer hello")
                raise
            self._connection = made
            return made

    def _link(self, before: Link | None) -> Link:
        """A new connection. Raises the error of an ordered call on the one before that nobody has heard of."""
        if native is not None:
            return NativeLink(self._path, self.timeout, self.spin_us, before if isinstance(before, NativeLink) else None)
        if before is not None:
            self._connection = None
            before.close()
            before.check_ordered()
        return SocketLink(self._path, self.timeout, self.spin_us)

    def _forked(self) -> None:
        """In a child process: the parent's connection is none of ours."""
        connection, self._connection = self._connection, None
        self._connecting = threading.Lock()
        if connection is not None:
            connection.forsake()

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)


def _arrays() -> Any:
    from . import _arrays

    return _arrays


def _connect_again(path: Any, timeout: float | None, spin_us: float, blocking: bool) -> Client:
    return Client(path, timeout=timeout, spin_us=spin_us, blocking=blocking)


def connect(
    socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, spin_us: float = 0, blocking: bool = False
) -> Client:
    """Connects to kopsd: a `Client`, to be used with `with`.

    `socket` is the only path tried when given, and so is KOPS_SOCKET; otherwise `$XDG_RUNTIME_DIR/kopsd.sock`, then
    `/run/kopsd/kopsd.sock`. `timeout` is the seconds that any call may take, None for ever. `spin_us`: so many
    microseconds a waiting call looks for its reply without sleeping, which saves a few microseconds where a core is
    free for it. `blocking`: every call returns when its result is ready, also on torch CUDA tensors. Raises
    `ConnectFailed`, which lists what was tried.
    """
    return Client(socket, timeout=timeout, spin_us=spin_us, blocking=blocking)
