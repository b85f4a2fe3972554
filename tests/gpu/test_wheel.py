"""A wheel on a machine with a GPU: installed by pip into an empty environment, without a CUDA toolkit, its first program starts a
daemon of its own, and a kernel is compiled by NVIDIA's packages beside it.

KOPS_WHEEL names the wheel (`make wheel`). NVIDIA's packages are copied from the environment of the Python that runs this, as
`pip install "kops[nvrtc]"` would bring them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import wheel as wheels

pytestmark = [
    pytest.mark.skipif("KOPS_WHEEL" not in os.environ, reason="KOPS_WHEEL names no wheel"),
    pytest.mark.skipif(Path("/run/kopsd/kopsd.sock").exists(), reason="a daemon of the system comes first"),
]


@pytest.fixture(scope="module")
def venv(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("installed") / "venv"
    pip = wheels.empty_venv(made)
    wheels.bring_msgpack(made)
    wheels.install(pip, Path(os.environ["KOPS_WHEEL"]).resolve())
    return made


@pytest.fixture(scope="module")
def nvrtc(venv: Path) -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    if not any([wheels.bring_nvrtc(venv, folder) for folder in folders]):
        pytest.skip("this Python has no package of NVIDIA's with NVRTC")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield wheels.environment(tmp_path)
    wheels.await_end(tmp_path)


def run(venv: Path, environment: dict[str, str], program: str) -> list[str]:
    done = subprocess.run([str(venv / "bin/python"), "-c", program], env=environment, cwd="/", text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_first_result_is_computed_on_the_gpu(venv: Path, environment: dict[str, str]) -> None:
    program = wheels.FIRST_RESULT.replace("print(", "print(*(d.backend for d in k.devices)); print(", 1)
    kinds, result = run(venv, environment, program)
    assert result == wheels.RESULT and "cuda" in kinds.split()


def test_a_kernel_is_compiled_by_the_packages_beside_it(venv: Path, nvrtc: None, environment: dict[str, str], tmp_path: Path) -> None:
    assert run(venv, environment, wheels.FIRST_KERNEL) == [wheels.RESULT]
    (path,) = set(re.findall(r'name="NVRTC [\d.]+" path=(\S+)', wheels.log(tmp_path)))
    assert Path(path).is_relative_to(wheels.site_packages(venv).resolve()), path


def test_torch_tensors(venv: Path, environment: dict[str, str]) -> None:
    """The compiled part of the wheel, on the current stream."""
    program = """
import kops, torch
assert kops.compiled
x = torch.arange(1024, device="cuda", dtype=torch.float32)
with kops.connect() as k:
    y = k.add(x, x)
    assert torch.equal(y, x + x)
    k.synchronize()
print("right")
"""
    assert run(venv, environment, program) == ["right"]
