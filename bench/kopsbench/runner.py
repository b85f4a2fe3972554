"""Runs measures one after another in processes of their own: one that hangs or crashes costs only its own number.

The worker is this program again, in a session of its own, so that it can be ended with all that it started. It reads
names from stdin and answers each with a line of JSON on a pipe: {"records": […]}, {"skipped": "why"} or {"error": "…"}.
A worker does many measures, since importing torch and making a context takes longer than most of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from .children import Child, Gone
from .context import Context, Skipped
from .measures import Measure, everything
from .mps import NoMps, mps, servers

STARTING_SECONDS = 60.0  # more for the first measure of a worker: imports, contexts, a daemon


class Worker(Child):
    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        answers, far_end = os.pipe()
        how = {"pass_fds": [far_end], "start_new_session": True}
        super().__init__([*command, "--worker", str(far_end)], "the measuring process", {**os.environ, **environment}, answers, **how)
        os.close(far_end)
        self.fresh = True

    def measure(self, name: str, seconds: float) -> dict[str, Any]:
        reply: dict[str, Any] = self.ask(name, seconds)
        self.fresh = False
        return reply

    def finish(self) -> str | None:
        """Lets it end what it started; what went wrong there."""
        try:
            self.stdin.close()
            said: str | None = self.hear(30.0).get("error")
        except (Gone, OSError) as error:
            said = str(error)
        self.end()
        return said

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        super().end()


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
                worker.end()
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
            worker.end()


def run_all(measures: Sequence[Measure], command: Sequence[str], *, budget: float, smoke: bool) -> Iterator[tuple[Measure, dict[str, Any]]]:
    """Each measure with its worker's answer, as it comes."""
    until = time.monotonic() + budget
    yield from _run_group([measure for measure in measures if not measure.mps], command, {}, until)
    shared = [measure for measure in measures if measure.mps]
    if not shared:
        return
    with ExitStack() as stack:
        environment: dict[str, str] = {}
        if not smoke:
            try:
                environment = stack.enter_context(mps())
            except NoMps as reason:
                yield from ((measure, {"skipped": str(reason)}) for measure in shared)
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
            print(json.dumps(reply), file=replies, flush=True)

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
