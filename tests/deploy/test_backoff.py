"""kopsd-backoff: the rule of tests/support/backoff.txt, over the calls that systemd makes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from deployed import DEPLOY, ROOT, run

PROGRAM = str(DEPLOY / "kopsd-backoff")
RESULTS = {"served": "signal", "failed": "exit-code", "orderly": "success"}


def cases() -> dict[str, list[tuple[str, int, int]]]:
    found: dict[str, list[tuple[str, int, int]]] = {}
    name = ""
    for line in (ROOT / "tests" / "support" / "backoff.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("case "):
            name = line[len("case ") :]
            found[name] = []
        elif line and not line.startswith("#"):
            how, after, delay = line.split()
            found[name].append((how, int(after), int(delay)))
    return found


class Service:
    """What systemd does with one: its folder stays, the clock is the test's, and nobody waits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools, self.now = folder / "run", folder / "tools", 1_700_000_000_000
        self.folder.mkdir()
        self.tools.mkdir()
        for name, does in (("sleep", 'echo "slept $1"'), ("date", 'echo "$TEST_NOW"')):
            (self.tools / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
            (self.tools / name).chmod(0o755)

    def call(self, *what: str, result: str = "success") -> str:
        env = {
            **os.environ,
            "RUNTIME_DIRECTORY": str(self.folder),
            "KOPS_SERVED_FILE": str(self.folder / "served"),
            "SERVICE_RESULT": result,
            "TEST_NOW": str(self.now),
            "PATH": f"{self.tools}:{os.environ['PATH']}",
        }
        done = run(PROGRAM, *what, env=env)
        assert done.returncode == 0, done.stderr
        if "slept" not in done.stdout:
            return "0"
        said = re.search(r"event=backoff delay_ms=(\d+)", done.stderr)
        assert said and float(done.stdout.split()[1]) * 1000 == int(said[1])
        return said[1]

    def end(self, how: str) -> None:
        """The daemon makes the file when it starts, and writes to it when it has answered."""
        (self.folder / "served").write_text("1\n" if how == "served" else "", encoding="utf-8")
        self.call("note", result=RESULTS[how])

    def delay(self) -> int:
        """What it waits before the next start, in milliseconds."""
        return int(self.call("wait"))


@pytest.mark.parametrize("name", cases())
def test_waits_as_the_vectors_say(name: str, tmp_path: Path) -> None:
    service = Service(tmp_path)
    assert service.delay() == 0
    for i, (how, after, delay) in enumerate(cases()[name]):
        service.now += after
        service.end(how)
        assert service.delay() == delay, (i, how, after)


def test_what_one_daemon_answered_does_not_count_for_the_next(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.end("served")
    for delay in (0, 100, 200):
        service.call("note", result="exit-code")  # it ended before it made the file
        assert service.delay() == delay


def test_a_clock_that_was_set_back_costs_no_more_than_the_longest_wait(tmp_path: Path) -> None:
    service = Service(tmp_path)
    for _ in range(3):
        service.end("failed")
    service.now -= 3600 * 1000
    assert service.delay() == 10000
