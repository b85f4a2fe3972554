"""What a new user sees: texts of objects, messages, warnings, the log, names."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Annotated, Any

import fake_torch
import kops
import pytest
from fake_daemon import FakeDaemon, refuser
from kops._tensors import adapters

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = 'extern "C" __global__ void f(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }'


def test_texts_are_readable(k: kops.Client) -> None:
    a = k.array([1.0])
    with k.program() as p:
        assert repr(p) == "<kops.Program of no op: recording>"
        k.square(k.add(a, a))
        assert repr(p) == "<kops.Program add, square: recording>"
    assert repr(p) == "<kops.Program add, square: defined>"
    p.run()
    assert repr(p) == "<kops.Program add, square: has run>"
    with k.sequence() as s:
        k.square(a)
        assert repr(s) == "<kops.Sequence square: recording>"
    assert repr(s) == "<kops.Sequence square: has run>"
    assert repr(k.info) == "<kops.Info kopsd 0.0 (fake), pid 1, on fake, with add, square, gemm>"
    assert repr(k.ops["add"]) == "<kops.Op add(a, b): >"
    lines = str(k.info).splitlines()
    assert lines[0] == "kopsd 0.0 (fake), pid 1, protocol 1" and lines[1] == "device 0: fake (host, host), the default"
    assert max(map(len, lines)) < 400 and any(line.startswith("limits: message_bytes 65536") for line in lines)
    kern = k.kernel(SOURCE, "f", "float* y, int n", grid=1, block=32)
    assert repr(kern) == "<kops.Kernel f(inout f32 y, scalar i32 n)>"
    assert repr(kern[2, 64]) == "<kops.Kernel f(inout f32 y, scalar i32 n)[grid=2, block=64]>"
    assert repr(k.compile(SOURCE).entries).startswith("<kops.Entries f (")


def test_without_numpy(daemon: FakeDaemon) -> None:
    """An installation brings msgpack alone."""
    program = f"""
import sys
sys.modules["numpy"] = None
import kops
with kops.connect({daemon.path!r}) as k:
    for call in (lambda: k.array([1.0]), lambda: k.add([1.0], [1.0]), lambda: k.sequence([("square", [1.0])])):
        try:
            call()
        except ModuleNotFoundError as error:
            assert error.name == "numpy" and "pip install numpy" in str(error), error
        else:
            raise AssertionError("it was found")
"""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_op_that_there_is_not_is_answered_with_those_that_there_are(k: kops.Client) -> None:
    a = k.array([1.0])
    known = "add, add_square, copy, gemm, linear, scaled_gemm, square, sub_square"
    for call in (
        lambda: k.submit("mul", a, a), lambda: k.run("mul", a, a), lambda: k.sequence([("mul", a, a)]), lambda: k.profile("mul", a, a),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"no op 'mul' is known here; there are {known}") as caught:
            call()
        assert isinstance(caught.value, kops.UnknownOp)


def host_only(daemon: FakeDaemon) -> None:
    daemon.hello = {**daemon.hello, "features": [f for f in daemon.hello["features"] if f != "kernels"]}


async def test_without_a_gpu_the_first_message_says_how_to_go_on(daemon: FakeDaemon) -> None:
    says = r"Without a GPU a kernel runs on the CPU, with checks, by kops\.kernel\(…\)\.interpret"
    how = {"grid": 1, "block": 32}
    with kops.connect(daemon.path) as k:
        daemon.script["compile"] = refuser("missing_key", "arch: there is no GPU here: say what to compile for, such as sm_90a", key="arch")
        with pytest.raises(kops.MissingKey, match=rf"such as sm_90a\. {says}"):
            k.compile(SOURCE)
    host_only(daemon)
    before = daemon.count("compile")
    with kops.connect(daemon.path) as k:
        for call in (lambda: k.kernel(SOURCE, "f", "float* y, int n", **how), lambda: k.cuda_kernel(_scale, **how)(k.zeros(3), 3)):
            with pytest.raises(kops.Unsupported, match=rf"no GPU, so it launches no kernels\. {says}"):
                call()
    async with kops.connect_async(daemon.path) as a:
        with pytest.raises(kops.Unsupported, match=says):
            await a.kernel(SOURCE, "f", "float* y, int n", **how)
    assert daemon.count("compile") == before


def _scale(y: Annotated[Any, "out float*[n]"], n: Annotated[int, "int"]) -> None:
    """
    if (threadIdx.x < n) y[threadIdx.x] = 2;
    """


def _plain(y: "out float*[n]", n: "int"):  # type: ignore  # noqa
    """
    if (threadIdx.x < n) y[threadIdx.x] = 2;
    """


def test_annotated_parameters_are_what_texts_are(k: kops.Client) -> None:
    assert k.cuda_kernel(_scale).params == k.cuda_kernel(_plain).params

    def local(y: Annotated[Any, "out float*"], n: Annotated[int, "numbers", "int"]) -> None:
        """y[0] = n;"""

    with pytest.raises(ValueError):
        k.cuda_kernel(local)

    def wrong(y: Annotated[Any, 1]) -> None:
        """y[0] = n;"""

    with pytest.raises(kops.BadArgument, match=r"Annotated\[Any, \"const float\*\"\]"):
        k.cuda_kernel(wrong)


TYPED = '''
from typing import Annotated, Any

import kops

k = kops.connect()


@k.cuda_kernel(grid="ceil_div(n, 256)", block=256)
def scale(
    y: Annotated[Any, "out float*"], x: Annotated[Any, "const float*"], a: Annotated[float, "float"], n: Annotated[int, "int"]
) -> None:
    """
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
    """


@kops.cuda_kernel
def one(y: Annotated[Any, "out float*"]) -> None:
    """y[0] = 1;"""


kernel: kops.Kernel = scale
scale[1, 256](1, 2, 3.0, 4)
one(1, grid=1, block=1)
rows: list[kops.OpStats] = k.stats()["ops"]
count: int = rows[0]["count"]
uptime: float = k.stats()["uptime_s"]
text: str = k.stats().table(group_by=("op", "dtype"), limit=None, ops="add")
pending: kops.Pending = k.submit("add", [1], 2)
pending.add_done_callback(lambda future: print(future.result()))
rows_of: list[kops.OpStats] = k.add(1.0, rows)
more: list[kops.OpStats] = k.add(rows, 2.0)
'''


def checker(name: str) -> str:
    for found in (os.environ.get(f"KOPS_{name.upper()}"), shutil.which(name), ROOT / "build/lint-venv/bin" / name):
        if found and Path(found).exists():
            return str(found)
    pytest.skip(f"no {name} (pip install {name}, or set KOPS_{name.upper()})")


@pytest.mark.parametrize("name", ["mypy", "basedpyright"])  # which is pyright with all that it needs in one package
def test_a_program_with_a_kernel_is_strictly_typed(name: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    settings = {"include": [program.name], "typeCheckingMode": "strict", "extraPaths": [str(HERE.parent)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    how = ["--strict", "--cache-dir", tmp_path / "cache", program] if name == "mypy" else ["--pythonpath", sys.executable]
    env = {**os.environ, "MYPYPATH": str(HERE.parent)}
    done = subprocess.run([checker(name), *map(str, how)], env=env, cwd=tmp_path, capture_output=True, text=True)
    if name == "mypy":
        assert "program.py" not in done.stdout and done.returncode in (0, 1), done.stdout + done.stderr
    else:
        assert done.returncode == 0 and "0 errors" in done.stdout, done.stdout + done.stderr


def test_a_client_that_is_left_open_is_told_of(daemon: FakeDaemon) -> None:
    with pytest.warns(ResourceWarning, match="a client was left open: .*kopsd.sock") as caught:
        kops.connect(daemon.path)
        gc.collect()
    assert caught[0].filename == __file__

    async def ask() -> None:
        await kops.connect_async(daemon.path)

    with pytest.warns(ResourceWarning, match="a client was left open") as caught:
        asyncio.run(ask())
        given_up = time.monotonic() + 30
        while not caught.list and time.monotonic() < given_up:  # the thread that connected may still have it
            gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with kops.connect(daemon.path) as k:
            k.ping()
        kops.Client.unconnected(daemon.path)
        k = kops.connect(daemon.path)
        k.close()
        del k
        gc.collect()


def test_gradients_are_warned_about(k: kops.Client, with_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_by_type", {})
    x = fake_torch.empty((3,), dtype=fake_torch.float32)
    x.array[:] = 1
    k.square(x)
    x.requires_grad = True
    with pytest.warns(UserWarning, match="autograd does not see what kops computes: pass x.detach()") as caught:
        k.square(x)
    assert caught[0].filename == __file__
    monkeypatch.setattr(fake_torch, "grad_enabled", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        k.square(x)


def test_reconnections_are_in_the_log(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kops"):
        with kops.connect(daemon.path, timeout=20) as k:
            k.ping()
            assert not caplog.records
            daemon.hang_up()
            daemon.peers[-1].thread.join(20)
            k.ping()
    assert f"the connection to kopsd at {daemon.path} is over" in caplog.text
    assert f"connected to kopsd at {daemon.path} again" in caplog.text


def test_nothing_foreign_is_exported() -> None:
    late = {"extension", "interpret", "judge", "profiler", "ray", "torch"}  # modules that are imported when they are first used
    late -= {name for name in ("ray", "torch") if importlib.util.find_spec(name) is None}
    late |= {"BuildExtension", "CUDAExtension", "CUDA_HOME", "CppExtension"}  # of a companion that imports setuptools
    assert set(dir(kops)) - {name for name in dir(kops) if name.startswith("__")} == set(kops.__all__) - {"__version__"} | late
    for name in kops.__all__:
        thing = getattr(kops, name)
        assert not isinstance(thing, types.ModuleType), name
        if name not in ("__version__", "compiled", "why_not_compiled"):
            assert thing.__module__.partition(".")[0] == "kops", name
    public = {name for name in vars(kops) if not name.startswith("_")} - late
    assert public <= set(kops.__all__)
    namespace: dict[str, Any] = {}
    exec("from kops import *", namespace)
    assert set(kops.__all__) <= set(namespace)
