"""What threads share is gone through while others change it: a test lets the other thread come in the middle."""

from __future__ import annotations

import pytest
from kops._memory import pool


def test_ids_are_pruned_while_another_thread_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {key: key for key in range(9)}

    class Connections:
        def __contains__(self, key: int) -> bool:
            ids.setdefault(100, 1)
            return key in (3, 100)

    monkeypatch.setattr(pool, "garbage", Connections())
    pool.prune(ids)
    assert ids == {3: 3, 100: 1}
