"""The logger "kops": reconnections, fallbacks, and errors of requests whose result nobody fetched.

A library sets no handler and no level: `logging.getLogger("kops").setLevel(logging.INFO)` and a handler show all of it. Without
any, Python prints the warnings to stderr.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("kops")


def uncollected(what: str, error: BaseException | None) -> None:
    """A request has failed, and nobody will hear of it."""
    if error is not None:
        code: Any = getattr(error, "code", type(error).__name__)
        log.warning("%s failed and nobody asked for its result: %s [%s]", what, error, code)
