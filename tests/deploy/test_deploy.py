"""The example settings are valid and complete, and manual pages name every flag, command and setting, as their readers expect."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from deployed import DEPLOY, ROOT, binary, kopsctl, kopsd, run

sys.path.insert(0, str(ROOT / "tools"))

from example_config import example  # noqa: E402


def test_example_settings_are_valid_as_they_are_and_when_all_are_set(tmp_path: Path) -> None:
    text = (DEPLOY / "kopsd.conf").read_text(encoding="utf-8")
    (tmp_path / "all.conf").write_text(re.sub(r"^;(\w+ = )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    for path in (DEPLOY / "kopsd.conf", tmp_path / "all.conf"):
        done = kopsd("--check-config", "--config", str(path), "--socket", "/tmp/unused.sock")
        assert done.returncode == 0, done.stderr


def test_example_settings_are_the_daemon_s() -> None:
    """Each with its default value and what the daemon says of it: tools/example_config.py writes them anew."""
    printed = run(str(binary()), "--config", "/dev/null", "--print-config", env={})
    assert printed.returncode == 0, printed.stderr
    text = (DEPLOY / "kopsd.conf").read_text(encoding="utf-8")
    assert example(text, printed.stdout) == text


PAGES = ("kopsd.8", "kopsd.conf.5", "kopsctl.1")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("man")
    for name in PAGES:
        done = run(str(DEPLOY / "man/page"), name, str(binary()), str(binary("kopsctl")), str(folder / name))
        assert done.returncode == 0, done.stderr
    return {name: folder / name for name in PAGES}


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8").replace("\\-", "-")


def flags(said: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", said))


def commands() -> list[str]:
    listed = re.search(r"^Commands:\n(.*?)\n\n", kopsctl("--help").stdout, re.S | re.M)
    assert listed
    return [line.split()[0] for line in listed[1].splitlines() if re.match(r"  \S", line)]


def test_every_flag_of_the_daemon(pages: dict[str, Path]) -> None:
    assert flags(kopsd("--help").stdout) <= flags(text(pages["kopsd.8"]))


def test_every_command_with_its_flags_and_usages(pages: dict[str, Path]) -> None:
    """Its ways to be called are each on a line of its own, as the command says them."""
    page = text(pages["kopsctl.1"])
    assert commands()
    for command in commands():
        said = kopsctl(command, "--help").stdout
        usages = re.findall(r"^(?:Usage: |       )(kopsctl .*)$", said, re.M)
        assert f"\n.Ss {command}\n" in page
        assert flags(said) <= flags(page), command
        assert usages and all(f"\n{usage}\n" in page for usage in usages), (command, usages)


def test_every_setting(pages: dict[str, Path]) -> None:
    printed = kopsd("--print-config", "--config", "/dev/null", "--socket", "/tmp/unused.sock").stdout
    keys = re.findall(r"^;?(\w+) =", printed, re.M)
    documented = re.findall(r"^\.It Ic (\w+)", text(pages["kopsd.conf.5"]), re.M)
    assert documented == keys


def test_every_exit_status(pages: dict[str, Path]) -> None:
    for status in re.findall(r"[:;] (\d+) ", re.sub(r"\n\s+", " ", kopsd("--help").stdout).split("Exit status")[-1]):
        assert f"\n.It {status}\n" in text(pages["kopsd.8"])


def test_every_exit_status_of_kopsctl(pages: dict[str, Path]) -> None:
    said = kopsctl("--help").stdout.split("Exit status")[-1]
    for status in re.findall(r"(?:^|[:,\n]) ?(\d+) ", said):
        assert f"\n.It {status}\n" in text(pages["kopsctl.1"]), status


@pytest.mark.parametrize("name", PAGES)
def test_ascii(pages: dict[str, Path], name: str) -> None:
    """Formatters differ in what they take other characters for."""
    assert pages[name].read_bytes().isascii()


@pytest.mark.parametrize("name", PAGES)
def test_lint(pages: dict[str, Path], name: str) -> None:
    if mandoc := shutil.which("mandoc"):
        done = run(mandoc, "-Tlint", "-Wstyle", str(pages[name]))
        found = [line for line in done.stdout.splitlines() if "referenced manual not found" not in line]
        assert not found, "\n".join(found)
    elif groff := shutil.which("groff"):
        done = run(groff, "-mdoc", "-Tutf8", "-ww", "-z", str(pages[name]))
        assert not done.stderr, done.stderr
    else:
        pytest.skip("there is neither mandoc nor groff")
