"""Recovery of a call whose daemon goes away, or says that it will: the call is made once more, or its error says why not.

Decides only. The synchronous and the asyncio client ask `Trial.judge` when a call has failed, wait as it says, and
take the connection that is good now, for which libkops waits. Plans register memory, programs and kernels again, since ids belong to a
connection.

A request that was never written, or was answered `shutting_down`, did not run: it is made again as often as the time
allows. One whose reply is missing may have run: it is made again once, if that does no harm. A device that was lost
takes the daemon with it: the same, once the daemon has gone, which is waited for with the next connection. Where the daemon
goes on, the error is the caller's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .._base.errors import BadArgument, ConnectionLost, DeviceLost, JobTimeout, KopsError, ShuttingDown
from .._base.texts import log
from .link import Call, ends_daemon

DEFAULT_RECONNECT = 10.0  # seconds
LOSSES = (ConnectionLost, ShuttingDown, DeviceLost)
SHORT_LOSSES = (*LOSSES, JobTimeout)  # errors of the extension's own requests after which their connection is over
RUNS = ("run", "launch", "sequence", "run_program")  # requests that change memory
ONCE = (*RUNS, "drain")  # requests that may not be sent twice unless a check allows it; all others may
PAUSES = (0.002, 0.2)  # seconds between tries, at first and at most

KERNEL_HAZARD = "a kernel of your own may do anything"


def reconnect_timeout_of(given: float | None) -> float:
    """Seconds: those given, KOPS_RECONNECT_TIMEOUT, or the default."""
    value: Any = os.environ.get("KOPS_RECONNECT_TIMEOUT") if given is None else given
    name = "KOPS_RECONNECT_TIMEOUT" if given is None else "reconnect_timeout"
    if value is None or value == "":
        return DEFAULT_RECONNECT
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds >= 0:
        raise BadArgument(f"{name} is a number of seconds, 0 for none, not {value!r:.40}", {"key": name})
    return seconds


def shorter(seconds: float, timeout: float | None) -> float:
    return seconds if timeout is None else min(seconds, timeout)


class Trial:
    """The tries of one call. `hazard` says why its request must not run twice, None where it may."""

    def __init__(self, reconnect_timeout: float, timeout: float | None, hazard: Callable[[], str | None]) -> None:
        self._seconds = shorter(reconnect_timeout, timeout)
        self._end = time.monotonic() + self._seconds
        self._next = PAUSES[0]
        self._hazard = hazard
        self._repeated = False

    def _pause(self) -> float | None:
        """Seconds to the next try; None when no more are to be made."""
        left = self._end - time.monotonic()
        if left <= 0:
            return None
        pause, self._next = min(self._next, left), min(2 * self._next, PAUSES[1])
        return pause

    def judge(self, error: KopsError, call: Call | None) -> float:
        """A try has failed: seconds to wait before the next one. Raises the caller's error when that was the last one."""
        if isinstance(error, DeviceLost) and not ends_daemon(error):
            raise error  # the daemon has repeated what it could
        if isinstance(error, JobTimeout) or call is None or not self._seconds or error.detail.get("closed"):
            raise error
        if isinstance(error, ShuttingDown) and call.answered:
            return self._refused(error)
        if not call.sent or error.detail.get("ran") == 0:
            pause = self._pause()
            if pause is None:
                raise error
            return pause
        return self._missing(error, call)

    def _refused(self, error: ShuttingDown) -> float:
        pause = self._pause()
        if pause is None:
            raise ShuttingDown(
                f"{error.message} (asked again for {self._seconds:g} s). Nothing ran: call again once the daemon "
                "serves, or wait longer with reconnect_timeout=",
                error.detail,
            ) from error
        return pause

    def _missing(self, error: KopsError, call: Call) -> float:
        lost = isinstance(error, DeviceLost)
        why = "it was repeated once already" if self._repeated else None
        if why is None and call.method in ONCE:
            why = self._hazard()
        if why is not None:
            raise self._final(error, call.method, lost, why) from error
        self._repeated = True
        log.info("%s is made once more: %s", call.method, error)
        return 0.0

    def _final(self, error: KopsError, method: str, lost: bool, why: str) -> KopsError:
        detail = {**error.detail, "method": method}
        if lost and self._repeated:
            return DeviceLost(
                f"{error.message}. This {method} was made twice, by two daemons, and each lost its device: it seems to be "
                "what breaks it. The client goes on with its next call",
                detail,
            )
        if lost:
            return DeviceLost(
                f"{error.message}. This {method} was under way and is not repeated: {why}. What it writes is undefined: make "
                "it anew, then call again; the client connects to the daemon that follows",
                detail,
            )
        if method not in RUNS:
            return ConnectionLost(f"{error.message}; no reply to {method} came, and {why}. The next call connects anew", detail)
        return ConnectionLost(
            f"{error.message}. This {method} was under way, may or may not have run, and is not repeated: {why}. Make what "
            "it writes anew, then call again; the client connects anew",
            detail,
        )


def no_hazard() -> None:
    return None


def short_call(method: str, link: Any, error: KopsError) -> Call:
    """A request as it would have been, that the extension made by itself."""
    call = Call(method, {})
    call.sent = True
    call.answered = link.alive
    link.doomed |= call.answered and ends_daemon(error)
    return call
