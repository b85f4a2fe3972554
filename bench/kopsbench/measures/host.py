"""The host backend's kernels against NumPy's and torch's, on the same machine with the same number of threads; and what a daemon costs that
has nothing to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import process_time_ns, sleep
from typing import Any

from support import proc

from ..context import Context, Skipped
from ..record import Record, Summary, summarise, summarise_rate
from . import add
from .common import rounds, timed

KIB = 1024
ADD_BYTES = {"4KiB": 4 * KIB, "64KiB": 64 * KIB, "1MiB": KIB**2, "16MiB": 16 * KIB**2, "256MiB": 256 * KIB**2}
ADD_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16"}
# Each side measures at least that long in all, so that 4 KiB is not one clock tick.
CALLS_FOR_BYTES = ((KIB**2, 10), (64 * KIB**2, 2))
GEMM_DTYPES = {"": ("f32", "f64"), "_vs_torch": ("bf16",)}  # by peer: NumPy, torch on the CPU
GEMM_SIZES = (64, 256, 1024, 2048)
SETTLING_CALLS = 16  # the turns of both libraries; the daemon then keeps to one
WAKING_CALLS = 2  # of a turn, which wake the side's threads and fetch its memory; not counted
STILL_S, STILL_TRIES = 0.02, 250  # five seconds
IDLE_SECONDS, RSS_TARGET_MB = 10.0, 20.0


@contextmanager
def on_the_host(context: Context, *settings: str) -> Iterator[tuple[Any, Any]]:
    import kops

    arguments = [word for setting in settings for word in ("--set", setting)]
    with context.daemon(*arguments, cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        yield daemon, client


def samples_of(client: Any, op: str, a: Any, b: Any, out: Any, n: int, used: list[str] | None = None) -> list[float]:
    """The daemon's times of executions in one request."""
    found = client.profile(op, a, b, out=out, warmup=0, repeat=n)
    if used is not None:
        used.append(found.variant)
    return list(found.samples)


def run_add(context: Context, dtype: str, size: str) -> Record:
    import numpy

    n_bytes, np_dtype = ADD_BYTES[size], numpy.dtype(ADD_DTYPES[dtype])
    count = n_bytes // np_dtype.itemsize
    calls = context.calls * next((factor for limit, factor in CALLS_FOR_BYTES if n_bytes <= limit), 1)
    generator = numpy.random.default_rng(1)
    with on_the_host(context) as (_, client):
        a, b, out = (client.empty(count, np_dtype) for _ in range(3))
        a[:], b[:] = (generator.random(count, numpy.float32).astype(np_dtype) for _ in range(2))
        x, y, z = (numpy.array(array) for array in (a, b, out))
        sides = [lambda n: samples_of(client, "add", a, b, out, n), timed(lambda: numpy.add(x, y, out=z))]
        ours, peer = rounds(context, sides, calls=calls)
        # Ordinary memory may lie in huge pages where shared memory may not.
        shared, blocking = timed(lambda: numpy.add(a, b, out=out))(50), timed(lambda: client.add(a, b, out=out))(50)
        detail = {
            "measured": "host_us of repeated executions in the daemon against numpy.add with out=; bytes of 3 arrays",
            "numpy_on_the_same_shared_memory_p50": summarise_rate(shared, 3 * n_bytes).p50,
            "whole_blocking_call_p50_us": summarise(blocking).p50,
        }
    rates = summarise_rate(ours, 3 * n_bytes), summarise_rate(peer, 3 * n_bytes, "numpy.add(out=)")
    return Record(f"host_add_{dtype}_{size}", "GB/s", "higher", *rates, detail, target=1.0)


# ---- gemm ----


def blas_of(pid: int) -> str:
    """The BLAS that a process has loaded, by the names of its mapped files."""
    names = set()
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        path = line.split(maxsplit=5)[-1]
        name = os.path.basename(path)
        if ".so" in name and any(word in name.lower() for word in ("blas", "mkl", "dnnl", "blis")):
            names.add(os.path.basename(os.path.realpath(path)))
    return ", ".join(sorted(names)) or "none"


def gemm_threads() -> int:
    """Of both sides. NumPy's is a matter of the environment that it was loaded with."""
    return int(os.environ.get("OPENBLAS_NUM_THREADS") or os.cpu_count() or 1)


def wait_until_still() -> None:
    """Threads of NumPy's BLAS and of torch poll for a while after a product, on processors that the daemon's then want. So this waits until
    this process has used none for a moment."""
    for _ in range(STILL_TRIES):
        before = process_time_ns()
        sleep(STILL_S)
        if process_time_ns() - before < STILL_S * 1e9 / 10:
            return
    raise Skipped("the peer's threads never stop polling, as with OMP_WAIT_POLICY=active: unset it")


def measure_gemm(context: Context, name: str, arrays: Sequence[Any], client: Any, multiply: Callable[[], Any], peer_name: str) -> Record:
    """`multiply` is one product of the peer's."""
    a, b, out = arrays
    size = int(a.shape[0])
    calls = max(20, min(context.calls, int(context.calls * (512 / size) ** 2)))
    variants: list[str] = []

    def ours(n: int) -> list[float]:
        wait_until_still()
        return samples_of(client, "gemm", a, b, out, WAKING_CALLS + n, variants)[WAKING_CALLS:]

    def peer(n: int) -> list[float]:
        return list(timed(multiply)(WAKING_CALLS + n))[WAKING_CALLS:]

    for _ in range(SETTLING_CALLS):
        samples_of(client, "gemm", a, b, out, 1)
    # Short blocks in many turns: what else the machine does comes to both sides.
    our_times, peer_times = rounds(replace(context, blocks=max(context.blocks, 20)), [ours, peer], calls=calls, warmup=3)
    detail = {
        "measured": "host_us of repeated executions in the daemon against calls of the peer that have an out array",
        "turns": f"ours begin when the peer's threads have stopped polling; {WAKING_CALLS} more products begin each side's and are not "
        "counted",
        "variants": {variant: variants.count(variant) for variant in sorted(set(variants))},
        "best_us": {"ours": round(min(our_times), 1), "peer": round(min(peer_times), 1)},
        "threads": gemm_threads(),
        "whole_blocking_call_p50_us": summarise(timed(lambda: client.gemm(a, b, out=out))(20)).p50,
        "blas_peer": blas_of(os.getpid()),
    }
    rates = summarise_rate(our_times, 2.0 * size**3), summarise_rate(peer_times, 2.0 * size**3, peer_name)
    return Record(name, "GFLOP/s", "higher", *rates, detail, target=1.0)


def run_gemm(context: Context, dtype: str, size: int, peer: str) -> Record:
    import numpy

    threads = gemm_threads()
    few = "" if threads == os.cpu_count() else f"_{threads}_threads"
    name = f"host_gemm_{dtype}_{size}{peer}{few}"
    with on_the_host(context, f"host.threads={threads}") as (daemon, client):
        if peer:
            try:
                import torch
            except ImportError:
                raise Skipped("torch is not installed") from None
            torch.set_num_threads(threads)
            arrays = [client.array(torch.randn(size, size).to(torch.bfloat16)) for _ in range(3)]
            x, y, z = (array.clone() for array in arrays)
            peer_name = f"torch.mm(out=), torch {torch.__version__}, CPU"
            record = measure_gemm(context, name, arrays, client, lambda: torch.mm(x, y, out=z), peer_name)
        else:
            generator = numpy.random.default_rng(1)
            arrays = [client.empty((size, size), numpy.dtype(ADD_DTYPES[dtype])) for _ in range(3)]
            arrays[0][:], arrays[1][:] = (generator.standard_normal((size, size)) for _ in range(2))
            x, y, z = (numpy.array(array) for array in arrays)
            record = measure_gemm(context, name, arrays, client, lambda: numpy.matmul(x, y, out=z), "numpy.matmul(out=)")
        record.detail["blas_ours"] = blas_of(daemon.pid)
    return record


# ---- a daemon that has nothing to do ----


def run_idle(context: Context) -> Record:
    import numpy

    with on_the_host(context) as (daemon, client):
        a = numpy.ones(1 << 16, numpy.float32)
        client.add(a, a)  # a daemon that has worked, with a connection that stays open
        sleep(1.0)
        before = proc.cpu_ticks(daemon.pid)
        sleep(IDLE_SECONDS)
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


for _dtype in ADD_DTYPES:
    for _size in ADD_BYTES:
        add(f"host_add_{_dtype}_{_size}", run_add, _dtype, _size, on_gpu=False)
for _peer, _dtypes in GEMM_DTYPES.items():
    for _dtype in _dtypes:
        for _n in GEMM_SIZES:
            add(f"host_gemm_{_dtype}_{_n}{_peer}", run_gemm, _dtype, _n, _peer, on_gpu=False, seconds=240.0)
add("idle_cpu", run_idle, on_gpu=False)
add("rss_mb", run_rss, on_gpu=False)
