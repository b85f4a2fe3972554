"""The listening socket: nobody puts anything in its place, and who may connect is settled before anybody can."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from support import backends, proc, raw
from support.daemon import Daemon, binary, run_once
from support.kernels import ARCH, compile_source
from support.users import as_root

CONFIG = backends.config(backends.HOST)
NOBODY = 65534


def refused(path: str | Path, *more: str, env: dict[str, str] | None = None) -> str:
    """The log of a daemon that does not start."""
    done = run_once("--config", "/dev/null", "--set", "cuda.driver=none", "--socket", path, *more, env=env)
    assert done.returncode == 1, done.stderr
    return done.stderr


# ---- what others may have put there ----


def test_a_folder_that_everybody_may_write_to(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    assert "chmod o-w" in refused(tmp_path / "kopsd.sock")
    assert not list(tmp_path.iterdir())


def test_a_sticky_folder_is_fine(tmp_path: Path) -> None:
    """As /tmp: only a file's owner replaces it."""
    os.chmod(tmp_path, 0o1777)
    with Daemon(config=CONFIG, socket_path=str(tmp_path / "kopsd.sock")) as daemon, daemon.connect() as connection:
        assert connection.alive()


@pytest.mark.parametrize("target", ["file", "socket", "nothing"])
def test_a_link_in_its_place_is_not_followed(target: str, tmp_path: Path) -> None:
    path, other = tmp_path / "kopsd.sock", tmp_path / "other"
    if target == "file":
        other.write_text("keep me")
    elif target == "socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(other))
    path.symlink_to(other)
    assert "is no socket" in refused(path)
    assert path.is_symlink()
    assert other.exists() == (target != "nothing")


@pytest.mark.parametrize("what, why", [("link", "kopsd.sock.lock"), ("pipe", "not kopsd's own"), ("somebody else's", "remove it")])
def test_what_is_in_place_of_the_lock(what: str, why: str, tmp_path: Path) -> None:
    """A link is not followed, and a pipe not waited for. Who holds the lock could keep the daemon from starting for ever."""
    lock = tmp_path / "kopsd.sock.lock"
    if what == "link":
        lock.symlink_to(tmp_path / "victim")
    elif what == "pipe":
        os.mkfifo(lock)
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    else:
        lock.touch()
        os.chown(lock, NOBODY, NOBODY)
    assert why in refused(tmp_path / "kopsd.sock")
    assert not (tmp_path / "victim").exists() and not (tmp_path / "kopsd.sock").exists()


def test_a_socket_that_is_alive_is_left_alone(tmp_path: Path) -> None:
    """Also one that is too busy to take another connection: that is none of a dead daemon's."""
    path = tmp_path / "kopsd.sock"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(path))
        assert "another program listens" in refused(path)
        assert path.is_socket()


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_socket_of_another_program_is_left_alone(kind: int, tmp_path: Path) -> None:
    """Also where it does not listen yet."""
    path = tmp_path / "kopsd.sock"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        before = path.stat().st_ino
        assert "another program" in refused(path)
        assert path.stat().st_ino == before
    with Daemon(socket_path=str(path)) as daemon:  # its maker has gone
        assert daemon.connect().alive()


def test_of_many_that_start_at_once_one_serves(tmp_path: Path) -> None:
    """A stale socket is in the way of all of them, and each would clear it."""
    path = tmp_path / "kopsd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    env = {**os.environ, "CACHE_DIRECTORY": str(tmp_path / "cache")}
    command = [str(binary()), "--config", "/dev/null", "--set", "cuda.driver=none", "--socket", str(path)]
    daemons = [subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) for _ in range(6)]
    try:
        proc.eventually(lambda: sum(d.poll() is None for d in daemons) <= 1, "all but one have given up")
        (winner,) = [d for d in daemons if d.poll() is None]
        assert all(d.returncode == 1 for d in daemons if d is not winner)
        with raw.Connection(str(path)) as connection:
            assert connection.call("hello")["pid"] == winner.pid
        winner.send_signal(signal.SIGTERM)
        assert winner.wait(raw.PATIENCE) == 0
    finally:
        for daemon in daemons:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


def test_a_lock_that_is_about_to_go_is_waited_for(tmp_path: Path) -> None:
    """A process that a killed daemon was starting holds it until it runs its own program."""
    path, lock = tmp_path / "kopsd.sock", tmp_path / "kopsd.sock.lock"
    env = {**os.environ, "CACHE_DIRECTORY": str(tmp_path / "cache")}
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [str(binary()), "--config", "/dev/null", "--set", "cuda.driver=none", "--socket", str(path)]
        daemon = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        try:
            proc.eventually(lambda: str(lock) in proc.fds(daemon.pid), "it has opened the lock")
            fcntl.flock(held, fcntl.LOCK_UN)
            proc.eventually(lambda: path.is_socket() or daemon.poll() is not None, "it has a socket")
            with raw.Connection(str(path)) as connection:
                assert connection.call("hello")["pid"] == daemon.pid
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


def test_only_its_own_socket_is_removed() -> None:
    """What somebody has put in its place since is not."""
    with Daemon(config=CONFIG) as daemon:
        os.unlink(daemon.socket_path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(daemon.socket_path)
            daemon.stop()
            assert stat.S_ISSOCK(os.stat(daemon.socket_path).st_mode)


# ---- who may connect ----


@pytest.mark.parametrize("mask", [0, 0o077])
@pytest.mark.parametrize("mode", ["0660", "0600", "0666"])
def test_the_mode_is_what_was_said(mode: str, mask: int) -> None:
    """Whatever the umask is."""
    before = os.umask(mask)
    try:
        daemon = Daemon(config=CONFIG + f"[server]\nsocket_mode = {mode}\n")
    finally:
        os.umask(before)
    with daemon:
        assert stat.S_IMODE(os.stat(daemon.socket_path).st_mode) == int(mode, 8)


@as_root
@pytest.mark.parametrize("group", ["nogroup", str(NOBODY)])
def test_the_group_is_what_was_said(group: str) -> None:
    with Daemon(config=CONFIG + f"[server]\nsocket_group = {group}\n") as daemon:
        assert os.stat(daemon.socket_path).st_gid == NOBODY


@pytest.mark.parametrize("setting, why", [("socket_group=no_such_group", "no group"), ("user=no_such_user", "there is no user")])
def test_names_that_nobody_has(setting: str, why: str, tmp_path: Path) -> None:
    if setting.startswith("user") and os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    assert why in refused(tmp_path / "kopsd.sock", "--set", f"server.{setting}")
    assert not (tmp_path / "kopsd.sock").exists()


# ---- from a service manager ----


@pytest.mark.parametrize("kind", ["file", "datagram", "connected", "internet"])
def test_what_is_inherited_must_be_a_listening_unix_socket(kind: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "file":
            given = stack.enter_context(open(os.devnull, "rb")).fileno()
        elif kind == "datagram":
            given = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).fileno()
        elif kind == "connected":
            one, other = socket.socketpair()
            stack.callback(other.close)
            given = stack.enter_context(one).fileno()
        else:
            listener = stack.enter_context(socket.socket(socket.AF_INET))
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            given = listener.fileno()
        assert "from the service manager" in activated(given, "1")


@pytest.mark.parametrize("count", ["2", "many", "-1", "1x"])
def test_exactly_one_socket_is_inherited(count: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen()
        assert "kopsd takes one" in activated(listener.fileno(), count)


def activated(fd: int, count: str) -> str:
    shell = 'exec 3<&"$1"; shift; export LISTEN_PID=$$; exec "$@"'
    done = subprocess.run(
        ["/bin/bash", "-c", shell, "bash", str(fd), str(binary()), "--config", "/dev/null", "--socket", "/unused"],
        env={**os.environ, "LISTEN_FDS": count},
        pass_fds=[fd],
        capture_output=True,
        text=True,
        timeout=raw.PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


# ---- rights ----


def words(pid: int, key: str) -> list[str]:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return line.split()[1:]
    raise KeyError(key)


@as_root
def test_root_s_rights_are_given_up(public: Path) -> None:
    """User, groups, capabilities, and the way back; then it serves, and cleans up after itself where it may."""
    os.chmod(public, 0o1777)
    path = str(public / "kopsd.sock")
    with Daemon(config=CONFIG + "[server]\nuser = 4000001\n") as daemon:
        assert words(daemon.pid, "Gid") == ["4000001"] * 4
    with Daemon(config=CONFIG + "[server]\nuser = nobody\n", socket_path=path) as daemon:
        pid = daemon.pid
        assert words(pid, "Uid") == words(pid, "Gid") == [str(NOBODY)] * 4
        assert words(pid, "Groups") == [str(NOBODY)]
        assert all(int(words(pid, cap)[0], 16) == 0 for cap in ("CapPrm", "CapEff", "CapInh", "CapAmb"))
        assert words(pid, "NoNewPrivs") == ["1"]
        threads = os.listdir(f"/proc/{pid}/task")
        assert all(words(int(t), "Uid")[0] == str(NOBODY) for t in threads)
        assert (os.stat(path).st_uid, os.stat(path).st_gid) == (NOBODY, NOBODY)
        with daemon.connect() as connection:
            assert connection.alive()
    assert not os.path.exists(path)


@as_root
def test_a_socket_that_it_may_not_remove_is_no_obstacle(public: Path) -> None:
    """In a folder of root's it stays, and the next daemon finds it stale."""
    path = str(public / "kopsd.sock")
    for _ in range(2):
        with Daemon(config=CONFIG + "[server]\nuser = nobody\n", socket_path=path) as daemon:
            with daemon.connect() as connection:
                assert connection.alive()
            daemon.stop()
            assert "event=socket_left" in daemon.log()


def kept(cache: Path) -> list[str]:
    """The compiled code there; what is still being written has other names."""
    return [name for name in os.listdir(cache) if len(name) == 64]


@as_root
@pytest.mark.skipif(backends.nvrtc() is None, reason="no NVRTC here")
def test_code_is_compiled_and_kept_without_root(public: Path) -> None:
    """The compilers run as the user, too, and what root's daemon had cached is there still."""
    env = {"CACHE_DIRECTORY": str(public / "cache")}
    with Daemon(config=CONFIG, env=env) as daemon, daemon.connect() as connection:
        assert compile_source(connection, arch=ARCH)["cached"] == "no"
    with Daemon(config=CONFIG + "[server]\nuser = nobody\n", env=env) as daemon, daemon.connect() as connection:
        assert compile_source(connection, arch=ARCH)["cached"] == "disk"
        assert compile_source(connection, arch=ARCH, options=["-DANOTHER=1"])["cached"] == "no"
        proc.eventually(lambda: len(kept(public / "cache")) == 2, "both are on the disk")
        assert all(p.stat().st_uid == NOBODY for p in (public / "cache").iterdir())


@as_root
def test_a_folder_of_other_things_is_not_given_away(public: Path) -> None:
    """A cache that was said to be where it cannot be."""
    (public / "cache").mkdir(mode=0o700)
    (public / "cache" / "shadow").write_text("secret")
    env = {"CACHE_DIRECTORY": str(public / "cache")}
    with Daemon(config=CONFIG + "[server]\nuser = nobody\n", env=env) as daemon:
        assert (public / "cache").stat().st_uid == (public / "cache" / "shadow").stat().st_uid == 0
        with daemon.connect() as connection:
            assert connection.alive()


@as_root
def test_who_is_not_root_stays(public: Path) -> None:
    os.chmod(public, 0o1777)
    path = str(public / "kopsd.sock")
    with Daemon(config=CONFIG + "[server]\nuser = root\n", socket_path=path, user=NOBODY) as daemon:
        assert words(daemon.pid, "Uid")[0] == str(NOBODY)
        assert "server.user is ignored" in daemon.log()
