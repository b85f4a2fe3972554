"""A deliberately low-level client: every byte and every sendmsg is the test's own.

It shares nothing with the client libraries, so that a fault of theirs cannot hide one of the daemon. Connection.call()
is for what a test needs but does not test.
"""

from __future__ import annotations

import array
import os
import select
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from . import results

# How long a test waits for what must come before it gives up; no test measures with it.
PATIENCE = float(os.environ.get("KOPS_TEST_PATIENCE", "120"))


class Closed(Exception):
    """The daemon closed the connection; `notification` is what it said before."""

    def __init__(self, notification: dict[str, Any] | None = None) -> None:
        super().__init__(f"connection closed: {notification}")
        self.notification = notification


class RpcError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')} {error.get('detail')}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.detail: dict[str, Any] = error["detail"]

    @property
    def key(self) -> Any:
        return self.detail.get("key")


@dataclass
class Reply:
    msgid: int
    error: dict[str, Any] | None
    result: Any
    fds: list[int] = field(default_factory=list)

    def get(self) -> Any:
        if self.error is not None:
            raise RpcError(self.error)
        return self.result


def pack(value: Any) -> bytes:
    return msgpack.packb(value, use_bin_type=True)


def pack_request(msgid: int, method: str, params: dict[str, Any]) -> bytes:
    return pack([0, msgid, method, [params]])


def tensor(buffer: int | None, shape: Sequence[int], dtype: str = "f32", **more: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"shape": list(shape), "dtype": dtype, **more}
    if buffer is not None:
        out["buffer"] = buffer
    return out


class Connection:
    """One socket. Replies that come while another is awaited are kept."""

    def __init__(self, path: str, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(path)  # blocking: where the backlog is full one waits for one's turn
        self.socket.settimeout(PATIENCE)
        self.unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
        self.fds: list[int] = []
        self.replies: dict[int, Reply] = {}
        self.arrived: list[int] = []  # msgids in the order of their replies
        self.asked: dict[int, tuple[str, dict[str, Any]]] = {}  # requests whose results are checked with their declaration
        self.notification: dict[str, Any] | None = None
        self.next_msgid = 1

    # ---- sending ----

    def send(self, data: bytes, fds: Iterable[int] = ()) -> None:
        """All of `data`; the descriptors go with the first byte, whatever the socket takes at once."""
        fds = list(fds)
        sent = 0
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            sent = self.socket.sendmsg([data], ancillary)
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def request(
        self, method: str, params: dict[str, Any] | None = None, fds: Iterable[int] = (), msgid: int | None = None
    ) -> int:
        """Sends and does not wait; returns the msgid."""
        if msgid is None:
            msgid = self.next_msgid
            self.next_msgid += 1
        fds = list(fds)
        params = dict(params or {})
        if fds:
            params.setdefault("nfds", len(fds))
        self.asked[msgid] = method, params
        self.send(pack_request(msgid, method, params), fds)
        return msgid

    # ---- receiving ----

    def ask_without_reading(self) -> None:
        """Sends pings, whose replies are not read, until the socket takes no more."""
        self.socket.setblocking(False)
        try:
            for i in range(100000):
                self.socket.send(pack_request(i, "ping", {"x": bytes(500)}))
        except BlockingIOError:
            pass

    def read_some(self) -> None:
        """One recvmsg. Raises Closed at end of file."""
        data, ancillary, flags, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self.fds.extend(fds)
        assert not flags & socket.MSG_CTRUNC
        if not data:
            raise Closed(self.notification)
        self.unpacker.feed(data)
        for message in self.unpacker:
            self.take(message)

    def take(self, message: Any) -> None:
        assert isinstance(message, list) and message, message
        if message[0] == 2:
            assert len(message) == 3 and message[1] == "error" and len(message[2]) == 1, message
            assert self.notification is None, "two notifications"
            self.notification = message[2][0]
            return
        assert message[0] == 1 and len(message) == 4, message
        _, msgid, error, result = message
        assert (error is None) != (result is None), message
        assert msgid not in self.replies, f"two replies to {msgid}"
        if error is not None:
            assert set(error) >= {"code", "message", "detail"} and isinstance(error["detail"], dict), error
        if (asked := self.asked.pop(msgid, None)) and error is None:
            results.check(*asked, result)
        reply = Reply(msgid, error, result)
        if isinstance(result, dict):
            count = result.get("nfds", 0)
            if isinstance(count, int) and len(self.fds) >= count:
                reply.fds, self.fds = self.fds[:count], self.fds[count:]
        self.replies[msgid] = reply
        self.arrived.append(msgid)

    def reply(self, msgid: int) -> Reply:
        while msgid not in self.replies:
            self.read_some()
        return self.replies.pop(msgid)

    def call(self, method: str, params: dict[str, Any] | None = None, fds: Iterable[int] = ()) -> Any:
        return self.reply(self.request(method, params, fds)).get()

    def error(self, method: str, params: dict[str, Any] | None = None, fds: Iterable[int] = ()) -> RpcError:
        """The error that the request must be answered with."""
        return self.reply_error(self.request(method, params, fds))

    def reply_error(self, msgid: int) -> RpcError:
        reply = self.reply(msgid)
        assert reply.error is not None, f"no error, but {reply.result}"
        return RpcError(reply.error)

    def wait_closed(self) -> dict[str, Any] | None:
        """Reads until the daemon closes; the notification it sent, if any."""
        try:
            while True:
                self.read_some()
        except (Closed, ConnectionResetError):
            return self.notification

    def readable(self, timeout: float) -> bool:
        return bool(select.select([self.socket], [], [], timeout)[0])

    def alive(self) -> bool:
        """A ping is answered."""
        token = {"alive": time.monotonic_ns()}
        return self.call("ping", token) == token

    def close(self) -> None:
        for fd in self.fds + [fd for reply in self.replies.values() for fd in reply.fds]:
            os.close(fd)
        self.fds.clear()
        self.replies.clear()
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what tests need often ----

    def register(self, shared: Any, access: str = "rw", size: int | None = None) -> int:
        params = {"kind": "memfd", "size": size or shared.size, "fd": 0, "access": access}
        return self.call("register", params, [shared.fd])["buffer"]

    def run(self, op: str, ins: list[dict], outs: list[dict], **more: Any) -> dict[str, Any]:
        return self.call("run", {"op": op, "in": ins, "out": outs, **more})

    def run_error(self, op: str, ins: list[dict], outs: list[dict], **more: Any) -> RpcError:
        return self.error("run", {"op": op, "in": ins, "out": outs, **more})
