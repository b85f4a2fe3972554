"""Which namespaces a client and the daemon may have of their own, for each kind of memory: real namespaces, by unshare.

With a GPU the test finds that out and writes it down: KOPS_NAMESPACES_JSON names the file. `python3
tests/gpu/test_namespaces.py FILE` prints it as the table of deploy/KUBERNETES.md. What must hold everywhere is checked:
the right numbers or an error, and a daemon that goes on. The stand-in driver shares memory by /proc, so that its
answers in other pid namespaces say nothing about a GPU's driver; with it the test shows how the daemon answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from support import backends, raw
from support.contained import PID, Contained, unshare

CLIENT = Path(__file__).resolve().parent / "namespace_client.py"
KINDS = ("memfd", "alloc", "cuda_vmm", "cuda_pool", "cuda_ipc", "torch", "torch_expandable")
NAMESPACES = {
    "none": [],
    "pid": PID,
    "ipc": ["--ipc"],
    "mount": ["--mount"],
    "net": ["--net"],
    "pid and ipc": [*PID, "--ipc"],
    "a pod's": [*PID, "--ipc", "--net", "--mount", "--uts", "--cgroup"],
}
# Whose namespaces are other ones than the test's. As with pods, both have others than each other.
SIDES = ("client", "both")


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, Any]]:
    """The answers; written when all are there."""
    answers: dict[str, Any] = {}
    yield answers
    path = os.environ.get("KOPS_NAMESPACES_JSON")
    if path and answers:
        Path(path).write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


def asks_for_torch(kind: str, backend: str) -> bool:
    return kind.startswith("torch") and backend == backends.CUDA


@pytest.mark.parametrize("namespaces", NAMESPACES)
@pytest.mark.parametrize("side", SIDES)
def test_namespaces(backend: str, driver: Any, table: dict[str, Any], side: str, namespaces: str) -> None:
    start = unshare(*NAMESPACES[namespaces])
    with Contained(NAMESPACES[namespaces] if side == "both" else [], config=backends.config(backend)) as daemon:
        daemon.start()
        with daemon.connect() as connection:
            table.setdefault("machine", describe(connection, backend))
        kinds = [kind for kind in KINDS if not kind.startswith("torch") or asks_for_torch(kind, backend)]

        def ask(kind: str) -> subprocess.CompletedProcess[str]:
            command = [*start, sys.executable, str(CLIENT), daemon.socket_path, kind]
            return subprocess.run(command, capture_output=True, text=True, timeout=raw.PATIENCE, check=False)

        with ThreadPoolExecutor(len(kinds)) as pool:
            found = list(pool.map(ask, kinds))
        for kind, done in zip(kinds, found):
            assert done.returncode == 0, done.stderr + done.stdout
            said = json.loads(done.stdout.splitlines()[-1])
            table.setdefault("answers", {}).setdefault(side, {}).setdefault(namespaces, {})[kind] = said
            assert said["result"] != "wrong", (kind, said)  # that may never be
            if kind == "memfd" or namespaces == "none":
                assert said["result"] == "right", (kind, said, daemon.log())
        with daemon.connect() as connection:
            assert connection.alive(), daemon.log()


def describe(connection: raw.Connection, backend: str) -> dict[str, Any]:
    hello = connection.call("hello")
    gpus = [device["name"] for device in hello["devices"] if device["backend"] == "cuda"]
    version = Path("/proc/driver/nvidia/version")
    return {
        "server": hello["server"],
        "gpus": gpus if backend == backends.CUDA else [],
        "driver": version.read_text(encoding="utf-8").splitlines()[0] if version.exists() else "stand-in",
        "kernel": os.uname().release,
        "isolation": hello["isolation"],
    }


def markdown(table: dict[str, Any]) -> str:
    """The table of deploy/KUBERNETES.md."""
    answers = table["answers"]
    kinds = [kind for kind in KINDS if any(kind in row for rows in answers.values() for row in rows.values())]
    lines = ["| namespaces of their own | " + " | ".join(kinds) + " |", "| --- |" + " --- |" * len(kinds)]
    for side, rows in answers.items():
        for namespaces, row in rows.items():
            cells = [row.get(kind, {}).get("code") or row.get(kind, {}).get("result", "") for kind in kinds]
            lines.append(f"| {side}: {namespaces} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
