"""What a run knows of its surroundings: the build, the commit, the machine, the GPU, the settings."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from support import backends
from support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
EXIT_SKIPPED = 77


class Skipped(Exception):
    """A measure cannot run here; the message says what is missing."""


@dataclass
class Context:
    build: Path
    calls: int  # samples a side, in blocks
    blocks: int
    spin_us: int | None
    mps: bool = False  # this process and its children share the GPU through MPS
    smoke: bool = False  # tiny counts, a stand-in for the GPU: the numbers mean nothing
    _stack: ExitStack = field(default_factory=ExitStack)
    _gpu_daemon: Daemon | None = None
    _daemon_spin: int | None = None  # what it says of itself

    def program(self, name: str) -> Path:
        for folder in (self.build / "bin", self.build):
            if (folder / name).is_file():
                return folder / name
        raise Skipped(f"{name} is not in {self.build}/bin; build it first (make build)")

    def run_program(
        self, name: str, *arguments: Any, socket: str | None, seconds: float = 50.0, given: bytes = b"", fds: Sequence[int] = ()
    ) -> dict[str, Any]:
        """What a program of ours found; its arguments are `--option value` pairs. Without a socket it needs no daemon. It reads `given`
        and inherits `fds`."""
        to_daemon = ["--socket", socket] if socket else []
        command = [str(self.program(name)), *to_daemon, *map(str, arguments)]
        done = subprocess.run(command, input=given, capture_output=True, timeout=seconds, pass_fds=fds)
        why = done.stderr.decode(errors="replace").strip()
        if done.returncode == EXIT_SKIPPED:
            raise Skipped(why or f"{name} cannot run here")
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with status {done.returncode}: {why[-500:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def of_children(self) -> dict[str, str]:
        """The environment of a process of Python's that imports what this one does."""
        folders = [str(ROOT / "bench"), str(ROOT / "client_py"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        smoke = {"KOPS_BENCH_SMOKE": "1"} if self.smoke else {}
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **smoke}

    def daemon(self, *arguments: str, cuda: bool) -> Daemon:
        """A fresh daemon, with or without its CUDA backend."""
        extra = list(arguments)
        if not cuda:
            extra += ["--backend", "host"]
        if self.spin_us is not None and not any("server.spin_us" in argument for argument in arguments):
            extra += ["--set", f"server.spin_us={self.spin_us}"]
        if cuda and self.mps:
            extra += ["--set", "executors.user=none"]  # an MPS server has clients of one user
        self.program("kopsd")
        return Daemon(*extra, config=backends.config(backends.STANDIN) if cuda and self.smoke else None, steady=False)

    def close(self) -> None:
        """Ends what was kept for several measures."""
        self._stack.close()

    @property
    def gpu_daemon(self) -> Daemon:
        """One for all measures on the GPU: making a context for each would take longer than measuring."""
        if self._gpu_daemon is None or not self._gpu_daemon.running():
            self.__dict__.pop("_gpu_client", None)  # it knew the one that ended
            self._gpu_daemon = self._stack.enter_context(self.daemon(cuda=True))
            with self._gpu_daemon.connect() as connection:
                self._daemon_spin = connection.call("hello", {"protocol": 1})["limits"].get("spin_us")
        return self._gpu_daemon

    def connect(self, socket: str | None = None, *, blocking: bool = True, **options: Any) -> Any:
        """A client of gpu_daemon, or of another. `blocking` False: calls are ordered on torch's current stream."""
        import kops

        if not blocking and not kops.compiled:
            raise Skipped("this client has no ordered calls: its compiled part is not there")
        return kops.connect(socket or self.gpu_daemon.socket_path, **{"timeout": 60, "blocking": blocking, **options})

    def python_link(self) -> dict[str, Any]:
        """For the detail of a measure through the Python client."""
        compiled = any(name.startswith("kops._native") for name in sys.modules)
        return {"python_client": "compiled extension" if compiled else "pure Python"}

    @cached_property
    def _gpu_client(self) -> Any:
        return self._stack.enter_context(self.connect(timeout=300))

    def gpu_client(self) -> Any:
        """A blocking client of gpu_daemon, for one measure: memory of the one before is given back first."""
        client = self._gpu_client
        self.torch.cuda.empty_cache()
        client.trim()
        return client

    @cached_property
    def torch(self) -> Any:
        """torch with a CUDA device, or Skipped."""
        if self.smoke:
            lacking = backends.missing(backends.STANDIN)
            if lacking:
                raise Skipped(lacking)
        elif importlib.util.find_spec("torch") is None:
            raise Skipped("torch is not installed")
        torch = torch_of_a_child(self.smoke)
        if not torch.cuda.is_available():
            raise Skipped("torch sees no CUDA device")
        return torch

    @cached_property
    def commit(self) -> str:
        git = ["git", "-C", str(ROOT)]
        try:
            name = _output(*git, "rev-parse", "--short=12", "HEAD")
            return f"{name}-dirty" if _output(*git, "status", "--porcelain", "--untracked-files=no") else name
        except (OSError, subprocess.CalledProcessError):
            return os.environ.get("KOPS_COMMIT", "unknown")

    @cached_property
    def cpu(self) -> str:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")

    def record_context(self, on_gpu: bool) -> dict[str, Any]:
        processors = len(os.sched_getaffinity(0))
        return {
            "device": str(self.torch.cuda.get_device_name(0)) if on_gpu else f"{self.cpu}, {processors} threads",
            "commit": self.commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": os.environ.get("KOPS_BENCH_COMMAND") or shlex.join(["bench/run", *sys.argv[1:]]),
        }

    def surroundings(self) -> dict[str, Any]:
        """What every record's detail says: how the two processes shared the GPU, how they talked and waited."""
        return {
            "transport": "the client's choice",
            "mps": self.mps or mps_is_active(),
            "spin": "default" if self.spin_us is None else f"{self.spin_us} us",
            **({"smoke": "stand-in driver, tiny counts: no figures"} if self.smoke else {}),
            **({"daemon_spin_us": self._daemon_spin} if self._daemon_spin is not None else {}),
        }


def torch_of_a_child(smoke: bool = "KOPS_BENCH_SMOKE" in os.environ) -> Any:
    """In a process that a measure started: torch, or the stand-in for it."""
    if smoke:
        from . import smoke_torch

        return smoke_torch
    import torch

    return torch


def mps_is_active() -> bool:
    """True when CUDA programs of this user go through an MPS server."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
