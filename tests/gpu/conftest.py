"""A daemon with its CUDA backend for the whole session, a client for each test; skips where there is no GPU.

Where KOPS_CUDA_DRIVER names the stand-in driver, tests that ask for `driver` and `backend`, and not for torch, run on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client_py"), str(Path(__file__).parent)]

from support import backends  # noqa: E402
from support.daemon import Daemon  # noqa: E402

BACKEND = backends.STANDIN if "KOPS_CUDA_DRIVER" in os.environ else backends.CUDA


@pytest.fixture(scope="session")
def torch() -> Any:
    """torch with a CUDA device."""
    module = pytest.importorskip("torch", reason="torch is not installed")
    if not module.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    module.cuda.init()
    return module


@pytest.fixture(scope="session")
def backend() -> str:
    return BACKEND


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest) -> Any:
    from cuda_driver import Driver

    if BACKEND == backends.CUDA:
        request.getfixturevalue("torch")
    return Driver()


@pytest.fixture(scope="session")
def daemon(torch: Any) -> Iterator[Daemon]:
    with Daemon() as running:
        yield running


@pytest.fixture(scope="module")
def judges(backend: str) -> Iterator[Daemon]:
    """A daemon for kops.judge."""
    from isolated import start

    if backend != backends.CUDA or backends.missing(backends.CUDA) is not None:
        pytest.skip("no GPU here")
    with start(backend, isolate="connection") as running:
        yield running


@pytest.fixture
def k(daemon: Daemon) -> Iterator[Any]:
    import kops

    with kops.connect(daemon.socket_path) as client:
        yield client


@pytest.fixture
def kernels_are_served(k: Any) -> None:
    if not k.info.kernels or not k.info.kernels.get("allowed", False):
        pytest.skip("this daemon runs no kernels of users: there is no NVRTC, or no sandbox for it")


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[Any]:
    """The low-level client, for what no client library would send."""
    with daemon.connect() as connection:
        yield connection


@pytest.fixture(autouse=True)
def give_memory_back() -> Iterator[None]:
    """Tests allocate gigabytes; what one leaves in torch's cache is not there for the next."""
    yield
    module = sys.modules.get("torch")
    if module is not None and module.cuda.is_available():
        module.cuda.empty_cache()
