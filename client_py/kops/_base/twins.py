"""What the synchronous and the asyncio client have alike, written once: timeouts as callers write them, and methods."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Coroutine, Generator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

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


P = ParamSpec("P")
R = TypeVar("R")

# Yields functions without arguments, and is sent their answers.
Steps: TypeAlias = Generator[Callable[[], Any], Any, Any]


def awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method of `Client`, which returns what its `_ask` or `_take` does, for `AsyncClient`."""

    async def made(self: Any, /, *args: P.args, **keywords: P.kwargs) -> R:
        answer: Any = method(self, *args, **keywords)
        found: R = await answer
        return found

    update_wrapper(made, method)
    made.__doc__ = f"As `{'Kernel' if method.__qualname__.startswith('Kernel.') else 'Client'}.{method.__name__}`."
    return made


def take(steps: Steps) -> Any:
    """Calls one function after the other. What the generator returns."""
    answer = None
    with contextlib.closing(steps):
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = step()  # its own StopIteration is the caller's


async def take_async(steps: Steps) -> Any:
    """As `take`, where the functions return awaitables."""
    with contextlib.closing(steps):
        try:
            step = next(steps)
            while True:
                step = steps.send(await step())
        except StopIteration as stop:
            return stop.value
