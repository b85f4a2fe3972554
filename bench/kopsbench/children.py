"""Programs that answer lines with lines of JSON; the first line of each says that it is ready."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

READY_S, ANSWER_S = 120.0, 60.0


class Child:
    def __init__(self, command: Sequence[str], what: str, environment: dict[str, str]) -> None:
        self.what, self.rest = what, b""
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def hear(self, seconds: float = ANSWER_S) -> Any:
        assert self.process.stdout
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RuntimeError(f"{self.what}: no answer within {seconds:g} s")
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                raise RuntimeError(f"{self.what} ended with status {self.process.wait()}")
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def tell(self, order: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(order.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, order: str) -> Any:
        self.tell(order)
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def children(command: Sequence[str], count: int, environment: dict[str, str]) -> Iterator[list[Child]]:
    """So many of a program, once all are ready."""
    with ExitStack() as stack:
        made = [Child(command, f"{os.path.basename(command[0])} {number}", environment) for number in range(count)]
        for child in made:
            stack.callback(child.end)
        for child in made:
            child.hear(READY_S)
        yield made
