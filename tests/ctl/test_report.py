"""kopsctl report: what it asks of Python, and what it says where Python cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ENV, Ctl
from support import daemon as support
from support import raw

PACKAGE = Path(__file__).resolve().parents[2] / "client_py"
PEAKS = {"host": {"device": "host", "name": "this processor", "gb_s": 20.0, "gflop_s": {"f32": 100.0}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where python3 is the tests' own, with its modules but without the package."""
    made = tmp_path / "bin"
    made.mkdir()
    put(made, f'exec {sys.executable} "$@"')
    return made


def put(folder: Path, script: str) -> None:
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def report(path: str | Path, folder: Path, *args: str, status: int = 0, package: bool = True, cwd: Path | None = None) -> tuple[str, str]:
    env = {**ENV, "PATH": str(folder), "KOPS_NATIVE": "0"}
    env.pop("PYTHONPATH", None)
    if package:
        env["PYTHONPATH"] = str(PACKAGE)
    command = [str(support.binary("kopsctl")), "--socket", str(path), "report", *args]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=raw.PATIENCE, env=env, cwd=cwd, check=False)
    assert ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout, ended.stderr


def test_a_page(real: support.Daemon, folder: Path, tmp_path: Path) -> None:
    Ctl(real.socket_path)("run", "square", "--shape", "1000", "--repeat", "5")
    peaks = tmp_path / "peaks.json"
    peaks.write_text(json.dumps(PEAKS), encoding="utf-8")
    out, _ = report(real.socket_path, folder, "--peaks", str(peaks), "--json", cwd=tmp_path)
    assert json.loads(out) == {"file": "kops-report.html", "measured": []}
    page = (tmp_path / "kops-report.html").read_text(encoding="utf-8")
    assert "1. square" in page and "this processor" in page and "<svg" in page
    _, err = report(real.socket_path, folder, "-o", str(tmp_path / "r.html"), "--op", "twist", "--json", status=1)
    assert json.loads(err)["error"]["code"] == "unknown_op"


def test_no_daemon(folder: Path, tmp_path: Path) -> None:
    _, err = report(tmp_path / "nobody", folder, status=3)
    assert err.startswith("kopsctl: report: ") and "connect_failed" in err


def test_what_is_asked(folder: Path, tmp_path: Path) -> None:
    """Python gets the options."""
    log = tmp_path / "log"
    put(folder, f'for argument in "$@"; do printf "%s|" "$argument"; done >>{log}; echo >>{log}; exit ${{STATUS:-0}}')
    report("/s", folder, "-o", "x.png", "--op", "add", "--device", "GPU-1", "--peaks", "p", "--timeout", "1.5", "--json")
    asked = log.read_text(encoding="utf-8").rsplit("sys.exit(main())", 1)[1].strip()
    assert asked == "|--output|x.png|--op|add|--device|GPU-1|--peaks|p|--socket|/s|--timeout|1.500|--json|"


def test_without_the_package(folder: Path) -> None:
    _, err = report("/s", folder, status=1, package=False)
    assert err.count("\n") == 1 and "No module named 'kops'" in err and "pip install ./client_py" in err
    _, err = report("/s", folder, "--json", status=1, package=False)
    error = json.loads(err)["error"]
    assert error["code"] == "unsupported" and "pip install ./client_py" in error["message"]


def test_without_numpy(real: support.Daemon, folder: Path, tmp_path: Path) -> None:
    """The devices' peaks are measured with it: a sentence, no traceback."""
    Ctl(real.socket_path)("run", "square", "--shape", "1000")
    blocked = tmp_path / "blocked/numpy"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('No module named numpy', name='numpy')\n", encoding="utf-8")
    put(folder, f'PYTHONPATH={blocked.parent}:$PYTHONPATH exec {sys.executable} "$@"')
    _, err = report(real.socket_path, folder, "-o", str(tmp_path / "r.html"), status=1)
    assert err.count("\n") == 1 and "pip install numpy [unsupported]" in err


def test_without_python(folder: Path) -> None:
    (folder / "python3").unlink()
    _, err = report("/s", folder, status=1)
    assert "a report needs python3" in err and "No such file" in err


def test_the_working_directory_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "elsewhere"
    (trap / "kops").mkdir(parents=True)
    (trap / "kops" / "__init__.py").write_text("open('sprung', 'w')\n", encoding="utf-8")
    report("/s", folder, status=1, package=False, cwd=trap)
    report(tmp_path / "nobody", folder, status=3, cwd=trap)
    assert os.listdir(trap) == ["kops"]


@pytest.mark.parametrize("args", [["--output", ""], ["--peaks", ""], ["now"], ["--sort", "x"]])
def test_wrong_usage(folder: Path, args: list[str]) -> None:
    _, err = report("/s", folder, *args, status=2)
    assert err
