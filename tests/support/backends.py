"""Which devices a test's daemon has: the host alone, a stand-in CUDA driver, or the machine's own GPU."""

from __future__ import annotations

import os
from pathlib import Path

from standin_cuda.folder import folder as standin_folder

from . import daemon as daemons

HOST, STANDIN, CUDA = "host", "standin", "cuda"


def standin_cupti() -> Path:
    return standin_driver().with_name("libcupti_standin.so")


def standin_driver() -> Path:
    """The stand-in for libcuda.so.1 that the build makes; KOPS_STANDIN names another."""
    standin_folder()  # for whoever loads it
    return Path(os.environ.get("KOPS_STANDIN", daemons.build_folder() / "lib" / "libcuda_standin.so"))


def cuda_built() -> bool:
    """The daemon has a CUDA backend."""
    return daemons.binary_has(b"cuIpcOpenMemHandle")


def missing(backend: str) -> str | None:
    """Why a daemon with that backend cannot be had here; None when it can."""
    if backend == HOST:
        return None
    if not cuda_built():
        return "kopsd was built without CUDA"
    if backend == STANDIN:
        return None if standin_driver().exists() else f"no stand-in driver at {standin_driver()}"
    return None if Path("/dev/nvidiactl").exists() else "no GPU here"


def config(backend: str) -> str:
    """The lines of a configuration file that give a daemon that backend."""
    lines = ["[cuda]"]
    if backend != CUDA:  # whose own driver is found, and CUPTI with it
        lines.append(f"driver = {'none' if backend == HOST else standin_driver()}")
    if backend == STANDIN:
        lines.append(f"blaslt = {os.environ.get('KOPS_STANDIN_BLASLT', 'none')}")  # of tests/unit/cuda/fake_blaslt.c
    return "\n".join(lines) + "\n"


def nvrtc() -> Path | None:
    """NVRTC's library, which compiles without a GPU; KOPS_NVRTC names another than the toolkit's."""
    given = os.environ.get("KOPS_NVRTC")
    places = [Path(given)] if given else sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so.1[0-9]"), reverse=True)
    return next((p for p in places if p.exists()), None)
