"""Connections of users who are not root."""

from __future__ import annotations

import os

import pytest
from support import raw
from support.daemon import Daemon

STRANGER = 54321
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become others")


def connect_as(daemon: Daemon, uid: int) -> raw.Connection:
    """The daemon sees the user whom the process is at the time of the connect."""
    os.chmod(daemon.folder, 0o755)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        return daemon.connect()
    finally:
        os.seteuid(0)
        os.setegid(0)
