"""The exception tree, made from the error list that the daemon and every client share.

`KopsError` is the base. Each error code has a class of its name in CamelCase (`out_of_bounds` is `OutOfBounds`), which
also derives from the builtin exceptions that fit, so that `except IndexError` or `except TimeoutError` work as well.

This module imports nothing of the package from outside this folder, since `stubs.py` reads it without the package.
"""

from __future__ import annotations

import builtins
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from .declarations import ERRORS


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


__all__ = ["KopsError"]


class KopsError(Exception):
    """Base of every error of this package.

    `code` is the name in the error list, `value` its number, `message` the text for people, `detail` a map for
    programs: `key` there is the path of the offending key, such as `in[0].shape`.
    """

    code: str = "internal"
    value: int = 0
    message: str
    detail: dict[str, Any]

    def __init__(self, message: str = "", detail: Mapping[str, Any] | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = dict(detail or {})
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message or self.code

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.detail, self.code))


def class_name(code: str) -> str:
    """The Python class name of an error code."""
    return "".join(part.capitalize() for part in code.split("_"))


SHOWN = 4000  # characters of a log that an error's text has


def _with_log(error: Any) -> str:
    log = error.log.strip()
    return KopsError.__str__(error) + ("\n" + (log if len(log) <= SHOWN else log[:SHOWN] + "\n…") if log else "")


def _standard(name: str) -> Any:
    """An exception of Python's: a builtin one, or one that its module names."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last) if module else getattr(builtins, last)


def _make(code: str, value: int, bases: tuple[str, ...], doc: str) -> type[KopsError]:
    parents = (KopsError, *(_standard(base) for base in bases))
    members: dict[str, Any] = {"code": code, "value": value, "__doc__": doc, "__module__": "kops"}
    for name, (_kind, text, read) in MEMBERS.get(code, {}).items():
        members[name] = property(read, doc=text)
    if "log" in members:
        members["__str__"] = _with_log
    return type(class_name(code), parents, members)


BY_CODE: dict[str, type[KopsError]] = {code: _make(code, value, bases, doc) for code, value, _origin, bases, doc in ERRORS}
for _error in BY_CODE.values():
    globals()[_error.__name__] = _error
    __all__.append(_error.__name__)


def from_reply(error: Any) -> KopsError:
    """The exception for a response's error map. An unknown code becomes `Internal` that keeps the code. Raises
    ValueError for anything else."""
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        raise ValueError(f"an error is a map with a code, not {str(error)[:80]}")
    code, message, detail = error["code"], error.get("message"), error.get("detail")
    made = BY_CODE.get(code, BY_CODE["internal"])
    return made(message if isinstance(message, str) else code, detail if isinstance(detail, dict) else None, code)


def from_os(call: str, error: OSError) -> KopsError:
    """An `OsError` that names the system call."""
    number = error.errno or 0
    made = BY_CODE["os_error"](f"{call}: {os.strerror(number) if number else error}", {"errno": number, "call": call})
    if isinstance(made, OSError):
        made.errno = number
    return made
