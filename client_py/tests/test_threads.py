"""What threads share is gone through while others change it: a test lets the other thread come in the middle."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import kops
import pytest
from kops._calls import ops_here
from kops._kernels import here
from kops._memory import pool
from kops._session.native_link import NativeLink


def test_ids_are_pruned_while_another_thread_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {key: key for key in range(9)}

    class Connections:
        def __contains__(self, key: int) -> bool:
            ids.setdefault(100, 1)
            return key in (3, 100)

    monkeypatch.setattr(pool, "garbage", Connections())
    pool.prune(ids)
    assert ids == {3: 3, 100: 1}


def test_another_thread_sends_the_last_release_that_was_due() -> None:
    class Shared(deque[tuple[str, int]]):
        def __len__(self) -> int:
            left = super().__len__()
            if left == 1:
                self.popleft()  # the other thread, between a look and what follows
            return left

    told: list[bytes] = []
    link = NativeLink.__new__(NativeLink)
    link._native = SimpleNamespace(forget=lambda buffer: None, notify=lambda method, params: told.append(params))
    link.garbage = Shared([("buffer", 1), ("buffer", 2), ("buffer", 3)])
    link.release()
    assert len(told) == 2 and not link.garbage


def test_the_daemon_is_told_of_launches_while_another_thread_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        pass

    told: list[Any] = []
    monkeypatch.setattr(here, "tell", lambda connection, kernel: told.append(kernel))
    monkeypatch.setattr(ops_here, "tell", lambda client: None)
    client = kops.Client.unconnected("/nowhere/kopsd.sock")
    kept: deque[Any] = deque(maxlen=50)
    ended = threading.Event()

    def launch() -> None:
        while not ended.is_set():
            kernel = Kernel()
            client._launched[id(kernel)] = kernel
            kept.append(kernel)

    other = threading.Thread(target=launch)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as can be
    other.start()
    try:
        for _ in range(1000):
            client._tell_launched()
            told.clear()
    finally:
        ended.set()
        other.join()
        sys.setswitchinterval(before)
    client._tell_launched()
    assert {id(kernel) for kernel in told} >= {id(kernel) for kernel in kept}
