"""A client that is as busy as one thread can be: prepared messages over many connections, replies counted and not decoded.

Single-threaded: everything here belongs to the process that attacks."""

from __future__ import annotations

import array
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from support import raw

FIRST_MSGID = 0xDEAD0000  # all ids of prepared messages begin with these bytes, so that replies can be counted
REPLY = b"\x94\x01\xce\xde\xad"  # [1, 0xDEAD....
SCRATCH_BYTES = 1 << 20


def message(method: str, params: dict[str, Any], number: int = 0) -> bytes:
    return raw.pack_request(FIRST_MSGID + number, method, params)


def messages(method: str, params: dict[str, Any], count: int) -> list[bytes]:
    """The same request `count` times, each with an id of its own."""
    head, tail = message(method, params).split((FIRST_MSGID).to_bytes(4, "big"), 1)
    return [head + (FIRST_MSGID + number).to_bytes(4, "big") + tail for number in range(count)]


def notifications(method: str, count: int) -> list[bytes]:
    return [raw.pack([2, method, [{}]])] * count


Lap = tuple[list[int], memoryview]  # where messages end, and all of them


class Stream:
    """A connection on which the messages of a lap are sent round and round, at most `depth` without a reply (None: as
    many as the daemon takes). `read` false: its replies are never taken."""

    def __init__(self, link: socket.socket, lap: Lap, depth: int | None, *, read: bool = True) -> None:
        self.socket, self.depth, self.read = link, depth, read
        self.socket.setblocking(False)
        self.ends, self.bytes = lap
        self.sent_bytes = self.answered = 0
        self.tail = b""
        self.writing = True

    def events(self) -> int:
        return (select.EPOLLIN if self.read else 0) | (select.EPOLLOUT if self.writing else 0)

    @property
    def goal(self) -> float:
        """Bytes that may have been sent by now."""
        if self.depth is None:
            return float("inf")
        laps, rest = divmod(self.answered + self.depth, len(self.ends) - 1)
        return laps * len(self.bytes) + self.ends[rest]

    def send(self) -> bool:
        """Sends what the socket takes; true when it would take no more now."""
        goal = self.goal
        while self.sent_bytes < goal:
            at = self.sent_bytes % len(self.bytes)
            end = int(min(len(self.bytes), at + goal - self.sent_bytes))
            try:
                self.sent_bytes += self.socket.send(self.bytes[at:end])
            except BlockingIOError:
                return True
        return False


class Flood:
    """Streams, and what came of them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.streams: dict[int, Stream] = {}
        self.poll = select.epoll()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.counts: Counter[str] = Counter()
        self.said: Counter[str] = Counter()  # error codes that were seen, at most one for each read
        self.kept: list[raw.Connection] = []  # connections that hold something and have no stream
        self.last: tuple[Sequence[bytes], Lap] | None = None  # streams often send the same
        self.ring: Any = None
        self.bells: list[int] = []

    def connect(self) -> raw.Connection:
        """For what must be asked before the flood; its socket may then become a stream's."""
        return raw.Connection(self.path)

    def add(self, link: socket.socket, prepared: Sequence[bytes], depth: int | None, *, read: bool = True) -> None:
        """One more stream."""
        if self.last is None or self.last[0] is not prepared:
            self.last = prepared, ([0, *accumulate(map(len, prepared))], memoryview(b"".join(prepared)))
        stream = Stream(link, self.last[1], depth, read=read)
        fd = stream.socket.fileno()
        self.streams[fd] = stream
        self.poll.register(fd, stream.events())

    def note(self, data: bytes | memoryview) -> None:
        """Remembers the first error code in what was read."""
        text = bytes(data)
        at = text.find(b"\xa4code")
        if at >= 0 and at + 6 < len(text):
            length = text[at + 5] & 0x1F
            self.said[text[at + 6 : at + 6 + length].decode("latin-1")] += 1

    def receive(self, stream: Stream) -> None:
        try:
            n, ancillary, _, _ = stream.socket.recvmsg_into([self.scratch], 16 * socket.CMSG_SPACE(64))
        except BlockingIOError:
            return
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                for fd in fds:
                    os.close(fd)
        if n == 0:
            raise ConnectionResetError
        data = stream.tail + self.scratch[:n]
        stream.answered += data.count(REPLY)
        stream.tail = bytes(data[-(len(REPLY) - 1) :])
        if self.counts["reads"] < 1000 or self.counts["reads"] % 64 == 0:
            self.note(data)
        self.counts["reads"] += 1
        self.counts["bytes_in"] += n

    def close(self, stream: Stream) -> None:
        fd = stream.socket.fileno()
        self.poll.unregister(fd)
        del self.streams[fd]
        self.counts["answered"] += stream.answered
        stream.socket.close()

    def step(self, timeout: float) -> None:
        """What can be sent and read now."""
        for fd, events in self.poll.poll(timeout):
            stream = self.streams.get(fd)
            if stream is None:
                continue
            try:
                if events & select.EPOLLIN:
                    self.receive(stream)
                blocked = stream.send()
                if not events & select.EPOLLIN and events & (select.EPOLLHUP | select.EPOLLERR):
                    raise ConnectionResetError
            except OSError:
                self.counts["closed"] += 1
                self.close(stream)
                continue
            if blocked != stream.writing:
                stream.writing = blocked
                self.poll.modify(fd, stream.events())

    def run(self, until: float) -> None:
        while (now := time.monotonic()) < until:
            if not self.streams:
                return
            self.step(min(0.05, until - now))

    @property
    def answered(self) -> int:
        return self.counts["answered"] + sum(stream.answered for stream in self.streams.values())

    def report(self) -> dict[str, Any]:
        return {"answered": self.answered, **self.counts, "errors": dict(self.said.most_common(4))}

    def close_all(self) -> None:
        for stream in list(self.streams.values()):
            self.close(stream)
