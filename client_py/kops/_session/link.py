"""One connection to a daemon, as plans and clients see it, and the requests that go over it.

`native_link` has libkops' connection, which a client of its own gets where the package's compiled part is; `plain` one in Python alone.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from .._base.compiled import pack
from .._base.errors import BadArgument, DeviceLost, JobTimeout, KopsError, LimitExceeded, Timeout, Unsupported
from .._base.results import Info
from .._memory.pool import garbage

CANCELLABLE = ("run", "launch", "sequence", "run_program", "compile")
MSGID_MASK = 0xFFFFFFFF
DEFAULT_MESSAGE_BYTES = 64 * 1024  # until hello told the limit

# Things that the next request tells the daemon: what to release as (kind, id); in links through the extension also (method, packed params).
Gone = tuple[str, int] | tuple[str, bytes]


class Descriptors(list[int]):
    """File descriptors that came with a reply. Whoever takes one removes it; the rest is closed in the end."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        while self:
            close(self.pop())


class Call:
    """One request from its making to its reply.

    `keep` has the memory that the daemon may touch until it has answered; it is dropped with the reply, also when nobody
    waits for that any more. Where the reply came at a deadline, ahead of the work's end, another call keeps it on.
    `undo` is the kind of what a request makes, which is released where it was given up. `notify` is called
    once the reply is there (on whichever thread received it).
    """

    __slots__ = (
        "abandoned", "answered", "done", "error", "fds", "keep", "keeps_room", "method", "msgid", "notify", "params", "received", "result",
        "sent", "undo",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        params: Mapping[str, Any],
        fds: tuple[int, ...] = (),
        keep: Any = None,
        undo: str | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.fds = fds
        self.keep = keep
        self.undo = undo
        self.notify: Callable[[], None] | None = None
        self.msgid = -1
        self.sent = False  # a whole request may be on its way
        self.done = False
        self.answered = False  # by the daemon; a call may also end with its connection
        self.abandoned = False
        self.keeps_room = False  # the asyncio client's, until the call that keeps its memory on has ended
        self.result: Any = None  # where descriptors came with it, they are its `fds`
        self.received = Descriptors()
        self.error: KopsError | None = None

    def outcome(self) -> Any:
        """The result, or raises the error. Only once `done`, and once: an exception that the call kept would keep, by
        its traceback, everything that was there when it was raised."""
        if self.error is not None:
            raise self.take_error()
        return self.result

    def take_error(self) -> KopsError:
        error, self.error = self.error, None
        assert error is not None
        return error

    def end(self) -> None:
        """The reply is there, or there will be none."""
        self.done = True
        self.keep = None
        if self.notify is not None:
            self.notify()


_keys = itertools.count(1)


class Link:
    """The part that is the same of every connection. `key` names it among this process's connections: `Source.ids` has the buffer ids
    by it."""

    path: str
    offers_ordered = offers_sequences = False

    def __init__(self) -> None:
        self.key = next(_keys)
        self.garbage: deque[Gone] = deque()
        self.info: Info | None = None
        self.earlier: set[int] = set()  # keys of connections that this one follows
        self.message_bytes = DEFAULT_MESSAGE_BYTES
        self.failure: KopsError | None = None
        self.doomed = False  # the device is lost or hangs, and the daemon will close
        garbage[self.key] = self

    @property
    def alive(self) -> bool:
        """Whether new calls may use it."""
        return self.failure is None and not self.doomed

    @property
    def ended(self) -> bool:
        return self.failure is not None

    def greeted(self, reply: Any) -> None:
        """Stores the answer to `hello`."""
        self.info = Info.read(reply)
        self.message_bytes = self.info.limits.get("message_bytes", self.message_bytes)

    def need(self, feature: str) -> None:
        """Raises Unsupported unless the daemon lists the feature."""
        if self.info is None or feature not in self.info.features:
            raise Unsupported(f"this daemon has no feature {feature!r}: a newer one is needed", {"feature": feature})

    def remember(self, source: Any) -> None:
        """Memory was registered. A link that looks it up by itself notes it."""

    def check(self) -> None:
        if self.failure is not None:
            raise copy_of(self.failure)


def ends_daemon(error: KopsError | None) -> bool:
    """The daemon that answered so ends: its device is lost or hangs, and no other process takes the place of the lost one."""
    return isinstance(error, (DeviceLost, JobTimeout)) and error.detail.get("daemon") != "goes_on"


def goes_on(call: Call) -> bool:
    """The reply came before the end of the work, which uses the memory that the call keeps."""
    return call.keep is not None and call.error is not None and call.error.detail.get("ended") is False


def barrier_for(call: Call) -> Call:
    """A request that is answered when that work has ended, and keeps the same until then. Nobody waits for it."""
    barrier = Call("trim", {}, keep=call.keep)
    barrier.abandoned = True
    return barrier


def packed(params: Any, pack: Callable[[Any], bytes] = pack) -> bytes:
    try:
        data: bytes = pack(params)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadArgument(f"an argument cannot be sent: {error}") from error
    return data


def too_long(length: int, limit: int) -> LimitExceeded:
    return LimitExceeded(f"the request has {length} bytes, the daemon takes {limit}", {"limit": limit, "value": length})


def no_reply(method: str, timeout: float | None) -> Timeout:
    return Timeout(f"no reply to {method} within {timeout} s", {"method": method})


def copy_of(error: KopsError) -> KopsError:
    """An instance of its own for every call that fails of it: a raised exception carries its own traceback."""
    return type(error)(error.message, error.detail, error.code)
