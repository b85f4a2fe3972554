"""What tests of quotas share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from support import memfd, proc, raw, users
from support.daemon import Daemon
from support.kernels import ADD

HOST = "[server]\nbackend = host\n"


def daemons() -> Iterator[Callable[..., Daemon]]:
    """For a fixture: starts daemons with more settings, which anybody may connect to, and ends them."""
    started: list[Daemon] = []

    def start(config: str, **options: int) -> Daemon:
        started.append(Daemon(config=HOST + users.OPEN + config, **options))
        return started[-1]

    yield start
    for daemon in started:
        with daemon:
            pass


def check(error: dict[str, Any] | raw.RpcError | None, quota: str, current: int, limit: int) -> None:
    assert error is not None
    code, detail = (error.code, error.detail) if isinstance(error, raw.RpcError) else (error["code"], error["detail"])
    assert (code, detail) == ("quota_exceeded", {"quota": quota, "current": current, "limit": limit})


def refusals(daemon: Daemon, what: str) -> list[str]:
    return [line for line in daemon.log().splitlines() if "event=refuse" in line and f"what={what} " in line]


def register(connection: raw.Connection, size: int) -> int:
    """A memfd of its own; the daemon alone keeps it."""
    fd = memfd.make(size)
    try:
        return connection.call("register", {"kind": "memfd", "size": size, "fd": 0}, [fd])["buffer"]
    finally:
        os.close(fd)


def register_error(connection: raw.Connection, size: int) -> raw.RpcError:
    fd = memfd.make(size)
    try:
        return connection.error("register", {"kind": "memfd", "size": size, "fd": 0}, [fd])
    finally:
        os.close(fd)


def eventually_accepted(call: Callable[[], Any]) -> Any:
    """What was given back is counted when the daemon has seen it."""
    got: list[Any] = []

    def accepted() -> bool:
        try:
            got.append(call())
        except (raw.RpcError, raw.Closed, BrokenPipeError):
            return False
        return True

    proc.eventually(accepted, "it is accepted again")
    return got[0]


def large_code(number: int) -> str:
    """A source whose code takes most of a MiB: two of them are too much for a quota of one."""
    return f"__device__ unsigned char table[700000] = {{{number}}};\n" + ADD
