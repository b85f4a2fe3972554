"""CUDA's Multi-Process Service for the time of a run: a control daemon of our own, in folders of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
START_SECONDS = 20.0
QUIT_SECONDS = 20.0


class NoMps(Exception):
    """It cannot be had here; the message says why."""


def _tell(command: str, environment: dict[str, str], seconds: float) -> str:
    done = subprocess.run([CONTROL], input=f"{command}\n", env=environment, text=True, capture_output=True, timeout=seconds)
    return done.stdout.strip()


def servers(environment: dict[str, str]) -> list[int]:
    """Processes that serve clients now: empty when nobody used it."""
    with suppress(OSError, subprocess.SubprocessError):
        return [int(word) for word in _tell("get_server_list", environment, 5).split() if word.isdecimal()]
    return []


def _end(environment: dict[str, str], folder: Path) -> None:
    # It waits for its clients to go; they have, by now.
    with suppress(OSError, subprocess.SubprocessError):
        _tell("quit", environment, QUIT_SECONDS)
        return
    with suppress(OSError, ValueError):
        os.kill(int((folder / "pipe" / f"{CONTROL}.pid").read_text()), signal.SIGKILL)


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """The environment for those who are to share the GPU through it. Raises NoMps."""
    if shutil.which(CONTROL) is None:
        raise NoMps(f"MPS: no {CONTROL} here")
    folder = Path(tempfile.mkdtemp(prefix="kops-mps-"))
    for name in ("pipe", "log"):
        (folder / name).mkdir(mode=0o700)
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    environment = {**os.environ, **own}
    try:
        try:
            # Its output goes to a file: a daemon that kept a pipe open would never let us read its end.
            with open(folder / "start", "wb") as output:
                status = subprocess.run(
                    [CONTROL, "-d"], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    timeout=START_SECONDS,
                ).returncode  # fmt: skip
            said = (folder / "start").read_text(errors="replace").strip()
            if status:
                raise NoMps(f"MPS: {CONTROL} -d ended with status {status}: {said[:300]}")
            _tell("get_server_list", environment, START_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoMps(f"MPS cannot be started: {error}") from error
        yield own
    finally:
        _end(environment, folder)
        shutil.rmtree(folder, ignore_errors=True)
