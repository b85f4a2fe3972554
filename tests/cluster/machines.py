"""A Ray cluster of several nodes on this machine, each with a user's folders of its own, so that each has its own daemon.

Everything is bounded: a node has 80 MB of Ray's memory for objects, and few processes. The tests share one cluster, since its start is
slow; a test that takes a node from it leaves the next one to bring another.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from standin_cuda import Control
from support import backends, proc
from support.daemon import ROOT, binary, build_folder

STORE = 80 << 20
# No process is ended for the machine's memory, which is not Ray's alone. A node that is gone is missed within 10 s; one that is slow, since
# the machine is busy, is not taken for gone. A process whose cluster has not answered for a minute is ended by Ray at once, with a line on
# stderr: a test's own bound, which shows where it was, is shorter than the ten minutes here.
RAYS_OWN = {
    "RAY_memory_monitor_refresh_ms": "0", "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "20000",
    "RAY_health_check_failure_threshold": "8", "RAY_health_check_initial_delay_ms": "20000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip
NATIVE = build_folder() / "python/kops/_native.abi3.so"


def environment() -> dict[str, str]:
    """Of Ray's processes, and of the daemons that workers start."""
    return {
        "PYTHONPATH": f"{ROOT / 'client_py'}:{ROOT / 'tests'}", "KOPSD": str(binary()),
        "KOPS_NATIVE": str(NATIVE) if NATIVE.exists() else "0", "KOPSD_SERVER_BACKEND": "host", "KOPSD_EXECUTORS_SPARES": "0",
        "KOPSD_KERNELS_HELPERS": "1", **RAYS_OWN,
    }  # fmt: skip


def standin(gpus: int, **more: str) -> dict[str, str]:
    """Of a node with so many GPUs of the stand-in driver's."""
    driver = str(backends.standin_driver())
    return {
        "KOPS_CUDA_DRIVER": driver, "KOPSD_CUDA_DRIVER": driver, "KOPSD_SERVER_BACKEND": "auto", "KOPSD_CUDA_BLASLT": "none",
        "KOPS_STANDIN_DEVICES": str(gpus), **Control().env, **more,
    }  # fmt: skip


class Machines:
    """`fill(count)` brings nodes, `node(env)` one more; a context manager that is connected to the cluster."""

    def __init__(self) -> None:
        assert not ray.is_initialized(), "one cluster at a time: a process is connected to one"
        self.folder = Path(tempfile.mkdtemp(prefix="kops-ray-"))
        self._kept = dict(os.environ)
        for name in [name for name in os.environ if name.startswith(("KOPS_SOCKET", "KOPSD_", "XDG_"))]:
            del os.environ[name]
        os.environ.update(environment())
        self.places: dict[Any, Path] = {}  # of the nodes
        self.nodes: list[Any] = []  # those without GPUs
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        )
        try:
            ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        except BaseException:
            self.close()
            raise

    def fill(self, count: int) -> None:
        """Until there are so many nodes without GPUs, and no others."""
        for node in self.nodes[count:]:
            self.remove(node)
        while len(self.nodes) < count:
            self.node()
        proc.eventually(lambda: sum(node["Alive"] for node in ray.nodes()) == 1 + count, lambda: f"{count} nodes, but {ray.nodes()}")

    def node(self, env: dict[str, str] | None = None, **how: Any) -> Any:
        place = Path(tempfile.mkdtemp(dir=self.folder))
        own = {name: str(place) for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HOME")}
        how = {"num_cpus": 1, "num_gpus": 0, **how}
        made = self.cluster.add_node(object_store_memory=STORE, env_vars={**own, "CACHE_DIRECTORY": str(place), **(env or {})}, **how)
        self.places[made] = place
        if not how["num_gpus"]:
            self.nodes.append(made)
        return made

    @contextlib.contextmanager
    def gpus(self, env: dict[str, str], **how: Any) -> Iterator[Any]:
        """A node with GPUs, for a while."""
        made = self.node(env, **how)
        try:
            yield made
        finally:
            self.remove(made)
            proc.eventually(lambda: ray.cluster_resources().get("GPU", 0) == 0, "the node has gone")

    def remove(self, node: Any) -> None:
        """In peace."""
        self.cluster.remove_node(node, allow_graceful=True)
        stop_daemon(self.places.pop(node) / "kopsd.sock")
        if node in self.nodes:
            self.nodes.remove(node)

    def kill(self, node: Any, daemon: int) -> None:
        """A node goes as a machine does: at once, with its daemon."""
        supervisor = supervisor_of(daemon)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
        end_both(supervisor, daemon)

    def log(self) -> str:
        """Of the daemons."""
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in self.folder.rglob("kopsd.log"))

    def wait_free(self) -> None:
        """Until no actor holds anything."""
        def are() -> tuple[dict[str, float], dict[str, float]]:
            return _amounts(ray.available_resources()), _amounts(ray.cluster_resources())

        proc.eventually(lambda: are()[0] == are()[1], lambda: "free {} of {}".format(*are()))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            ray.shutdown()
        with contextlib.suppress(Exception):
            self.cluster.shutdown()
        for place in self.places.values():
            stop_daemon(place / "kopsd.sock")
        os.environ.clear()
        os.environ.update(self._kept)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _amounts(resources: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in resources.items() if name in ("CPU", "GPU")}


def supervisor_of(daemon: int) -> int:
    """Its parent, which must be no other process: who asks means to end it."""
    parent = proc.status(daemon, "PPid")
    program = os.readlink(f"/proc/{parent}/exe")
    assert Path(program).name == binary().name, f"the parent of the daemon {daemon} is {program} ({parent})"
    return parent


def daemon_pid(path: Path) -> int | None:
    """Of the supervisor, which made the socket and starts the daemon again."""
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


def end_both(supervisor: int, daemon: int) -> None:
    """A daemon may end by itself once its supervisor has."""
    end(supervisor)
    with contextlib.suppress(ProcessLookupError):
        end(daemon)


def stop_daemon(path: Path) -> None:
    pid = daemon_pid(path)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGTERM)


def meet(folder: Any, count: int, i: int) -> None:
    """By an item: returns when so many of them run at one time, or have begun."""
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, str(i)), "w").close()
    proc.eventually(lambda: len(os.listdir(folder)) >= count, "all run at one time")


def wait_for(pool: Any, count: int) -> None:
    """Until so many workers have begun: a pool looks for them while it works."""
    import kops.ray

    def begun() -> bool:
        list(kops.ray.map(lambda k, i: i, [0], pool=pool))
        return len(pool.workers) == count

    proc.eventually(begun, f"{count} workers have begun")
