"""Timeouts as callers write them: seconds above 0, or None for no limit."""

from __future__ import annotations

import numbers
from typing import Any

from .errors import BadArgument

LONGEST = 1e9  # seconds, 31 years; more is no limit


def seconds_of(value: Any, name: str = "timeout") -> float | None:
    """The seconds, or None. Raises BadArgument, a ValueError: 0 is not None, and a text is not a number."""
    if value is None:
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        seconds = float(value)
        if seconds > LONGEST:
            return None
        if seconds > 0:
            return seconds
    raise BadArgument(f"{name} is a number of seconds above 0, or None for no limit, not {value!r:.40}", {"key": name})


class _Default:
    def __repr__(self) -> str:
        return "<the client's>"


DEFAULT_TIMEOUT: Any = _Default()  # timeout of a call that names none


class DefaultTimeout:
    """Of a client whose calls may say how long they may take."""

    _timeout: float | None

    @property
    def timeout(self) -> float | None:
        """Seconds that a call may take which names none; None: no limit."""
        return self._timeout

    @timeout.setter
    def timeout(self, value: float | None) -> None:
        self._timeout = seconds_of(value)

    def _timeout_of(self, timeout: Any) -> float | None:
        return self._timeout if timeout is DEFAULT_TIMEOUT else seconds_of(timeout)
