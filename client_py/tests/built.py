"""The daemon of a build, and what this project's tests have for it; importing this skips a test module where none is built.

Those that import `real` and `k` have a daemon without a GPU in place of the one that the tests play."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kops
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("KOPS_BUILD")
if not (ROOT / "tests" / "support").is_dir() or not ("KOPSD" in os.environ or (BUILD and Path(BUILD, "bin/kopsd").exists())):
    pytest.skip("no daemon: name it in KOPSD, or its build folder in KOPS_BUILD", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tests"))
from support import backends  # noqa: E402
from support.daemon import Daemon  # noqa: E402


@contextmanager
def daemon_of(backend: str, more: str = "") -> Iterator[Daemon]:
    """With `more` lines in its configuration. Skips the test where the backend cannot be had."""
    if (why := backends.missing(backend)) is not None:
        pytest.skip(why)
    with Daemon(config=backends.config(backend) + more) as running:
        yield running


@pytest.fixture(scope="module")
def real() -> Iterator[Daemon]:
    with daemon_of(backends.HOST) as running:
        yield running


@pytest.fixture
def k(real: Daemon) -> Iterator[kops.Client]:
    with kops.connect(real.socket_path, timeout=120) as client:
        yield client
