"""How far the work is: tqdm's bar where that is installed, else one line that is written over and over on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

EVERY_S = 0.2  # between two lines on a terminal
SELDOM_S = 10.0  # and elsewhere, where each is one more


class Progress:
    """`shown`: None where stderr is a terminal. `total`: None where that is not known."""

    def __init__(self, what: str, total: int | None, shown: bool | None) -> None:
        self._what, self._total = what, total
        self._bar: Any = None
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = self._terminal if shown is None else shown
        self._done = self._retried = 0
        self._began = self._last = time.monotonic()
        self._written = False
        if self._shown:
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=what, file=sys.stderr)

    def step(self, workers: int, retried: int) -> None:
        """One item more is done."""
        self._done += 1
        self._retried = retried
        if self._bar is not None:
            self._bar.set_postfix(self._more(workers), refresh=False)
            self._bar.update()
        elif self._shown and time.monotonic() - self._last >= (EVERY_S if self._terminal else SELDOM_S):
            self._write(workers)

    def _more(self, workers: int) -> dict[str, int]:
        return {"workers": workers, **({"again": self._retried} if self._retried else {})}

    def _write(self, workers: int) -> None:
        self._last = time.monotonic()
        rate = self._done / max(self._last - self._began, 1e-9)
        of = "" if self._total is None else f"/{self._total}"
        more = ", ".join(f"{name} {count}" for name, count in self._more(workers).items())
        end = "\x1b[K\r" if self._terminal else "\n"
        print(f"{self._what}: {self._done}{of}, {rate:.3g}/s, {more}", end=end, file=sys.stderr, flush=True)
        self._written = True

    def close(self, workers: int) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown and self._done and (self._written or not self._terminal):
            self._write(workers)
            if self._terminal:
                print(file=sys.stderr)
        self._shown, self._bar = False, None
