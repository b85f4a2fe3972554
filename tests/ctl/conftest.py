from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from fake import FakeDaemon  # noqa: E402
from support import daemon as support  # noqa: E402
from support import raw  # noqa: E402

ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("KOPS_")}, "LC_ALL": "C", "TZ": "UTC"}


class Ctl:
    """Runs kopsctl against one socket."""

    def __init__(self, path: str | Path) -> None:
        self.command = [str(support.binary("kopsctl")), "--socket", str(path)]

    def __call__(self, *args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [*self.command, *args], capture_output=True, encoding="utf-8", timeout=raw.PATIENCE, env=ENV, check=False
        )
        assert ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)
        return ended

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.command, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    made = FakeDaemon()
    yield made
    made.close()


@pytest.fixture
def ctl(fake: FakeDaemon) -> Ctl:
    return Ctl(fake.path)


@pytest.fixture
def start(ctl: Ctl) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a kopsctl that is ended after the test."""
    started = []

    def run(*args: str) -> subprocess.Popen[str]:
        started.append(ctl.start(*args))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def real() -> Iterator[support.Daemon]:
    with support.Daemon("--backend", "host") as daemon:
        yield daemon
