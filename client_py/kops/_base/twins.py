"""Methods that the synchronous and the asyncio client have alike, written once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

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
