"""Requests whose result is fetched later: futures whose reply somebody has to read.

Usually no thread reads replies in the background: `result()` reads from the connection in the calling thread, which is fastest.
The client's watcher, a thread, reads in two cases: a callback, `concurrent.futures.wait`, `as_completed` or asyncio waits for the
future without calling it, or another thread is already in its `result()`. The watcher ends when it has nothing to wait for.

One thread at a time waits for a pending's reply (`_driving`), and one turns it into the result (`_settling`).
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

from .._base.errors import BadArgument, Cancelled, Timeout
from .._base.texts import uncollected
from .._base.twins import DEFAULT_TIMEOUT, seconds_of
from .._session.link import Call, no_reply
from .._session.native_link import NativeLink
from .._session.plain import PlainLink
from .plans import Plan

Link: TypeAlias = PlainLink | NativeLink
LOOK = 0.02  # seconds that the watcher waits for one reply before it looks for others
IDLE = 5.0  # seconds after which a watcher without work ends


class Client(Protocol):
    """The part of a client that a pending request needs."""

    @property
    def timeout(self) -> float | None: ...

    @property
    def _watcher(self) -> Watcher: ...


class Pending(concurrent.futures.Future[Any]):
    """A request that was sent and whose result is fetched later, by `submit`: a `concurrent.futures.Future`.

    Callbacks, `concurrent.futures.wait` and `as_completed`, and `asyncio.wrap_future` work as with any future; callbacks run
    on the thread that took the reply in. One that is dropped without `result()` runs all the same: an ordinary array given as
    its `out` is then not filled, and the logger "kops" tells its error. Thread-safe.
    """

    def __init__(self, client: Client, connection: Link, plan: Plan, call: Call, what: str) -> None:
        self._waiting: list[Any] = []
        self._plan: Plan | None = plan
        self._pid = os.getpid()
        super().__init__()
        self.set_running_or_notify_cancel()
        self._client = client
        self._connection = connection
        self._call = call
        self._what = what
        self._watched = False
        self._driving = threading.Lock()
        self._settling = threading.Lock()

    # The future's own lock, which `concurrent.futures` takes before anything else.
    @property
    def _condition(self) -> threading.Condition:
        self._notice_fork()
        return self._guard

    @_condition.setter
    def _condition(self, value: threading.Condition) -> None:
        self._guard = value

    # `concurrent.futures` asks for it where it is to be told of the end.
    @property
    def _waiters(self) -> list[Any]:
        if self._plan is not None:
            self._watch()
        return self._waiting

    @_waiters.setter
    def _waiters(self, value: list[Any]) -> None:
        self._waiting = value

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[Any]], object]) -> None:
        """Calls `fn` with this future once it has ended, at once where it has."""
        super().add_done_callback(fn)
        if not self.done():
            self._watch()

    def done(self) -> bool:
        """True when the reply is there, so that `result()` does not wait. Reads the replies that have arrived."""
        if super().done():
            return True
        if not self._call.done:
            self._connection.poll()
        if not self._call.done:
            return False
        self._settle()
        return True

    def running(self) -> bool:
        """True until it is `done()`."""
        return not self.done()

    def cancelled(self) -> bool:
        """True when it has ended because it was cancelled."""
        return self.done() and isinstance(super().exception(), Cancelled)

    def result(self, timeout: float | None = DEFAULT_TIMEOUT) -> Any:
        """Waits for the reply: the result, or raises its error. `timeout` is in seconds, 0 does not wait; without it the
        client's. After a `Timeout` here the request goes on, and `result()` may be called again."""
        self._end(timeout)
        return super().result()

    def exception(self, timeout: float | None = DEFAULT_TIMEOUT) -> BaseException | None:
        """As `result()`, but returns the error; None when there is none."""
        self._end(timeout)
        return super().exception()

    def cancel(self) -> bool:
        """Asks the daemon to drop the request, or to stop its work as soon as that can be. True: `result()` raises
        `Cancelled`, once the work has ended (a kernel that runs is not stopped). False: it was too late."""
        return self._connection.cancel(self._call, self._client.timeout)

    def _end(self, timeout: Any) -> None:
        """Waits until it has ended. Raises Timeout."""
        if super().done():
            return
        if timeout is DEFAULT_TIMEOUT:
            seconds = self._client.timeout
        else:
            seconds = 0.0 if type(timeout) in (int, float) and timeout == 0 else seconds_of(timeout)
        if not self._watched and self._driving.acquire(blocking=False):
            try:
                if seconds == 0:
                    self._connection.poll()
                    if not self._call.done:
                        raise no_reply(self._call.method, seconds)
                else:
                    self._connection.wait(self._call, seconds)
            finally:
                self._driving.release()
            self._settle()
            return
        self._watch()
        try:
            super().exception(seconds)
        except concurrent.futures.TimeoutError:
            raise no_reply(self._call.method, seconds) from None

    def _notice_fork(self) -> None:
        """In a child process: the threads that held the locks are the parent's."""
        here = os.getpid()
        if self._pid != here:
            self._pid, self._watched = here, False
            self._driving, self._settling = threading.Lock(), threading.Lock()
            self._guard = threading.Condition()

    def _look(self) -> None:
        """The watcher's: waits a moment for the reply."""
        if not self._driving.acquire(timeout=LOOK):
            return
        try:
            self._connection.wait(self._call, LOOK)
        except Timeout:
            pass
        finally:
            self._driving.release()

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            self._client._watcher.add(self)

    def _settle(self) -> None:
        """From the reply to the result. Once; other threads wait until it is there."""
        with self._settling:
            plan, self._plan = self._plan, None
            if plan is None:
                return
            call = self._call
            try:
                plan.send(call.result) if call.error is None else plan.throw(call.take_error())
            except StopIteration as stop:
                self.set_result(stop.value)
            except BaseException as error:
                self.set_exception(error.with_traceback(None))
            else:
                self.set_exception(BadArgument("the request is not finished"))

    def __del__(self) -> None:
        call = self.__dict__.get("_call")
        if call is None or self._plan is None:
            return
        if call.done:
            uncollected(f"submitted {self._what}", call.error)
        else:
            call.notify = partial(_report, call, self._what)

    def __repr__(self) -> str:
        if self._plan is not None:
            state = "waiting for its result()" if self._call.done else "running"
        else:
            error = super().exception()
            state = f"returned {type(super().result()).__name__}" if error is None else f"raised {type(error).__name__}"
        return f"<kops.Pending {self._what}: {state}>"


def _report(call: Call, what: str) -> None:
    uncollected(f"submitted {what}", call.error)


class Watcher:
    """Reads the replies that callbacks and `concurrent.futures` wait for. Of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: deque[Pending] = deque()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, pending: Pending) -> None:
        with self._lock:
            self._new.append(pending)
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kops-replies", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        waiting: list[Pending] = []
        while True:
            if not waiting and not self._wanted.wait(IDLE):
                with self._lock:
                    if not self._new:
                        self._thread = None
                        return
            with self._lock:
                waiting += self._new
                self._new.clear()
                self._wanted.clear()
            if waiting:
                waiting[0]._look()
                for link in {id(one._connection): one._connection for one in waiting}.values():
                    link.poll()
                for one in waiting:
                    if one._call.done:
                        one._settle()
                waiting = [one for one in waiting if one._plan is not None]
            one = None  # type: ignore[assignment]  # nothing is kept longer than it is waited for
