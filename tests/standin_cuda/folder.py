"""Where the processes of a test share what the stand-in GPU is: its memory, and control pages."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "KOPS_STANDIN_MEMORY"
ENOUGH = 4 << 30  # bytes that a machine's tmpfs is to have, which a container may have made small


def folder() -> Path:
    """Made at the first call, for this process and those that it starts; all users reach it, as they do a GPU."""
    if VARIABLE not in os.environ:
        shm = Path("/dev/shm")
        large = shm.is_dir() and shutil.disk_usage(shm).free > ENOUGH
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="kops-standin-", dir=shm if large else None)
        os.chmod(os.environ[VARIABLE], 0o777)
        atexit.register(_remove, os.environ[VARIABLE], os.getpid())
    return Path(os.environ[VARIABLE])


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
