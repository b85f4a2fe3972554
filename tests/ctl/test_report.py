"""kopsctl report and judge: what they ask of Python, and what they say where Python cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ENV, Ctl
from support import daemon as support
from support import raw

PACKAGE = Path(__file__).resolve().parents[2] / "client_py"
COMPILED = support.build_folder() / "python"  # the package with its compiled part, where the build has one
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


def call(folder: Path, *words: str | Path, status: int = 0, package: Path | None = PACKAGE, cwd: Path | None = None) -> tuple[str, str]:
    """kopsctl's output and errors, with the folder's python3."""
    env = {**ENV, "PATH": str(folder), "KOPS_NATIVE": "0"}
    env.pop("PYTHONPATH", None)
    if package is not None:
        env["PYTHONPATH"] = str(package)
    if package == COMPILED:
        del env["KOPS_NATIVE"]
        env["PATH"] += ":/usr/bin:/bin"  # a compiler
    command = [str(support.binary("kopsctl")), *map(str, words)]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=raw.PATIENCE, env=env, cwd=cwd, check=False)
    assert ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout, ended.stderr


def report(path: str | Path, folder: Path, *args: str, **how: Any) -> tuple[str, str]:
    return call(folder, "--socket", path, "report", *args, **how)


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


JUDGED = "--strict --interpret --no-time --deadline 2.5 --device 1 --page p.html --kept k.jsonl --board b.html --json --socket /s -- -b.cu"
ASKED = {  # what Python gets of the options
    "--socket /s report -o x.png --op add --device GPU-1 --peaks p --timeout 1.5 --json":
        "|--output|x.png|--op|add|--device|GPU-1|--peaks|p|--socket|/s|--timeout|1.500|--json|",
    f"judge task.py a.cu {JUDGED}":
        "|--strict|--interpret|--no-time|--deadline|2.5|--device|1|--page|p.html|--kept|k.jsonl|--board|b.html"
        "|--socket|/s|--json|--|task.py|a.cu|-b.cu|",
}  # fmt: skip


@pytest.mark.parametrize("words", ASKED)
def test_what_is_asked(folder: Path, tmp_path: Path, words: str) -> None:
    log = tmp_path / "log"
    put(folder, f'for argument in "$@"; do printf "%s|" "$argument"; done >>{log}; echo >>{log}')
    call(folder, *words.split())
    assert log.read_text(encoding="utf-8").rsplit("sys.exit(main())", 1)[1].strip() == ASKED[words]


@pytest.mark.parametrize("words", ["report", "judge task.py a.cu"])
def test_without_the_package(folder: Path, words: str) -> None:
    _, err = call(folder, *words.split(), status=1, package=None)
    assert err.count("\n") == 1 and "No module named 'kops'" in err and "pip install ./client_py" in err
    _, err = call(folder, *words.split(), "--json", status=1, package=None)
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
    report("/s", folder, status=1, package=None, cwd=trap)
    report(tmp_path / "nobody", folder, status=3, cwd=trap)
    assert os.listdir(trap) == ["kops"]


WRONG = ["report --output=", "report --peaks=", "report now", "report --sort x", "judge", "judge task.py",
         "judge task.py a.cu --deadline 0", "judge task.py a.cu --deadline soon", "judge task.py" + " a.cu" * 5000]  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=range(len(WRONG)))
def test_wrong_usage(folder: Path, words: str) -> None:
    _, err = call(folder, *words.split(), status=2)
    assert err and ("fewer than 4096" in err) == (len(words) > 1000)


TASK = """
import kops.judge as judge
task = judge.Task("double", lambda x: 2 * x, lambda rng, n: {"x": rng.standard_normal(n, dtype="f4")}, [{"n": 100}])
"""
SOLUTION = """/* kops.solution {"launches": [{"entry": "twice", "signature": "out float* out[n], const float* x[n], int n",
                                "grid": "ceil_div(n, 64)", "block": 64}]} */
extern "C" __global__ void twice(float* out, const float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
"""


@pytest.mark.skipif(not any((COMPILED / "kops").glob("_native*.so")), reason="this build has no compiled part of the package")
def test_verdicts(folder: Path, tmp_path: Path) -> None:
    task, right, wrong, page = (tmp_path / name for name in ("task.py", "right.cu", "wrong.cu", "p.html"))
    task.write_text(TASK, encoding="utf-8")
    right.write_text(SOLUTION, encoding="utf-8")
    wrong.write_text(SOLUTION.replace("2 * x[i]", "x[i]"), encoding="utf-8")
    out, _ = call(folder, "judge", task, right, wrong, "--interpret", "--json", "--page", page, status=1, package=COMPILED)
    kinds = {verdict["solution"]: verdict["kind"] for verdict in map(json.loads, out.splitlines())}
    assert kinds == {"right": "right", "wrong": "wrong"}
    assert "1 of 2 solutions are right" in page.read_text(encoding="utf-8")
    out, _ = call(folder, "judge", task, right, "--interpret", package=COMPILED)
    assert "double right: right" in out
    _, err = call(folder, "judge", tmp_path / "none.py", right, "--interpret", status=1)
    assert "no such file" in err and "[bad_argument]" in err
