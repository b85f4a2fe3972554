"""The asyncio client: the same plans and the same link by libkops as the synchronous one, driven by an event loop.

It belongs to the running loop (on another one it connects anew) and is not thread-safe; any number of tasks may use it.
A call waits for its CUDA stream, copies ordinary arrays into shared memory, and writes its request, without giving the loop control:
large arrays, and a daemon that reads slowly, block the loop meanwhile. Connections are made by a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

from .._base.compiled import native, why_not
from .._base.errors import BadArgument, ConnectionLost, Unsupported
from .._base.records import Device
from .._base.results import Info, Timing
from .._base.texts import warn
from .._base.twins import DEFAULT_TIMEOUT, awaited, take_async
from .._calls import plans
from .._calls.contexts import checked_place
from .._calls.measure import AsyncMeasureMethods
from .._calls.ops import AsyncOpMethods
from .._calls.plans import Plan
from .._calls.recording import AsyncProgram, AsyncSequence
from .._kernels.modules import AsyncKernelMethods
from .._session.link import Call, no_reply
from .._session.native_link import NativeLink
from .._session.recovery import LOSSES, RUNS, Trial, no_hazard, reconnect_timeout_of, shorter
from .base import AsyncAdminMethods, BaseClient
from .client import Client

END_GRACE = 1.0  # seconds, as in libkops
LOOK = 0.005  # seconds between looks at a connection that ends


class AsyncClient(BaseClient, AsyncOpMethods, AsyncKernelMethods, AsyncMeasureMethods, AsyncAdminMethods):
    """As `Client`, with `await`: `c = await k.add(a, b)`. Made by `connect_async`; an async context manager.

    Calls of several tasks are pipelined. A task that is cancelled cancels its request. Lost daemons are waited for and
    calls repeated as with `Client`: one after the other, in the order in which they were made.
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, reconnect_timeout: float | None = None,
        isolate: str | None = None, autostart: bool = True,
    ) -> None:  # fmt: skip
        self.timeout = timeout
        if native is None:
            raise Unsupported(f"the asyncio client needs the compiled part of the package: {why_not}")
        self.isolate = isolate
        self.autostart = autostart
        self.reconnect_timeout = reconnect_timeout_of(reconnect_timeout)
        self._begin(socket)
        self._repeating: asyncio.Lock | None = None
        self._connection: NativeLink | None = None
        self._watched = -1  # a duplicate of the connection's socket, for the loop: libkops may close its own at any time
        self._settling = False  # the loop will look for replies that were taken in while a request was written
        self._connecting: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # The daemon

    @property
    def info(self) -> Info:
        """The daemon's description of itself, from when the connection was made."""
        connection = self._connection
        if connection is None or connection.info is None:
            raise ConnectionLost("not connected")
        return connection.info

    ping = awaited(Client.ping)
    stats = awaited(Client.stats)
    trim = awaited(Client.trim)

    # Arrays on devices

    async def _copy(self, source: Any, out: Any, stream: int, blocking: bool) -> Any:
        return await self.run("copy", source, out=out, stream=stream)

    def _check_readable(self) -> None:
        raise BadArgument("with asyncio: await a.get()")

    # Ops

    run = awaited(Client.run)

    async def _op(
        self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any], device: Any, stream: int, timing: Timing,
        deadline_ms: int | None, priority: str | None, blocking: bool | None, timeout: Any, where: str | None = None,
    ) -> Any:  # fmt: skip
        if where is not None and checked_place(where) == "here":
            raise Unsupported(f"{op}: the asyncio client waits for the daemon: launch here with Client, whose calls return at once")
        connection = await self._live()
        options = plans.options_of(connection, device, stream, timing, deadline_ms, priority)
        request = plans.Request(op, values, out, attrs, options)
        return await self._drive(connection, lambda link: plans.run(link, request, timing), timeout, lambda: request.hazard)

    # Several ops at once

    def sequence(
        self,
        *,
        device: Device | str | int | None = None,
        stream: int = 0,
        timing: Timing = False,
        warmup: int = 0,
        repeat: int = 1,
        deadline_ms: int | None = None,
        priority: str | None = None,
        exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> AsyncSequence:
        """As `Client.sequence`: `async with k.sequence() as s:`, and the ops are called on `s`, without `await`."""
        options = {
            "stream": stream, "timing": timing, "warmup": warmup, "repeat": repeat, "deadline_ms": deadline_ms,
            "priority": priority, "exclusive": exclusive, "timeout": timeout,
        }  # fmt: skip
        return AsyncSequence(self, device, options)

    def program(self, *, device: Device | str | int | None = None) -> AsyncProgram:
        """As `Client.program`: `async with k.program() as p:`, the ops are called on `p`, then `await p.run()`."""
        return AsyncProgram(self, device)

    async def _run_sequence(self, sequence: AsyncSequence) -> Any:
        connection = await self._live()
        options = sequence._run_options
        request, timing = sequence.prepared(connection), options["timing"]
        answer = self._drive(connection, lambda link: plans.run(link, request, timing), options["timeout"], lambda: request.hazard)
        return sequence.took(await answer)

    # Connecting and closing

    async def close(self) -> None:
        """Ends the connection; the daemon releases the client's memory, programs and kernels. Idempotent."""
        self._closed = True
        self._stop_connecting()
        self._disconnect("the client was closed")

    def __del__(self) -> None:
        if self.__dict__.get("_connection") is not None and not sys.is_finalizing():
            warn(f"a client was left open: await close(), or use it in an `async with` block: {self!r}", ResourceWarning, self)
            self._disconnect("the client was dropped")

    async def __aenter__(self) -> AsyncClient:
        await self._live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _live(self) -> NativeLink:
        """The connection; a new one when there is none, when it was lost, or on another event loop."""
        connection, loop = self._connection, asyncio.get_running_loop()
        if connection is not None and loop is self._loop and connection.info is not None and connection.alive:
            return connection
        if loop is not self._loop:
            self._disconnect("the client was used on another event loop")
            self._connecting, self._repeating, self._loop = asyncio.Lock(), asyncio.Lock(), loop
        assert self._connecting is not None
        async with self._connecting:
            if self._closed:
                raise ConnectionLost("the client was closed")
            connection = self._connection
            if connection is not None and connection.alive:
                return connection
            if connection is not None:
                await self._await_end(connection)
            try:
                made: NativeLink = await _by_a_thread(lambda: self._connected(connection, True), connection)
            finally:
                if connection is not None:
                    self._settle(connection)
            if self._closed or loop is not self._loop:
                made.close()
                raise ConnectionLost("the client was closed", {"closed": True})
            self._unwatch()
            self._watched = os.dup(made.fileno())
            loop.add_reader(self._watched, self._readable, made)
            made.room = asyncio.Semaphore(made.inflight)
            self._connection = made
            return made

    async def _await_end(self, connection: NativeLink) -> None:
        """A daemon that lost its device answers what is under way, and ends in a moment: libkops gives it as long."""
        assert self._loop is not None
        end = self._loop.time() + shorter(END_GRACE, self.timeout)
        while not connection.ended and self._loop.time() < end:
            await asyncio.sleep(LOOK)
            connection.poll()

    def _disconnect(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._unwatch()
            connection.close(why)
            connection.settle()

    def _unwatch(self) -> None:
        if self._watched >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = -1

    def _forked(self) -> None:
        """In a child process: neither the parent's connection nor its loop is ours."""
        connection, self._connection = self._connection, None
        self._connecting = self._repeating = self._loop = None
        self._unwatch()
        if connection is not None:
            connection.forsake()

    # Waiting

    def _readable(self, connection: NativeLink) -> None:
        connection.poll()
        if connection.ended and connection is self._connection:
            self._unwatch()

    def _settle(self, connection: NativeLink) -> None:
        self._settling = False
        connection.settle()

    async def _ask(self, plan_of: Callable[[Any], Plan], timeout: Any, hazard: Callable[[], str | None] = no_hazard) -> Any:
        return await self._drive(await self._live(), plan_of, timeout, hazard)

    _take = staticmethod(take_async)

    def _start(self, op: str, *inputs: Any, **how: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.run(op, *inputs, **how))

    def _end(self, started: asyncio.Future[Any]) -> asyncio.Future[Any]:
        return started

    def _give_up(self, started: asyncio.Future[Any]) -> None:
        started.cancel()

    async def _drive(
        self, connection: NativeLink, plan_of: Callable[[NativeLink], Plan], timeout: Any, hazard: Callable[[], str | None] = no_hazard
    ) -> Any:
        """Carries a plan out, and once more where its daemon goes away and that does no harm; see `recovery`."""
        seconds = self._timeout_of(timeout)
        assert self._repeating is not None
        turn, held, trial = self._repeating, False, None

        def let_go() -> None:
            nonlocal held
            if held:
                held = False
                turn.release()

        try:
            while True:
                call, plan = None, plan_of(connection)
                try:
                    call = next(plan)
                    while True:
                        try:
                            await self._exchange(connection, call, seconds, let_go if call.method in RUNS else None)
                        except BaseException as error:
                            call = plan.throw(error)
                        else:
                            call = plan.send(call.result) if call.error is None else plan.throw(call.take_error())
                except StopIteration as stop:
                    return stop.value
                except LOSSES as error:
                    trial = trial or Trial(self.reconnect_timeout, seconds, hazard)
                    pause = trial.judge(error, call)
                if not held:  # sent in the order of the first tries: a later call may use the output of an earlier one
                    await turn.acquire()
                    held = True
                await asyncio.sleep(pause)
                connection = await self._live()
        finally:
            let_go()

    async def _exchange(
        self, connection: NativeLink, call: Call, timeout: float | None, sent: Callable[[], None] | None = None
    ) -> None:
        """Sends a request, once there is room for one more, and waits until its reply is there. `sent` is called once it is on its way."""
        assert self._loop is not None
        end, room = None if timeout is None else self._loop.time() + timeout, connection.room
        try:
            await (asyncio.wait_for(room.acquire(), timeout) if room.locked() else room.acquire())
        except asyncio.TimeoutError:
            raise no_reply(call.method, timeout) from None
        future = self._loop.create_future()

        def settle(replied: bool) -> None:
            if replied and not call.keeps_room:
                room.release()
            if not future.done():
                future.set_result(replied)

        call.notify = lambda: settle(True)
        expiry = self._loop.call_at(end, settle, False) if end is not None else None
        try:
            connection.send(call, None if end is None else max(end - self._loop.time(), 0.001))
            if sent is not None:
                sent()
            if not self._settling:
                self._settling = True
                self._loop.call_soon(self._settle, connection)
            if not await future:
                raise no_reply(call.method, timeout)
        except BaseException:
            connection.abandon(call)
            if not call.done and call.msgid not in connection.open:  # the call was not sent
                room.release()
            raise
        finally:
            if expiry is not None:
                expiry.cancel()


async def _by_a_thread(make: Callable[[], Any], before: NativeLink | None) -> Any:
    """What `make` returns, which may block, by a thread that nothing waits for at the end of the loop or of the process. A connection
    that nobody waits for any more is closed, unless it goes on with the client of `before`: the next call takes that."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(made: Any, error: BaseException | None) -> None:
        if not future.cancelled():
            future.set_result(made) if made is not None else future.set_exception(error or RuntimeError())
        elif made is not None and (before is None or made._native is not before._native):
            made.close()

    def run() -> None:
        made = error = None
        try:
            made = make()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, made, error)

    threading.Thread(target=run, name="kops-connecting", daemon=True).start()
    return await future


class _Connecting:
    """`await` it, or use it with `async with`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._client.__aenter__().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._client.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def connect_async(
    socket: str | os.PathLike[str] | None = None, *, timeout: float | None = None, reconnect_timeout: float | None = None,
    isolate: str | None = None, autostart: bool = True,
) -> _Connecting:  # fmt: skip
    """Connects to kopsd: `async with kops.connect_async() as k:`, or `k = await kops.connect_async()`.

    The arguments are those of `connect`.
    """
    return _Connecting(AsyncClient(socket, timeout=timeout, reconnect_timeout=reconnect_timeout, isolate=isolate, autostart=autostart))
