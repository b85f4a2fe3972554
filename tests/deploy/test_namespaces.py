"""Containers: which namespaces a client may have of its own. Shared memory travels as descriptors and needs none in
common but a way to the socket; tests/gpu/test_namespaces.py has the others, for each kind of memory."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import binary, needs, run
from support import proc, raw
from support.contained import PID, Contained, unshare
from support.daemon import Daemon, reachable
from support.memfd import Shared

USER = ["--user", "--map-root-user"]
NAMESPACES = {"user": USER, "uts": ["--uts"], "cgroup": ["--cgroup"], "all": [*USER, *PID, "--ipc", "--net", "--mount", "--uts"]}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon("--backend", "host") as started:
        yield started


@pytest.mark.parametrize("kind", NAMESPACES)
def test_a_client_in_namespaces_of_its_own(daemon: Daemon, kind: str) -> None:
    start = unshare(*NAMESPACES[kind])
    done = run(*start, str(binary("kopsctl")), "--socket", daemon.socket_path, "run", "gemm", "--shape", "64x48,48x32", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_daemon_knows_a_contained_client_by_its_own_names(daemon: Daemon) -> None:
    """Root of a user namespace is no root of the daemon's: it may not do what administrators may."""
    if os.geteuid() != 0:
        pytest.skip("takes root, to be another user first")
    start = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", *unshare("--user", "--map-root-user")]
    needs("setpriv")
    os.chmod(daemon.socket_path, 0o666)
    program, inner = str(reachable(daemon.folder, "kopsctl")), daemon.folder / "inner"
    # Anybody can make a folder in /tmp, and root outside is nobody in particular in here: the folder tells them apart.
    asked = run(*start, program, "--socket", daemon.socket_path, "ping", "--count", "1")
    assert asked.returncode == 3 and "KOPS_TRUST_USER=65534" in asked.stderr, asked.stderr
    asked = run(*start, "env", "KOPS_TRUST_USER=65534", program, "--socket", daemon.socket_path, "ping", "--count", "1")
    assert asked.returncode == 0, asked.stderr
    inner.mkdir(mode=0o755)
    (inner / "kopsd.sock").symlink_to(daemon.socket_path)
    asked = run(*start, program, "--socket", str(inner / "kopsd.sock"), "cache", "clear")
    assert asked.returncode != 0
    assert "permission" in asked.stderr or "administrator" in asked.stderr or "only" in asked.stderr, asked.stderr


def add(connection: raw.Connection, count: int = 1000) -> None:
    shared = Shared(8 * count)
    numbers = shared.view("f4", 2 * count)
    numbers[:count] = range(count)
    buffer = connection.register(shared)
    tensor = raw.tensor(buffer, [count])
    connection.run("add", [tensor, tensor], [raw.tensor(buffer, [count], offset=4 * count)])
    assert numbers[count + 1] == 2 and numbers[2 * count - 1] == 2 * (count - 1)


def test_a_daemon_in_a_user_namespace_of_its_own() -> None:
    with Contained(USER, "--backend", "host") as daemon:
        daemon.start()
        with daemon.connect() as connection:
            add(connection)


def tells_peers_of_any_namespace() -> bool:
    """SO_PEERPIDFD, of Linux 6.5."""
    one, other = socket.socketpair()
    with one, other:
        try:
            os.close(struct.unpack("i", one.getsockopt(socket.SOL_SOCKET, 77, 4))[0])
        except OSError:
            return False
    return True


@pytest.mark.parametrize("heir", [False, True])
def test_a_client_without_a_pid_holds_nothing_after_its_end(heir: bool) -> None:
    """The daemon does not know its process's number. Where the kernel gives it the process itself, the connection ends with
    that, also where a child keeps the socket."""
    if heir and not tells_peers_of_any_namespace():
        pytest.skip("this kernel has no SO_PEERPIDFD")
    script = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from support import raw; from support.memfd import Shared\n"
        "c = raw.Connection(sys.argv[1]); c.register(Shared(4096))\n"
        f"if not ({heir} and os.fork() == 0): print('registered', flush=True)\n"
        "sys.stdin.read()"
    )
    with Contained(PID, "--backend", "host") as daemon:
        daemon.start()

        def held() -> tuple[int, int]:
            found = proc.holdings(daemon.inner)
            return found["fd socket"], found.get("memfd maps", 0)

        before = held()
        with daemon.connect() as connection:
            add(connection)
        proc.eventually(lambda: held() == before, lambda: f"{before}, but {held()}")
        client = subprocess.Popen(
            [sys.executable, "-c", script, daemon.socket_path, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert client.stdout is not None and client.stdout.readline() == b"registered\n"
        assert held() != before
        client.kill()
        client.wait()
        proc.eventually(lambda: held() == before, lambda: f"{before}, but {held()}")
        client.communicate()  # the end of its input ends the child


@pytest.mark.parametrize("contained", [False, True])
def test_a_pod_is_its_namespace(contained: bool) -> None:
    """As in Kubernetes: root in namespaces of its own, with the folder of its namespace's socket, which it cannot write
    to. The daemon, in namespaces of its own or not, knows it by that socket alone."""
    start = unshare(*NAMESPACES["all"] if os.geteuid() else [*PID, "--ipc", "--net", "--mount", "--uts"])
    with Contained([*PID, "--ipc"] if contained else [], "--backend", "host") as daemon:
        folder = daemon.folder / "namespaces" / "team-a"
        folder.mkdir(parents=True)
        (daemon.folder / "kopsd.conf").write_text(f"[socket *]\npath = {folder.parent}/*/kopsd.sock\nmode = 0666\n", encoding="utf-8")
        daemon.start()
        read_only = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        kopsctl = f"{binary('kopsctl')} --socket {folder}/kopsd.sock"
        script = (
            f"{read_only}; ! touch {folder}/x 2>/dev/null || echo writable; id -u; {kopsctl} run gemm --shape 64x48,48x32 --check;"
            f"{kopsctl} clients --json; {kopsctl} drain"
        )
        done = run(*start, "sh", "-c", script)
        assert done.stdout.startswith("0\n"), done.stdout + done.stderr
        (client,) = json.loads(done.stdout[done.stdout.index("{") :])["clients"]
        assert client["identity"] == "team-a" and (client["pid"] == 0) == contained
        assert 'identity "team-a" may not do this' in done.stderr
        with daemon.connect() as connection:
            assert connection.alive()
            assert "team-a" not in {row.get("identity") for row in connection.call("clients")["clients"]}
