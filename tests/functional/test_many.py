"""Several client processes of both languages at once, over one daemon, each checking all its results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import backends, raw
from support.daemon import Daemon, binary

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 4  # of each language


def python_client(daemon: Daemon) -> subprocess.Popen[str]:
    env = {**os.environ, "KOPS_SOCKET": daemon.socket_path, "PYTHONPATH": str(ROOT / "client_py")}
    script = Path(__file__).resolve().parent / "client_process.py"
    return subprocess.Popen(
        [sys.executable, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def c_client(daemon: Daemon, number: int) -> subprocess.Popen[str]:
    """kopsctl makes its own data and verifies it."""
    op = [
        "run gemm --shape 96x64,64x80",
        "run add --shape 100000",
        "run square --shape 333x77",
        "run gemm --shape 257x129,129x65",
    ][number % 4]
    env = {**os.environ, "KOPS_SOCKET": daemon.socket_path}
    command = [str(binary("kopsctl")), *op.split(), "--repeat", "200", "--check"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("backend", [backends.HOST, backends.STANDIN])
def test_eight_clients(backend: str) -> None:
    why_not = backends.missing(backend)
    if why_not:
        pytest.skip(why_not)
    with Daemon(config=backends.config(backend)) as daemon:
        clients = [python_client(daemon) for _ in range(CLIENTS)] + [c_client(daemon, i) for i in range(CLIENTS)]
        for client in clients:
            output, _ = client.communicate(timeout=raw.PATIENCE)
            assert client.returncode == 0, f"{client.args}:\n{output}"
        with daemon.connect() as connection:
            assert connection.call("stats")["counters"]["protocol_errors"] == 0
