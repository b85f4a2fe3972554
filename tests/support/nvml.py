"""The stand-in for NVML, and what a test has it answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import backends
from .daemon import Daemon, build_folder

FOLDER = build_folder() / "lib" / "nvml_standin"
GPU = "GPU-57a1d140-c0da-4b0b-805d-000de51ce001"  # of the stand-in driver
CALM = {
    "clock": 1980, "memory_clock": 3201, "clock_max": 1980, "memory_clock_max": 3201, "temperature": 36, "power_mw": 79200,
    "power_limit_mw": 700000, "reasons": 0, "power_slowed_ns": 0, "thermal_slowed_ns": 0,
}  # fmt: skip


class Nvml:
    """Answers in a file. `env` is for a daemon that asks."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nvml"
        self.env = {"KOPS_STANDIN_NVML": str(self.path), "LD_LIBRARY_PATH": str(FOLDER)}
        self.answer()

    def daemon(self, **env: str) -> Daemon:
        """With the stand-in's GPU."""
        if (why := backends.missing(backends.STANDIN)) is not None:
            pytest.skip(why)
        return Daemon(config=backends.config(backends.STANDIN), env={**self.env, **env})

    def answer(self, **changed: object) -> None:
        """From now on: a calm GPU's answers, but for these; None: the GPU does not tell."""
        answers = {"gpu": GPU, **CALM, **changed}
        text = "".join(f"{key} {value}\n" for key, value in answers.items() if value is not None)
        made = self.path.with_suffix(".new")
        made.write_text(text, encoding="utf-8")
        os.replace(made, self.path)

    @property
    def readings(self) -> int:
        """How often a GPU was read."""
        made = Path(f"{self.path}.readings")
        return made.read_text(encoding="utf-8").count("\n") if made.exists() else 0
