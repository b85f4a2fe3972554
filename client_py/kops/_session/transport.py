"""The socket: finding it, connecting, writing requests with their descriptors, reading replies.

The descriptor is its only state. Every write takes one message at most, because descriptors travel with the write that
starts their message. Nothing here blocks but `receive` when it is told to, and `wait_writable`.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from typing import Any

from .._base.errors import ConnectFailed
from .places import candidates, distrust, explained
from .session import MAX_FDS, Call, Chunk

RECEIVE_BYTES = (16384,)
CONTROL_BYTES = (socket.CMSG_SPACE(MAX_FDS * 4),)
# Plain integers: an enum's members are slow to convert. In tuples, for map().
NO_FLAGS = (int(socket.MSG_CMSG_CLOEXEC),)
NO_WAIT = (int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT),)
SEND_FLAGS = (int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL),)


def connect(path: str | os.PathLike[str] | None, timeout: float | None) -> Transport:
    """The first of the candidates that accepts and is trusted. Raises ConnectFailed, which lists what was tried; `busy` among its
    details says that one has no room for another connection at present, which is waited for up to `timeout`."""
    tried, busy = [], False
    for candidate in candidates(path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if timeout == 0:
                sock.setblocking(False)
            elif timeout is not None:
                # Not settimeout(), by which a full backlog is refused.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
            sock.connect(candidate)
            why = distrust(candidate, sock)
            if why is None:
                return Transport(sock, candidate)
        except OSError as error:
            busy |= isinstance(error, BlockingIOError)
            why = explained(candidate, error)
        sock.close()
        tried.append(f"{candidate}: {why}")
    raise ConnectFailed(
        "no kopsd answers: " + "; ".join(tried) + ". Start one, or name its socket in KOPS_SOCKET",
        {"tried": tried, "busy": True} if busy else {"tried": tried},
    )


class Transport:
    """A connected socket, in blocking mode."""

    def __init__(self, sock: socket.socket, path: str = "") -> None:
        sock.settimeout(None)
        self.path = path
        self._socket = sock
        self._recvmsg = sock.recvmsg
        self._send = sock.send
        self._limit: float | None = None  # SO_RCVTIMEO as set

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Closes this process's descriptor; a parent's or child's copy stays as it is."""
        self._socket.close()

    def shutdown(self) -> None:
        """Ends the connection, and with it a `receive` that waits on another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def send(self, call: Call) -> bool:
        """Writes as much of a message as the socket takes; True when that was the rest of it. Raises OSError."""
        sent = call.sent
        try:
            if not sent:
                if call.fds:
                    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", call.fds))]
                    sent.extend(map(self._socket.sendmsg, ([call.data],), (control,), SEND_FLAGS))
                else:
                    sent.extend(map(self._send, (call.data,), SEND_FLAGS))
                done = sent[0]
            else:
                done = sum(sent)
                sent.extend(map(self._send, (memoryview(call.data)[done:],), SEND_FLAGS))
                done = sum(sent)
        except BlockingIOError:
            return False
        return done == len(call.data)

    def receive(self, inbox: list[Chunk], timeout: float | None) -> bool:
        """Waits for bytes and puts them into the inbox; False when the time ended first. An empty chunk is the end."""
        if timeout != self._limit:
            self._set_limit(timeout)
        try:
            inbox.extend(map(self._recvmsg, RECEIVE_BYTES, CONTROL_BYTES, NO_FLAGS))
        except BlockingIOError:
            return False
        except OSError:
            inbox.append(END)
        return True

    def receive_now(self, inbox: list[Chunk]) -> bool:
        """As `receive`, without waiting."""
        try:
            inbox.extend(map(self._recvmsg, RECEIVE_BYTES, CONTROL_BYTES, NO_WAIT))
        except BlockingIOError:
            return False
        except OSError:
            inbox.append(END)
        return True

    def receive_spinning(self, inbox: list[Chunk], seconds: float) -> bool:
        """As `receive_now`, tried again for so long."""
        end = time.perf_counter() + seconds
        while not self.receive_now(inbox):
            if time.perf_counter() >= end:
                return False
        return True

    def wait(self, events: int, timeout: float | None) -> int:
        """Waits for select.POLLIN or POLLOUT; the events that came, 0 when the time ended first."""
        poll = select.poll()
        poll.register(self._socket, events)
        ready = poll.poll(None if timeout is None else max(0, int(timeout * 1000 + 0.999)))
        return ready[0][1] if ready else 0

    def _set_limit(self, timeout: float | None) -> None:
        # A timeout in the kernel costs one system call when it changes; one in Python costs a poll for every reply.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(timeout))
        self._limit = timeout


def _timeval(seconds: float | None) -> bytes:
    micro = 0 if seconds is None else max(1, int(seconds * 1e6))
    return struct.pack("ll", micro // 1000000, micro % 1000000)


END: Any = (b"", [], 0, None)
