"""A link by libkops, of the compiled extension.

libkops connects, reads and writes, also through shared memory where the daemon offers it, and connects
anew when the connection was lost: each connection is a *generation*, and a link here stands for one of them.
Plans go through `exchange`; ops on torch CUDA tensors whose memory is registered take `fast`, which
reads the tensors in C. The asyncio client sends, and takes replies in when the socket can be read (`poll`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from .._base.compiled import keep_name, native, pack
from .._base.errors import (
    ConnectFailed,
    ConnectionLost,
    KopsError,
    StaleBuffer,
    Timeout,
    UnknownBuffer,
    UnknownProgram,
    from_reply,
)
from .._memory.exports import Allocation, allocations
from .._memory.pool import Source
from .._version import VERSION
from .link import CANCELLABLE, MSGID_MASK, Call, Link, barrier_for, ends_daemon, goes_on, no_reply, packed, too_long
from .plain import candidates

HEAD = 32  # most bytes of a request before its params
TAKING = 0.0002  # seconds between looks while another thread reads a reply that has arrived
TIDY_EVERY = 0.02  # seconds between looks for ended requests, while references are kept


class NativeLink(Link):
    """One connection, made by the extension."""

    def __init__(
        self, path: Any, timeout: float | None, patience: float, spin_us: float = 0, before: NativeLink | None = None,
        follows: bool = False, autostart: bool = False, socket_only: bool = False, isolate: str | None = None,
        begun: Callable[[Any], None] | None = None,
    ) -> None:  # fmt: skip
        """`before` is the link whose connection was lost; this one goes on with its client. A daemon that is started anew is waited for
        `patience` seconds, with `follows` also by a new client. `socket_only`: without shared memory for messages, so that the socket
        says when there is something to read. `begun` is called with a new client before it connects: its close() ends the waiting."""
        super().__init__()
        self._native: Any
        self._kept: threading.Event
        if before is not None and not before._native.closed:
            self._native, self._kept = before._native, before._kept
            before.failure = before.failure or ConnectionLost("the connection was lost")
        else:
            self._kept = threading.Event()
            socket = None if path is None else os.fspath(path)
            try:
                name = f"kops-python {VERSION}"
                self._native = native.Link.__new__(native.Link)
                if begun is not None:
                    begun(self._native)
                self._native.__init__(socket, name, timeout, patience, spin_us, self._kept.set, follows, autostart, socket_only, isolate)
            except ConnectFailed as error:
                error.detail.setdefault("tried", candidates(path))
                raise
            threading.Thread(target=_tidy, args=(self._native, self._kept), name="kops-tidier", daemon=True).start()
        self.path = self._native.path
        self.run = self._native.run
        self.launch = self._native.launch
        try:
            self.generation, hello = self._native.generation(patience)
        except Timeout as error:
            raise ConnectFailed(error.message) from None
        except ConnectFailed as error:
            error.detail.setdefault("tried", [self.path])
            raise
        self.inflight = 16  # most submitted requests, until hello told the limit
        self.room: Any = None  # the asyncio client's, for as many
        self.open: dict[int, Call] = {}  # submitted, by ticket
        self._waited: dict[int, int] = {}  # the thread that waits for a ticket
        self.greeted(msgpack.unpackb(hello))

    # Requests

    def greeted(self, reply: Any) -> None:
        super().greeted(reply)
        assert self.info is not None
        self.message_bytes -= HEAD
        # The limit is 1 below the daemon's, so that a cancel always gets through.
        self.inflight = max(1, self.info.limits.get("inflight", self.inflight + 1) - 1)
        self.offers_ordered = "ordered" in self.info.features
        self.offers_sequences = "sequence" in self.info.features

    def release(self) -> None:
        """Sends the releases that are due. Other threads may do the same meanwhile, and take the last one."""
        while self.garbage:
            try:
                gone = self.garbage.popleft()
            except IndexError:
                return
            if isinstance(gone[1], bytes):
                self.tell(gone[0], gone[1])
                continue
            if gone[0] == "buffer":
                self._native.forget(gone[1])
            self._native.notify("release", pack(dict([gone])))

    def exchange(self, call: Call, timeout: float | None) -> None:
        """Sends a request and waits until its reply is there."""
        data = self._encode(call)
        call.sent = True
        self._take(call, self._call(call.method, data, call.fds, timeout, call.keep))

    def _call(self, method: str, data: bytes, fds: tuple[int, ...], timeout: float | None, keep: Any) -> Any:
        try:
            reply = self._native.call(self.generation, method, data, fds, timeout, method in CANCELLABLE, keep)
        except ConnectionLost as error:
            raise self.lost(error) from None
        if reply is None:
            raise no_reply(method, timeout)
        return reply

    def repeat(self, method: str, data: bytes, timeout: float | None, keep: list[Any]) -> bool:
        """Sends a packed request and waits until its reply is there, which is not unpacked; keeps `keep` until then, also
        where the wait ends before. False when it was refused because the daemon does not know something of it (any more): then nothing
        ran."""
        if self.failure is not None or self.open or self.garbage:
            return False
        reply = self._call(method, data, (), timeout, keep)
        if reply[0]:
            refusal = from_reply(msgpack.unpackb(reply[1]))
            self.doomed |= ends_daemon(refusal)
            if isinstance(refusal, (UnknownProgram, UnknownBuffer, StaleBuffer)):
                return False
            raise refusal
        return True

    def send(self, call: Call, timeout: float | None) -> None:
        """Sends a request."""
        self._submit(call, timeout)
        self.open[call.msgid] = call

    def wait(self, call: Call, timeout: float | None) -> None:
        """Waits for the reply to a request that was sent. It goes on when the wait ends without one."""
        while not call.done:
            if self._finish(call, timeout):
                break
            time.sleep(TAKING)
        if not call.done:
            raise no_reply(call.method, timeout)

    def poll(self, in_order: bool = False) -> None:
        """Takes in the replies that have arrived, and notes where the connection is over. `in_order`: up to the first without one."""
        if self.failure is None:
            with contextlib.suppress(KopsError):
                try:
                    self._native.look()
                except KopsError as error:
                    raise self.lost(error) from None
        self.settle(in_order)

    def settle(self, in_order: bool = False) -> None:
        """Ends the requests whose replies libkops has taken in. Reads nothing."""
        for call in list(self.open.values()):
            if not call.done and (self._native.closed or self._native.has_ended(call.msgid)):
                self._finish(call, 1)
            elif in_order:
                break

    def fileno(self) -> int:
        """The socket, which can be read when there is something to poll() for. Raises ConnectionLost."""
        number: int = self._native.fileno()
        if number < 0:
            raise self.lost(ConnectionLost("the daemon closed the connection"))
        return number

    def abandon(self, call: Call) -> None:
        """Nobody waits for a request any more that was sent: asks for its cancelling. A late reply is dropped, and only then the memory
        that the call keeps."""
        call.abandoned = True
        if not call.done and call.msgid >= 0 and self.failure is None and call.method in CANCELLABLE:
            self._native.cancel(call.msgid)

    def cancel(self, call: Call, timeout: float | None) -> bool:
        """Asks the daemon to drop a request; False when it had ended."""
        self.poll()
        if call.done:
            return False
        cancel = Call("cancel", {"msgid": call.msgid & MSGID_MASK})  # a ticket's lower half
        self.exchange(cancel, timeout)
        return bool(cancel.outcome().get("cancelled"))

    def _submit(self, call: Call, timeout: float | None) -> None:
        data = self._encode(call)
        call.sent = True
        with self.losing():
            call.msgid = self._native.submit(self.generation, call.method, data, call.fds, timeout)

    def _encode(self, call: Call) -> bytes:
        """The params of a request, packed. Before that: ended requests are forgotten, releases that are due are sent."""
        if self.failure is not None:
            self.check()
        if self.open:
            self.poll(True)
        if self.garbage:
            self.release()
        data = packed(call.params)
        if len(data) > self.message_bytes:
            raise too_long(len(data), self.message_bytes)
        return data

    def _finish(self, call: Call, timeout: float | None) -> bool:
        """Fills the call in when its reply comes in time. False where another thread is at it: only one may be."""
        me = threading.get_ident()
        try:
            if self._waited.setdefault(call.msgid, me) != me:
                return False
            if not call.done:
                self._wait_for(call, timeout)
        finally:
            if self._waited.get(call.msgid) == me:
                del self._waited[call.msgid]
        return True

    def _wait_for(self, call: Call, timeout: float | None) -> None:
        try:
            reply = self._native.wait(call.msgid, timeout)
        except ConnectionLost as error:
            call.error = self.lost(error)
        except KopsError as error:
            # In a forked child, where a thread of the parent was in libkops at the fork: it knows none of the requests
            # any more.
            call.error = error if self.failure is None else self.lost(self.failure)
        else:
            if reply is None:
                return
            self._take(call, reply)
        self.open.pop(call.msgid, None)
        call.end()

    def _take(self, call: Call, reply: Any) -> None:
        """Fills the call in."""
        is_error, data, fds = reply
        barrier = None
        call.received.extend(fds)
        result = msgpack.unpackb(data)
        if is_error:
            call.error = from_reply(result)
            self.doomed |= ends_daemon(call.error)
            barrier = barrier_for(call) if goes_on(call) else None
        else:
            if call.received:
                result["fds"] = call.received
            call.result = result
            if call.abandoned and call.undo is not None:
                self._native.notify("release", pack({call.undo: result[call.undo]}))
        call.answered = True
        call.done = True
        call.keep = None
        if barrier is not None:  # behind all that: sending looks for calls that have ended
            with contextlib.suppress(KopsError):
                self.send(barrier, None)
                if self.room is not None:
                    barrier.notify, call.keeps_room = self.room.release, True

    def tell(self, method: str, params: bytes) -> None:
        """Tells the daemon something that it need not know: dropped where it is behind with its reading."""
        if self.failure is None:
            self._native.notify(method, params, True)

    # Ordered calls and fast ones

    def enqueue(
        self, method: str, params: dict[str, Any], names: tuple[str, ...], keep: Any, index: int, handle: int
    ) -> None:  # fmt: skip
        """Puts a request on a CUDA stream."""
        self.check()
        if self.garbage:
            self.release()
        params.pop("stream", None)
        name = names[0] if len(names) == 1 else f"{method} of {len(names)} ops"
        data = packed(params)
        driver = allocations.driver
        with self.losing(), driver.using(driver.primary_context(index)):
            self._native.enqueue(method, keep_name(name), data, (keep,), handle)

    def batch(self, index: int, handle: int, begins: bool) -> None:
        """Begins a batch on a stream, or ends it."""
        driver = allocations.driver
        with self.losing(), driver.using(driver.primary_context(index)):
            self._native.batch(handle, begins)

    def remember(self, source: Source) -> None:
        """Tells the fast path of registered device memory."""
        if isinstance(source, Allocation) and source.chunks is None and (buffer := source.ids.get(self.key)) is not None:
            context = allocations.driver.pointer_context(source.base).value or 0
            self._native.remember(source.base, source.size, source.id, buffer, context)

    def synchronize(self, timeout: float | None) -> None:
        """Waits for the ordered calls; raises the first error since the last report."""
        with self.losing():
            self._native.synchronize(timeout)

    # Connecting and closing

    def lost(self, error: KopsError) -> ConnectionLost:
        """libkops says that this connection is over. The error to raise; `ran` is 0 among its details where the request did not run."""
        if self.failure is None and error.detail.get("ran") == 0 and not self._native.closed and self._native.fileno() >= 0:
            self.doomed = True  # the daemon lost its device, and answers what is under way before it ends
        elif self.failure is None:
            self.failure = ConnectionLost(error.message, {key: value for key, value in error.detail.items() if key != "ran"})
        return ConnectionLost(error.message, {**error.detail, "closed": True} if self._native.closed else error.detail)

    @contextlib.contextmanager
    def losing(self) -> Iterator[None]:
        try:
            yield
        except ConnectionLost as error:
            raise self.lost(error) from None

    def close(self, why: str = "the client was closed") -> None:
        if self.failure is None:
            self.release()  # word of launches is among it
            self.failure = ConnectionLost(why, {"closed": True})
        self._native.close()
        self._kept.set()

    def forsake(self) -> None:
        """In a forked child: the parent's connection is not used any more."""
        self.failure = ConnectionLost("this connection belongs to the parent process", {"closed": True})
        self._waited = {}  # the threads that did are the parent's


def _tidy(link: Any, kept: threading.Event) -> None:
    """A thread: drops references of requests that ended while no thread called. Sleeps while none are kept."""
    pause = threading.Event()
    while True:
        kept.wait()
        pause.wait(TIDY_EVERY)
        kept.clear()
        left = link.collect()
        if left is None:
            return
        if left:
            kept.set()
