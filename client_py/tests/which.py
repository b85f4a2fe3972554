"""Which of the two links is tested: KOPS_NATIVE=0 is the plain one."""

from __future__ import annotations

from typing import Any

import pytest
from kops._base.compiled import native
from kops._session.plain import PlainLink

plain_only = pytest.mark.skipif(native is not None, reason="looks into the plain link")
compiled_only = pytest.mark.skipif(native is None, reason="the compiled part alone does it")


def unanswered(connection: Any) -> Any:
    """The requests of a connection that no reply came to."""
    return connection._waiting if isinstance(connection, PlainLink) else connection.open
