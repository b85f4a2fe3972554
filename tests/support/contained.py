"""Programs and daemons in namespaces of their own, as in containers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .daemon import Daemon

PID = ["--pid", "--fork", "--mount-proc"]


def unshare(*flags: str, kill: bool = False) -> list[str]:
    """The command's start, or a skip where this machine lets nobody have such namespaces. `kill`: what it starts ends with it."""
    if not flags:
        return []
    program = shutil.which("unshare")
    if program is None:
        pytest.skip("there is no unshare")
    own = [] if os.geteuid() == 0 or "--user" in flags else ["--user", "--map-root-user"]
    command = [program, *own, *flags]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{' '.join(command)} is not possible here")
    return [*command, *(["--kill-child"] if kill and "--fork" in flags else [])]


class Contained(Daemon):
    """A daemon in namespaces of its own. In a pid namespace its clients have no pid: SO_PEERCRED says 0."""

    def __init__(self, namespaces: list[str], *args: str, **more: Any) -> None:
        super().__init__(*args, start=False, **more)
        self.command = [*unshare(*namespaces, kill=True), *self.command]

    @property
    def inner(self) -> int:
        """The daemon's pid as this process knows it; unshare is its parent where it forked."""
        outer = super().pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="utf-8").split()
        forked = Path(f"/proc/{outer}/comm").read_text(encoding="utf-8").strip() == "unshare"
        return int(children[0]) if forked else outer

    def stop(self, expect: int = 0) -> None:
        if self.running():
            os.kill(self.inner, signal.SIGTERM)
            self.wait()
        super().stop(expect)
