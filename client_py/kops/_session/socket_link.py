"""A connection that a thread waits on: how the synchronous client sends requests and waits for their replies.

Threads. Any number may use a link: their requests share one socket, and each waits for its own reply. One of the
waiting threads reads for all (`reading`); the others sleep until it tells them. The lock is never held while a system
call may block.

`SocketLink` does that in Python. Another link has the same methods, see `native_link`.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any

from .._base.errors import Timeout
from .connection import Connection
from .session import Call

INTERRUPT_GRACE = 0.25  # seconds that Ctrl-C waits for the cancelled request's reply


def no_reply(call: Call, timeout: float | None) -> Timeout:
    return Timeout(f"no reply to {call.method} within {timeout} s", {"method": call.method})


class SocketLink(Connection):
    offers_ordered = False  # that needs the compiled part

    def __init__(self, path: Any, timeout: float | None, spin_us: float) -> None:
        super().__init__(path, timeout)
        self.spin_us = spin_us

    def synchronize(self, timeout: float | None) -> None:
        """No call is ordered here: each has waited for its result."""

    def exchange(self, call: Call, timeout: float | None) -> None:
        """Sends a request and waits until its reply is there."""
        try:
            self._put(call, timeout)
            if not self._receive_until(call, timeout):
                raise no_reply(call, timeout)
        except BaseException as error:
            self._give_up(call, error)
            raise
        finally:
            if self.followers:
                self.tell_followers()

    def send(self, call: Call, timeout: float | None) -> None:
        """Sends a request."""
        try:
            self._put(call, timeout)
        except BaseException as error:
            self._give_up(call, error)
            raise

    def wait(self, call: Call, timeout: float | None) -> None:
        """Waits for the reply to a request that was sent. It goes on when the wait ends without one."""
        try:
            if not self._receive_until(call, timeout):
                raise no_reply(call, timeout)
        finally:
            if self.followers:
                self.tell_followers()

    def cancel(self, call: Call, timeout: float | None) -> bool:
        """Asks the daemon to drop a request; False when it had ended."""
        if call.done:
            return False
        cancel = Call("cancel", {"msgid": call.msgid})
        self.exchange(cancel, timeout)
        return bool(cancel.outcome().get("cancelled"))

    def _put(self, call: Call, timeout: float | None) -> None:
        session = self.session
        while len(session.pending) >= session.inflight:
            oldest = next(iter(list(session.pending.values())), None)
            if oldest is not None:
                self.wait(oldest, timeout)
        with self.lock:
            if self.garbage:
                self.release()
            session.enqueue(call)
            flushed = self.flush()
        if not flushed:
            self.push(timeout)

    def push(self, timeout: float | None) -> None:
        """The socket is full: reads replies, for which the daemon may be waiting, until it takes the rest."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise Timeout(f"the daemon has not read the request within {timeout} s")
            # Another thread that reads leaves nothing to poll for but room.
            events = select.POLLOUT if self.reading else select.POLLOUT | select.POLLIN
            ready = self.transport.wait(events, remaining)
            with self.lock:
                if ready & select.POLLIN and not self.reading:
                    self.drain()
                if self.flush():
                    break
        self.tell_followers()

    def _receive_until(self, call: Call, timeout: float | None) -> bool:
        session, transport = self.session, self.transport
        remaining = timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        while not call.done:
            event: threading.Event | None = None
            leading = False
            try:
                with self.lock:
                    if session.inbox:  # an interrupted reader's
                        session.process()
                    if call.done:
                        break
                    leading = not self.reading
                    if leading:
                        self.reading = True
                    else:
                        event = threading.Event()
                        self.followers.append(event)
                if event is not None:
                    event.wait(remaining)
                elif not (self.spin_us and transport.receive_spinning(session.inbox, self.spin_us * 1e-6)):
                    transport.receive(session.inbox, remaining)
            finally:
                if leading:
                    self.reading = False
                if event is not None and event in self.followers:
                    self.followers.remove(event)
            if leading:
                with self.lock:
                    session.process()
                    if session.outbox:
                        self.flush()
                if self.followers:
                    self.tell_followers()
            if deadline is not None and not call.done:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
        return True

    def poll(self) -> None:
        """Applies the replies that have arrived, without waiting."""
        with self.lock:
            if not self.reading:
                self.drain()
        self.tell_followers()

    def _give_up(self, call: Call, error: BaseException) -> None:
        """Cancels a request whose caller leaves with `error`."""
        with self.lock:
            self.session.abandon(call)
            self.flush()
        if isinstance(error, KeyboardInterrupt) and call.sent and not call.done:
            # Its outputs should be at rest when the user is back.
            self._receive_until(call, INTERRUPT_GRACE)
