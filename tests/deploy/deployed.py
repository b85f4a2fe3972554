"""What the tests of deploy/ share: the units with the paths of this build, and runs of its programs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tests"))

from support.daemon import binary  # noqa: E402

SERVICES = sorted(p.name for p in DEPLOY.glob("*.service"))
SOCKETS = sorted(p.name for p in DEPLOY.glob("*.socket"))


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"there is no {program}")
    return found


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=900, **options)  # type: ignore[call-overload,no-any-return]


def kopsd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(str(binary()), *arguments)


def kopsctl(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run(str(binary("kopsctl")), *arguments, env=env)


def with_paths_of_this_build(text: str) -> str:
    """The programs need not be installed to check the units that start them."""
    text = text.replace("/usr/sbin/kopsd", str(binary())).replace("/usr/bin/kopsctl", str(binary("kopsctl")))
    text = text.replace("/usr/libexec/kopsd/", f"{DEPLOY}/")
    # NVIDIA's programs are only there with a GPU, and a unit's user only where it was made.
    return text.replace("/usr/bin/nvidia-", "/bin/true --nvidia-")
