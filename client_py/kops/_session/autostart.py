"""Asks for a daemon of this user's, where nothing listens: runs `kopsd --autostart`, which has the rule.

For connections in Python; libkops does the same for its own (`client_c/src/link/starter.c`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .._base.errors import ConnectFailed, Timeout

PACKAGE = Path(__file__).resolve().parents[1]
SBIN = "/usr/local/sbin:/usr/sbin"  # where packages put it, and users' PATH may not lead


def may_start(path: object) -> bool:
    """Whether a client of this path, None for none, starts a daemon. A socket that was named is the only one."""
    return path is None and not os.environ.get("KOPS_SOCKET") and os.environ.get("KOPS_AUTOSTART") != "0"


def program() -> str | None:
    """The daemon's program: that of KOPSD, of this package, or of PATH."""
    own = PACKAGE / "bin" / "kopsd"
    if named := os.environ.get("KOPSD"):
        return named
    if os.access(own, os.X_OK):
        return str(own)
    return shutil.which("kopsd") or shutil.which("kopsd", path=SBIN)


def start(timeout: float | None, why: ConnectFailed) -> str:
    """Starts a daemon and waits until it is ready: the path of its socket. `why` says that none answers."""
    found = program()
    if found is None:
        raise _failed("no program kopsd is in this package or in PATH; install it, or name it in the variable KOPSD", why)
    try:
        done = subprocess.run(
            [found, "--autostart"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise Timeout(f"{found} --autostart has not ended within {timeout:g} s", {"method": "connect"}) from None
    except OSError as error:
        raise _failed(f"{found}: {error.strerror or error}", why) from None
    text = done.stdout.decode(errors="replace").rstrip("\n")
    path = text[text.rfind("\n") + 1 :]
    if not path.startswith("/"):
        raise _failed(text or f"{found} --autostart has ended without a word", why)
    return path


def _failed(text: str, why: ConnectFailed) -> ConnectFailed:
    return ConnectFailed(f"no daemon could be started: {text} ({why.message.partition('. Start one')[0]})", why.detail)
