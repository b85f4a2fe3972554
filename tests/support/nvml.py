"""The stand-in for NVML, and what a test has it answer."""

from __future__ import annotations

import os
from pathlib import Path

from .daemon import build_folder

FOLDER = build_folder() / "lib" / "nvml_standin"
FAKE_GPU = "GPU-00000000-0000-0000-0000-00000000fa4e"  # of tests/fake_gpu
CALM = {
    "clock": 1980, "memory_clock": 3201, "clock_max": 1980, "memory_clock_max": 3201, "temperature": 36, "power_mw": 79200,
    "power_limit_mw": 700000, "reasons": 0, "power_slowed_ns": 0, "thermal_slowed_ns": 0,
}  # fmt: skip


class Nvml:
    """Answers in a file. `env` is for a daemon that asks."""

    def __init__(self, folder: Path, gpu: str = FAKE_GPU) -> None:
        self.path = folder / "nvml"
        self.gpu = gpu
        self.env = {"KOPS_STANDIN_NVML": str(self.path), "LD_LIBRARY_PATH": str(FOLDER)}
        self.answer()

    def answer(self, **changed: object) -> None:
        """From now on: a calm GPU's answers, but for these; None: the GPU does not tell."""
        answers = {"gpu": self.gpu, **CALM, **changed}
        text = "".join(f"{key} {value}\n" for key, value in answers.items() if value is not None)
        made = self.path.with_suffix(".new")
        made.write_text(text, encoding="utf-8")
        os.replace(made, self.path)

    @property
    def readings(self) -> int:
        """How often a GPU was read."""
        made = Path(f"{self.path}.readings")
        return made.read_text(encoding="utf-8").count("\n") if made.exists() else 0
