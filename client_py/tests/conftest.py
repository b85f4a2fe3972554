from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import kops  # noqa: E402
from fake_daemon import FakeDaemon  # noqa: E402
from kops._base.compiled import native  # noqa: E402


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    made = FakeDaemon()
    yield made
    made.close()


@pytest.fixture
def k(daemon: FakeDaemon) -> Iterator[kops.Client]:
    with kops.connect(daemon.path, timeout=20) as client:
        yield client


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array(numpy.arange(16, dtype="float32"))


@pytest.fixture
def held(daemon: FakeDaemon) -> Iterator[threading.Event]:
    """`run` is not answered until the gate is set."""
    daemon.gate.clear()
    yield daemon.gate
    daemon.gate.set()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if native is None:
        pytest.skip("the asyncio client needs the compiled part")
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}), 120))
    return True
