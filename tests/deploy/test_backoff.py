"""kopsd-backoff: the first failure costs no wait, a crash loop is not hot, health and orderly ends forget."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from deployed import DEPLOY, run

PROGRAM = str(DEPLOY / "kopsd-backoff")


def note(folder: Path, result: str) -> None:
    done = run(PROGRAM, "note", env={**os.environ, "RUNTIME_DIRECTORY": str(folder), "SERVICE_RESULT": result})
    assert done.returncode == 0, done.stderr


def delay(folder: Path) -> int:
    """What it would wait, in milliseconds; the program that waits is one that does not."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "sleep").write_text('#!/bin/sh\necho "slept $1"\n', encoding="utf-8")
    (tools / "sleep").chmod(0o755)
    env = {**os.environ, "RUNTIME_DIRECTORY": str(folder), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = run(PROGRAM, "wait", env=env)
    assert done.returncode == 0, done.stderr
    if "slept" not in done.stdout:
        return 0
    said = re.search(r"event=backoff delay_ms=(\d+)", done.stderr)
    assert said and float(done.stdout.split()[1]) * 1000 == int(said[1])
    return int(said[1])


def test_delays_double_up_to_a_limit(tmp_path: Path) -> None:
    assert delay(tmp_path) == 0
    found = []
    for _ in range(12):
        note(tmp_path, "exit-code")
        found.append(delay(tmp_path))
    assert found == [0, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000, 10000]


def test_an_orderly_end_forgets(tmp_path: Path) -> None:
    for _ in range(3):
        note(tmp_path, "signal")
    note(tmp_path, "success")
    assert delay(tmp_path) == 0
    note(tmp_path, "watchdog")
    assert delay(tmp_path) == 0


def test_health_forgets(tmp_path: Path) -> None:
    (tmp_path / "failures").write_text(f"9 {int(time.time()) - 120}\n", encoding="utf-8")
    assert delay(tmp_path) == 0
    note(tmp_path, "exit-code")
    assert (tmp_path / "failures").read_text(encoding="utf-8").startswith("1 ")
