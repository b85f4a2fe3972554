"""Start and end of the daemon, and SIGHUP: the settings are read again, and what may change while it runs does."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from arrays import LongRun, Vectors, run_params
from support import backends, proc, raw
from support.daemon import Daemon, run_once

CONFIG = backends.config(backends.HOST)
IMPATIENT = CONFIG + "[server]\nshutdown_grace_ms = 200\n"
NOBODY = 65534


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_end_with_work_in_flight(number: signal.Signals) -> None:
    """What is in flight is answered before the connection ends: what runs as cancelled, what has not begun as never run."""
    with Daemon(config=IMPATIENT) as daemon:
        connection = daemon.connect()
        vectors = Vectors(connection, 2, 1000)
        vectors[0][:] = 3
        work = LongRun(connection)
        queued = [
            connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1))) for _ in range(5)
        ]
        assert connection.alive()
        os.kill(daemon.pid, number)
        connection.wait_closed()
        codes = [connection.reply_error(msgid).code for msgid in [work.msgid, *queued]]
        assert codes == ["cancelled"] + ["shutting_down"] * len(queued)
        assert daemon.wait() == 0
        connection.close()


def test_impatient_supervisor() -> None:
    """SIGTERM again and again, to the very last: still a clean end."""
    with Daemon(config=IMPATIENT) as daemon:
        connection = daemon.connect()
        LongRun(connection)
        while daemon.process.poll() is None:
            os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.wait() == 0
        assert not os.path.exists(daemon.socket_path)
        connection.close()


@pytest.mark.parametrize("flags", [[], ["--supervise"]], ids=["alone", "supervised"])
def test_socket_activation(flags: list[str], tmp_path: Path) -> None:
    """LISTEN_FDS: the socket comes ready-made, stays where it is at the end, and is found again by the next start."""
    path = str(tmp_path / "activated.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(16)
        early = raw.Connection(path)
        early.request("ping", {"early": 1}, msgid=1)
        with Daemon(*flags, config=CONFIG, socket_path=path, listen=listener):
            assert early.reply(1).get() == {"early": 1}
            early.close()
        assert os.path.exists(path)
        with Daemon(*flags, config=CONFIG, socket_path=path, listen=listener) as daemon:
            if flags:
                with daemon.connect() as connection:
                    os.kill(connection.call("hello")["pid"], signal.SIGKILL)
            with daemon.connect() as connection:
                assert connection.alive()


# ---- where the socket is ----


def test_where_the_socket_is(tmp_path: Path) -> None:
    """Where the option says, else KOPS_SOCKET, else in XDG_RUNTIME_DIR; the super-user's daemon listens in /run. LISTEN_FDS meant for
    someone else is ignored."""
    path, other = str(tmp_path / "from_env.sock"), tmp_path / "other.sock"
    with Daemon(config=CONFIG, socket_path=path, give_socket=False, env={"KOPS_SOCKET": path}) as daemon, daemon.connect() as connection:
        assert connection.alive()
    env = {"KOPS_SOCKET": str(other), "LISTEN_PID": "1", "LISTEN_FDS": "1"}
    with Daemon(config=CONFIG, env=env) as daemon, daemon.connect() as connection:
        assert connection.alive() and not other.exists()
        assert not stat.S_IMODE(os.stat(daemon.socket_path).st_mode) & stat.S_IRWXO, "by default no other user may connect"
    user = NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        path = f"{folder}/kopsd.sock"
        env = {"XDG_RUNTIME_DIR": folder}
        with Daemon(config=CONFIG, socket_path=path, give_socket=False, env=env, user=user) as daemon, daemon.connect() as connection:
            assert connection.alive()


@pytest.mark.parametrize("path, why", [("x" * 120, "107"), ("missing/kopsd.sock", "missing"), ("precious", "precious")])
def test_where_no_socket_can_be(path: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    done = run_once("--socket", tmp_path / path)
    assert done.returncode > 0 and why in done.stderr
    assert (tmp_path / "precious").read_text() == "keep me"


def test_options() -> None:
    usage = run_once("--help")
    assert usage.returncode == 0 and "--socket" in usage.stdout and "--check-config" in usage.stdout
    version = run_once("--version")
    assert version.returncode == 0 and "kopsd" in version.stdout
    assert run_once("--colour").returncode > 0


def test_logs_are_logfmt() -> None:
    with Daemon("--log-level", "debug", config=CONFIG) as daemon:
        with daemon.connect() as connection:
            connection.call("hello", {"client": 'a "quoted"\nname'})
        daemon.stop()
        lines = daemon.log().splitlines()
        assert lines
        for line in lines:
            assert re.fullmatch(r'(<\d>)?level=\w+( [\w.]+=("([^"\\]|\\.)*"|[^" ]*))*', line), line


def test_quiet_by_default() -> None:
    """Requests leave no line in the log at the default level, however bad they are."""
    with Daemon(config=CONFIG) as daemon:
        with daemon.connect() as connection:
            assert connection.alive()
            before = len(daemon.log().splitlines())
            for _ in range(50):
                connection.error("no_such_method", {})
            assert len(daemon.log().splitlines()) - before < 5


def reload(daemon: Daemon, text: str) -> list[str]:
    """The notifications, from RELOADING to READY."""
    (daemon.folder / "kopsd.conf").write_text(text, encoding="utf-8")
    os.kill(daemon.pid, signal.SIGHUP)
    return [daemon.heard("RELOADING=1"), daemon.heard("READY=1")]


def test_who_was_held_back_goes_on() -> None:
    """A connection that had as much in flight as was allowed may have more."""
    with Daemon(config=CONFIG + "[limits]\ninflight = 1\n", manager=True) as daemon, daemon.connect() as connection:
        vectors = Vectors(connection, 2, 1000)
        vectors[0][:] = 3
        work = LongRun(connection)
        waits = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1), stream=1))
        assert not connection.readable(0.1)
        reload(daemon, CONFIG + "[limits]\ninflight = 3\n")
        assert connection.reply(waits).error is None
        connection.call("cancel", {"msgid": work.msgid})


@pytest.mark.parametrize(
    "text",
    ["[limits]\ninflight = many\n", "[limits]\ncolour = red\n", "nonsense\n", "[access]\nallow = no_such_user_here\n", None],
    ids=["value", "key", "syntax", "user", "gone"],
)
def test_a_bad_file_changes_nothing(text: str | None) -> None:
    """The daemon goes on with what it had, and says why: in its log and in its status."""
    with Daemon(config=CONFIG + "[limits]\ninflight = 5\n", manager=True) as daemon, daemon.connect() as connection:
        if text is None:
            (daemon.folder / "kopsd.conf").unlink()
        else:
            (daemon.folder / "kopsd.conf").write_text(CONFIG + text, encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        # As Type=notify-reload wants it: when it began, by a clock that the manager shares, and when it is done.
        assert re.search(r"^MONOTONIC_USEC=\d+$", daemon.heard("RELOADING=1"), re.MULTILINE)
        assert "STATUS=the settings are the old ones: " in daemon.heard("READY=1")
        assert "level=error event=reload why=" in daemon.log()
        assert connection.alive()
        with daemon.connect() as new:
            assert new.call("hello")["limits"]["inflight"] == 5
        reload(daemon, CONFIG + "[limits]\ninflight = 6\n[server]\nlog_level = debug\n")  # and takes the next one
        with daemon.connect() as new:
            assert new.call("hello")["limits"]["inflight"] == 6
        proc.eventually(lambda: "level=debug" in daemon.log(), "it says more")


def test_what_needs_a_restart_is_said() -> None:
    """… and does not happen; what does not need it happens all the same."""
    with Daemon(config=CONFIG, manager=True) as daemon:
        reload(daemon, CONFIG + "[host]\nthreads = 1\n[limits]\ninflight = 9\n")
        assert 'level=warning event=reload_ignored setting=host.threads why="needs a restart"' in daemon.log()
        assert "event=reload_setting setting=limits.inflight" in daemon.log()
        with daemon.connect() as connection:
            assert connection.call("hello")["limits"]["inflight"] == 9
        # Only what differs is said, for as long as it does.
        assert daemon.log().count("event=reload_ignored") == 1
        reload(daemon, CONFIG + "[host]\nthreads = 1\n")
        assert daemon.log().count("event=reload_ignored") == 2
        reload(daemon, CONFIG)
        assert daemon.log().count("event=reload_ignored") == 2


def test_what_is_given_otherwise_stays() -> None:
    """The environment and the flags come after the file, the second time too."""
    size = 1 << 19
    env = {"KOPSD_LIMITS_INFLIGHT": "11"}
    with Daemon("--set", f"limits.message_bytes={size}", config=CONFIG, env=env, manager=True) as daemon:
        reload(daemon, CONFIG + "[limits]\ninflight = 3\nmessage_bytes = 8192\n")
        with daemon.connect() as connection:
            limits = connection.call("hello")["limits"]
        assert (limits["inflight"], limits["message_bytes"]) == (11, size)


def test_while_it_starts() -> None:
    """The settings may have been read already, so they are read again as soon as there is a server."""
    told_at_once = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"  # waits, and goes with the process to the next program
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    with Daemon(config=CONFIG, manager=True, start=False) as daemon:
        daemon.command = [sys.executable, "-c", told_at_once, *daemon.command]
        daemon.start()
        daemon.heard("RELOADING=1")
        daemon.heard("READY=1")
        assert daemon.log().count("event=reload done=true") == 1
