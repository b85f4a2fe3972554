"""Console scripts of wheels that bring kopsd and kopsctl (kops/bin): each becomes the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _become(name: str) -> None:
    program = str(Path(__file__).resolve().parent / "kops" / "bin" / name)
    os.execv(program, [program, *sys.argv[1:]])


def kopsd() -> None:
    _become("kopsd")


def kopsctl() -> None:
    _become("kopsctl")
