"""Settings from files and the environment: what is not understood, or not to be trusted, is refused and named."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import daemon, raw
from support.daemon import Daemon
from support.users import STRANGER, as_root

GOOD = "[server]\nlog_level = info\n"


def check(path: Path, env: dict[str, str] | None = None, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """What `kopsd --check-config` says of a file, as another user where one is given."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOPS")}
    with tempfile.TemporaryDirectory() as folder:
        kopsd = daemon.binary() if user is None else daemon.reachable(Path(folder))
        return subprocess.run(
            [str(kopsd), "--check-config", "--config", str(path), "--socket", "/tmp/unused.sock"],
            env={**clean, **(env or {})},
            capture_output=True,
            text=True,
            timeout=raw.PATIENCE,
            check=False,
            **({"user": user, "group": user, "extra_groups": []} if user is not None else {}),  # type: ignore[call-overload]
        )


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A file that other users can read, in a folder of root's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "kopsd.conf"
        path.write_text(GOOD)
        os.chmod(path, 0o644)
        yield path


# ---- zero bytes ----

ZEROS = {
    "at_the_start": (b"[access]\nallow = *\n\0deny = bob\n", 3),
    "in_a_key": (b"[access]\nde\0ny = bob\n", 2),
    "in_a_value": (b"[access]\ndeny = alice,\0bob\n", 2),
    "in_a_section": (b"[limits]\n[acc\0ess]\ndeny = bob\n", 2),
    "in_a_comment": (b"[access]\n; who\0\ndeny = bob\n", 2),
    "at_the_end": (b"[access]\ndeny = bob\n\0", 3),
}


@pytest.mark.parametrize("name", ZEROS)
def test_a_zero_byte_hides_nothing(name: str, tmp_path: Path) -> None:
    text, line = ZEROS[name]
    path = tmp_path / "zero.conf"
    path.write_bytes(text)
    done = check(path)
    assert done.returncode == 2, done.stderr
    assert f"zero.conf:{line}: a zero byte" in done.stderr


# ---- who else may write to the file ----


@as_root
@pytest.mark.parametrize(
    "mode, group, folder, why",
    [
        (0o666, 0, 0o755, "everybody may write to it"),
        (0o664, STRANGER, 0o755, "its group may write to it"),
        (0o644, 0, 0o777, "everybody may put another file in its place"),
    ],
)
def test_root_does_not_read_what_others_may_change(
    reachable: Path, mode: int, group: int, folder: int, why: str
) -> None:
    os.chown(reachable, 0, group)
    os.chmod(reachable, mode)
    os.chmod(reachable.parent, folder)
    done = check(reachable)
    assert done.returncode == 2, done.stderr
    assert str(reachable) in done.stderr and why in done.stderr
    done = check(reachable, user=STRANGER + 1)  # who has no rights to give away is warned
    assert done.returncode == 0 and why in done.stderr, done.stderr
    os.chmod(reachable.parent, 0o700)  # and so is root, where nobody else gets there
    if folder == 0o755:
        done = check(reachable)
        assert done.returncode == 0 and why in done.stderr, done.stderr


@as_root
@pytest.mark.parametrize("mode, group, folder", [(0o644, 0, 0o755), (0o664, 0, 0o755), (0o600, 0, 0o1777)])
def test_what_only_root_may_change_is_read(reachable: Path, mode: int, group: int, folder: int) -> None:
    os.chown(reachable, 0, group)
    os.chmod(reachable, mode)
    os.chmod(reachable.parent, folder)
    done = check(reachable)
    assert (done.returncode, done.stderr) == (0, "")


@as_root
def test_root_does_not_read_what_is_anothers(reachable: Path) -> None:
    """The file, its folder, or a link to it."""
    link = reachable.parent / "link.conf"
    link.symlink_to(reachable)
    os.chmod(reachable.parent, 0o1777)
    for mine, path in ((reachable, reachable), (reachable, link), (reachable.parent, reachable), (link, link)):
        os.chown(mine, STRANGER, -1, follow_symlinks=False)
        done = check(path)
        assert done.returncode == 2 and f"user {STRANGER}" in done.stderr and "chown" in done.stderr, done.stderr
        os.chown(mine, 0, -1, follow_symlinks=False)
        assert check(path).returncode == 0


NAMED = {"access.subuid": 2, "cache.remote_ca": 2, "cache.remote_helper": 2, "cuda.driver": 0, "kernels.nvrtc": 0}


@as_root
@pytest.mark.parametrize("setting", NAMED)
def test_files_of_others_that_settings_name(setting: str, reachable: Path) -> None:
    """They are refused, or warned of where a user's library may be meant."""
    named = reachable.parent / "named"
    named.touch(0o644)
    section, key = setting.split(".")
    reachable.write_text(f"[{section}]\n{key} = {named}\n")
    assert check(reachable).stderr == ""
    os.chown(named, STRANGER, 0)
    done = check(reachable)
    assert done.returncode == NAMED[setting] and setting in done.stderr and f"user {STRANGER}" in done.stderr, done.stderr


@as_root
def test_keys_in_a_folder_of_others(reachable: Path) -> None:
    folder = reachable.parent / "keys"
    folder.mkdir(0o755)
    (folder / "key").touch(0o600)
    reachable.write_text(f"[cache]\nremote = https://example.org/x\nremote_key = {folder}/key\n")
    os.chown(folder, STRANGER, 0)
    done = check(reachable)
    assert done.returncode == 2 and "cache.remote_key" in done.stderr and f"user {STRANGER}" in done.stderr, done.stderr


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
    "name, meant",
    [
        ("KOPSD_HOST_THREAD", "KOPSD_HOST_THREADS"),
        ("KOPSD_SERVER_LOGLEVEL", "KOPSD_SERVER_LOG_LEVEL"),
        ("KOPSD_host_threads", "KOPSD_HOST_THREADS"),
        ("KOPSD_ACCESS_DENNY", "KOPSD_ACCESS_DENY"),
    ],
)
def test_an_unknown_variable_is_refused_with_what_was_meant(name: str, meant: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.conf"
    path.write_text("")
    done = check(path, env={name: "1"})
    assert done.returncode == 2, done.stderr
    assert f"{name}, which is no setting; did you mean {meant}?" in done.stderr


def test_a_variable_that_is_like_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "empty.conf"
    path.write_text("")
    done = check(path, env={"KOPSD_COLOUR": "red"})
    assert done.returncode == 2 and "KOPSD_COLOUR" in done.stderr and "did you mean" not in done.stderr
    assert check(path, env={"KOPSDAEMON": "1", "KOPS_COLOUR": "1"}).returncode == 0
    assert check(path, env={"KOPSD_HOST_THREADS": "2", "KOPSD_ACCESS_DENY": "nobody"}).returncode == 0


def test_an_unknown_key_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "slip.conf"
    path.write_text("[host]\nthread = 1\n")
    done = check(path)
    assert "slip.conf:2" in done.stderr and "did you mean host.threads?" in done.stderr


# ---- numbers ----


@pytest.mark.parametrize("value", ["0", "65536", "-1", "4096x", "18446744073709551616"])
def test_a_number_out_of_range_is_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "number.conf"
    path.write_text(f"[server]\nbacklog = {value}\n")
    done = check(path)
    assert done.returncode == 2, done.stderr
    assert f'number.conf:2: server.backlog: "{value}" is no number from 1 to 65535' in done.stderr
