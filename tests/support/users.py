"""Connections of other users: root's alone to make."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from . import raw
from .daemon import Daemon

# The daemon's socket must be open to them, and its folder.
OPEN = "[server]\nsocket_mode = 0666\n"
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


def connect(daemon: Daemon, uid: int, gid: int | None = None, groups: Sequence[int] = ()) -> raw.Connection:
    os.chmod(daemon.folder, 0o755)
    with acting_as(uid, gid, groups):
        return daemon.connect()
