"""What kopsctl says when something is wrong: for people, and with --json for programs."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ENV, Ctl
from fake import FakeDaemon
from support import backends
from support import daemon as support
from support.daemon import Daemon
from support.users import STRANGER, acting_as, as_root


@pytest.fixture(scope="module")
def ctl() -> Iterator[Ctl]:
    with Daemon(config=backends.config(backends.HOST)) as made:
        yield Ctl(made.socket_path)


def error_of(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one object that stderr has; stdout is for results alone."""
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    said = json.loads(line)
    assert list(said) == ["error"]
    error: dict[str, Any] = said["error"]
    return error


def test_an_error_of_the_daemon(ctl: Ctl) -> None:
    error = error_of(ctl("--json", "run", "add", "--shape", "4", "--device", "GPU-none", status=1))
    assert error["code"] == "unknown_device" and error["message"].endswith("its only one is 0, host")
    assert error["what"] and error["detail"]["key"] == "device"
    plain = ctl("run", "add", "--shape", "4", "--device", "GPU-none", status=1).stderr
    assert plain.startswith("kopsctl: ") and plain.rstrip().endswith("[unknown_device]")


def test_an_error_of_the_library(ctl: Ctl) -> None:
    error = error_of(ctl("run", "add", "--shape", "99999999999", "--json", status=1))
    assert error["code"] == "out_of_memory" and error["detail"]["asked"] == 4 * 99999999999
    assert 0 < error["detail"]["available"] < error["detail"]["asked"]


def test_no_daemon(tmp_path: Path) -> None:
    error = error_of(Ctl(tmp_path / "none.sock")("ping", "--json", status=3))
    assert error["code"] == "connect_failed" and error["what"] == "connecting"


def test_there_is_no_compiler() -> None:
    with Daemon(config=backends.config(backends.HOST) + "[kernels]\nnvrtc = /nonexistent/libnvrtc.so\n") as made:
        ctl = Ctl(made.socket_path)
        kernels = json.loads(ctl("info", "--json").stdout)["kernels"]
        assert "compiler" not in kernels and "/nonexistent/libnvrtc.so" in kernels["compiler_why"]
        assert kernels["compiler_why"] in ctl("info").stdout


def test_a_server_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        error = error_of(Ctl(path)("--timeout", "0.2", "ping", "--json", status=3))
    assert error["code"] == "timeout" and f"{path}: kopsd does not answer" in error["message"]


@as_root
def test_a_server_of_another_user(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with acting_as(STRANGER):
        fake.listener.listen(8)
    ctl = Ctl(fake.path)
    error = error_of(ctl("ping", "--json", status=3))
    assert f"{fake.path} (its server is user {STRANGER}, expected is root or kops" in error["message"]
    monkeypatch.setitem(ENV, "KOPS_TRUST_USER", str(STRANGER))
    ctl("ping", "--count", "1")


@pytest.mark.parametrize(
    "words", [("run", "--json"), ("nothing", "--json"), ("--json",), ("--json", "--wrong"), ("stats", "--wrong", "--json"),
              ("ping", "--json", "--timeout"), ("--timeout", "0", "--json", "ping")],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage(ctl: Ctl, words: tuple[str, ...]) -> None:
    error = error_of(ctl(*words, status=2))
    assert error["code"] == "usage" and error["message"]


WRONG = [
    "drain --stop --resume", "drain --timeout 0", "drain --timeout x", "drain --timeout 100000", "drain now", "clients all",
    "clients --no-such-option", "top -n 0 -b", "top -d 0 -b", "top -d x -b", "top --sort size", "top -n 2", "top --json", "top everything",
    "trace --seconds 0", "trace --seconds -1", "trace --seconds x", "trace --seconds 100000", "trace --events 0", "trace --events -1",
    "trace --output=", "trace now",
]  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_asks_the_daemon_nothing(fake: FakeDaemon, words: str) -> None:
    assert Ctl(fake.path)(*words.split(), status=2).stderr
    assert not fake.requests


def test_a_source_that_there_is_not(ctl: Ctl, tmp_path: Path) -> None:
    error = error_of(ctl("compile", str(tmp_path / "none.cu"), "--json", status=1))
    assert error["code"] == "os_error" and "No such file" in error["message"]


def test_without_json_getopt_speaks(ctl: Ctl) -> None:
    said = ctl("stats", "--wrong", status=2).stderr
    assert "--wrong" in said and not said.startswith("{")


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(option: str) -> None:
    ended = subprocess.run([support.binary("kopsctl"), option], capture_output=True, text=True, env=ENV, check=True)
    assert ended.stdout.startswith("kopsctl ") and ended.stdout.split()[1][0].isdigit()
