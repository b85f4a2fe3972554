"""The example kernels and their programs, on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon import ROOT, Daemon

pytestmark = pytest.mark.usefixtures("kernels_are_served")
FOLDER = ROOT / "client_py" / "examples" / "kernels"
PROGRAMS = ("add2", "square_matrix", "gemm", "custom", "vector_add", "tutorial")


def run(daemon: Daemon, *arguments: str) -> str:
    env = {**os.environ, "KOPS_SOCKET": daemon.socket_path, "PYTHONPATH": str(ROOT / "client_py")}
    done = subprocess.run([sys.executable, *arguments], env=env, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_kernels_are_right(daemon: Daemon) -> None:
    tests = str(FOLDER / "test_examples.py")
    said = run(daemon, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "gpu", tests)
    assert " passed" in said, said


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_run(daemon: Daemon, program: str) -> None:
    said = run(daemon, str(Path(program).with_suffix(".py")))
    assert ("right" in said) or program == "tutorial", said
