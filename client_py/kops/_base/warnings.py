"""Warnings, shown where the user's code called this package."""

from __future__ import annotations

import os
import sys
import warnings

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
