"""Starts worker.py as other processes and talks with them in lines."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import raw

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """One process; ended when its `with` block ends. Root can give it another user."""

    def __init__(self, role: str, path: str, *arguments: str, user: int | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), role, path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        self._heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self.process.stdout is not None and self.process.stderr is not None
        while b"\n" not in self._heard:
            readable, _, _ = select.select([self.process.stdout], [], [], 2 * raw.PATIENCE)
            assert readable, "the worker says nothing"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"the worker ended:\n{self.process.stderr.read().decode(errors='replace')}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def tell(self, word: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """Waits for its end, which must be a good one."""
        out, errors = self.process.communicate(timeout=3 * raw.PATIENCE)
        assert self.process.returncode == 0, f"status {self.process.returncode}:\n{(out + errors).decode(errors='replace')}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


SEGMENTS = {name: "expandable_segments:True" for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
# The roles that share memory of a kind of its own, and their environments.
MEMORY: dict[str, dict[str, str]] = {"expandable": SEGMENTS, "remapped": {}, "pooled": {}, "staging": {"CUDA_VISIBLE_DEVICES": ""}}


def check_memory(role: str, socket_path: str, **env: str) -> None:
    with Worker(role, socket_path, **MEMORY[role], **env) as worker:
        assert worker.hear() == {"done": True}
        worker.finish()
