"""Settings from files and the environment: what is not understood, or not to be trusted, is refused and named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon import Daemon, check_config, run_once
from support.users import STRANGER, as_root

GOOD = "[server]\nlog_level = info\n"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A file that other users can read, in a folder of root's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "kopsd.conf"
        path.write_text(GOOD)
        os.chmod(path, 0o644)
        yield path


# ---- bad files ----

CONNECTIONS = 'server.max_connections: "{}" is no number from 1 to 1000000'
BAD = {  # name: (the file's text, the number of the line that is refused, part of the reason)
    "unknown_key": (b"[cuda]\ndriver = none\n\ncolour = red\n", 4, ""),
    "nearly_a_key": (b"[host]\nthread = 1\n", 2, 'no setting "host.thread"; did you mean host.threads?'),
    "gone": (b"[limits]\nstuck_reader_s = 9\n", 2, "limits.stuck_reader_s is no setting any more: take it out; set limits.peer_timeout_s"),
    "gone_of_a_socket": (b"[socket a]\nquota_kernel_mib = 9\n", 2, "socket a.quota_kernel_mib is no setting any more: take it out; "),
    "wrong_section": (b"[cuda]\ndriver = none\n[kernels]\nx = 1\n", 4, ""),
    "unknown_section": (b"[cuda]\ndriver = none\n[limit] ; s\n\n[kernels]\n", 3, ""),
    "unknown_section_first": (b"\xef\xbb\xbf[limit]\n[limits]\n", 1, ""),
    "first_of_two": (b"[limits]\n[limits\n[limit]\ninflight = x\n", 2, ""),
    "no_section": (b"driver = none\n", 1, ""),
    "syntax": (b"[limits]\ninflight\n", 2, ""),
    "long_line": (b"[cuda]\ndriver = " + b"x" * 400 + b"\n", 2, ""),
    "no_number": (b"; first\n[server]\nmax_connections = many\n", 3, CONNECTIONS.format("many")),
    "zero": (b"[server]\nmax_connections = 0\n", 2, CONNECTIONS.format("0")),
    "one_too_many": (b"[server]\n\n\nmax_connections = 1000001\n", 4, CONNECTIONS.format("1000001")),
    "too_large": (b"[server]\nmax_connections = 18446744073709551616\n", 2, CONNECTIONS.format("18446744073709551616")),
    "trailing": (b"[server]\nmax_connections = 4096x\n", 2, CONNECTIONS.format("4096x")),
    "zero_byte_at_the_start": (b"[access]\nallow = *\n\0deny = bob\n", 3, "a zero byte"),
    "zero_byte_in_a_value": (b"[access]\ndeny = alice,\0bob\n", 2, "a zero byte"),
    "zero_byte_in_a_comment": (b"[access]\n; who\0\ndeny = bob\n", 2, "a zero byte"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    text, line, why = BAD[name]
    path = tmp_path / "test.conf"
    path.write_bytes(text)
    done = check_config(path)
    assert done.returncode == 2 and f"test.conf:{line}: {why}" in done.stderr, done.stderr
    if name == "unknown_key":
        done = run_once("--socket", tmp_path / "s", "--config", path)
        assert done.returncode > 0 and f"test.conf:{line}" in done.stderr and not (tmp_path / "s").exists()


def test_good_files(tmp_path: Path) -> None:
    """An indented line goes on with the value before it, whatever is in it."""
    path = tmp_path / "test.conf"
    for more in ("", "[limits]\n", "  [limits]\n# [limit]", "[cuda]\ndriver = none\n  [limit]\n"):
        path.write_text(f"; a comment\n[cuda]\ndriver = none\n\n{more}")
        done = check_config(path)
        assert done.returncode == 0, done.stderr


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    done = check_config(tmp_path)
    assert done.returncode > 0 and f"{tmp_path}: it cannot be read" in done.stderr
    done = run_once("--socket", tmp_path / "s", "--config", tmp_path / "none.conf")
    assert done.returncode > 0 and "none.conf" in done.stderr


# ---- who else may write to the file ----


@as_root
def test_root_does_not_read_what_others_may_change(reachable: Path) -> None:
    """By whatever may be wrong with a path: tests/unit/util/test_path_trust.c."""
    why = "everybody may write to it"
    assert (done := check_config(reachable)).returncode == 0 and not done.stderr
    os.chmod(reachable, 0o666)
    done = check_config(reachable)
    assert done.returncode == 2 and str(reachable) in done.stderr and why in done.stderr, done.stderr
    done = check_config(reachable, user=STRANGER + 1)  # who has no rights to give away is warned
    assert done.returncode == 0 and why in done.stderr, done.stderr
    os.chmod(reachable.parent, 0o700)  # and so is root, where nobody else gets there
    done = check_config(reachable)
    assert done.returncode == 0 and why in done.stderr, done.stderr
    os.chmod(reachable.parent, 0o755)
    os.chmod(reachable, 0o644)
    os.chown(reachable, STRANGER, -1)
    done = check_config(reachable)
    assert done.returncode == 2 and f"user {STRANGER}" in done.stderr and "chown" in done.stderr, done.stderr


NAMED = {"access.subuid": 2, "cache.remote_ca": 2, "cache.remote_helper": 2, "cuda.driver": 0, "kernels.nvrtc": 0}


@as_root
@pytest.mark.parametrize("setting", NAMED)
def test_files_of_others_that_settings_name(setting: str, reachable: Path) -> None:
    """They are refused, or warned of where a user's library may be meant."""
    named = reachable.parent / "named"
    named.touch(0o644)
    section, key = setting.split(".")
    reachable.write_text(f"[{section}]\n{key} = {named}\n")
    assert check_config(reachable).stderr == ""
    os.chown(named, STRANGER, 0)
    done = check_config(reachable)
    assert done.returncode == NAMED[setting] and setting in done.stderr and f"user {STRANGER}" in done.stderr, done.stderr


@as_root
@pytest.mark.parametrize("user", ["", "54399"], ids=["root", "user"])
def test_a_cache_that_another_user_leads_elsewhere(user: str, reachable: Path) -> None:
    """By a link, or a folder above: nothing is made, kept or given away there, and the daemon goes on without."""
    goal, folder = reachable.parent / "goal", reachable.parent / "theirs"
    goal.mkdir(0o700)
    folder.mkdir(0o755)
    (folder / "link").symlink_to(goal)
    os.chown(folder, STRANGER, 0)
    for path in (folder / "link", folder / "new" / "cache"):
        config = f"[cache]\ndirectory = {path}\n[server]\nuser = {user}\n" if user else f"[cache]\ndirectory = {path}\n"
        with Daemon("--set", "kernels.user_kernels=all", config=config) as served, served.connect() as connection:
            assert connection.call("ping") == {}
            log = served.log()
        assert "event=cache_directory_unusable" in log and f"user {STRANGER} may put another" in log, log
        assert not list(goal.iterdir()) and goal.stat().st_uid == 0 and not (folder / "new").exists()


# ---- the environment ----


@pytest.mark.parametrize(
    "name, says",
    [
        ("KOPSD_HOST_THREAD", "which is no setting; did you mean KOPSD_HOST_THREADS?"),
        ("KOPSD_host_threads", "which is no setting; did you mean KOPSD_HOST_THREADS?"),
        ("KOPSD_ACCESS_DENNY", "which is no setting; did you mean KOPSD_ACCESS_DENY?"),
        ("KOPSD_EXECUTORS_SPIN_US", "which is no setting any more: unset it; executors poll for 100 microseconds"),
        ("KOPSD_SERVER_DEFAULT_DEVICE", "which is no setting any more: unset it; clients name the device"),
        ("KOPSD_COLOUR", ""),
    ],
)
def test_an_unknown_variable_is_refused_with_what_was_meant(name: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.conf"
    path.write_text("")
    done = check_config(path, env={name: "1"})
    assert done.returncode == 2 and f"{name}, {says}" in done.stderr, done.stderr
    assert ("did you mean" in done.stderr) == ("did you mean" in says)
    assert check_config(path, env={"KOPSDAEMON": "1", "KOPS_COLOUR": "1", "KOPSD_HOST_THREADS": "2"}).returncode == 0
