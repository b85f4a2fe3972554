"""Runs measures one after another in processes of their own: one that hangs or crashes costs only its own number.

The worker is this program again, in a session of its own, so that it can be ended with all that it started. It reads
names from stdin and answers each with a line of JSON on a pipe: {"records": […]}, {"skipped": "why"} or {"error": "…"}.
A worker does many measures, since importing torch and making a context takes longer than most of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from .context import Context, Skipped
from .measures import Measure, everything
from .mps import NoMps, mps, servers

STARTING_SECONDS = 60.0  # more for the first measure of a worker: imports, contexts, a daemon


class Gone(Exception):
    """The worker ended or took too long; the message says which."""


class Worker:
    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.replies, far_end = os.pipe()
        self.rest = b""
        self.fresh = True
        self.process = subprocess.Popen(
            [*command, "--worker", str(far_end)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            pass_fds=[far_end],
            start_new_session=True,
        )
        os.close(far_end)

    def _line(self, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.replies], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise Gone(f"no answer within {seconds:.0f} s")
            got = os.read(self.replies, 1 << 16)
            if not got:
                raise Gone(f"the measuring process ended (status {self.process.wait()})")
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def measure(self, name: str, seconds: float) -> dict[str, Any]:
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()
        except OSError:
            raise Gone(f"the measuring process ended (status {self.process.wait()})") from None
        reply: dict[str, Any] = json.loads(self._line(seconds))
        self.fresh = False
        return reply

    def finish(self) -> str | None:
        """Lets it end what it started; what went wrong there."""
        assert self.process.stdin
        try:
            self.process.stdin.close()
            said: str | None = json.loads(self._line(30.0)).get("error")
        except (Gone, OSError) as error:
            said = str(error)
        self.kill()
        return said

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.replies)


def _run_group(
    measures: Sequence[Measure], command: Sequence[str], environment: dict[str, str], until: float
) -> Iterator[tuple[Measure, dict[str, Any]]]:
    worker: Worker | None = None
    try:
        for measure in measures:
            left = until - time.monotonic()
            if left <= 0:
                yield measure, {"skipped": "the time budget is used up"}
                continue
            worker = worker or Worker(command, environment)
            limit = measure.seconds + (STARTING_SECONDS if worker.fresh else 0)
            try:
                reply = worker.measure(measure.name, min(limit, left))
            except Gone as error:
                worker.kill()
                worker = None
                reply = {"error": str(error)}
            yield measure, reply
        if worker is not None:
            finishing, worker = worker, None
            said = finishing.finish()
            if said:
                print(f"bench/run: at the end: {said}", file=sys.stderr)
    finally:
        if worker is not None:
            worker.kill()


def run_all(measures: Sequence[Measure], command: Sequence[str], *, budget: float, smoke: bool) -> Iterator[tuple[Measure, dict[str, Any]]]:
    """Each measure with its worker's answer, as it comes."""
    until = time.monotonic() + budget
    alone = [measure for measure in measures if not measure.mps]
    shared = [measure for measure in measures if measure.mps]
    if alone:
        yield from _run_group(alone, command, {}, until)
    if not shared:
        return
    with ExitStack() as stack:
        environment: dict[str, str] = {}
        if not smoke:
            try:
                environment = stack.enter_context(mps())
            except NoMps as reason:
                for measure in shared:
                    yield measure, {"skipped": str(reason)}
                return
        checked = smoke
        for measure, reply in _run_group(shared, [*command, "--mps"], environment, until):
            if not checked and reply.get("records"):
                checked = True
                if not servers({**os.environ, **environment}):
                    print("bench/run: MPS was started, but nobody uses it", file=sys.stderr)
            yield measure, reply


def work(context: Context, reply_fd: int) -> None:
    """The worker's side."""
    known = everything()
    with os.fdopen(reply_fd, "w", encoding="utf-8") as replies:

        def answer(reply: dict[str, Any]) -> None:
            replies.write(json.dumps(reply) + "\n")
            replies.flush()

        for line in sys.stdin:
            try:
                answer({"records": _measure(context, known[line.strip()])})
            except Skipped as reason:
                answer({"skipped": str(reason)})
            except BaseException as error:
                traceback.print_exc()
                answer({"error": "".join(traceback.format_exception_only(error)).strip()})
                if not isinstance(error, Exception):
                    raise
        try:
            context.close()
            answer({})
        except Exception as error:  # the daemon ended badly
            answer({"error": str(error)})


def _measure(context: Context, measure: Measure) -> list[dict[str, Any]]:
    if measure.on_gpu:
        _ = context.torch
    found = measure.run(context)
    records = found if isinstance(found, list) else [found]
    for record in records:
        record.detail = {**context.surroundings(), **record.detail}
    return [record.as_json(context.record_context(measure.on_gpu)) for record in records]
