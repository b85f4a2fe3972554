"""Judges: one that interprets, and one on a daemon with the stand-in driver, whose executors serve a connection each."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "client_py")]
pytest.importorskip("numpy")

from kops import judge  # noqa: E402
from kops.judge import _gpu, _judge, _machine  # noqa: E402
from material import NO_SANDBOX  # noqa: E402
from support import backends  # noqa: E402
from support.daemon import Daemon, binary  # noqa: E402

LIMITS = judge.Limits(at_most=0.2, launches=8, flush_bytes=1 << 16, slack_us=1e9)  # the stand-in's times are noise
CONFIG = "[executors]\nisolate = {isolate}\nfaults = {faults}\nspares = 0\n"


@pytest.fixture(scope="session")
def interpreter() -> Iterator[judge.Judge]:
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("the interpreter needs a C++ compiler")
    with judge.Judge(how="interpreter", seed=1) as made:
        yield made


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons on the stand-in."""
    if "KOPSD" not in os.environ and not binary().exists():
        pytest.skip("no daemon: name it in KOPSD, or its build folder in KOPS_BUILD")
    if (why := backends.missing(backends.STANDIN)) is not None:
        pytest.skip(why)
    if backends.nvrtc() is None:
        pytest.skip("there is no NVRTC here")
    if NO_SANDBOX:
        pytest.skip(f"the daemon compiles no strangers' code here: {NO_SANDBOX}")
    from standin_cuda import Control

    running: list[Daemon] = []

    def begin(isolate: str = "connection", faults: int = 0, env: dict[str, str] | None = None, more: str = "") -> Daemon:
        control = Control()
        config = backends.config(backends.STANDIN) + CONFIG.format(isolate=isolate, faults=faults) + more
        running.append(Daemon(config=config, env={**control.env, **(env or {})}))
        return running[-1]

    yield begin
    for daemon in running:
        daemon.cleanup()


@pytest.fixture(scope="module")
def daemon(start: Callable[..., Daemon]) -> Daemon:
    return start()


@pytest.fixture
def gpu(daemon: Daemon) -> Iterator[Any]:
    with judge.Judge(daemon.socket_path, seed=1, deadline=5.0, interpreted_deadline=6.0, limits=LIMITS, peak_gb_s=100.0) as made:
        assert made.how == "gpu"
        yield made


@contextlib.contextmanager
def soon(made: judge.Judge) -> Iterator[None]:
    """Kernels that never end are given up earlier than slow machines would bear for others."""
    machine = made._machine
    assert machine is not None
    before = machine._deadline, made.interpreted_deadline
    machine._deadline, made.interpreted_deadline = 1.0, 0.3
    yield
    machine._deadline, made.interpreted_deadline = before


@pytest.fixture
def unlocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for the lines of faults, which takes the interpreter longer than a test."""
    monkeypatch.setattr(_judge, "located", lambda job, verdict, *_: verdict)


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The executors that judges make for solutions, in order."""
    made: list[Any] = []
    begin, own = _gpu.Executor.__init__, _machine.Machine._own_executor

    def spy(self: Any, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    def trusted(self: Any) -> Any:
        before = len(made)
        executor = own(self)
        del made[before:]
        return executor

    monkeypatch.setattr(_gpu.Executor, "__init__", spy)
    monkeypatch.setattr(_machine.Machine, "_own_executor", trusted)
    return made
