"""Hostile code in an executor reaches nothing of the daemon's, of other executors' or of the machine's.

hostile_driver.c is the stand-in driver with attacks in it. It takes its orders from the client's shared memory, and writes
there what came of each attempt: once on a thread that prepares jobs, once on the loop."""

from __future__ import annotations

import errno
import os
import pwd
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpu_machine import N, only_with_the_standin
from standin_cuda.control import Control
from support import backends, memfd, proc, raw
from support import daemon as daemons
from support.daemon import Daemon
from support.raw import tensor
from support.users import STRANGER, as_root

pytestmark = only_with_the_standin

ORDERS, OUTCOME, MOST, ROUNDS = struct.Struct("8sii256s256s256s"), struct.Struct("40sii"), 96, 2
SIZE = -(-(ORDERS.size + ROUNDS * MOST * OUTCOME.size) // 4096) * 4096
REFUSED = {errno.EPERM, errno.EACCES}
# Refused in another way. What begins with + is no attack, but what a driver needs.
OTHERWISE = {"clone3": errno.ENOSYS, "variable": errno.ENOENT, "kill, group": errno.ESRCH}
COMPLETE = "event=executor_sandbox state=complete"
WORK_ANYWHERE = {
    *(f"{whom}: {what}" for whom in ("daemon", "other") for what in ("kill", "tgkill", "prlimit", "affinity", "priority")),
    *("daemon: owner of a file, wide", "daemon: command line", "secret", "/etc/passwd", "/", "file in a folder for all"),
    *("chmod", "unix socket", "connect", "datagrams", "fork", "execve", "variable"),
}
users = pytest.mark.parametrize("user", [pytest.param(None, id="as_is"), pytest.param(STRANGER, id="ordinary", marks=as_root)])


class Machine:
    """A daemon whose executors have the hostile driver. All users can read its folder."""

    def __init__(self, folder: Path, sandbox: str, user: int | None, more: str) -> None:
        folder.mkdir()
        folder.chmod(0o755)
        for name in ("libcuda_standin.so", "libcuda_hostile.so"):
            shutil.copy(daemons.build_folder() / "lib" / name, folder)
            (folder / name).chmod(0o755)
        self.control = Control()
        self.open = folder / "open"
        self.open.mkdir()
        self.open.chmod(0o777)
        config = f"[cuda]\ndriver = {folder}/libcuda_hostile.so\nblaslt = none\n[executors]\nisolate = none\n{more}"
        env = {**self.control.env, "KOPSD_SERVER_SANDBOX": sandbox, "HOSTILE_SECRET": "told"}
        self.daemon = Daemon(config=config, env=env, user=user)

    @property
    def executor(self) -> int:
        (pid,) = proc.executors(self.daemon.pid)
        return pid

    def make_secret(self) -> Path:
        """Where the daemon has the cache's, of which it has made none."""
        secret = self.daemon.folder / "cache" / "secret"
        secret.parent.mkdir(mode=0o700, exist_ok=True)
        secret.write_bytes(bytes(32))
        secret.chmod(0o600)
        if self.daemon.user is not None:
            os.chown(secret.parent, self.daemon.user, self.daemon.user)
            os.chown(secret, self.daemon.user, self.daemon.user)
        return secret

    def attack(self, other: int) -> list[dict[str, int]]:
        """The errno of each attempt, 0 where it succeeded, in each round. `other`: an executor of another daemon."""
        shared, into = memfd.Shared(SIZE), memfd.Shared(4096)
        texts = (os.fsencode(path) for path in (self.make_secret(), self.daemon.socket_path, self.open))
        shared.bytes[: ORDERS.size] = list(ORDERS.pack(b"hostile", self.daemon.pid, other, *texts))
        with self.daemon.connect() as connection:
            gpu = next(d["uuid"] for d in connection.call("hello")["devices"] if d["backend"] == "cuda")
            views = [tensor(connection.register(memory), [N]) for memory in (shared, into)]
            connection.run("square", views[:1], views[1:], device=gpu)
        rows = shared.bytes[ORDERS.size : ORDERS.size + ROUNDS * MOST * OUTCOME.size].tobytes()
        noted = [(name.rstrip(b"\0").decode(), error, done) for name, error, done in OUTCOME.iter_unpack(rows)]
        return [{name: error for name, error, done in noted[i * MOST :][:MOST] if done} for i in range(ROUNDS)]


@contextmanager
def attacked(sandbox: str, user: int | None, more: str = "") -> Iterator[tuple[Machine, list[dict[str, int]]]]:
    """Two daemons, one of whose executors attacks. Where this system has no whole sandbox, the test is skipped."""
    top = Path(tempfile.mkdtemp(prefix="kops-test-"))
    top.chmod(0o755)
    try:
        other = Machine(top / "other", sandbox, user, more)
        with other.daemon:
            machine = Machine(top / "machine", sandbox, user, more)
            with machine.daemon:
                if sandbox == "auto" and COMPLETE not in machine.daemon.log():
                    pytest.skip(f"no whole sandbox here: {machine.daemon.log()}")
                yield machine, machine.attack(other.executor)
                assert machine.daemon.running()
    finally:
        shutil.rmtree(top, ignore_errors=True)


def refused(rows: dict[str, int]) -> set[str]:
    return {name for name, error in rows.items() if error in (*REFUSED, OTHERWISE.get(name.partition(": ")[2] or name))}


@users
def test_nothing_can_be_reached(user: int | None) -> None:
    with attacked("auto", user) as (machine, rounds):
        for rows in rounds:
            assert len(rows) > 60
            needs = {name for name in rows if name.startswith("+")}
            assert rows.keys() - refused(rows) == needs, rows
            assert not any(rows[name] for name in needs), rows

        def forged() -> int:
            return sum('text="level=error event=forged"' in line for line in machine.daemon.log().splitlines())

        proc.eventually(lambda: forged() == ROUNDS, "all that it says is in the log, as its words")
        lines = machine.daemon.log().splitlines()
        assert not any(line.startswith("level=error event=forged") for line in lines), "it writes to the log itself"


@users
def test_without_a_sandbox_the_attacks_work(user: int | None) -> None:
    """So the test above tests the sandbox. What a container or this system's settings may refuse, is left out."""
    with attacked("off", user) as (machine, rounds):
        for rows in rounds:
            assert not refused(rows) & WORK_ANYWHERE, rows
            assert rows.keys() >= WORK_ANYWHERE
        assert any(line.startswith("level=error event=forged") for line in machine.daemon.log().splitlines())


NOBODY = "isolate = none\nuser = no-such-user\n[server]\nsandbox = {}\n"


@pytest.mark.parametrize(
    ("settings", "status", "why"),
    [
        pytest.param("[server]\nsandbox = perhaps\n", 2, '"perhaps" is none of auto, required, best_effort, off', id="mode"),
        pytest.param(NOBODY.format("auto"), 1, "the user no-such-user is not known", id="auto", marks=as_root),
        pytest.param(NOBODY.format("required"), 1, "the user no-such-user is not known", id="required", marks=as_root),
    ],
)
def test_settings_are_checked(tmp_path: Path, settings: str, status: int, why: str) -> None:
    (tmp_path / "conf").write_text(f"{backends.config(backends.STANDIN)}[executors]\n{settings}", encoding="utf-8")
    command = [daemons.binary(), "--config", tmp_path / "conf", "--socket", tmp_path / "socket"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=raw.PATIENCE, check=False)
    assert done.returncode == status and why in done.stderr


@as_root
def test_the_user_is_taken() -> None:
    with attacked("auto", None, "user = daemon\n") as (machine, rounds):
        status = Path(f"/proc/{machine.executor}/status").read_text(encoding="utf-8")
        assert re.search(r"^Uid:\s+(\d+)\s+\1\s+\1\s+\1$", status, re.M)[1] == str(pwd.getpwnam("daemon").pw_uid)
        assert re.search(r"^CapEff:\s+0+$", status, re.M) and re.search(r"^NoNewPrivs:\s+1$", status, re.M)
        assert all(rows["secret"] in REFUSED for rows in rounds)
