"""A Ray cluster of several nodes on this machine, each with a user's folders of its own, so that each has its own daemon.

Everything is bounded: a node has 80 MB of Ray's memory for objects, and few processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from support import backends, proc
from support.daemon import ROOT, binary, build_folder

STORE = 80 << 20
NATIVE = build_folder() / "python/kops/_native.abi3.so"


def environment() -> dict[str, str]:
    """Of Ray's processes, and of the daemons that workers start."""
    return {
        "PYTHONPATH": f"{ROOT / 'client_py'}:{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1", "KOPSD": str(binary()),
        "KOPS_NATIVE": str(NATIVE) if NATIVE.exists() else "0", "KOPSD_CUDA_ENABLED": "false", "KOPSD_EXECUTORS_SPARES": "0",
        "KOPSD_KERNELS_HELPERS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }  # fmt: skip


def standin(gpus: int, **more: str) -> dict[str, str]:
    """Of a node with so many GPUs of the stand-in driver's."""
    driver = str(backends.standin_driver())
    return {
        "KOPS_CUDA_DRIVER": driver, "KOPSD_CUDA_DRIVER": driver, "KOPSD_CUDA_ENABLED": "true", "KOPSD_CUDA_BLASLT": "none",
        "KOPSD_EXECUTORS_SANDBOX": "off", "KOPSD_EXECUTORS_ISOLATE": "off", "KOPS_STANDIN_DEVICES": str(gpus), **more,
    }  # fmt: skip


class Machines:
    """`node(env)` adds one; a context manager that is connected to the cluster."""

    def __init__(self, nodes: int = 0, env: dict[str, str] | None = None, **how: Any) -> None:
        assert not ray.is_initialized(), "one cluster at a time: a process is connected to one"
        self.folder = Path(tempfile.mkdtemp(prefix="kops-ray-"))
        self._kept = dict(os.environ)
        for name in [name for name in os.environ if name.startswith(("KOPS_SOCKET", "KOPSD_", "XDG_"))]:
            del os.environ[name]
        os.environ.update({**environment(), **(env or {})})
        self.places: list[Path] = []
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        )
        try:
            self.nodes = [self.node(**how) for _ in range(nodes)]
            ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        except BaseException:
            self.close()
            raise

    def node(self, env: dict[str, str] | None = None, **how: Any) -> Any:
        place = self.folder / str(len(self.places))
        place.mkdir(mode=0o700)
        self.places.append(place)
        own = {name: str(place) for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HOME")}
        how = {"num_cpus": 1, "num_gpus": 0, **how}
        return self.cluster.add_node(object_store_memory=STORE, env_vars={**own, "CACHE_DIRECTORY": str(place), **(env or {})}, **how)

    def kill(self, node: Any, daemon: int | None = None) -> None:
        """A node goes as a machine does: at once, with its daemon."""
        self.cluster.remove_node(node, allow_graceful=False)
        if daemon is not None:
            os.kill(proc.status(daemon, "PPid"), signal.SIGKILL)
            os.kill(daemon, signal.SIGKILL)

    def log(self) -> str:
        """Of the daemons."""
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in self.folder.rglob("kopsd.log"))

    def free(self) -> dict[str, float]:
        return {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}

    def wait_free(self, cpus: float) -> None:
        """Until no actor holds anything."""
        proc.eventually(lambda: self.free().get("CPU") == cpus, lambda: f"{cpus} CPU, but {self.free()}")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            ray.shutdown()
        with contextlib.suppress(Exception):
            self.cluster.shutdown()
        for place in self.places:
            stop_daemon(place / "kopsd.sock")
        os.environ.clear()
        os.environ.update(self._kept)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def daemon_pid(path: Path) -> int | None:
    """Of the supervisor, which made the socket and starts the daemon again."""
    import socket
    import struct

    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(str(path))
        except OSError:
            return None
        return int(struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def end(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends the signal, and waits until the process has ended."""
    ended = os.pidfd_open(pid)
    os.kill(pid, number)
    select.select([ended], [], [])
    os.close(ended)


def stop_daemon(path: Path) -> None:
    pid = daemon_pid(path)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGTERM)


def wait_for(pool: Any, count: int) -> None:
    """Until so many workers have begun: a pool looks for them while it works."""
    import kops.ray

    def begun() -> bool:
        list(kops.ray.map(lambda k, i: i, [0], pool=pool))
        return len(pool.workers) == count

    proc.eventually(begun, f"{count} workers have begun")
