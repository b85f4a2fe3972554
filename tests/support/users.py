"""Connections of other users: root's alone to make."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import proc, raw
from .daemon import Daemon

# The daemon's socket must be open to them, and its folder.
OPEN = "[server]\nsocket_mode = 0666\n"
STRANGER = 54321
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become others")


@contextmanager
def acting_as(uid: int, gid: int | None = None, groups: Sequence[int] = ()) -> Iterator[None]:
    """The process counts as that user for what it connects to."""
    had = os.getgroups()
    os.setgroups(groups)
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(had)


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that other users can enter. Every pytest that starts closes the one that its `tmp_path` are in to them."""
    with tempfile.TemporaryDirectory(prefix="kops-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def reload(daemon: Daemon, config: str) -> None:
    """The daemon has read its settings again."""
    before = daemon.log().count("event=reload done=true")
    (daemon.folder / "kopsd.conf").write_text(config, encoding="utf-8")
    os.kill(daemon.pid, signal.SIGHUP)
    proc.eventually(lambda: daemon.log().count("event=reload done=true") > before, daemon.log)


def connect(daemon: Daemon, uid: int, gid: int | None = None, groups: Sequence[int] = ()) -> raw.Connection:
    os.chmod(daemon.folder, 0o755)
    with acting_as(uid, gid, groups):
        return daemon.connect()
