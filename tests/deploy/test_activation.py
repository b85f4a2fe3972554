"""Started by a client's connect, under systemd's own activator: the socket is the activator's, the state is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployed import binary, kopsctl, needs
from support import proc, raw


@dataclass
class Activated:
    process: subprocess.Popen[bytes]
    path: str
    notify: socket.socket
    told: str = ""

    def wait_told(self, what: str) -> str:
        while what not in self.told:
            assert self.process.poll() is None or self.notify.getblocking(), self.told
            self.told += self.notify.recv(4096).decode() + "\n"
        return self.told


def listens(path: str) -> bool:
    """Whether a socket accepts connections there: it has its name before it does. To connect would start the daemon."""
    accepts = "00010000"  # SO_ACCEPTCON among the flags
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    return any(line.endswith(f" {path}") and line.split()[3] == accepts for line in lines)


@pytest.fixture
def activated(tmp_path: Path) -> Iterator[Activated]:
    activate = needs("systemd-socket-activate")
    path = str(tmp_path / "kopsd.sock")
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(raw.PATIENCE)
    (tmp_path / "kopsd.conf").write_text("", encoding="utf-8")
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "CACHE_DIRECTORY": str(tmp_path / "cache"),
        "KOPSD_SERVER_BACKEND": "host",
    }
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        if name in os.environ:
            environment[name] = os.environ[name]
    command = [activate, "-l", path, *(f"--setenv={k}={v}" for k, v in environment.items())]
    command += [str(binary()), "--socket", path, "--config", str(tmp_path / "kopsd.conf")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        proc.eventually(lambda: listens(path), lambda: "the activator does not listen")
        yield Activated(process, path, notify)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        notify.close()


def test_the_first_client_starts_the_daemon(activated: Activated) -> None:
    done = kopsctl("--socket", activated.path, "run", "add", "--shape", "100", "--check")
    assert done.returncode == 0, done.stderr
    activated.wait_told("READY=1")


def test_the_socket_outlives_the_daemon(activated: Activated) -> None:
    assert kopsctl("--socket", activated.path, "ping", "--count", "1").returncode == 0
    activated.wait_told("READY=1")
    inode = os.stat(activated.path).st_ino
    activated.process.send_signal(signal.SIGTERM)
    activated.wait_told("STOPPING=1")
    assert activated.process.wait(raw.PATIENCE) == 0
    assert os.stat(activated.path).st_ino == inode
    # Nor does it leave a lock of its own beside a socket that is not its own.
    assert not os.path.exists(f"{activated.path}.lock")


def test_clients_that_came_before_the_daemon_are_served(activated: Activated) -> None:
    """They connect to the backlog; the first of them starts the daemon, which answers all."""
    waiting = [raw.Connection(activated.path) for _ in range(20)]
    for number, connection in enumerate(waiting):
        assert connection.call("ping", {"number": number}) == {"number": number}
        connection.close()
