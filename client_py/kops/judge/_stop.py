"""How a part of a judgement says that it is over, and with what."""

from __future__ import annotations

from typing import Any

LOG_MAX = 32 << 10  # characters of a compiler's log that are kept


def cut(log: str) -> str:
    return log if len(log) <= LOG_MAX else log[:LOG_MAX] + "\n… (cut)"


class Stop(Exception):
    """The judgement has ended; `members` are those of the verdict. `dirty`: what ran the solution is not used again."""

    def __init__(self, kind: str, text: str, dirty: bool = False, **members: Any) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.dirty = dirty
        if "log" in members:
            members["log"] = cut(members["log"])
        self.members = members


class Gone(Exception):
    """What ran the solution went away, by no fault of the solution that is known: it is judged once more."""


class Busy(Gone):
    """The GPU had other work until the deadline, and nothing of the launch has begun: it only waited, and waits again."""


class HeldBack(Gone):
    """The daemon refuses this user's kernels for a while, since earlier ones faulted: for so many seconds."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds
