"""`pip install ./client_py`: with its compiled part where a compiler is, and without it, with the reason, where not.

pip's own part is left out: what it calls to build a wheel is called here, without a network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from support.daemon import Daemon  # noqa: E402

pytest.importorskip("setuptools", minversion="64")
pytest.importorskip("wheel")

PROGRAM = """
import sys, kops, numpy
print(kops.compiled, kops.why_not_compiled)
with kops.connect(sys.argv[1]) as k:
    a = k.array(numpy.arange(5, dtype=numpy.float32))
    print(*k.add(a, a))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the package is made from."""
    for name in ("client_py", "client_c", "codec", "proto", "daemon/core", "daemon/rpc", "daemon/util", "kernels/cuda/ops"):
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__", "_native*.so", "*.egg-info"))
    return tmp_path / "tree"


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon("--backend", "host") as made:
        yield made


def build(package: Path, what: str, to: Path, **environment: str) -> tuple[Path, str]:
    """The file that setuptools makes of the package, and what it printed."""
    to.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KOPS_", "CC"))}
    program = "import sys, setuptools.build_meta as m; getattr(m, sys.argv[1])(sys.argv[2])"
    done = subprocess.run(
        [sys.executable, "-c", program, f"build_{what}", str(to)], cwd=package, env={**kept, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = to.iterdir()
    return made, done.stderr


def installed(wheel: Path) -> Path:
    folder = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    return folder


def run(package: Path, daemon: Any) -> list[str]:
    """What the program prints that uses the package."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    environment.pop("KOPS_NATIVE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, daemon.socket_path], env=environment, cwd=package, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_source_distribution_builds_the_compiled_part(tree: Path, tmp_path: Path, daemon: Daemon) -> None:
    """It brings the C sources, which lie outside of the package's folder."""
    packed, _ = build(tree / "client_py", "sdist", tmp_path / "sdist")
    with tarfile.open(packed) as file:
        file.extractall(tmp_path / "unpacked")
    (package,) = (tmp_path / "unpacked").iterdir()
    wheel, said = build(package, "wheel", tmp_path / "wheel")
    if "without its compiled part: no " in said:
        pytest.skip(said.strip().splitlines()[-1])
    assert wheel.name.startswith("kops-") and "-cp310-abi3-linux" in wheel.name
    assert run(installed(wheel), daemon) == ["True ", "0.0 2.0 4.0 6.0 8.0"]


@pytest.mark.parametrize(
    ("refused", "why"),
    [("main", "no C compiler that works"), ("Python.h", "no header Python.h"), ("msgpack.h", "no msgpack-c"), ("kops", "not compiled")],
)
def test_what_is_missing_is_said_and_the_package_works(tree: Path, tmp_path: Path, daemon: Daemon, refused: str, why: str) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(
        f'#!/bin/sh\nfor a in "$@"; do case $a in *.c) grep -q "{refused}" "$a" && exit 1;; esac; done\nexec cc "$@"\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    wheel, said = build(tree / "client_py", "wheel", tmp_path / "wheel", CC=str(compiler))
    (line,) = (line for line in said.splitlines() if line.startswith("kops is installed without its compiled part: "))
    assert why in line
    assert wheel.name.endswith("-py3-none-any.whl")
    status, result = run(installed(wheel), daemon)
    assert status == f"False {line.partition(': ')[2]}" and result == "0.0 2.0 4.0 6.0 8.0"


@pytest.mark.parametrize("pwd", [True, False], ids=["from a shell", "without PWD"])
def test_a_compiled_part_that_exists_is_named_from_where_pip_is_called(tree: Path, tmp_path: Path, pwd: bool) -> None:
    """pip builds in the package's folder; the path is that of whoever called it."""
    (tree / "build").mkdir()
    (tree / "build" / "_native.abi3.so").write_bytes(b"as it is")
    where = {"PWD": str(tree if pwd else tmp_path / "nowhere")}
    wheel, _ = build(tree / "client_py", "wheel", tmp_path / "wheel", KOPS_NATIVE_FILE="build/_native.abi3.so", **where)
    assert (installed(wheel) / "kops" / "_native.abi3.so").read_bytes() == b"as it is"


def test_a_named_file_that_is_missing_is_an_error(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="absolute path"):
        build(tree / "client_py", "wheel", tmp_path / "wheel", KOPS_NATIVE_FILE="build/nowhere.so")


def test_what_an_earlier_version_left_does_not_come_along(tree: Path, tmp_path: Path) -> None:
    left = tree / "client_py" / "build" / "lib" / "kops"
    left.mkdir(parents=True)
    (left / "_gone.py").touch()
    wheel, _ = build(tree / "client_py", "wheel", tmp_path / "wheel", CC="/bin/false")
    names = {path.name for path in (installed(wheel) / "kops").iterdir()}
    assert "_gone.py" not in names and {"__init__.py", "py.typed", "interpret"} <= names
    assert (installed(wheel) / "kops" / "interpret" / "include" / "cuda" / "barrier").exists()
