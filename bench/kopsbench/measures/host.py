"""Without a GPU: the host backend's add against NumPy's, on the same machine with the same number of threads; what an idle daemon costs;
and the way from a wheel and an empty environment to the first result: pip, the daemon's start and, on a GPU, a kernel's compilation.

KOPS_WHEEL names the wheel; otherwise it is the one that `make wheel` has made."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import proc
from support import wheel as wheels

from ..context import ROOT, Context, Skipped
from ..record import Record, Summary, summarise, summarise_rate
from . import add
from .common import rounds, timed

KIB = 1024
ADD_BYTES = {"4KiB": 4 * KIB, "64KiB": 64 * KIB, "1MiB": KIB**2, "16MiB": 16 * KIB**2, "256MiB": 256 * KIB**2}
# Each side measures at least that long in all, so that 4 KiB is not one clock tick.
CALLS_FOR_BYTES = ((KIB**2, 10), (64 * KIB**2, 2))
IDLE_SECONDS, RSS_TARGET_MB, WHEEL_TARGET_S = 10.0, 20.0, 10.0
SYSTEM = Path("/run/kopsd/kopsd.sock")


@contextmanager
def on_the_host(context: Context) -> Iterator[tuple[Any, Any]]:
    import kops

    with context.daemon(cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        yield daemon, client


def run_add(context: Context, size: str) -> Record:
    import numpy

    n_bytes, count = ADD_BYTES[size], ADD_BYTES[size] // 4
    calls = context.calls * next((factor for limit, factor in CALLS_FOR_BYTES if n_bytes <= limit), 1)
    generator = numpy.random.default_rng(1)
    with on_the_host(context) as (_, client):
        a, b, out = (client.empty(count) for _ in range(3))
        a[:], b[:] = (generator.random(count, numpy.float32) for _ in range(2))
        x, y, z = (numpy.array(array) for array in (a, b, out))
        sides = [lambda n: list(client.profile("add", a, b, out=out, warmup=0, repeat=n).samples), timed(lambda: numpy.add(x, y, out=z))]
        ours, peer = rounds(context, sides, calls=calls)
    detail = {"measured": "host_us of repeated executions in the daemon against numpy.add with out=; bytes of 3 arrays"}
    rates = summarise_rate(ours, 3 * n_bytes), summarise_rate(peer, 3 * n_bytes, "numpy.add(out=)")
    return Record(f"host_add_f32_{size}", "GB/s", "higher", *rates, detail, target=1.0)


# ---- a daemon that has nothing to do ----


def run_idle(context: Context) -> Record:
    import numpy

    with on_the_host(context) as (daemon, client):
        a = numpy.ones(1 << 16, numpy.float32)
        client.add(a, a)  # a daemon that has worked, with a connection that stays open
        time.sleep(1.0)
        before = proc.cpu_ticks(daemon.pid)
        time.sleep(IDLE_SECONDS)
        ticks = proc.cpu_ticks(daemon.pid) - before
    share = 100.0 * ticks / os.sysconf("SC_CLK_TCK") / IDLE_SECONDS
    detail = {"measured": f"user and system ticks over {IDLE_SECONDS:g} s, one idle connection, after one add", "ticks": ticks}
    return Record("idle_cpu", "percent of one core", "lower", Summary(share, share, 1), None, detail, target=0.0, absolute=True)


def run_rss(context: Context) -> Record:
    import numpy

    with on_the_host(context) as (daemon, client):
        a = numpy.ones(256, numpy.float32)
        client.add(a, a)
        rss = proc.status(daemon.pid, "VmRSS") / 1024
    detail = {"measured": "VmRSS of a daemon without CUDA after one small add, before the first call of a BLAS"}
    return Record("rss_mb", "MiB", "lower", Summary(rss, rss, 1), None, detail, target=RSS_TARGET_MB, absolute=True)


# ---- from a wheel to the first result ----


def find_wheel() -> Path:
    named = os.environ.get("KOPS_WHEEL")
    found = [Path(named)] if named else list((ROOT / "build/wheel/dist").glob("kops-*.whl"))
    if not found or not found[0].is_file():
        raise Skipped("there is no wheel: make wheel, or name one in KOPS_WHEEL")
    if SYSTEM.exists():
        raise Skipped("a daemon of the system comes first")
    return found[0].resolve()


def bring_nvrtc(venv: Path) -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    if not any([wheels.bring_nvrtc(venv, folder) for folder in folders]):
        raise Skipped("this Python has no package of NVIDIA's with NVRTC")


def install_and_run(wheel: Path, program: str, on_gpu: bool) -> tuple[float, float]:
    """Seconds of both commands. The second ends with its result, and its daemon runs on."""
    with tempfile.TemporaryDirectory(prefix="kops-bench-") as name:
        home, venv = Path(name, "home"), Path(name, "venv")
        pip = wheels.empty_venv(venv)
        wheels.bring_msgpack(venv)
        environment = wheels.environment(home)
        if on_gpu:
            bring_nvrtc(venv)
        else:
            environment["KOPSD_SERVER_BACKEND"] = "host"
        start = time.monotonic()
        wheels.install(pip, wheel)
        installed = time.monotonic()
        command = [str(venv / "bin/python"), "-c", program]
        with subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout
            line = first.stdout.readline()
            done = time.monotonic()
        if line.strip() != wheels.RESULT or first.returncode:
            raise RuntimeError(f"the first program said {line!r} and ended with status {first.returncode}")
        wheels.await_end(home)
    return installed - start, done - installed


def run_wheel(context: Context, name: str, program: str, on_gpu: bool) -> Record:
    if context.smoke and on_gpu:
        raise Skipped("a wheel's daemon knows no stand-in")
    wheel = find_wheel()
    pairs = [install_and_run(wheel, program, on_gpu) for _ in range(1 if context.smoke else max(3, min(10, context.calls // 20)))]
    result = "a kernel of its own, which NVRTC of NVIDIA's packages compiles" if on_gpu else "the host backend"
    detail = {
        "measured": f"pip install of the wheel into an empty environment, then Python until it has printed the first result of {result}",
        "left out": "downloads; files are in memory",
        "install_s": summarise(install for install, _ in pairs).as_json(),
        "first_s": summarise(first for _, first in pairs).as_json(),
        "wheel": wheel.name,
        "wheel_mb": wheel.stat().st_size / 1e6,
    }
    return Record(name, "s", "lower", summarise(sum(pair) for pair in pairs), None, detail, target=WHEEL_TARGET_S, absolute=True)


for _size in ADD_BYTES:
    add(f"host_add_f32_{_size}", run_add, _size, on_gpu=False)
add("idle_cpu", run_idle, on_gpu=False)
add("rss_mb", run_rss, on_gpu=False)
add("wheel_first_result", run_wheel, "wheel_first_result", wheels.FIRST_RESULT, False, on_gpu=False, seconds=600)
add("wheel_first_kernel", run_wheel, "wheel_first_kernel", wheels.FIRST_KERNEL, True, on_gpu=True, seconds=600)
