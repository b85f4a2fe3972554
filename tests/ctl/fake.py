"""A daemon in miniature: a thread that answers what the test says. It shares no code with the daemon or its clients."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgpack

HELLO = {
    "server": "kopsd 9.9 (fake)",
    "protocol": 1,
    "protocol_min": 1,
    "pid": 4242,
    "instance": "0" * 32,
    "devices": [
        {"index": 0, "name": "fake", "uuid": "host", "backend": "host", "memory_bytes": 1, "compute_units": 1, "arch": "x",
         "default": True}
    ],
    "ops": [],
    "limits": {"message_bytes": 65536, "depth": 16, "nfds": 16, "inflight": 8, "buffers": 8, "streams": 256, "rank": 8},
    "features": ["memfd"],
}  # fmt: skip

ONE = {"count": 3, "p50": 11.0, "p90": 12.0, "p99": 13.0, "p999": 14.0, "max": 15.0}
NONE = {"count": 0}


class Refused(Exception):
    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(code)
        self.error = {"code": code, "message": message, "detail": detail}


def client(pid: int, **more: Any) -> dict[str, Any]:
    """One of `clients`."""
    return {
        "pid": pid, "uid": 0, "gid": 0, "client": "test 1.0", "comm": "test", "connected_s": 10.0, "requests": 100,
        "errors": 0, "inflight": 0, "queued": 0, "buffers": 1, "mapped_bytes": 1 << 20, "allocated_bytes": 0, "programs": 0,
        "kernels": 0, "bytes_in": 1, "bytes_out": 1, "output_bytes": 0, "paused": False, "shm": False, "device_us": 0.0, "here": 0,
        "latency": {"queue": NONE, "device": NONE, "total": ONE}, **more,
    }  # fmt: skip


def user(uid: int, **more: Any) -> dict[str, Any]:
    return {
        "uid": uid, "connections": 1, "buffers": 2, "mappings": 11, "mapped_bytes": 3, "allocated_bytes": 4,
        "host_bytes": 12, "program_bytes": 13, "waiting_bytes": 14, "inflight": 5, "fds": 6, "kernel_bytes": 10, "requests": 7,
        "refused": 8, "device_us": 9e6, "limits": {"connections": 1024, "mapped_bytes": 1 << 30}, **more,
    }  # fmt: skip


def clients(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What `clients` answers."""
    device = {"index": 0, "name": "fake GPU", "uuid": "host", "busy_us": 0.0, "running": 2}
    return {
        "clients": list(rows), "users": [user(0)], "state": "serving", "uptime_s": 100.0, "devices": [device], **more,
    }  # fmt: skip


def stats(uptime_s: float = 100.0, rows: list[dict[str, Any]] | None = None, **counters: int) -> dict[str, Any]:
    return {"uptime_s": uptime_s, "counters": counters, "ops": rows or [], "mappings": [], "kernels": {}}


def executor(pid: int, state: str = "serving", **more: Any) -> dict[str, Any]:
    """One of `stats.executors`."""
    return {"pid": pid, "state": state, "jobs": 1, "uptime_s": 60.0, "device_us": 15e6, **more}


EXECUTORS = {
    "executors": [
        executor(500, domain="common"),
        executor(501, "spare", jobs=0, device_us=0.0),
        executor(502, domain="user", uid=0, uptime_s=3700.0),
        executor(503, domain="connection", uid=0, connection=17, client_pid=4711, device_us=3e5),
        executor(504, "ending", domain="connection", connection=18),
    ],
    "executor_counts": {"started": 6, "replaced": 2, "faults": 1, "jobs_ended": 3},
}


class FakeDaemon:
    """Answers hello and ping, and what is in `answers`: a result, or a function of the parameters. All else is an
    unknown method, as for a daemon that is older than it."""

    def __init__(self, path: Path | None = None) -> None:
        self.temporary = tempfile.TemporaryDirectory(prefix="kops-ctl-", ignore_cleanup_errors=True)  # goes with the last of them
        self.folder = Path(self.temporary.name)
        self.path = path or self.folder / "kopsd.sock"
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {"hello": HELLO, "ping": lambda params: params}
        self.peers: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.listener.bind(str(self.path))
        self.listener.listen(8)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                self.peers.append(peer)
                threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        unpacker = msgpack.Unpacker(raw=False)
        with contextlib.suppress(OSError):
            while data := peer.recv(65536):
                unpacker.feed(data)
                for message in unpacker:
                    if message[0] == 0:
                        reply = [1, message[1], *self.outcome(message[2], message[3][0])]
                        peer.sendall(msgpack.packb(reply, unicode_errors="surrogateescape"))
        peer.close()

    def outcome(self, method: str, params: dict[str, Any]) -> tuple[Any, Any]:
        self.requests.append((method, params))
        try:
            if method not in self.answers:
                raise Refused("unknown_method", f"there is no method `{method}`", key="method")
            answer = self.answers[method]
            return None, answer(params) if callable(answer) else answer
        except Refused as refused:
            return refused.error, None

    def close(self) -> None:
        """As if it had died: the socket's file stays."""
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def revive(self) -> FakeDaemon:
        """A new one at the same place, with the same answers."""
        os.unlink(self.path)
        made = FakeDaemon(self.path)
        made.temporary, made.answers = self.temporary, self.answers
        return made
