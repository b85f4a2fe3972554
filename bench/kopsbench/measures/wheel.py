"""From a wheel and an empty environment to the first result: pip, the daemon's start and, on a GPU, a kernel's compilation.

KOPS_WHEEL names the wheel; otherwise it is the one that `make wheel` has made.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import time
from pathlib import Path

from support import wheel as wheels

from ..context import ROOT, Context, Skipped
from ..record import Record, summarise
from . import add

TARGET_S = 10.0
SYSTEM = Path("/run/kopsd/kopsd.sock")


def _wheel() -> Path:
    named = os.environ.get("KOPS_WHEEL")
    found = [Path(named)] if named else list((ROOT / "build/wheel/dist").glob("kops-*.whl"))
    if not found or not found[0].is_file():
        raise Skipped("there is no wheel: make wheel, or name one in KOPS_WHEEL")
    if SYSTEM.exists():
        raise Skipped("a daemon of the system comes first")
    return found[0].resolve()


def _bring_nvrtc(venv: Path) -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    if not any([wheels.bring_nvrtc(venv, folder) for folder in folders]):
        raise Skipped("this Python has no package of NVIDIA's with NVRTC")


def _once(wheel: Path, program: str, on_gpu: bool) -> tuple[float, float]:
    """Seconds of both commands. The second ends with its result, and its daemon runs on."""
    with tempfile.TemporaryDirectory(prefix="kops-bench-") as name:
        home, venv = Path(name, "home"), Path(name, "venv")
        pip = wheels.empty_venv(venv)
        wheels.bring_msgpack(venv)
        environment = wheels.environment(home)
        if on_gpu:
            _bring_nvrtc(venv)
        else:
            environment["KOPSD_SERVER_BACKEND"] = "host"
        start = time.monotonic()
        wheels.install(pip, wheel)
        installed = time.monotonic()
        command = [str(venv / "bin/python"), "-c", program]
        with subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout
            line = first.stdout.readline()
            done = time.monotonic()
        if line.strip() != wheels.RESULT or first.returncode:
            raise RuntimeError(f"the first program said {line!r} and ended with status {first.returncode}")
        wheels.await_end(home)
    return installed - start, done - installed


def run(context: Context, name: str, program: str, on_gpu: bool) -> Record:
    if context.smoke and on_gpu:
        raise Skipped("a wheel's daemon knows no stand-in")
    wheel = _wheel()
    pairs = [_once(wheel, program, on_gpu) for _ in range(1 if context.smoke else max(3, min(10, context.calls // 20)))]
    result = "a kernel of its own, which NVRTC of NVIDIA's packages compiles" if on_gpu else "the host backend"
    detail = {
        "measured": f"pip install of the wheel into an empty environment, then Python until it has printed the first result of {result}",
        "left out": "downloads; files are in memory",
        "install_s": summarise(install for install, _ in pairs).as_json(),
        "first_s": summarise(first for _, first in pairs).as_json(),
        "wheel": wheel.name,
        "wheel_mb": wheel.stat().st_size / 1e6,
    }
    return Record(name, "s", "lower", summarise(sum(pair) for pair in pairs), None, detail, target=TARGET_S, absolute=True)


add("wheel_first_result", run, "wheel_first_result", wheels.FIRST_RESULT, False, on_gpu=False, seconds=600)
add("wheel_first_kernel", run, "wheel_first_kernel", wheels.FIRST_KERNEL, True, on_gpu=True, seconds=600)
