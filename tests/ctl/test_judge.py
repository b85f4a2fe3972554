"""kopsctl judge: what it asks of Python, and what it says where Python cannot."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import ENV
from support import daemon as support
from support import raw
from test_report import PACKAGE, folder, put  # noqa: F401

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


COMPILED = support.build_folder() / "python"  # the package with its compiled part, where the build has one


def judge(folder: Path, *args: str, status: int = 0, package: Path | None = PACKAGE) -> tuple[str, str]:  # noqa: F811
    env = {**ENV, "PATH": f"{folder}:/usr/bin:/bin"}
    env.pop("PYTHONPATH", None)
    if package is not None:
        env["PYTHONPATH"] = str(package)
    command = [str(support.binary("kopsctl")), "judge", *args]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=raw.PATIENCE, env=env, check=False)
    assert ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout, ended.stderr


def test_what_is_asked(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    log = tmp_path / "log"
    put(folder, f'for argument in "$@"; do printf "%s|" "$argument"; done >>{log}; echo >>{log}')
    options = ["--strict", "--interpret", "--no-time", "--deadline", "2.5", "--device", "1", "--page", "p.html", "--kept", "k.jsonl"]
    options += ["--board", "b.html", "--json", "--socket", "/s"]
    judge(folder, "task.py", "a.cu", *options, "--", "-b.cu")
    asked = log.read_text(encoding="utf-8").rsplit("sys.exit(main())", 1)[1].strip()
    assert asked == (
        "|--strict|--interpret|--no-time|--deadline|2.5|--device|1|--page|p.html|--kept|k.jsonl|--board|b.html"
        "|--socket|/s|--json|--|task.py|a.cu|-b.cu|"
    )


@pytest.mark.parametrize("args", [[], ["task.py"], ["task.py", "a.cu", "--deadline", "0"], ["task.py", "a.cu", "--deadline", "soon"]])
def test_wrong_usage(folder: Path, args: list[str]) -> None:  # noqa: F811
    _, err = judge(folder, *args, status=2)
    assert "judge" in err or "--deadline" in err


def test_too_many_solutions(folder: Path) -> None:  # noqa: F811
    assert "fewer than 4096" in judge(folder, "task.py", *["a.cu"] * 5000, status=2)[1]


def test_without_the_package(folder: Path) -> None:  # noqa: F811
    _, err = judge(folder, "task.py", "a.cu", "--json", status=1, package=None)
    error = json.loads(err)["error"]
    assert error["code"] == "unsupported" and "a judgement needs kopsd's Python package" in error["message"]


@pytest.mark.skipif(not any((COMPILED / "kops").glob("_native*.so")), reason="this build has no compiled part of the package")
def test_verdicts(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    task, right, wrong, page = (tmp_path / name for name in ("task.py", "right.cu", "wrong.cu", "p.html"))
    task.write_text(TASK, encoding="utf-8")
    right.write_text(SOLUTION, encoding="utf-8")
    wrong.write_text(SOLUTION.replace("2 * x[i]", "x[i]"), encoding="utf-8")
    out, _ = judge(folder, str(task), str(right), str(wrong), "--interpret", "--json", "--page", str(page), status=1, package=COMPILED)
    kinds = {verdict["solution"]: verdict["kind"] for verdict in map(json.loads, out.splitlines())}
    assert kinds == {"right": "right", "wrong": "wrong"}
    assert "1 of 2 solutions are right" in page.read_text(encoding="utf-8")
    out, _ = judge(folder, str(task), str(right), "--interpret", package=COMPILED)
    assert "double right: right" in out
    _, err = judge(folder, str(tmp_path / "none.py"), str(right), "--interpret", status=1)
    assert "no such file" in err and "[bad_argument]" in err
