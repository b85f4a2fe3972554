"""Which of the two links is tested: KOPS_NATIVE=0 is the one in Python."""

from __future__ import annotations

import pytest
from kops._native_link import native

pure_only = pytest.mark.skipif(native is not None, reason="looks into the link that is written in Python")
