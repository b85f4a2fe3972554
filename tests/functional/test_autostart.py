"""Clients that find no daemon start one for their user: each client, races, what is in the way, and its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ctl.fake import FakeDaemon, Refused
from support import backends, proc, raw
from support.daemon import ROOT, Daemon, binary, build_folder, reachable
from support.users import STRANGER, as_root

NATIVE = build_folder() / "python/kops/_native.abi3.so"
SYSTEM = Path("/run/kopsd/kopsd.sock")
pytestmark = pytest.mark.skipif(SYSTEM.exists(), reason="a daemon of the system comes first")

SYNCHRONOUS = """
import kops, sys
with kops.connect(autostart=sys.argv[1:] != ["off"]) as k:
    assert list(k.add([1.0, 2.0], [3.0, 4.0])) == [4.0, 6.0]
"""
ASYNCHRONOUS = """
import asyncio, kops, sys
async def main():
    async with kops.connect_async(autostart=sys.argv[1:] != ["off"]) as k:
        assert list(await k.add([1.0, 2.0], [3.0, 4.0])) == [4.0, 6.0]
asyncio.run(main())
"""
CLIENTS = ["python", "kopsctl"] + (["compiled", "asyncio"] if NATIVE.exists() else [])
NO_DEVICE = {"KOPSD_SERVER_BACKEND": "cuda", "KOPSD_CUDA_DRIVER": "/none"}
STARTERS = ["python", "kopsctl"]  # what starts it is written twice, in Python and in C


class Place:
    """A user's folders, and the daemon that clients start there."""

    def __init__(self, folder: Path) -> None:
        self.run, self.home = folder / "run", folder / "home"
        for made in (self.run, self.home):
            made.mkdir(mode=0o700)
        self.socket = self.run / "kopsd.sock"
        self.log = self.home / ".local/state/kopsd/kopsd.log"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KOPS_", "KOPSD_", "XDG_"))}
        self.env = {
            **kept, "XDG_RUNTIME_DIR": str(self.run), "HOME": str(self.home), "PYTHONPATH": str(ROOT / "client_py"),
            "KOPSD": str(binary()), "CACHE_DIRECTORY": str(folder / "cache"), "KOPSD_EXECUTORS_SPARES": "0",
            "KOPSD_SERVER_BACKEND": "host", "KOPSD_KERNELS_HELPERS": "1",
        }  # fmt: skip

    def command(self, client: str, *args: str) -> list[str]:
        if client == "kopsctl":
            return [str(binary("kopsctl")), "run", "add", "--shape", "64", "--check"]
        return [sys.executable, "-c", ASYNCHRONOUS if client == "asyncio" else SYNCHRONOUS, *args]

    def start(self, client: str, *args: str, env: dict[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
        env = {**self.env, **(env or {})}
        env["KOPS_NATIVE"] = str(NATIVE) if client in ("compiled", "asyncio") else "0"
        return subprocess.Popen(
            self.command(client, *args), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        )  # type: ignore[call-overload,no-any-return]

    def use(self, client: str, *args: str, env: dict[str, str] | None = None, **options: object) -> tuple[int, str]:
        process = self.start(client, *args, env=env, **options)
        text = process.communicate()[0]
        return process.returncode, text

    def autostart(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(binary()), "--autostart", *args], env={**self.env, **(env or {})}, text=True, capture_output=True)

    def kopsctl(self, command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([str(binary("kopsctl")), command], env=self.env, capture_output=True)

    def pid(self, path: Path | None = None) -> int | None:
        """Of the daemon that listens; None: none does."""
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.connect(str(path or self.socket))
            except OSError:
                return None
            return int(struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def stop(self, path: Path | None = None) -> None:
        pid = self.pid(path)
        if pid:
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGTERM)
            select.select([ended], [], [])
            os.close(ended)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_starts_one_and_the_next_uses_it(place: Place, client: str, tmp_path: Path) -> None:
    """The daemon keeps nothing of the client that has started it."""
    reader, writer = os.pipe()
    assert place.use(client, pass_fds=[writer], cwd=tmp_path)[0] == 0
    os.close(writer)
    assert select.select([reader], [], [], raw.PATIENCE)[0], "the daemon has the pipe of its client"
    assert os.read(reader, 1) == b""
    os.close(reader)
    pid = place.pid()
    assert pid and os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert place.use(CLIENTS[CLIENTS.index(client) - 1])[0] == 0
    assert place.pid() == pid
    assert "event=ready" in place.log.read_text(encoding="utf-8")
    assert place.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("client", STARTERS)
def test_it_ends_when_unused(place: Place, client: str) -> None:
    for _ in range(2):  # and the next client starts the next one
        assert place.use(client, env={"KOPSD_SERVER_IDLE_EXIT_S": "1"})[0] == 0
        pid = place.pid()
        if pid:
            select.select([os.pidfd_open(pid)], [], [])
        proc.eventually(lambda: not place.socket.exists(), "its socket is removed")
    log = place.log.read_text(encoding="utf-8")
    assert log.count('why="no connection for 1 s (server.idle_exit_s)"') == 2 and log.count("event=stopped status=0") == 2


def test_a_connection_keeps_it() -> None:
    with Daemon("--set", "server.idle_exit_s=1") as daemon:
        assert daemon.process
        with daemon.connect() as connection:
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.process.wait(1.5)
            assert connection.alive()
        assert daemon.process.wait() == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_none_is_started(place: Place, client: str) -> None:
    """Where that is switched off, and where a socket is named, which is the only one then."""
    status, text = place.use(client, env={"KOPS_AUTOSTART": "0"})
    assert status and "KOPS_SOCKET" in text
    if client != "kopsctl":
        assert place.use(client, "off")[0]
    assert place.use(client, env={"KOPS_SOCKET": str(place.run / "other.sock")})[0]
    assert not list(place.run.iterdir())


def test_what_looks_at_a_daemon_starts_none(place: Place) -> None:
    for command in ("stats", "clients", "drain", "metrics"):
        assert place.kopsctl(command).returncode == 3, command
    assert not list(place.run.iterdir())


def test_many_at_once_start_one(place: Place) -> None:
    clients = [place.start(CLIENTS[i % len(CLIENTS)]) for i in range(12)]
    for client in clients:
        text = client.communicate()[0]
        assert client.returncode == 0, text
    assert place.log.read_text(encoding="utf-8").count("event=ready") == 1


@pytest.mark.parametrize("made", ["kopsd.start.lock", "kopsd.sock.lock", "kopsd.sock"])
def test_a_starter_is_killed(place: Place, made: str) -> None:
    """At whatever it had come to, the next client is served, by one daemon."""
    starter = subprocess.Popen([str(binary()), "--autostart"], env=place.env, stdout=subprocess.PIPE)
    proc.eventually(lambda: (place.run / made).exists(), "the starter has come that far")
    starter.kill()
    starter.communicate()
    for client in STARTERS:
        status, text = place.use(client)
        assert status == 0, text
    assert place.log.read_text(encoding="utf-8").count("event=ready") == 1


@pytest.mark.parametrize("client", CLIENTS)
def test_a_daemon_of_another_protocol_is_there(place: Place, client: str) -> None:
    """It serves the user's other clients: no client ends it, or starts one beside it."""
    why = "this daemon, kopsd 9.9 (pid 4242), speaks protocols 7 to 7, the client 1: install a newer client"

    def hello(_: object) -> None:
        raise Refused("protocol_mismatch", why, protocol=7, protocol_min=7)

    other = FakeDaemon(place.socket)
    other.answers["hello"] = hello
    try:
        status, text = place.use(client)
        assert status and why in text, text
        assert place.pid() == os.getpid() and not place.log.exists()
    finally:
        place.socket.unlink()  # whoever answers there at the end of the test is ended


@pytest.mark.parametrize(
    ("variables", "whys"),
    [
        (NO_DEVICE, ["no device to serve", "has ended", "kopsd.log"]),
        ({"KOPSD_SERVER_LOG_KB": "77"}, ["KOPSD_SERVER_LOG_KIB"]),
        ({"KOPSD": "/nonexistent/kopsd"}, ["/nonexistent/kopsd", "No such file"]),
        ({"KOPSD": "/bin/true"}, ["without a word"]),
    ],
)
@pytest.mark.parametrize("client", STARTERS)
def test_a_failed_start_says_why(place: Place, client: str, variables: dict[str, str], whys: list[str]) -> None:
    if variables is NO_DEVICE and not backends.cuda_built():
        pytest.skip("kopsd was built without CUDA")
    status, text = place.use(client, env=variables)
    assert status and all(why in text for why in whys), text


# In a mount namespace where neither /run nor /tmp can be written, but for one folder.
READ_ONLY = """
mount -t tmpfs none /run && mount --bind /tmp /tmp && mount --bind "$1" "$1" &&
    mount -o remount,ro,bind /run && mount -o remount,ro,bind /tmp || exit 77
shift
exec "$@"
"""


@as_root
@pytest.mark.parametrize("client", STARTERS)
def test_a_machine_that_cannot_be_written(place: Place, client: str) -> None:
    """As a container whose file system is read only: a directory for the socket is all that is needed, and the error says so."""
    folder = place.home / "runtime"
    folder.mkdir(mode=0o700)

    def run(runtime: str) -> subprocess.CompletedProcess[str]:
        env = {
            **place.env, "XDG_RUNTIME_DIR": runtime, "HOME": "/proc/self", "CACHE_DIRECTORY": "", "KOPSD_SERVER_IDLE_EXIT_S": "1",
            "KOPS_NATIVE": "0",
        }  # fmt: skip
        within = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", str(folder)]
        done = subprocess.run([*within, *place.command(client)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == 77 or "unshare" in done.stdout:
            pytest.skip("no mount namespace here")
        return done

    for runtime in ("", str(place.run)):
        done = run(runtime)
        assert done.returncode and "Read-only file system" in done.stdout and "set XDG_RUNTIME_DIR to a directory" in done.stdout
    done = run(str(folder))
    assert done.returncode == 0, done.stdout
    assert "event=ready" in (folder / "kopsd.log").read_text(encoding="utf-8")
    proc.eventually(lambda: not (folder / "kopsd.sock").exists(), "the daemon ends when unused")


def test_a_log_of_bounded_size(place: Place) -> None:
    assert place.autostart("--set", "server.log_kib=16").stdout == f"{place.socket}\n"
    with place.log.open("a", encoding="utf-8") as log:
        for i in range(10_000):
            log.write(f"level=info event=filler number={i}\n")
    pid = place.pid()
    assert pid
    os.kill(pid, signal.SIGHUP)
    proc.eventually(lambda: place.log.stat().st_size <= 16 << 10, "the log is short")
    assert place.log.read_text(encoding="utf-8").startswith("level=info event=filler number=9")
    os.kill(pid, signal.SIGHUP)  # a line that was written while the log was trimmed may be lost
    proc.eventually(lambda: "event=reload done=true" in place.log.read_text(encoding="utf-8"), "the log goes on")


def as_user(uid: int, command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, text=True, capture_output=True, cwd="/", user=uid, group=uid, extra_groups=[])


@as_root
def test_folders_of_other_users(place: Place, public: Path) -> None:
    """A user whose variables are another user's, as after su: neither that user's folder is used, nor one in /tmp that
    somebody else has made."""
    uid, own = 45671, Path("/tmp/.kopsd-45671")
    program, ctl = str(reachable(public)), str(reachable(public, "kopsctl"))
    try:
        for make in (lambda: own.mkdir(), lambda: own.symlink_to(place.run), lambda: own.write_text("", encoding="utf-8")):
            make()
            done = as_user(uid, [program, "--autostart"], place.env)
            assert done.returncode == 1 and str(own) in done.stderr and "XDG_RUNTIME_DIR" in done.stderr
            own.rmdir() if own.is_dir() and not own.is_symlink() else own.unlink()
        own.mkdir()
        own.chmod(0o777)
        os.chown(own, uid, uid)
        assert "others may write" in as_user(uid, [program, "--autostart"], place.env).stderr
        own.rmdir()
        done = as_user(uid, [program, "--autostart"], place.env)
        assert done.stdout == f"{own}/kopsd.sock\n", done.stderr
        assert own.stat().st_uid == uid and own.stat().st_mode & 0o777 == 0o700
        assert not list(place.run.iterdir())
        env = {k: v for k, v in place.env.items() if k != "XDG_RUNTIME_DIR"}
        for variables in (place.env, env):  # a command that starts none finds it, too
            done = as_user(uid, [ctl, "stats"], variables)
            assert done.returncode == 0, done.stderr
        place.stop(own / "kopsd.sock")
    finally:
        subprocess.run(["rm", "-rf", str(own)], check=True)


@as_root
@pytest.mark.parametrize(("mode", "starts"), [(0o755, True), (0o4755, False)])
def test_a_program_of_root_starts_nothing_for_others(place: Place, public: Path, mode: int, starts: bool) -> None:
    """A set-user-ID program would run what the variables of its caller name."""
    program, named = reachable(public, "kopsctl"), public / "named"
    program.chmod(mode)
    named.write_text("#!/bin/sh\nid -u\n")
    named.chmod(0o755)
    done = as_user(STRANGER, [str(program), "run", "add", "--shape", "64"], {**place.env, "KOPSD": str(named)})
    assert done.returncode != 0 and ("could be started" in done.stderr) == starts, done.stderr


# In a mount namespace with a /run of its own: other tests look there as well.
SYSTEMS = """
import os, socket, subprocess, sys
os.mkdir("/run/kopsd")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/kopsd/kopsd.sock")
listener.listen()
os.chmod("/run/kopsd/kopsd.sock", 0o600)
how = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": "/"}
for who in ({"user": 45672, "group": 45672, "extra_groups": []}, {}):
    print(subprocess.run([sys.argv[1], "--autostart"], **how, **who).stdout.strip())
"""


@as_root
def test_a_daemon_of_the_system_comes_first(place: Place, public: Path) -> None:
    """Also for a user whom it does not let in: none of that user's own is started in its place."""
    program = reachable(public)
    within = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run || exit 77; exec "$@"', "sh"]
    done = subprocess.run([*within, sys.executable, "-c", SYSTEMS, str(program)], env=place.env, text=True, capture_output=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace here")
    refused, taken = done.stdout.splitlines()
    assert str(SYSTEM) in refused and "Permission denied" in refused and "KOPS_SOCKET" in refused
    assert taken == str(SYSTEM)
    assert not list(place.run.iterdir())
