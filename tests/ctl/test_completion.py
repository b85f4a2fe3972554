"""The completions offer what kopsctl takes: all of it, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ENV, Ctl
from fake import HELLO, FakeDaemon
from support import daemon as support
from terminal import Terminal

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "completion"
COMMON = {"--help", "--json", "--socket", "--timeout"}
# Lists what bash would offer for the words in $1, the last of which is being written, one a line.
OFFER = """
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$(complete -p kopsctl | sed 's/.*-F \\([^ ]*\\).*/\\1/')" kopsctl
printf '%s\\n' "${COMPREPLY[@]}"
"""


def ctl_help(*args: str) -> str:
    command = [str(support.binary("kopsctl")), *args, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENV).stdout


COMMANDS = re.findall(r"^  (\w+) +\w", ctl_help().split("Commands:")[1].split("\n\n")[0], re.M)


def documented(command: str) -> set[str]:
    """The options that a command's help tells, besides the common ones; its examples and other programs' aside."""
    text = ctl_help(command)
    usage = text.split("\n\n")[0]
    listed = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text, re.M)
    return (set(re.findall(r"--[a-z-]+", usage)) | set(listed)) - COMMON


def bash(*words: str, env: dict[str, str] | None = None) -> list[str]:
    ended = subprocess.run(
        ["bash", "--norc", "-c", OFFER, "bash", str(FOLDER / "kopsctl.bash"), "kopsctl", *words],
        capture_output=True, text=True, check=True, env={**ENV, **(env or {})},
    )  # fmt: skip
    assert not ended.stderr, ended.stderr
    return ended.stdout.split()


def zsh_section(command: str) -> str:
    """What the zsh completion does for a command."""
    text = (FOLDER / "_kopsctl").read_text(encoding="utf-8")
    section = re.search(rf"^        {command}\)\n(.*?)^            ;;$", text, re.M | re.S)
    assert section, command
    source = re.search(r"^    source=\((.*?)^    \)$", text, re.M | re.S)
    assert source
    return section[1].replace("$source", source[1])


def test_there_are_commands() -> None:
    assert {"ping", "top", "drain", "metrics", "clients", "cache"} <= set(COMMANDS)


def test_bash_offers_the_commands() -> None:
    assert bash("") == COMMANDS
    assert bash("c") == ["clients", "compile", "check", "cache"]
    assert bash("--socket", "/x", "--timeout", "3", "--json", "cl") == ["clients"]
    assert set(bash("-")) == COMMON | {"--version"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help(ctl: Ctl, command: str) -> None:
    assert ctl("help", command).stdout == ctl_help(command)
    assert ctl("help").stdout == ctl_help()


def test_help_of_what_there_is_not(ctl: Ctl) -> None:
    assert "no command `nothing`" in ctl("help", "nothing", status=2).stderr
    assert "one command" in ctl("help", "run", "tune", status=2).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command: str) -> None:
    assert set(bash(command, "-")) == documented(command) | COMMON
    assert set(re.findall(r"--[a-z-]+", zsh_section(command))) == documented(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_kopsctl_takes_what_is_offered(command: str) -> None:
    """Every option is one that getopt knows; with a value exactly where completion expects one."""
    for option in bash(command, "--"):
        if option == "--help":
            continue
        ended = subprocess.run(
            [str(support.binary("kopsctl")), command, f"{option}=", "--help"], capture_output=True, text=True, env=ENV
        )
        assert "unrecognized option" not in ended.stderr, option
        flag = "doesn't allow an argument" in ended.stderr
        offered = bash(command, option, "")
        assert bash(command, option, "--") == ([] if not flag else bash(command, "--")), f"{option}: {offered}"


def test_values(tmp_path: Path) -> None:
    assert bash("top", "--sort", "") == "rate device memory p99 inflight pid".split()
    assert bash("top", "--sort", "=", "p") == ["p99", "pid"]
    assert bash("run", "gemm", "--dtype", "f") == ["f32", "f64", "f16"]
    assert bash("help", "") == COMMANDS and bash("help", "run", "") == []
    assert bash("cache", "") == ["list", "clear", "export", "import"] and bash("cache", "clear", "") == []
    (tmp_path / "kernel.cu").touch()
    files = (
        ["compile"], ["launch"], ["judge"], ["check"], ["cache", "import"], ["metrics", "--textfile"],
        ["report", "-o"], ["report", "--peaks"],
        ["--socket"],
    )  # fmt: skip
    for words in files:
        assert bash(*words, f"{tmp_path}/k") == [f"{tmp_path}/kernel.cu"], words


def test_sort_keys_are_those_that_there_are(ctl: Ctl, fake: FakeDaemon) -> None:
    for key in bash("top", "--sort", ""):
        assert "--sort" not in ctl("top", "--batch", "-n", "1", "-d", "0.1", "--sort", key, status=1).stderr
    for key in bash("stats", "--sort", ""):
        assert "no column" not in ctl("stats", "--sort", key, status=1).stderr
    for key in bash("stats", "--by", ""):
        assert "--by" not in ctl("stats", "--by", key, status=1).stderr
    assert len(bash("stats", "--sort", "")) == 17 and len(bash("stats", "--by", "")) == 6


def test_ops_are_the_daemons(fake: FakeDaemon) -> None:
    op = {"summary": "s", "doc": "d", "inputs": ["a"], "outputs": ["out"], "dtypes": ["f32"], "attrs": [], "variants": {}}
    fake.answers["hello"] = {**HELLO, "ops": [{**op, "name": "twist"}, {**op, "name": "shout"}]}
    path = f"{support.binary('kopsctl').parent}:{os.environ['PATH']}"
    assert bash("--socket", str(fake.path), "run", "t", env={"PATH": path}) == ["twist"]
    assert bash("ops", "", env={"PATH": path, "KOPS_SOCKET": str(fake.path)}) == ["twist", "shout"]
    assert bash("run", "", env={"PATH": path, "KOPS_SOCKET": "/nowhere"}) == []


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh(tmp_path: Path) -> None:
    """In a real one, by the tab key."""
    zsh = shutil.which("zsh")
    assert zsh
    env = {**ENV, "PATH": f"{support.binary('kopsctl').parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "PS1": "> "}
    shell = Terminal([zsh, "-f", "-i"], env, columns=200)
    shell.press(f"fpath=({FOLDER} $fpath); autoload -U compinit; compinit -u -D; print ready:$#_comps\r")
    shell.until(lambda s: re.search(r"ready:[1-9]", s) is not None, "completion is loaded")
    cases = (("to", "top"), ("top --it", "top --iterations"), ("cache exp", "cache export"), ("drain --st", "drain --stop"))
    for typed, completed in cases:
        # Completed, then printed in place of run.
        shell.press(f"kopsctl {typed}\t\x01print -r -- \r")
        shell.until(lambda _, line=f"kopsctl {completed}": line in shell.transcript.splitlines(), completed)
    shell.close()
