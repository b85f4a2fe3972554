from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import runners  # noqa: E402
from support import backends  # noqa: E402
from support.daemon import Daemon  # noqa: E402

MEMORY = 64 << 20  # what the largest case needs, and room
CLIENTS = {"raw": runners.RawRunner, "c": runners.CRunner, "python": runners.PythonRunner}
HERE_IN_C = {"here": runners.HereRunner}  # beside "c"
SKIPPED = 77


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", action="append", choices=[backends.HOST, backends.STANDIN, backends.CUDA])
    parser.addoption("--client", action="append", choices=list(CLIENTS))


def seed() -> int:
    """Of this run: KOPS_SEED, or a fresh one."""
    if "KOPS_SEED" not in os.environ:
        os.environ["KOPS_SEED"] = str(np.random.SeedSequence().entropy % 2**32)
    return int(os.environ["KOPS_SEED"])


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Makes no cases for devices that this machine lacks: thousands would say the same. Status 77, as ctest knows a skipped test."""
    chosen = set(config.getoption("--backend") or [backends.HOST])
    why_not = {backend: backends.missing(backend) for backend in chosen}
    if not all(why_not.values()):
        return None
    print(f"no case was made for {', '.join(f'{backend} ({why})' for backend, why in sorted(why_not.items()))}")
    return SKIPPED


def pytest_report_header() -> str:
    return f"inputs: KOPS_SEED={seed()}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "daemon" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--backend") or [backends.HOST]
        metafunc.parametrize("daemon", chosen, indirect=True, scope="session")
    if "runner" in metafunc.fixturenames:
        chosen = list(metafunc.config.getoption("--client") or CLIENTS)
        if "c" in chosen:
            chosen += HERE_IN_C
        metafunc.parametrize("runner", chosen, indirect=True, scope="session")


LARGE, OF_LARGE = 80_000, ("u8", "f8_e4m3", "bf16", "f32", "f64")  # elements; a dtype of each width


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Large tensors are shared out among threads, or copied in pieces. Without a GPU that depends on the width alone."""

    def tells(item: pytest.Item) -> bool:
        given = getattr(item, "callspec", None)
        if given is None or "case" not in given.params or given.params.get("daemon") == backends.CUDA:
            return True
        case = given.params["case"]
        return case.dtype in OF_LARGE or max(map(math.prod, case.shapes)) < LARGE

    config.hook.pytest_deselected(items=[item for item in items if not tells(item)])
    items[:] = [item for item in items if tells(item)]


@pytest.fixture(scope="session")
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    why_not = backends.missing(request.param)
    if why_not:
        pytest.skip(why_not)
    with Daemon(config=backends.config(request.param)) as running:
        running.backend = request.param
        yield running


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[runners.Runner]:
    if request.param in HERE_IN_C and daemon.backend == backends.HOST:
        pytest.skip("a launch in the client's context needs a GPU")
    made = {**CLIENTS, **HERE_IN_C}[request.param](daemon, MEMORY)
    yield made
    made.close()


@pytest.fixture(scope="session")
def device(daemon: Daemon) -> dict:
    """The device under test, from hello."""
    wanted = "host" if daemon.backend == backends.HOST else "cuda"
    with daemon.connect() as connection:
        hello = connection.call("hello")
    found = next(d for d in hello["devices"] if d["backend"] == wanted)
    ops = {op["name"]: op["variants"].get(found["uuid"], []) for op in hello["ops"]}
    return {**found, "variants": ops}
