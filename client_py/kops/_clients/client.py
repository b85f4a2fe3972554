"""The synchronous client. Its links wait (`native_link`, `plain`), its plans are the requests that are sent (`plans`)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from .._base.compiled import SWITCHED_OFF, native, why_not
from .._base.errors import BadArgument, ConnectionLost, KopsError
from .._base.records import Device
from .._base.results import Info, Timing
from .._base.stats import Stats
from .._base.texts import counted, uncollected, warn
from .._base.twins import DEFAULT_TIMEOUT, take
from .._calls import launch, ops_here, plans
from .._calls.calls import Batch, Calls
from .._calls.measure import MeasureMethods
from .._calls.ops import OpMethods, check_attrs
from .._calls.pending import Link, Pending, Watcher
from .._calls.recording import Program, Sequence, record
from .._kernels.modules import KernelMethods
from .._session.recovery import LOSSES, no_hazard, reconnect_timeout_of
from .._tensors.adapters import meet_torch
from .base import AdminMethods, BaseClient

PLAIN = (
    "kops is not compiled here: each call waits for its result, none is repeated when a daemon ends, and there is no asyncio client. "
    "`pip install ./client_py` compiles it. Why not: "
)
LAST_WAIT = 10.0  # seconds that a dropped client waits for its ordered calls


class Client(BaseClient, Calls, OpMethods, KernelMethods, MeasureMethods, AdminMethods):
    """A connection to kopsd. Made by `connect`; a context manager.

    Each op of the daemon is a method: `k.add(a, b)`; `help(k.add)` lists its arguments. In a forked child the client
    connects anew at its first use and never touches the parent's socket. Thread-safe.

    `timeout` is in seconds, for every call that names none; None waits for ever.

    Where the daemon ends, or dies with its device, and another takes its place, the client waits for that one up to
    `reconnect_timeout` seconds (no longer than `timeout`), connects, and makes its memory,
    programs and kernels known again. The contents of arrays stay, since the memory is this process's. A call that waits for its
    result is then made once more, unless the one before may have run and must not run twice: that is where it reads
    what it writes (in place, a gemm with `beta`), and with every kernel of your own. Such a call raises `DeviceLost`
    when the daemon had said so, else `ConnectionLost`, and what it writes is undefined. A call that the daemon
    refused because it is ending (`ShuttingDown`) has not run and is asked again as long as the time allows. Ordered calls and
    submitted ones are never made again: their errors appear where errors of theirs do, and the calls after that work.
    `BufferLost`: memory that the daemon had, and that the one which follows does not take. `ConnectFailed`: none came
    in time; the next call tries again.
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, spin_us: float = 0, blocking: bool = False,
        reconnect_timeout: float | None = None, isolate: str | None = None, autostart: bool = True, where: str | None = None,
    ) -> None:  # fmt: skip
        self._prepare(socket, timeout, spin_us, blocking, reconnect_timeout, isolate, autostart, where)
        self._live()

    @classmethod
    def unconnected(
        cls, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, spin_us: float = 0, blocking: bool = False,
        reconnect_timeout: float | None = None, isolate: str | None = None, autostart: bool = True, where: str | None = None,
    ) -> Client:  # fmt: skip
        """A client that connects at its first use."""
        made = cls.__new__(cls)
        made._prepare(socket, timeout, spin_us, blocking, reconnect_timeout, isolate, autostart, where)
        return made

    def _prepare(
        self, socket: Any, timeout: float | None, spin_us: float, blocking: bool, reconnect_timeout: float | None,
        isolate: str | None, autostart: bool, where: str | None,
    ) -> None:  # fmt: skip
        patience = reconnect_timeout_of(reconnect_timeout)
        Calls.__init__(self, timeout, blocking, patience if native is not None else 0.0, where)
        self.spin_us = spin_us
        self.isolate = isolate
        self.autostart = autostart
        self._begin(socket)
        self._connecting = threading.Lock()

    # The daemon

    @property
    def info(self) -> Info:
        """The daemon's description of itself, from when the connection was made."""
        info = self._live().info
        assert info is not None
        return info

    def ping(self, data: Mapping[str, Any] | None = None, *, timeout: float | None = DEFAULT_TIMEOUT) -> dict[str, Any]:
        """Asks the daemon for an answer, which is `data`."""
        answer: dict[str, Any] = self._ask(lambda _: plans.ping(data or {}), timeout)
        return answer

    def stats(
        self,
        op: str | None = None,
        *,
        dtype: str | None = None,
        device: Device | str | int | None = None,
        reset: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Stats:
        """Counters and timings of the daemon since its start or the last reset: a map with `uptime_s`, `counters`,
        `ops` (a row for each op, device, variant, dtype and shapes) and `mappings`. Filters choose rows; `reset` starts
        them anew."""
        self._tell_launched()
        answer: Stats = self._ask(lambda _: plans.stats(op, dtype, device, reset), timeout)
        return answer

    def trim(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> dict[str, int]:
        """Lets go of memory that is not in use: free shared memory of this process and what it keeps on GPUs for new arrays (`freed`
        bytes), registrations of device memory that was freed, and the daemon's idle mappings (`unpinned` bytes in `mappings`).
        Before retrying after an out-of-memory error of one's own."""
        answer: dict[str, int] = self._ask(plans.trim, timeout)
        return answer

    # Arrays on devices

    def _copy(self, source: Any, out: Any, stream: int, blocking: bool) -> Any:
        if blocking:
            return self.run("copy", source, out=out, stream=stream, blocking=None if self._recorder() is not None else True)
        return self.submit("copy", source, out=out, stream=stream)

    def _check_readable(self) -> None:
        if self._recorder() is not None:
            raise BadArgument("the ops of an open sequence or program have not run: read the array behind the `with` block")

    # Ops

    def run(
        self,
        /,
        op: str,
        *inputs: Any,
        out: Any = None,
        variant: str | None = None,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: Timing = False,
        deadline_ms: int | None = None,
        priority: str | None = None,
        blocking: bool | None = None,
        where: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        **attrs: Any,
    ) -> Any:
        """Runs an op by name, also one that this client's version does not know (then with `out=`). As the op's
        method."""
        attrs = check_attrs(op, attrs, variant)
        return self._op(op, inputs, out, attrs, device, stream, timing, deadline_ms, priority, blocking, timeout, where)

    def submit(
        self,
        op: str,
        *inputs: Any,
        out: Any = None,
        variant: str | None = None,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: Timing = False,
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
        attrs = check_attrs(op, attrs, variant)
        connection = self._live()
        options = plans.options_of(connection, device, stream, timing, deadline_ms, priority)
        return self._submit(connection, plans.Request(op, inputs, out, attrs, options), timing, timeout)

    def synchronize(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Waits until the ordered calls made so far have ended, and raises the first error of one since the last that
        was raised. Does not wait for other work on the CUDA streams."""
        self._flush_batch()
        link = self._connection
        if link is not None:
            link.synchronize(self._timeout_of(timeout))

    # Several ops at once

    def batch(self) -> Batch:
        """Gathers ordered calls: `with k.batch(): …`. The ops called inside on torch CUDA tensors run one after the
        other without the stream between them, and travel together, which is the fastest way for many small ones. Other
        work that is put on the stream inside must not touch their tensors: it is ordered with what came before and
        comes after the block, not with its ops. Without the compiled part each op waits for its result, in a batch too. Of the
        calling thread."""
        return Batch(self)

    def sequence(
        self,
        steps: Iterable[Any] | None = None,
        *,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: Timing = False,
        warmup: int = 0,
        repeat: int = 1,
        deadline_ms: int | None = None,
        priority: str | None = None,
        blocking: bool | None = None,
        exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Several ops in one request, run in order.

        `with k.sequence() as s:` records the ops that the block calls on `k` or on `s`, and kernels, and sends them at
        its end: what they returned is filled then. With steps, `(op, *inputs)` or `(op, *inputs, {keyword: value})`,
        also with a kernel for the op, sends them at once and returns the list of results, with its Timings for
        `timing=True` (of the whole sequence; in `s.timings` for the other form). The options are those of an op;
        everything is checked before the first one runs. `exclusive`: as in a kernel's call, for all of it.
        """
        options = {
            "stream": stream, "timing": timing, "warmup": warmup, "repeat": repeat, "deadline_ms": deadline_ms,
            "priority": priority, "blocking": plans.blocking_of(exclusive, blocking), "exclusive": exclusive, "timeout": timeout,
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

    # Connecting and closing

    def close(self) -> None:
        """Ends the connection, once the ordered calls have ended; the daemon releases the client's memory and programs. Arrays made by
        `empty` stay valid. Idempotent."""
        self._closed = True
        self._stop_connecting()
        self._forget_places()
        self._settle(self.timeout)
        self._tell_launched()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _tell_launched(self) -> None:
        for kernel in [reference() for reference in self._launched.valuerefs()]:
            if kernel is not None:
                launch.tell_launched(self._connection, kernel)
        ops_here.tell(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        connection = self.__dict__.get("_connection")
        if connection is not None and not sys.is_finalizing():
            warn(f"a client was left open: close() it, or use it in a `with` block: {self!r}", ResourceWarning, self)
            self._settle(LAST_WAIT)
            connection.close()

    def _settle(self, timeout: float | None) -> None:
        """Waits for the ordered calls: their results are used after the client's end."""
        link = self._connection
        if link is not None and link.alive:
            try:
                link.synchronize(timeout)
            except KopsError as error:
                uncollected("an ordered call", error)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled client connects anew where it is unpickled, so it can go to spawned workers."""
        return partial(
            Client, self._path, timeout=self.timeout, spin_us=self.spin_us, blocking=self.blocking, isolate=self.isolate,
            reconnect_timeout=self.reconnect_timeout, autostart=self.autostart, where=self.where if self._place_chosen else None,
        ), ()  # fmt: skip

    def _ask(self, plan_of: Callable[[Any], plans.Plan], timeout: Any, hazard: Callable[[], str | None] = no_hazard) -> Any:
        return self._drive(self._live(), plan_of, timeout, hazard)

    _take = staticmethod(take)

    def _start(self, op: str, *inputs: Any, **how: Any) -> Pending:
        """An execution that `_end` waits for."""
        return self.submit(op, *inputs, **how)

    def _end(self, started: Pending) -> Any:
        return started.result()

    def _give_up(self, started: Pending) -> None:
        """Nobody waits for it."""

    def _live(self) -> Link:
        """The connection; a new one when there is none or it was lost."""
        connection = self._connection
        if connection is not None and connection.alive:
            if self._submitted:
                self._raise_lost(connection)
            return connection
        with self._connecting:
            connection = self._connection
            if connection is None or not connection.alive:
                self._forget_places()
                if native is None:
                    _tell_of_plain()
                connection = self._connection = self._connected(connection)
                meet_torch()
        if self._submitted:
            self._raise_lost(connection)
        return connection

    def _raise_lost(self, connection: Link) -> None:
        """Raises ConnectionLost, once, where requests that this thread submitted were lost: later calls may depend on them."""
        mine = self._submitted.get(threading.get_ident())
        if not mine or mine[0][0] is connection:
            return
        before, mine[:] = [one for one in mine if one[0] is not connection], [one for one in mine if one[0] is connection]
        for link in {id(link): link for link, _ in before}.values():
            link.poll()
        lost = [call for _, call in before if isinstance(call.error, LOSSES) and call.error.detail.get("daemon") != "goes_on"]
        if lost:
            raise ConnectionLost(
                f"the daemon went away before it had answered {counted(len(lost), 'submitted request')}: they may or may not have run and "
                "what they write is undefined. result() of each tells more; the next call goes on",
                {"requests": len(lost)},
            )

    def _forked(self) -> None:
        """In a child process: the parent's connection is none of ours."""
        connection, self._connection = self._connection, None
        self._connecting = threading.Lock()
        self._submitted.clear()
        self._watcher = Watcher()
        if connection is not None:
            connection.forsake()


_told_of_plain = False


def _tell_of_plain() -> None:
    """Once a process, unless it was asked for."""
    global _told_of_plain
    if not _told_of_plain and why_not is not SWITCHED_OFF:
        _told_of_plain = True
        warn(PLAIN + why_not, RuntimeWarning)


def connect(
    socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, spin_us: float = 0, blocking: bool = False,
    reconnect_timeout: float | None = None, isolate: str | None = None, autostart: bool = True, where: str | None = None,
) -> Client:  # fmt: skip
    """Connects to kopsd: a `Client`, to be used with `with`.

    `socket` is the only path tried when given, and so is KOPS_SOCKET; otherwise the sockets of "Where clients look" in
    deploy/README.md, and where none leads to a daemon, one is started for this user, unless `autostart` is false
    or KOPS_AUTOSTART is 0: the `kopsd` that KOPSD names, of this package, or of PATH. It serves all processes of the user
    and ends by itself when none has been connected for 5 minutes. `timeout` is the seconds that any call may take, None
    for ever, except that a daemon that does not answer at first is given up after 30 s. `spin_us`: so many microseconds
    a waiting call looks for its reply without sleeping, which saves a few microseconds where a core is free for it.
    `blocking`: every call returns when its result is ready, also on torch CUDA tensors.
    `reconnect_timeout`: seconds that a call waits for a daemon which has gone away to come back, see `Client`; 0: it
    does not wait, nothing is repeated, and each loss is an error of the calls that it hits. Without it
    KOPS_RECONNECT_TIMEOUT, else 10. `isolate="connection"`: kernels of your own run in a process that no other client's
    share; `Unsupported` where the daemon has none for users' kernels. `where`: where calls run that name no place, "daemon", "here" or
    "auto", see `kops.Kernel`; without it KOPS_WHERE, else the daemon. "here" and "auto" are for calls on arrays in this process's device
    memory that give no option of the daemon's alone (`device`, `stream`, `deadline_ms`, `priority`, `blocking`, `exclusive`, exact
    timing); the others, and all that is recorded, submitted or profiled, stay the daemon's. What runs here has no isolation, and no
    quota, profile or trace counts it. Raises `ConnectFailed`, which lists what was tried:
    this first time nothing is waited for but a daemon whose socket is there, or that is started. A server is trusted that is
    this user, root or kops, or that KOPS_TRUST_USER names (users, with commas between them). Warns once, with a `RuntimeWarning`, where
    the package is in plain Python, see `kops.compiled`: without `reconnect_timeout`, `spin_us` and `where`.
    """
    return Client(
        socket, timeout=timeout, spin_us=spin_us, blocking=blocking, reconnect_timeout=reconnect_timeout, isolate=isolate,
        autostart=autostart, where=where,
    )  # fmt: skip
