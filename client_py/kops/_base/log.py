"""What users are told: by the logger "kops", and by warnings, shown where the user's code called this package."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

log = logging.getLogger("kops")


def uncollected(what: str, error: BaseException | None) -> None:
    """A request has failed, and nobody will hear of it."""
    if error is not None:
        code: Any = getattr(error, "code", type(error).__name__)
        log.warning("%s failed and nobody asked for its result: %s [%s]", what, error, code)


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep, "<op "  # the op methods are made of text


class TurnsWarning(RuntimeWarning):
    """Ordered calls make this process and the daemon take turns on a GPU, which costs each of them a change of contexts."""

    __module__ = "kops"


def warn(message: str, category: type[Warning], source: object = None) -> None:
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level, source=source)
