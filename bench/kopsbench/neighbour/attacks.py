"""What a user may do to its neighbours: each attack by name. An attack makes ready on a Flood, and is then run for a time.

Everything stays within what an ordinary user may do with the daemon's defaults. Attacks are of one process and one
thread; their memory is bounded."""

from __future__ import annotations

from . import memory, requests, work  # noqa: F401 - they add theirs
from .attack import ATTACKS, Attack

__all__ = ["ATTACKS", "Attack"]
