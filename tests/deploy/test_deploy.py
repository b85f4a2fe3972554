"""What deploy/ ships is what the daemon understands: the example settings are valid and complete."""

from __future__ import annotations

import re
from pathlib import Path

from deployed import DEPLOY, kopsd


def settings(text: str) -> dict[str, str]:
    """Every setting that a file names, commented out or not, as section.key, with its value."""
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"\[([\w *]+)\]", line.strip()):
            section = heading[1]
        elif entry := re.fullmatch(r";?(\w+) ?=\s*(.*)", line.strip()):
            found[f"{section}.{entry[1]}"] = entry[2]
    return found


def test_example_settings_are_valid() -> None:
    done = kopsd("--check-config", "--config", str(DEPLOY / "kopsd.conf"), "--socket", "/tmp/unused.sock")
    assert done.returncode == 0, done.stderr


def test_example_settings_are_valid_when_all_are_set(tmp_path: Path) -> None:
    text = (DEPLOY / "kopsd.conf").read_text(encoding="utf-8")
    (tmp_path / "all.conf").write_text(re.sub(r"^;(\w+ = )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    done = kopsd("--check-config", "--config", str(tmp_path / "all.conf"))
    assert done.returncode == 0, done.stderr


def test_example_settings_are_complete(tmp_path: Path) -> None:
    """Every setting that the daemon has, with its default value, and none that it has not: tools/example_config.py."""
    (tmp_path / "empty.conf").write_text("", encoding="utf-8")
    printed = kopsd("--print-config", "--config", str(tmp_path / "empty.conf"), "--socket", "/tmp/unused.sock")
    assert printed.returncode == 0, printed.stderr
    actual, shipped = settings(printed.stdout), settings((DEPLOY / "kopsd.conf").read_text(encoding="utf-8"))
    assert set(shipped) == set(actual)
    # Found at start, so that the example can only say which are possible.
    machine_dependent = {"server.socket", "server.spin_us", "kernels.helpers", "cache.directory", "quota.fds"}
    machine_dependent |= {"quota.host_mib", "quota.host_all_mib"}
    for name, value in actual.items():
        if value and name not in machine_dependent:
            assert shipped[name] == value, name


def explained(text: str) -> dict[str, str]:
    """What is said of every setting, as one line."""
    found: dict[str, str] = {}
    section, said = "", []
    for line in text.splitlines():
        if heading := re.fullmatch(r"\[([\w *]+)\]", line.strip()):
            section = heading[1]
        elif entry := re.fullmatch(r";?(\w+) =.*", line.strip()):
            found[f"{section}.{entry[1]}"] = " ".join(said)
        said = [*said, line[2:]] if line.startswith("; ") else []
    return found


def test_example_settings_say_what_the_daemon_says(tmp_path: Path) -> None:
    (tmp_path / "empty.conf").write_text("", encoding="utf-8")
    printed = kopsd("--print-config", "--config", str(tmp_path / "empty.conf"), "--socket", "/tmp/unused.sock").stdout
    shipped = explained((DEPLOY / "kopsd.conf").read_text(encoding="utf-8"))
    for name, said in explained(printed).items():
        assert shipped[name] == said, name
