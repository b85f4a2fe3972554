"""Programs that answer lines with lines of JSON."""

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


class Gone(RuntimeError):
    """The program ended or took too long; the message says which."""


class Child:
    """`answers`: where it answers, its standard output without one. The descriptor is closed with the child."""

    def __init__(self, command: Sequence[str], what: str, environment: dict[str, str], answers: int | None = None, **how: Any) -> None:
        self.what, self.rest = what, b""
        stdout = None if answers else subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, env=environment, **how)
        assert self.process.stdin
        self.stdin = self.process.stdin
        self.answers = os.fdopen(answers, "rb", 0) if answers else self.process.stdout

    def hear(self, seconds: float = ANSWER_S) -> Any:
        assert self.answers
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            if not select.select([self.answers], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Gone(f"{self.what}: no answer within {seconds:g} s")
            got = os.read(self.answers.fileno(), 1 << 16)
            if not got:
                raise Gone(f"{self.what} ended with status {self.process.wait()}")
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def tell(self, order: str) -> None:
        try:
            self.stdin.write(order.encode() + b"\n")
            self.stdin.flush()
        except OSError:
            raise Gone(f"{self.what} ended with status {self.process.wait()}") from None

    def ask(self, order: str, seconds: float = ANSWER_S) -> Any:
        self.tell(order)
        return self.hear(seconds)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.answers):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def children(command: Sequence[str], count: int, environment: dict[str, str]) -> Iterator[list[Child]]:
    """So many of a program, once each has said that it is ready."""
    with ExitStack() as stack:
        made = [Child(command, f"{os.path.basename(command[0])} {number}", environment) for number in range(count)]
        for child in made:
            stack.callback(child.end)
        for child in made:
            child.hear(READY_S)
        yield made
