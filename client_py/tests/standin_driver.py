"""The stand-in CUDA driver of this project's tests; importing this skips a test module where the driver is not built."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kops._memory.exports import allocations

ROOT = Path(__file__).resolve().parents[2]


def library() -> Path | None:
    builds = [Path(os.environ["KOPS_BUILD"])] if "KOPS_BUILD" in os.environ else sorted((ROOT / "build").glob("*"))
    return next((path for build in builds if (path := build / "lib" / "libcuda_standin.so").exists()), None)


if library() is None:
    pytest.skip("the stand-in driver is not built", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tests"))
standin = pytest.importorskip("standin_cuda")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """The environment names it meanwhile. `control` is its control page."""
    before = dict(os.environ)
    control = standin.Control()
    os.environ.update({"KOPS_CUDA_DRIVER": str(library()), **control.env})
    allocations.after_fork()  # another module's driver may be loaded already
    made = standin.Driver()
    made.control = control
    yield made
    os.environ.clear()
    os.environ.update(before)
