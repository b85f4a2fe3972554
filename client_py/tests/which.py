"""Which of the two links is tested: KOPS_NATIVE=0 is the one in Python."""

from __future__ import annotations

from typing import Any

import pytest
from kops._base.compiled import native

pure_only = pytest.mark.skipif(native is not None, reason="looks into the link that is written in Python")
ordered_only = pytest.mark.skipif(native is None, reason="ordered calls are made by the compiled part")


def unanswered(connection: Any) -> Any:
    """The requests of a connection that no reply came to."""
    return connection.session.pending if hasattr(connection, "session") else connection._open
