"""The user's caches of compiled objects: a directory for each kind, which only the user can write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tempfile


@cache
def directory(name: str) -> Path:
    """The cache of objects of a kind. A directory that others could write is not used: a new one in its place, for this process only."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base, "kops", name)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o022 and os.access(path, os.W_OK):
            return path.resolve()
    except OSError:
        pass
    return Path(_temporary(name).name)


@cache
def _temporary(name: str) -> tempfile.TemporaryDirectory[str]:
    import tempfile  # slow to import, and rarely needed

    return tempfile.TemporaryDirectory(prefix=f"kops-{name}-")


def is_mine(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one that this user alone can have made."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def surplus(entries: Iterable[Path], most: int) -> list[Path]:
    """The oldest entries of a cache, above so many. Other processes may remove entries meanwhile."""
    return sorted(entries, key=_changed)[:-most]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
