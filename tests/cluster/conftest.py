from __future__ import annotations

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
ADDRESS_SPACE = 32 << 30  # bytes of each process: Ray's reserve far more than they use
collect_ignore_glob = ["test_*.py"] if WHY_NOT else []

# A test that hangs, or eats memory, ends.
if WHY_NOT is None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SYSTEM.exists():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="a daemon of the system comes first"))


@pytest.fixture(scope="session", autouse=True)
def travelling() -> None:
    """Functions of the tests' modules go to the workers by value."""
    from ray import cloudpickle

    for name in ("test_map", "test_losses", "test_gpus", "test_judge", "test_judge_losses", "test_trace", "judging", "machines"):
        if name in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules[name])


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """Three nodes without GPUs, for the tests of a module that harm none."""
    from machines import Machines

    with Machines(3) as made:
        yield made


@pytest.fixture(scope="module")
def pool(machines: Any) -> Iterator[Any]:
    import kops.ray

    with kops.ray.Pool() as made:
        yield made
