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
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

from .._base.compiled import native, why_not
from .._base.errors import BadArgument, ConnectFailed, ConnectionLost, KopsError, Timeout, Unsupported
from .._base.log import warn
from .._base.records import Device
from .._base.results import Info, Timing
from .._base.stats import Stats
from .._base.timeouts import DEFAULT_TIMEOUT
from .._calls import plans
from .._calls.contexts import checked_place
from .._calls.ops import AsyncOpMethods, check_attrs
from .._calls.plans import Plan
from .._calls.recording import AsyncProgram, AsyncSequence
from .._kernels.modules import AsyncFormulaMethods, AsyncKernelMethods
from .._session.link import Call, no_reply
from .._session.native_link import NativeLink
from .._session.recovery import LOSSES, RUNS, Backoff, Failed, Trial, no_hazard, reconnect_timeout_of
from .admin import AsyncAdminMethods
from .base import BaseClient
from .measuring import AsyncMeasureMethods


class AsyncClient(BaseClient, AsyncOpMethods, AsyncKernelMethods, AsyncFormulaMethods, AsyncMeasureMethods, AsyncAdminMethods):
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
        self._turns: deque[asyncio.Future[None]] = deque()  # calls that wait for room at the daemon, in order
        self._granted = 0  # turns of calls that have not sent yet
        self._settling = False  # the loop will look for replies that were taken in while a request was written
        self._connecting: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        _clients.add(self)

    # The daemon

    @property
    def info(self) -> Info:
        """The daemon's description of itself, from when the connection was made."""
        connection = self._connection
        if connection is None or connection.info is None:
            raise ConnectionLost("not connected")
        return connection.info

    async def ping(self, data: Mapping[str, Any] | None = None, *, timeout: float | None = DEFAULT_TIMEOUT) -> dict[str, Any]:
        """Asks the daemon for an answer, which is `data`."""
        answer: dict[str, Any] = await self._drive(await self._live(), lambda link: plans.ping(data or {}), timeout)
        return answer

    async def stats(
        self,
        op: str | None = None,
        *,
        dtype: str | None = None,
        device: Device | str | int | None = None,
        reset: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Stats:
        """As `Client.stats`."""
        connection = await self._live()
        answer: Stats = await self._drive(connection, lambda link: plans.stats(op, dtype, device, reset), timeout)
        return answer

    async def trim(self, *, timeout: float | None = DEFAULT_TIMEOUT) -> dict[str, int]:
        """As `Client.trim`."""
        answer: dict[str, int] = await self._drive(await self._live(), plans.trim, timeout)
        return answer

    # Arrays on devices

    async def _on_device(self, device: Any, shape: Any, dtype: Any, values: tuple[Any, ...] = ()) -> Any:
        connection = await self._live()
        made = self._new_array(device, shape, dtype)
        await self._drive(connection, lambda link: plans.make_array(link, made), DEFAULT_TIMEOUT)
        for value in values:
            await made.set(value)
        return made

    async def _guarded(self, device: Any, shape: Any, dtype: Any, at_end: bool) -> Any:
        connection = await self._live()
        return await self._drive(connection, self._plan_guarded(device, shape, dtype, at_end), DEFAULT_TIMEOUT)

    async def _copy(self, source: Any, out: Any, stream: int, blocking: bool) -> Any:
        return await self.run("copy", source, out=out, stream=stream)

    def _check_readable(self) -> None:
        raise BadArgument("with asyncio: await a.get()")

    # Ops

    async def run(
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
    ) -> Any:
        """As `Client.run`."""
        attrs = check_attrs(op, attrs, variant)
        return await self._op(op, inputs, out, attrs, device, stream, timing, deadline_ms, priority, None, timeout)

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

    async def _define(self, program: AsyncProgram) -> None:
        connection = await self._live()
        await self._drive(connection, program.define, DEFAULT_TIMEOUT)

    # Connecting and closing

    async def close(self) -> None:
        """Ends the connection; the daemon releases the client's memory, programs and kernels. Idempotent."""
        self._closed = True
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

    def __repr__(self) -> str:
        connection = self._connection
        state = "closed" if self._closed else "not connected" if connection is None else connection.path
        return f"<kops.AsyncClient {state}>"

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
            self._disconnect("the connection was lost")
            backoff = self._connecting_anew()
            while True:
                if self._closed:
                    raise ConnectionLost("the client was closed", {"closed": True})
                try:
                    return await self._greeted(backoff)
                except (ConnectFailed, *LOSSES) as error:
                    if self._found is None and isinstance(error, ConnectFailed):
                        raise  # perhaps no daemon will ever come
                    pause = backoff.pause()
                    if pause is None:
                        raise backoff.connecting(error) from None
                    await asyncio.sleep(pause)

    async def _greeted(self, backoff: Backoff) -> NativeLink:
        """A new connection, with the answer to `hello`. A daemon that is starting answers late."""
        loop, path, limit = asyncio.get_running_loop(), self._where(), self._greeting_time(backoff)
        try:
            made = await _by_a_thread(lambda: NativeLink(path, limit, 0, None, limit, self.autostart, True, self.isolate))
        except Timeout as error:
            raise (ConnectFailed(error.message) if self._again(backoff) else error) from None
        if self._closed or loop is not self._loop:
            made.close()
            raise ConnectionLost("the client was closed", {"closed": True})
        self._watched = os.dup(made.fileno())
        loop.add_reader(self._watched, self._readable, made)
        self._connection = made
        self._remember(made)
        return made

    def _disconnect(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._unwatch()
            connection.close(why)
            connection.settle()
            self._grant(connection)

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
        self._turns.clear()
        self._granted = 0
        self._unwatch()
        if connection is not None:
            connection.forsake()

    # Waiting

    def _readable(self, connection: NativeLink) -> None:
        connection.poll()
        self._grant(connection)
        if connection.ended and connection is self._connection:
            self._unwatch()

    def _settle(self, connection: NativeLink) -> None:
        self._settling = False
        connection.settle()
        self._grant(connection)

    async def _drive(
        self, connection: NativeLink, plan_of: Callable[[NativeLink], Plan], timeout: Any, hazard: Callable[[], str | None] = no_hazard
    ) -> Any:
        """Carries a plan out, and once more where its daemon goes away and that does no harm; see `recovery`."""
        seconds = self._timeout_of(timeout)
        answer = await self._follow(connection, plan_of(connection), seconds)
        trial: Trial | None = None
        while type(answer) is Failed:
            trial = trial or Trial(self.reconnect_timeout, seconds, hazard)
            pause = trial.judge(answer.error, answer.call)
            assert self._repeating is not None
            # In the order of the first tries: a later call may use the output of an earlier one.
            async with _Turn(self._repeating) as turn:
                await asyncio.sleep(pause)
                connection = await self._live()
                answer = await self._follow(connection, plan_of(connection), seconds, turn.over)
        return answer

    async def _follow(
        self, connection: NativeLink, plan: Plan, seconds: float | None, sent: Callable[[], None] | None = None
    ) -> Any:
        """One try: its answer, or Failed. `sent` is called once the request that runs something is on its way."""
        call = None
        try:
            call = next(plan)
            while True:
                try:
                    await self._exchange(connection, call, seconds, sent if call.method in RUNS else None)
                except BaseException as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(call.result) if call.error is None else plan.throw(call.take_error())
        except StopIteration as stop:
            return stop.value
        except LOSSES as error:
            return Failed(error, call)

    async def _await_end(self, connection: NativeLink) -> None:
        """A daemon that lost its device ends in a moment, with all that was asked of it."""
        backoff = self._backoff()
        while not connection.ended and (pause := backoff.pause()) is not None:
            try:
                await self._exchange(connection, Call("ping", {}), backoff.left)
            except KopsError:
                break
            await asyncio.sleep(pause)

    async def _exchange(
        self, connection: NativeLink, call: Call, timeout: float | None, sent: Callable[[], None] | None = None
    ) -> None:
        """Sends a request and waits until its reply is there."""
        assert self._loop is not None
        end = None if timeout is None else self._loop.time() + timeout
        if self._turns or len(connection.open) + self._granted >= connection.inflight:
            await self._turn(connection, call, timeout)
        future = self._loop.create_future()

        def settle(replied: bool) -> None:
            if not future.done():
                future.set_result(replied)

        call.notify = lambda: settle(True)
        expiry = self._loop.call_at(end, settle, False) if end is not None else None
        try:
            connection.send(call, None if end is None else max(end - self._loop.time(), 0.001))
            if not self._settling:
                self._settling = True
                self._loop.call_soon(self._settle, connection)
            if sent is not None:
                sent()
            if not await future:
                raise no_reply(call, timeout)
        except BaseException:
            connection.abandon(call)
            raise
        finally:
            if expiry is not None:
                expiry.cancel()

    async def _turn(self, connection: NativeLink, call: Call, timeout: float | None) -> None:
        """Waits until one more request may be sent."""
        assert self._loop is not None
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turns.append(turn)
        try:
            await asyncio.wait_for(turn, timeout)
        except asyncio.TimeoutError:
            raise no_reply(call, timeout) from None
        finally:
            if turn in self._turns:
                self._turns.remove(turn)
            elif self._granted:
                self._granted -= 1
            self._loop.call_soon(self._grant, connection)  # where this one is not used

    def _grant(self, connection: NativeLink) -> None:
        """Lets calls send that wait for their turn."""
        while self._turns and (connection.ended or len(connection.open) + self._granted < connection.inflight):
            turn = self._turns.popleft()
            if not turn.done():
                self._granted += 1
                turn.set_result(None)


class _Turn:
    """A lock that can be let go before the block ends."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._held = False

    async def __aenter__(self) -> _Turn:
        await self._lock.acquire()
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()


async def _by_a_thread(make: Callable[[], NativeLink]) -> NativeLink:
    """What `make` returns, which may block, by a thread that nothing waits for at the end of the loop or of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[NativeLink] = loop.create_future()

    def settle(made: NativeLink | None, error: BaseException | None) -> None:
        if not future.cancelled():
            future.set_result(made) if made is not None else future.set_exception(error or RuntimeError())
        elif made is not None:
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


_clients: weakref.WeakSet[AsyncClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)


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
