"""The stand-in CUDA driver of this project's tests; importing this skips a test module where the driver is not built."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def library() -> Path | None:
    builds = [Path(os.environ["KOPS_BUILD"])] if "KOPS_BUILD" in os.environ else sorted((ROOT / "build").glob("*"))
    return next((path for build in builds if (path := build / "lib" / "libcuda_standin.so").exists()), None)


if library() is None:
    pytest.skip("the stand-in driver is not built", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tests"))
standin = pytest.importorskip("standin_cuda")


@contextmanager
def in_use() -> Iterator[Any]:
    """The environment names the driver meanwhile. Gives its control page."""
    made = standin.Control()
    before = dict(os.environ)
    os.environ.update({"KOPS_CUDA_DRIVER": str(library()), **made.env})
    yield made
    os.environ.clear()
    os.environ.update(before)
