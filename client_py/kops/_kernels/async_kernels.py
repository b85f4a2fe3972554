"""Kernels of users for asyncio."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from .._base.intervals import SECONDS_MOST, Goal
from .._base.results import Profile, Timing
from .._base.timeouts import DEFAULT_TIMEOUT
from .._calls.cold import is_cold
from .._calls.cold import profile_async as cold_profile_async
from .._calls.counting import caches_of
from .._calls.launch import Launch, profile, run
from .._calls.plans import options_of, truest
from .bound import Bound
from .kernels import BaseKernel, refuse_interpreted


class AsyncKernel(BaseKernel):
    """As `Kernel`, with `await`: `await kern(c, a, b, n)`. Made by `AsyncClient.kernel`."""

    async def __call__(
        self, *arguments: Any, grid: Any = None, block: Any = None, shared: Any = None, cluster: Any = None, stream: int = 0,
        timing: Timing = False, deadline_ms: int | None = None, priority: str | None = None, exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT, **named: Any,
    ) -> Any:  # fmt: skip
        """As `Kernel`'s; returns when the launch has ended."""
        client = self._client
        arguments = self._positional(arguments, named)
        sizes = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        connection = await client._live()
        if self.interprets(connection):
            if timing or exclusive:
                refuse_interpreted(self.name, "the interpreter has no times, and holds nobody back")
            return await asyncio.to_thread(self.interpret, *arguments, **sizes)
        geometry = self._geometry.of_call(arguments, sizes)
        options = options_of(connection, None, stream, timing, deadline_ms, priority, exclusive=exclusive)
        request = Launch(self, arguments, geometry, options)
        return await client._drive(connection, lambda link: run(link, request, timing), timeout, lambda: request.hazard)

    def __getitem__(self, sizes: Any) -> Bound:
        """`kernel[grid, block]`: the kernel with that geometry."""
        return self._bind(sizes)

    async def profile(
        self, *arguments: Any, warmup: int = 3, repeat: int = 50, until: float | None = None, at_most: float = SECONDS_MOST,
        cache: str = "warm", conditions: bool = True, counters: bool | str = False, grid: Any = None, block: Any = None,
        shared: Any = None, cluster: Any = None, stream: int = 0, deadline_ms: int | None = None, priority: str | None = None,
        exclusive: bool = False, timeout: float | None = DEFAULT_TIMEOUT, **named: Any,
    ) -> Profile:  # fmt: skip
        """As `Kernel.profile`."""
        client = self._client
        arguments = self._positional(arguments, named)
        sizes = {"grid": grid, "block": block, "shared": shared, "cluster": cluster}
        caches, goal = caches_of(counters, cache), Goal(until, at_most)
        if is_cold(cache):
            how = {"stream": stream, "deadline_ms": deadline_ms, "priority": priority, "exclusive": exclusive}
            again = {**sizes, **how, "timeout": timeout}
            launch_timed = partial(self.__call__, timing=truest(await client._live()), **again)
            return await cold_profile_async(
                lambda n, g: self.profile(
                    *arguments, warmup=warmup, repeat=n, until=g.until, at_most=g.at_most, conditions=conditions, **again
                ),
                launch_timed, client.conditions, arguments, client.array, repeat, goal,
            )  # fmt: skip
        geometry = self._geometry.of_call(arguments, sizes)
        connection = await client._live()
        self._check_launched(connection, "a profile")
        how = {"stream": stream, "deadline_ms": deadline_ms, "priority": priority, "exclusive": exclusive}
        how.update(warmup=warmup, repeat=repeat)
        launch = self._measured(connection, arguments, geometry, how)
        answer: Profile = await client._drive(
            connection, lambda link: profile(link, launch, goal, conditions, caches), timeout, lambda: launch.hazard
        )
        return answer

    async def _declare(self, timeout: Any) -> AsyncKernel:
        connection = await self._client._live()
        if connection.key not in self.ids and not self.interprets(connection):
            await self._client._drive(connection, self.define, timeout)
        return self
