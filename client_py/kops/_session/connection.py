"""One connection: its socket, its session, the daemon's description of itself, and the ids that wait to be released.

Made by the synchronous and the asyncio client alike; they differ in how they wait. The thread that drives a connection holds its lock.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any, Protocol

from .._base.errors import ConnectionLost, Unsupported
from .._base.results import Info
from .._memory.pool import garbage
from .._version import PROTOCOL, VERSION
from . import transport
from .session import Call, Session, copy_of

keys = itertools.count(1)

# What the daemon is told with the next request: a buffer to release; a module, kernel or program as (key, id); of links through
# the extension also (method, packed params).
Gone = int | tuple[str, int] | tuple[str, bytes]


def hello(isolate: str | None) -> Call:
    """The request that opens the conversation; `isolate` is `connect`'s."""
    params = {"client": f"kops-python {VERSION}", "protocol": PROTOCOL}
    return Call("hello", params if isolate is None else {**params, "isolate": isolate})


class Peer(Protocol):
    """The daemon, as plans see it: one connection of any kind."""

    key: int
    garbage: deque[Gone]
    info: Info | None
    earlier: set[int]

    @property
    def path(self) -> str: ...

    def need(self, feature: str) -> None: ...

    def remember(self, source: Any) -> None: ...


class Connection:
    """`key` names it among this process's connections: `Source.ids` has the buffer ids by it."""

    def __init__(self, path: Any, timeout: float | None) -> None:
        self.transport = transport.connect(path, timeout)
        self.session = Session()
        self.lock = threading.Lock()
        self.key = next(keys)
        self.garbage: deque[Gone] = deque()
        self.info: Info | None = None
        self.earlier: set[int] = set()  # keys of connections that this one follows
        self.reading = False  # a thread waits for bytes, on behalf of all
        self.followers: list[threading.Event] = []  # the others that wait
        garbage[self.key] = self

    @property
    def path(self) -> str:
        return self.transport.path

    @property
    def alive(self) -> bool:
        """Whether new calls may use it."""
        return self.session.failure is None and not self.session.doomed

    @property
    def ended(self) -> bool:
        return self.session.failure is not None

    def greet(self, isolate: str | None) -> Call:
        return hello(isolate)

    def greeted(self, reply: Any) -> None:
        """Stores the answer to `hello`."""
        self.info = Info.of(reply)
        limits = self.info.limits
        # One less than the daemon reads ahead, so that a cancel always gets through.
        self.session.inflight = max(1, limits.get("inflight", self.session.inflight) - 1)
        self.session.message_bytes = limits.get("message_bytes", self.session.message_bytes)

    def release(self) -> None:
        """Queues the releases that are due."""
        while self.garbage:
            gone = self.garbage.popleft()
            self.session.notify("release", dict([gone]) if isinstance(gone, tuple) else {"buffer": gone})

    def need(self, feature: str) -> None:
        """Raises Unsupported unless the daemon lists the feature."""
        if self.info is None or feature not in self.info.features:
            raise Unsupported(f"this daemon has no feature {feature!r}: a newer one is needed", {"feature": feature})

    def remember(self, source: Any) -> None:
        """Memory was registered. A link that looks it up by itself notes it."""

    def flush(self) -> bool:
        """Writes as much as the socket takes; True when nothing is left. A broken socket is left for the reader to find:
        the daemon's reason may still be unread."""
        session, send = self.session, self.transport.send
        outbox = session.outbox
        while outbox:
            try:
                if not send(outbox[0]):
                    return False
            except OSError as error:
                self.drain()
                session.fail(ConnectionLost(f"cannot write to the daemon: {error.strerror or error}"))
                return True
            outbox.popleft()
        return True

    def drain(self) -> None:
        """Reads and applies the bytes that have arrived."""
        session = self.session
        if session.failure is None:
            while self.transport.receive_now(session.inbox) and session.inbox[-1][0]:
                pass
            session.process()

    def tell_followers(self) -> None:
        """Wakes the threads that wait while another one reads: a reply may be theirs, or the reading."""
        for event in list(self.followers):
            event.set()

    def close(self, why: str = "the client was closed") -> None:
        """Ends it; every waiting call fails. The caller does not hold the lock."""
        with self.lock:
            self.session.fail(ConnectionLost(why, {"closed": True}))
        self.transport.shutdown()
        self.transport.close()
        self.tell_followers()

    def forsake(self) -> None:
        """In a forked child: closes the parent's socket here, and sends nothing on it."""
        self.lock = threading.Lock()
        self.session.fail(ConnectionLost("this connection belongs to the parent process", {"closed": True}))
        self.transport.close()

    def check(self) -> None:
        if self.session.failure is not None:
            raise copy_of(self.session.failure)
