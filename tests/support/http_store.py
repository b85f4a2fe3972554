"""Servers for the cache that several machines share: a plain store in Python that can be told to misbehave, and nginx with
the configuration of deploy/README.md."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Exchange:
    """One request with the connection that it came by, for a server that answers by itself. `over` is set when the server
    ends."""

    request: Request
    connection: socket.socket
    over: threading.Event

    def answer(self, status: int, body: bytes = b"", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status} whatever", f"Content-Length: {len(body)}", "Connection: close", *headers]
        self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def pour(self, piece: bytes) -> int:
        """The same again and again, until the other side has enough; how many bytes went."""
        sent = 0
        try:
            while not self.over.is_set():
                sent += self.connection.send(piece)
        except OSError:
            pass
        return sent

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Behaviour = Callable[[Exchange], None]


@dataclass
class Store:
    """Keeps what is PUT, by path, and answers GET with it. `behave` answers in its place where it is set."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    behave: Behaviour | None = None
    certificate: Path | None = None  # with its key in one file: then it speaks TLS

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.tls: ssl.SSLContext | None = None
        if self.certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(self.certificate)
        self.port = self.listener.getsockname()[1]
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/kops"
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections.add(connection)
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def read(self, connection: socket.socket) -> Request | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            piece = connection.recv(1 << 20)
            if not piece:
                return None
            body += piece
        method, path, _ = first.split(" ")
        return Request(method, path, headers, body)

    def talk(self, connection: socket.socket) -> None:
        plain = connection
        try:
            if self.tls:
                connection = self.tls.wrap_socket(plain, server_side=True)
            request = self.read(connection)
            if request:
                self.requests.append(request)
                (self.behave or self.keep)(Exchange(request, connection, self.over))
        except OSError:
            pass
        finally:
            with self.lock:
                self.connections.discard(plain)
            connection.close()
            plain.close()

    def keep(self, x: Exchange) -> None:
        if x.request.method == "PUT":
            new = x.request.path not in self.bodies
            self.bodies[x.request.path] = x.request.body
            x.answer(201 if new else 204)
        elif x.request.path in self.bodies:
            x.answer(200, self.bodies[x.request.path])
        else:
            x.answer(404, b"<html>there is none</html>")

    def count(self, method: str) -> int:
        return sum(r.method == method for r in self.requests)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):  # the other side has gone
                    connection.shutdown(socket.SHUT_RDWR)
        self.thread.join()


def nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def documented_configuration() -> str:
    """The block of deploy/README.md."""
    text = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(server \{\n.*?)```", text, re.S)
    return str(block)


class Nginx:
    """A real server in `folder`, with the documented configuration; what names the administrator's own places is replaced."""

    def __init__(self, folder: Path, open_to_all: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.store = folder / "store"
        (self.store / "kops").mkdir(parents=True)
        server = documented_configuration()
        for written, here in (
            (r"listen .*?;", f"listen 127.0.0.1:{port};"),
            (r"root .*?;", f"root {self.store};"),
            (r"\s*ssl_certificate\w* .*?;", ""),
            (r"client_body_temp_path .*?;", f"client_body_temp_path {self.store}/.new;"),
            (r"auth_basic_user_file .*?;", f"auth_basic_user_file {folder}/users;"),
        ):
            server, n = re.subn(written, here, server)
            assert n, f"the documented configuration has no {written}"
        if open_to_all:
            server = re.sub(r"limit_except GET \{.*?\}", "", server, flags=re.S)
        (folder / "users").write_text("node1:{PLAIN}open sesame\n")
        folder.chmod(0o755)
        paths = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{ }}\n"
            + ("user root;\n" if os.geteuid() == 0 else "")
            + f"http {{ access_log {folder}/access.log;\n{paths}\n{server}\n}}\n"
        )
        self.url = f"http://127.0.0.1:{port}/kops"
        self.folder = folder
        self.process = subprocess.Popen([str(nginx()), "-c", str(folder / "nginx.conf"), "-p", str(folder)])
        while not self.answers(port):
            assert self.process.poll() is None, (folder / "error.log").read_text()

    def answers(self, port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def log(self) -> str:
        return (self.folder / "access.log").read_text()

    def __enter__(self) -> Nginx:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
