"""Members that some exceptions have beside `detail`. Imports nothing of the package: `stubs.py` reads it as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _first_error(log: str) -> tuple[str | None, int | None]:
    """File and line of the first error: `kernel.cu(3): error: …`."""
    for text in log.splitlines():
        place, found, _ = text.partition("): error")
        name, _, line = place.rpartition("(")
        if found and line.isdecimal():
            return name, int(line)
    return None, None


def _ended(error: Any) -> bool:
    return error.detail.get("ended") is not False


ENDED = (
    "bool",
    "False while the daemon still works on it: until then the outputs may be written, and the client keeps the memory that "
    "it made. `k.trim()` waits for the end.",
    _ended,
)

# By error code: each member's name, type, doc and how it is found.
MEMBERS: dict[str, dict[str, tuple[str, str, Callable[[Any], Any]]]] = {
    "compile_failed": {
        "log": ("str", "All that the compiler said.", lambda error: str(error.detail.get("log", ""))),
        "reason": ("str", "`source`, `entry`, `time`, `memory` or `crash`.", lambda error: str(error.detail.get("reason", ""))),
        "file": ("str | None", "Of the first error.", lambda error: _first_error(error.log)[0]),
        "line": ("int | None", "Of the first error.", lambda error: _first_error(error.log)[1]),
    },
    "deadline_exceeded": {"ended": ENDED},
    "device_fault": {
        "kernel": ("str | None", "The kernel's name; None where it is not known.", lambda error: error.detail.get("kernel")),
        "op_index": ("int | None", "Its place in a sequence or program.", lambda error: error.detail.get("op_index")),
        "driver": ("str | None", "The driver's error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.", lambda error: error.detail.get("driver")),
    },
    "cancelled": {"ended": ENDED},
}
