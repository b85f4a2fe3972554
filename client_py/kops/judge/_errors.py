"""What ends a judgement early. Inside this folder only: users see verdicts."""

from __future__ import annotations

from .._base.errors import KopsError

__all__ = ["BaselineFault", "Refused", "TaskFault"]


class Refused(KopsError):
    """The solution asks for something that is not to be had: its verdict is `refused`, and the text says what to change."""

    code = "bad_argument"


class TaskFault(KopsError):
    """The task itself is at fault: the verdict of each of its solutions is `no_verdict`, and the text says what to mend."""

    code = "bad_argument"


class BaselineFault(TaskFault):
    """The task's baseline faults, hangs or is wrong, and will again: it is not run for the task's other solutions."""
