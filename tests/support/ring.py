"""The client's side of a connection's shared memory, as low-level as raw.py: every word is the test's to write.

Python knows no memory barriers, so this client always rings; what it loses is speed, not bells.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
from typing import Any

from . import raw

PAGE = 4096
# Bytes into the page, of the request ring; the reply ring's are 256 further on.
HEAD, TAIL, CONSUMER_SLEEPS, PRODUCER_SLEEPS = 0, 64, 128, 192
REPLY = 256


class Ring:
    """Maps what `hello` sent. Requests go through the ring, replies are taken from it and from the socket."""

    def __init__(self, connection: raw.Connection) -> None:
        self.connection = connection
        reply = connection.reply(connection.request("hello", {"shm": True}))
        result = reply.get()
        shm = result["shm"]
        assert result["nfds"] == 3 == len(reply.fds)
        self.fd, self.doorbell, self.wake = (reply.fds[shm[key]] for key in ("fd", "doorbell", "wake"))
        self.request_bytes, self.reply_bytes = shm["request_bytes"], shm["reply_bytes"]
        self.size = PAGE + self.request_bytes + self.reply_bytes
        assert os.fstat(self.fd).st_size == self.size
        self.memory = mmap.mmap(self.fd, self.size)
        self.head = self.tail = 0  # of what was written, and of what was read
        self.unpacker = raw.msgpack.Unpacker(raw=False, strict_map_key=False)

    # ---- words ----

    def get(self, offset: int, kind: Any = ctypes.c_uint64) -> int:
        return kind.from_buffer(self.memory, offset).value

    def set(self, offset: int, value: int, kind: Any = ctypes.c_uint64) -> None:
        kind.from_buffer(self.memory, offset).value = value

    # ---- requests ----

    def room(self) -> int:
        return self.request_bytes - (self.head - self.get(TAIL))

    def put(self, data: bytes) -> None:
        """Bytes into the ring, not yet shown."""
        at = self.head % self.request_bytes
        first = data[: self.request_bytes - at]
        self.memory[PAGE + at : PAGE + at + len(first)] = first
        self.memory[PAGE : PAGE + len(data) - len(first)] = data[len(first) :]
        self.head += len(data)

    def publish(self) -> None:
        self.set(HEAD, self.head)
        self.ring()

    def ring(self) -> None:
        os.write(self.doorbell, (1).to_bytes(8, "little"))

    def send(self, data: bytes) -> None:
        """All of `data`, taking replies while there is no room."""
        while data:
            piece = data[: self.room()]
            if not piece:
                self.set(PRODUCER_SLEEPS, 1, ctypes.c_uint32)
                if not self.room():
                    self.read_some()
                continue
            self.put(piece)
            self.publish()
            data = data[len(piece) :]

    def request(self, method: str, params: dict[str, Any] | None = None) -> int:
        msgid = self.connection.next_msgid
        self.connection.next_msgid += 1
        self.connection.asked[msgid] = method, params or {}
        self.send(raw.pack_request(msgid, method, params or {}))
        return msgid

    # ---- replies ----

    def take(self) -> int:
        """Takes what is in the reply ring; how many bytes."""
        head = self.get(REPLY + HEAD)
        n = head - self.tail
        assert 0 <= n <= self.reply_bytes
        start, at = PAGE + self.request_bytes, self.tail % self.reply_bytes
        first = min(n, self.reply_bytes - at)
        data = self.memory[start + at : start + at + first] + self.memory[start : start + n - first]
        self.tail = head
        self.set(REPLY + TAIL, head)
        if n and self.get(REPLY + PRODUCER_SLEEPS, ctypes.c_uint32):
            self.ring()
        self.unpacker.feed(data)
        for message in self.unpacker:
            self.connection.take(message)
        return n

    def read_some(self) -> None:
        """Waits until there is something on either path, and takes it."""
        self.set(REPLY + CONSUMER_SLEEPS, 1, ctypes.c_uint32)
        if self.take():
            return
        ready, _, _ = select.select([self.wake, self.connection.socket], [], [], raw.PATIENCE)
        assert ready, "neither a bell nor bytes"
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.connection.socket in ready:
            self.connection.read_some()
        self.take()

    def reply(self, msgid: int) -> raw.Reply:
        while msgid not in self.connection.replies:
            self.read_some()
        return self.connection.replies.pop(msgid)

    def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        return self.reply(self.request(method, params)).get()

    def close(self) -> None:
        for fd in (self.fd, self.doorbell, self.wake):
            if fd >= 0:
                os.close(fd)
        self.fd = self.doorbell = self.wake = -1
        self.memory.close()

    def seals(self) -> int:
        return fcntl.fcntl(self.fd, fcntl.F_GET_SEALS)
