"""A wheel as its first user has it: in an empty virtual environment, without settings and without a toolkit."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import proc

# One shared array and an op: what README.md's first program does.
FIRST_RESULT = """
import kops
with kops.connect() as k:
    a = k.array([1.0, 2.0])
    print(*k.add(a, a), flush=True)
"""
RESULT = "2.0 4.0"
# The same with a kernel of one's own, which the daemon compiles.
FIRST_KERNEL = '''
import kops
source = r"""extern "C" __global__ void twice(float* y, const float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = 2 * x[i];
}
"""
with kops.connect() as k:
    x, y = k.array([1.0, 2.0]), k.array([0.0, 0.0])
    twice = k.kernel(source, "twice", "out float* y[n], const float* x[n], int n", grid="ceil_div(n, 256)", block=256)
    twice(y, x, 2)
    print(*y, flush=True)
'''


def site_packages(venv: Path) -> Path:
    (site,) = venv.glob("lib/python*/site-packages")
    return site


def empty_venv(venv: Path) -> list[str]:
    """Makes it, and says by which command pip installs there: this interpreter's, since to install one takes seconds, or its own where
    this one has none that knows --python."""
    found = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=False).stdout.split()
    from_outside = len(found) > 1 and tuple(map(int, found[1].split(".")[:2])) >= (22, 3)
    options = ["--without-pip"] if from_outside else []
    subprocess.run([sys.executable, "-m", "venv", *options, str(venv)], check=True, capture_output=True)
    python = str(venv / "bin/python")
    return [sys.executable, "-m", "pip", "--python", python] if from_outside else [python, "-m", "pip"]


def bring_msgpack(venv: Path) -> None:
    """What a network brings: the modules of the interpreter that runs this come behind the environment's own."""
    spec = importlib.util.find_spec("msgpack")
    assert spec and spec.origin
    (site_packages(venv) / "beside.pth").write_text(f"{Path(spec.origin).parents[1]}\n", encoding="utf-8")


def bring_nvrtc(venv: Path, packages: Path) -> bool:
    """What kops[nvrtc] brings, from a folder `nvidia` of another environment, if it has that."""
    found = False
    for library in packages.glob("*/lib/libnvrtc*.so*"):
        to = site_packages(venv) / "nvidia" / library.relative_to(packages)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, to)
        found = True
    for headers in packages.glob("*/include"):
        shutil.copytree(headers, site_packages(venv) / "nvidia" / headers.relative_to(packages), dirs_exist_ok=True)
    return found


def install(pip: list[str], wheel: Path) -> None:
    options = ["--no-index", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", *options, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def environment(home: Path) -> dict[str, str]:
    """Of a user without settings, toolkit and daemon. The daemon that a client starts ends soon after it."""
    left_out = ("KOPS", "XDG_", "PYTHON", "CUDA_HOME", "CUDA_PATH", "LD_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    runtime = home / "run"
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "PATH": "/usr/bin:/bin", "KOPSD_SERVER_IDLE_EXIT_S": "1",
        "CACHE_DIRECTORY": str(home / "cache"),
    }  # fmt: skip


def await_end(home: Path) -> None:
    proc.eventually(lambda: not (home / "run/kopsd.sock").exists(), "the daemon ends when unused")


def log(home: Path) -> str:
    return (home / ".local/state/kopsd/kopsd.log").read_text(encoding="utf-8")
