from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["KOPS_AUTOSTART"] = "0"  # no test, and no process that it starts, leaves a daemon of this user behind

import fake_torch  # noqa: E402
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


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small torch is the one that is imported."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch)


@pytest.fixture
def torch_gpu(daemon: FakeDaemon, with_torch: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its CUDA tensors lie in the stand-in driver's memory; the daemon says yes to whatever it is asked to run."""
    cuda = pytest.importorskip("standin_driver", reason="the stand-in driver is not built")
    monkeypatch.setenv("KOPS_CUDA_DRIVER", str(cuda.library()))
    driver = cuda.standin.Driver()
    for name, value in (("driver", driver), ("synchronized", []), ("fills", []), ("awaited", 0), ("handle", 0)):
        monkeypatch.setattr(fake_torch.cuda, name, value)
    daemon.script["run"] = lambda peer, params, fds: {"timings": {"gpu_us": 1.0}, "device": "GPU-x", "variant": "v"}
    return driver


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
