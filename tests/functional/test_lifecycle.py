"""Start, configuration and end of the daemon."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from arrays import LongRun, Vectors, run_params
from support import backends, proc, raw
from support.daemon import Daemon, binary

CONFIG = backends.config(backends.HOST)
IMPATIENT = CONFIG + "[server]\nshutdown_grace_ms = 200\n"
NOBODY = 65534


def kopsd(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KOPS_", "NOTIFY_", "LISTEN_"))}
    return subprocess.run(
        [str(binary()), *args],
        env={**clean, **(env or {})},
        capture_output=True,
        text=True,
        timeout=raw.PATIENCE,
        check=False,
    )


def test_ready_when_it_says_so() -> None:
    """READY=1 comes once connections are served, never before."""
    with Daemon(config=CONFIG) as daemon, daemon.connect() as connection:
        assert connection.alive()


def test_clean_end() -> None:
    """SIGTERM: exit status 0 and the socket's path is gone."""
    with Daemon(config=CONFIG) as daemon:
        assert stat.S_ISSOCK(os.stat(daemon.socket_path).st_mode)
        daemon.stop()
        assert not os.path.exists(daemon.socket_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_end_with_work_in_flight(number: signal.Signals) -> None:
    """What is in flight is answered, done or failed with a code, before the connection ends."""
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
        for msgid in [work.msgid, *queued]:
            reply = connection.replies[msgid]
            assert reply.error is None or reply.error["code"] in ("cancelled", "shutting_down"), reply.error
        assert daemon.wait() == 0
        connection.close()


def test_a_short_job_is_finished() -> None:
    """Work that ends within the grace period is done, not dropped."""
    with Daemon(config=CONFIG) as daemon:
        connection = daemon.connect()
        vectors = Vectors(connection, 2, 4 << 20)
        vectors[0][:] = 3
        msgid = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1)))
        proc.eventually(lambda: vectors[1][0] == 9, "the run begins")
        os.kill(daemon.pid, signal.SIGTERM)
        assert connection.reply(msgid).get()["variant"]
        assert (vectors[1] == 9).all()
        connection.wait_closed()
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


def test_end_with_a_client_that_does_not_read() -> None:
    with Daemon(config=IMPATIENT) as daemon:
        connection = daemon.connect()
        connection.ask_without_reading()
        daemon.stop()
        connection.close()


def test_no_new_connections_while_it_ends() -> None:
    """Whoever comes late is refused or told; nobody waits for ever."""
    with Daemon(config=IMPATIENT) as daemon:
        first = daemon.connect()
        LongRun(first)
        os.kill(daemon.pid, signal.SIGTERM)
        try:
            with daemon.connect() as late:
                late.request("ping", {})
                late.wait_closed()
        except (ConnectionError, FileNotFoundError):
            pass
        first.wait_closed()
        assert daemon.wait() == 0
        first.close()


def test_refuses_to_start_twice() -> None:
    with Daemon(config=CONFIG) as daemon:
        again = kopsd("--socket", daemon.socket_path, "--config", str(daemon.folder / "kopsd.conf"))
        assert again.returncode not in (0, None) and again.returncode > 0
        assert daemon.socket_path in again.stderr
        with daemon.connect() as connection:
            assert connection.alive()


def test_clears_a_stale_socket() -> None:
    with Daemon(config=CONFIG) as daemon:
        daemon.process.kill()
        daemon.process.wait()
        assert os.path.exists(daemon.socket_path)
        daemon.start()
        with daemon.connect() as connection:
            assert connection.alive()


def test_does_not_remove_what_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("keep me")
    assert kopsd("--socket", str(path)).returncode > 0
    assert path.read_text() == "keep me"


def test_socket_activation(tmp_path: Path) -> None:
    """LISTEN_FDS: the socket comes ready-made, stays where it is at the end, and is found again by the next start."""
    path = str(tmp_path / "activated.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(16)
        early = raw.Connection(path)
        early.request("ping", {"early": 1}, msgid=1)
        for _ in range(2):
            with Daemon(config=CONFIG, socket_path=path, listen=listener) as daemon:
                if early:
                    assert early.reply(1).get() == {"early": 1}
                    early.close()
                    early = None
                with daemon.connect() as connection:
                    assert connection.alive()
            assert os.path.exists(path)


def test_listen_pid_of_another_process(tmp_path: Path) -> None:
    """LISTEN_FDS meant for someone else is ignored."""
    path = str(tmp_path / "own.sock")
    with Daemon(config=CONFIG, socket_path=path, env={"LISTEN_PID": "1", "LISTEN_FDS": "1"}) as daemon:
        with daemon.connect() as connection:
            assert connection.alive()


# ---- where the socket is ----


def test_kops_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "from_env.sock")
    with Daemon(config=CONFIG, socket_path=path, give_socket=False, env={"KOPS_SOCKET": path}) as daemon:
        with daemon.connect() as connection:
            assert connection.alive()


def test_xdg_runtime_dir() -> None:
    """For a user; the super-user's daemon listens in /run."""
    user = NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        path = f"{folder}/kopsd.sock"
        env = {"XDG_RUNTIME_DIR": folder}
        with Daemon(config=CONFIG, socket_path=path, give_socket=False, env=env, user=user) as daemon:
            with daemon.connect() as connection:
                assert connection.alive()


def test_the_option_wins(tmp_path: Path) -> None:
    with Daemon(config=CONFIG, env={"KOPS_SOCKET": str(tmp_path / "other.sock")}) as daemon:
        with daemon.connect() as connection:
            assert connection.alive()
        assert not (tmp_path / "other.sock").exists()


def test_path_too_long(tmp_path: Path) -> None:
    done = kopsd("--socket", str(tmp_path / ("x" * 120)))
    assert done.returncode > 0 and "107" in done.stderr


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    done = kopsd("--socket", str(tmp_path / "missing" / "kopsd.sock"))
    assert done.returncode > 0 and "missing" in done.stderr


def test_mode_of_the_socket() -> None:
    """By default only the own user (and group) may connect."""
    with Daemon(config=CONFIG) as daemon:
        assert not stat.S_IMODE(os.stat(daemon.socket_path).st_mode) & stat.S_IRWXO


# ---- configuration ----


def check_config(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "test.conf"
    path.write_text(text)
    return kopsd("--check-config", "--config", str(path))


def test_check_config_good(tmp_path: Path) -> None:
    # An indented line goes on with the value before it, whatever is in it.
    for more in ("", "[limits]\n", "  [limits]\n# [limit]", "[cuda]\ndriver = none\n  [limit]\n"):
        done = check_config(tmp_path, f"; a comment\n{CONFIG}\n{more}")
        assert done.returncode == 0, done.stderr


def test_check_config_shipped() -> None:
    """The configuration file that is installed is a valid one."""
    shipped = Path(__file__).resolve().parents[2] / "deploy" / "kopsd.conf"
    if not shipped.exists():
        pytest.skip("none is shipped")
    done = kopsd("--check-config", "--config", str(shipped))
    assert done.returncode == 0, done.stderr


BAD_CONFIGS = {
    "unknown_key": ("[cuda]\ndriver = none\n\ncolour = red\n", 4),
    "wrong_section": ("[cuda]\ndriver = none\n[kernels]\nx = 1\n", 4),
    "unknown_section": ("[cuda]\ndriver = none\n[limit] ; s\n\n[kernels]\n", 3),
    "unknown_section_at_the_end": ("[limits]\n\n [limit]", 3),
    "unknown_section_first": ("\ufeff[limit]\n[limits]\n", 1),
    "first_of_two": ("[limits]\n[limits\n[limit]\ninflight = x\n", 2),
    "no_section": ("driver = none\n", 1),
    "no_number": ("; first\n[limits]\ninflight = many\n", 3),
    "negative": ("[limits]\ninflight = -1\n", 2),
    "zero": ("[limits]\ninflight = 0\n", 2),
    "too_large": ("[limits]\n\n\nmessage_bytes = 99999999999999999999\n", 4),
    "trailing": ("[limits]\ninflight = 10x\n", 2),
    "syntax": ("[limits]\ninflight\n", 2),
    "long_line": ("[cuda]\ndriver = " + "x" * 400 + "\n", 2),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_check_config_bad(name: str, tmp_path: Path) -> None:
    """Refused with the file and the line."""
    text, line = BAD_CONFIGS[name]
    done = check_config(tmp_path, text)
    assert done.returncode > 0
    assert f"test.conf:{line}:" in done.stderr, done.stderr


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    done = kopsd("--check-config", "--config", str(tmp_path))
    assert done.returncode > 0 and f"{tmp_path}: it cannot be read" in done.stderr


def test_bad_config_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "bad.conf").write_text("[nonsense]\nx = 1\n")
    done = kopsd("--socket", str(tmp_path / "s"), "--config", str(tmp_path / "bad.conf"))
    assert done.returncode > 0 and "bad.conf:1" in done.stderr
    assert not (tmp_path / "s").exists()


def test_missing_config(tmp_path: Path) -> None:
    done = kopsd("--socket", str(tmp_path / "s"), "--config", str(tmp_path / "none.conf"))
    assert done.returncode > 0 and "none.conf" in done.stderr


def test_unknown_option() -> None:
    assert kopsd("--colour").returncode > 0


def test_help_and_version() -> None:
    usage = kopsd("--help")
    assert usage.returncode == 0 and "--socket" in usage.stdout and "--check-config" in usage.stdout
    version = kopsd("--version")
    assert version.returncode == 0 and "kopsd" in version.stdout


def test_limits_from_the_configuration() -> None:
    """What the file says is what hello says, and what is done."""
    with Daemon(config=f"{CONFIG}\n[limits]\ninflight = 3\nmessage_bytes = 65536\n") as daemon, daemon.connect() as c:
        limits = c.call("hello")["limits"]
        assert (limits["inflight"], limits["message_bytes"]) == (3, 65536)
        c.send(raw.pack_request(1, "ping", {"x": bytes(65536)}))
        assert c.wait_closed()["code"] == "protocol_error"


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
