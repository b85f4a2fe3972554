"""Executors in their sandbox do with a real driver what executors without one do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import numpy as np
import pytest
from support import proc
from support.daemon import Daemon
from support.raw import RpcError, tensor
from workers import Worker

N = 1 << 20
STRANGER = 54321
USERS = ["none", *(["nobody"] if os.getuid() == 0 else [])]


def confined(user: str = "none", sandbox: str = "auto") -> Daemon:
    config = f"[server]\nsandbox = {sandbox}\n[executors]\nisolate = none\nuser = {user}\n"
    return Daemon(config=config, env={"KOPSD_EXECUTORS_ISOLATE": "none"})


@pytest.fixture(scope="module", params=USERS)
def machine(torch: Any, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with confined(request.param) as daemon:
        if "event=executor_sandbox state=complete" not in daemon.log():
            pytest.skip(f"no whole sandbox here:\n{daemon.log()}")
        yield daemon


def test_ops_on_all_memory(torch: Any, machine: Daemon) -> None:
    """CUDA IPC, memory of alloc, shared host memory, ordered and blocking."""
    a = torch.arange(N, device="cuda", dtype=torch.float32)
    with kops.connect(machine.socket_path) as k:
        for _ in range(3):
            assert torch.equal(k.add(a, a), a * 2)
        torch.testing.assert_close(k.gemm(a.view(1024, 1024), a.view(1024, 1024)), a.view(1024, 1024) @ a.view(1024, 1024))
        assert (k.add(k.array(np.ones(N, np.float32)), k.array(np.ones(N, np.float32)), device=k.devices[0]) == 2).all()
        with k.program() as p:
            out = k.square(a)
        p.run(blocking=True)
        assert torch.equal(out, a * a)


def test_the_process_is_confined(machine: Daemon) -> None:
    for pid in proc.executors(machine.pid):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["CapEff"].strip("0") == "" and fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", fields
        threads = {(task / "status").read_text(encoding="utf-8").count("Seccomp:\t2") for task in Path(f"/proc/{pid}/task").iterdir()}
        assert threads == {1}, "the driver's threads are confined, too"


def opened(daemon: Daemon, said: dict[str, Any], out: dict[str, Any]) -> bool:
    with daemon.connect() as connection:
        params = {**said, "handle": bytes.fromhex(said["handle"])}
        params.pop("offset")
        try:
            view = tensor(connection.call("register", params)["buffer"], [N])
            connection.run("square", [view], [tensor(connection.call("register", out)["buffer"], [N])])
        except RpcError as error:
            assert error.code == "invalid_handle"
            return False
    return True


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become others")
@pytest.mark.parametrize("user", [None, STRANGER], ids=["own", "other"])
def test_memory_of_users(torch: Any, driver: Any, machine: Daemon, user: int | None) -> None:
    """An executor opens CUDA IPC memory of whom one without a sandbox opens it."""
    if user is not None:
        done = subprocess.run([sys.executable, "-c", "import ctypes"], user=user, check=False, capture_output=True)
        if done.returncode != 0:
            pytest.skip(f"another user cannot run {sys.executable}")
    pointer = driver.alloc(4 * N)
    with Worker("exporter", machine.socket_path, str(4 * N), user=user) as worker:
        said = worker.hear()
        with confined(sandbox="off") as plain:
            expected = opened(plain, said, driver.export(pointer))
        assert opened(machine, said, driver.export(pointer)) == expected
    driver.free(pointer)
