from __future__ import annotations

import faulthandler
import importlib.util
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "client_py")]

WHY_NOT = None if importlib.util.find_spec("ray") else "Ray is not installed: tools/install-ray puts it into build/ray-venv"
SYSTEM = Path("/run/kopsd/kopsd.sock")
LONGEST_S = 300  # of a test, on a machine with other work
ADDRESS_SPACE = 32 << 30  # bytes of each process: Ray's reserve far more than they use
collect_ignore_glob = ["test_*.py"] if WHY_NOT else []

# A test that hangs, or eats memory, ends.
if WHY_NOT is None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # not 15, with which workers hardly run beside other tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SYSTEM.exists():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="a daemon of the system comes first"))


@pytest.fixture(scope="session", autouse=True)
def travelling() -> None:
    """Functions of the tests' modules go to the workers by value."""
    from ray import cloudpickle

    tests = ("map", "losses", "faults", "gpus", "judge", "trace")
    for name in (*(f"test_{one}" for one in tests), "machines"):
        if name in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules[name])


@pytest.fixture(autouse=True)
def a_bound() -> Iterator[None]:
    """A test that hangs ends the run, and says where it was."""
    faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The cluster of all tests, whose head takes no work: each test sees to the nodes that it needs."""
    from machines import Machines

    with Machines() as made:
        yield made


@pytest.fixture
def machines(cluster: Any) -> Any:
    """Three nodes without GPUs. A test may harm them."""
    cluster.fill(3)
    return cluster


@pytest.fixture(scope="module")
def pool(cluster: Any) -> Iterator[Any]:
    """Of a module's tests that harm no node."""
    import kops.ray

    cluster.fill(3)
    with kops.ray.Pool() as made:
        yield made
