"""What ends a judgement early. Inside this folder only: users see verdicts."""

from __future__ import annotations

from .. import KopsError
from .._companions import BY_CODE

# Of a connection, its process on the GPU, or its memory, which are not to be used again; work may go on.
LOST = tuple(BY_CODE[code] for code in ("connection_lost", "connect_failed", "shutting_down", "device_lost", "timeout", "buffer_lost",
                                         "bad_reply", "stale_buffer", "internal"))  # fmt: skip


class Refused(KopsError):
    """The solution asks for something that is not to be had: its verdict is `refused`, and the text says what to change."""

    code = "bad_argument"


class TaskFault(KopsError):
    """The task itself is at fault: the verdict of each of its solutions is `no_verdict`, and the text says what to mend."""

    code = "bad_argument"


class BaselineFault(TaskFault):
    """The task's baseline faults, hangs or is wrong, and will again: it is not run for the task's other solutions."""
