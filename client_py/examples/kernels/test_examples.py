"""Every example is right on random data, of odd sizes and empty: in the interpreter, in a daemon, and on a GPU.

A daemon is started on the stand-in for a GPU where KOPS_BUILD names a build folder; with KOPS_SOCKET and a GPU the daemon there
is used, with torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import gemm  # noqa: E402
import kops  # noqa: E402
import numpy as np  # noqa: E402
from common import Example, Place, interpreted, on_gpu, source  # noqa: E402
from five import EXAMPLES  # noqa: E402

CASES = [pytest.param(example, size, id=f"{example.name}-{size}") for example in EXAMPLES for size in example.sizes]


@pytest.fixture(scope="module")
def cpu() -> Iterator[Place]:
    if shutil.which("c++") is None and "CXX" not in os.environ:
        pytest.skip("no C++ compiler")
    with interpreted() as place:
        yield place


@pytest.fixture(scope="module")
def standin() -> Iterator[Place]:
    """The stand-in computes in C what it knows by name: what is tested is what the client and the daemon make of a call."""
    if "KOPS_BUILD" not in os.environ:
        pytest.skip("KOPS_BUILD names no build folder")
    sys.path.append(str(HERE.parents[2] / "tests"))
    from support import backends
    from support.daemon import Daemon

    lacking = backends.missing(backends.STANDIN)
    if lacking:
        pytest.skip(lacking)
    with Daemon(config=backends.config(backends.STANDIN)) as daemon, kops.connect(daemon.socket_path) as k:
        if "kernels" not in k.info.features:
            pytest.skip("the daemon runs no kernels: no NVRTC, or no sandbox here")
        yield Place("stand-in", k, lambda array: array.copy(), lambda shape: np.full(tuple(shape), np.nan, np.float32), lambda array: array)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Place]:
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available() or "KOPS_SOCKET" not in os.environ:
        pytest.skip("needs a GPU and KOPS_SOCKET")
    with on_gpu() as place:
        yield place


@pytest.mark.parametrize("example, size", CASES)
def test_right_in_the_interpreter(cpu: Place, example: Example, size: tuple[int, ...]) -> None:
    example.check(cpu, example.declare(cpu.k), size)


@pytest.mark.parametrize("example, size", CASES)
def test_right_in_a_daemon(standin: Place, example: Example, size: tuple[int, ...]) -> None:
    example.check(standin, example.declare(standin.k), size)


@pytest.mark.parametrize("example, size", [*CASES, *((example, example.large) for example in EXAMPLES)])
def test_right_on_the_gpu(gpu: Place, example: Example, size: tuple[int, ...]) -> None:
    example.check(gpu, example.declare(gpu.k), size)


def test_a_wrong_result_is_found(cpu: Place) -> None:
    example = EXAMPLES[-1]
    wrong = example.declare(cpu.k)
    with pytest.raises(AssertionError):
        example.check(cpu, lambda c, a, b, n: wrong(c, a, a, n), (255,))


def test_the_interpreter_sees_a_missing_barrier(cpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = source("gemm.cu")
    monkeypatch.setattr(gemm, "source", lambda name: whole.replace("__syncthreads(); // before", "//"))
    with pytest.raises(kops.interpret.InterpretError, match="race"):
        gemm.EXAMPLE.check(cpu, gemm.declare(cpu.k), (33, 70, 40))


@pytest.mark.parametrize("program", ["vector_add.py", "tutorial.py"])
def test_the_programs_run(cpu: Place, program: str) -> None:
    done = subprocess.run([sys.executable, str(HERE / program), "--interpret"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "vector_add" in done.stdout


def test_tables_traces_and_reports(tmp_path: Path) -> None:
    if "KOPS_BUILD" not in os.environ:
        pytest.skip("KOPS_BUILD names no build folder")
    sys.path.append(str(HERE.parents[2] / "tests"))
    from support import backends
    from support.daemon import Daemon

    with Daemon(config=backends.config(backends.HOST)) as daemon:
        done = subprocess.run(
            [sys.executable, str(HERE / "profiled.py"), "--socket", daemon.socket_path, "--folder", str(tmp_path)],
            capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for example in EXAMPLES:
        assert f"---- {example.name}: " in done.stdout
        names = {event.get("name") for event in json.loads((tmp_path / f"{example.name}.json").read_text())["traceEvents"]}
        assert example.name in names, "the range of record_function"
        assert "<svg" in (tmp_path / f"{example.name}.html").read_text()
    assert "median us" in done.stdout and "latency us" in done.stdout and ("clocks" in done.stdout or "MHz" in done.stdout)


def test_a_program_says_what_it_lacks(tmp_path: Path) -> None:
    """torch that finds no GPU; no torch at all."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))}
    for torch, said in (
        ("class cuda:\n    is_available = staticmethod(lambda: False)\n", "no GPU"),
        ("import not_there_at_all\n", "not installed"),
    ):
        (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
        done = subprocess.run([sys.executable, str(HERE / "vector_add.py")], env=environment, capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr and "--interpret" in done.stderr and "Traceback" not in done.stderr, done.stderr
