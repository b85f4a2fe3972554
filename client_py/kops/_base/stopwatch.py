"""How long something has been worked on, without the time in which it waits for others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class Stopwatch:
    """A context manager: it runs while a `with` block of any thread is open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0  # blocks
        self._since = 0.0  # when the first of them was opened
        self._over = 0.0  # seconds until then

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._over + (time.monotonic() - self._since if self._open else 0.0)

    def __enter__(self) -> Stopwatch:
        with self._lock:
            if not self._open:
                self._since = time.monotonic()
            self._open += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._over += time.monotonic() - self._since

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In a block: meanwhile it waits for others."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()
