"""Files for binaries that the daemon hands out."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from .._base.errors import from_os


@contextlib.contextmanager
def code_file(size: int) -> Iterator[int]:
    """A memfd whose pages are this process's own, for the daemon to write to and seal."""
    try:
        fd = os.memfd_create("kops-code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise from_os("memfd_create", error) from error
    try:
        os.posix_fallocate(fd, 0, size)  # which makes the file so long, too
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield fd
    except OSError as error:
        raise from_os("memory for a kernel's code", error) from error
    finally:
        os.close(fd)
