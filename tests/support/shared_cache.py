"""Nodes that share compiled code: daemons with a cache directory each, one key or another, and one server."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from . import backends, proc, raw
from .daemon import Daemon, binary

SOURCE = 'extern "C" __global__ void scale(float* y, const float* x, float f, int n) {{ if (n) y[0] = f * x[0]; }} // {}\n'
ARCH = "sm_90"
# A compile waits for the server as long as a transfer may take: what comes of it does not depend on who is faster.
PATIENT = {"remote_wait_ms": 60000, "remote_timeout_ms": 60000}


class Key:
    """A key that signs, made by the daemon's own program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        told = subprocess.run([binary(), "--cache-keygen", path], check=True, capture_output=True, text=True).stdout
        self.public = told.split()[-1]


def config(url: str, **settings: Any) -> str:
    lines = ["[cache]", f"remote = {url}", *(f"{key} = {value}" for key, value in settings.items())]
    return backends.config(backends.HOST) + "\n".join(lines) + "\n"


def node(url: str, *args: str, env: dict[str, str] | None = None, **settings: Any) -> Daemon:
    given = backends.nvrtc()
    nvrtc = {"KOPSD_KERNELS_NVRTC": str(given)} if given else {}
    return Daemon(*args, config=config(url, **settings), env={**nvrtc, **(env or {})}, manager=True)


def request_of(name: str) -> dict[str, Any]:
    return {"source": SOURCE.format(name), "entries": ["scale"], "arch": ARCH}


def compile_on(connection: raw.Connection, name: str = "one") -> dict[str, Any]:
    reply: dict[str, Any] = connection.call("compile", request_of(name))
    assert reply["entries"][0]["params"] == [8, 8, 4, 4]  # whoever made it
    return reply


def counters(connection: raw.Connection) -> dict[str, int]:
    found: dict[str, int] = connection.call("stats")["kernels"]
    return found


def wait_for(connection: raw.Connection, counter: str, value: int = 1) -> None:
    def told() -> str:
        return f"{counter}: {counters(connection)}, {connection.call('hello')['kernels']}"

    proc.eventually(lambda: counters(connection)[counter] >= value, told)


def state(connection: raw.Connection) -> str:
    found: str = connection.call("hello")["kernels"]["remote"]
    return found


def helpers(daemon: Daemon) -> list[int]:
    """The processes that speak HTTP for the daemon."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"--cache-helper\0parent={daemon.pid}\0" in proc_text(entry / "cmdline")
    ]


def proc_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def helper(daemon: Daemon) -> int:
    return proc.only(lambda: helpers(daemon), "the helper runs")


def why_not() -> str:
    """What there is not here; nothing where nodes can share code."""
    try:
        ctypes.CDLL("libcurl.so.4")
    except OSError:
        return "there is no libcurl here"
    return "" if backends.nvrtc() else "there is no NVRTC here"
