"""The host backend's kernels against NumPy's, on the same machine with the same number of threads to choose from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from ..calls import profile
from ..context import Context
from ..record import Record, summarise, summarise_rate
from . import add, alternate

KIB = 1024
ADD_BYTES = {"4KiB": 4 * KIB, "64KiB": 64 * KIB, "1MiB": KIB**2, "16MiB": 16 * KIB**2, "256MiB": 256 * KIB**2}
ADD_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16"}
GEMM_DTYPES = {"f32": "float32", "f64": "float64"}
GEMM_SIZES = (512, 1024, 2048)
# Each side measures at least that long in all, so that 4 KiB is not one clock tick.
CALLS_FOR_BYTES = ((KIB**2, 10), (64 * KIB**2, 2))


def blas_of(pid: int) -> str:
    """The BLAS that a process has loaded, by the names of its mapped files."""
    names = set()
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        path = line.split(maxsplit=5)[-1]
        name = os.path.basename(path)
        if ".so" in name and any(word in name.lower() for word in ("blas", "mkl", "dnnl", "blis")):
            names.add(os.path.basename(os.path.realpath(path)))
    return ", ".join(sorted(names)) or "none"


def run_add(context: Context, dtype: str, size: str) -> Record:
    import kops
    import numpy

    n_bytes = ADD_BYTES[size]
    np_dtype = numpy.dtype(ADD_DTYPES[dtype])
    count = n_bytes // np_dtype.itemsize
    calls = context.calls * next((factor for limit, factor in CALLS_FOR_BYTES if n_bytes <= limit), 1)
    generator = numpy.random.default_rng(1)
    with context.daemon(cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        a, b, out = (client.empty(count, np_dtype) for _ in range(3))
        a[:] = generator.random(count, numpy.float32).astype(np_dtype)
        b[:] = generator.random(count, numpy.float32).astype(np_dtype)
        local = [numpy.array(x) for x in (a, b, out)]

        def ours(n: int) -> Iterable[float]:
            return profile(client, "add", (a, b), out, repeat=n)

        def numpy_add(n: int, arrays: Sequence[Any]) -> Iterable[float]:
            for _ in range(n):
                start = perf_counter_ns()
                numpy.add(arrays[0], arrays[1], out=arrays[2])
                yield (perf_counter_ns() - start) * 1e-3

        our_times, peer_times = alternate(context, ours, lambda n: numpy_add(n, local), calls=calls)
        # Ordinary memory may lie in huge pages where shared memory may not.
        shared_times = list(numpy_add(50, (a, b, out)))
        blocking = []
        for _ in range(50):
            start = perf_counter_ns()
            client.add(a, b, out=out)
            blocking.append((perf_counter_ns() - start) * 1e-3)
    moved = 3 * n_bytes
    return Record(
        f"host_add_{dtype}_{size}",
        "GB/s",
        "higher",
        summarise_rate(our_times, moved),
        summarise_rate(peer_times, moved, "numpy.add(out=)"),
        {
            "measured": "host_us of repeated executions in the daemon against numpy.add with out=; bytes of 3 arrays",
            "numpy_on_the_same_shared_memory_p50": summarise_rate(shared_times, moved).p50,
            "whole_blocking_call_p50_us": summarise(blocking).p50,
        },
        target=1.0,
    )


def run_gemm(context: Context, dtype: str, size: int) -> Record:
    import kops
    import numpy

    np_dtype = numpy.dtype(GEMM_DTYPES[dtype])
    generator = numpy.random.default_rng(1)
    calls = max(20, min(context.calls, int(context.calls * (512 / size) ** 2)))
    with context.daemon(cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        a, b, out = (client.empty((size, size), np_dtype) for _ in range(3))
        a[:] = generator.standard_normal((size, size))
        b[:] = generator.standard_normal((size, size))
        local = [numpy.array(x) for x in (a, b, out)]

        def ours(n: int) -> Iterable[float]:
            return profile(client, "gemm", (a, b), out, repeat=n)

        def peer(n: int) -> Iterable[float]:
            for _ in range(n):
                start = perf_counter_ns()
                numpy.matmul(local[0], local[1], out=local[2])
                yield (perf_counter_ns() - start) * 1e-3

        our_times, peer_times = alternate(context, ours, peer, calls=calls, warmup=3)
        ours_blas = blas_of(daemon.pid)
    return Record(
        f"host_gemm_{dtype}_{size}",
        "GFLOP/s",
        "higher",
        summarise_rate(our_times, 2.0 * size**3),
        summarise_rate(peer_times, 2.0 * size**3, "numpy.matmul(out=)"),
        {
            "measured": "host_us of repeated executions in the daemon against numpy.matmul with an out array",
            "blas_ours": ours_blas,
            "blas_peer": blas_of(os.getpid()),
        },
        target=0.9,
    )


for _dtype in ADD_DTYPES:
    for _size in ADD_BYTES:
        add(f"host_add_{_dtype}_{_size}", lambda c, d=_dtype, s=_size: run_add(c, d, s), on_gpu=False)
for _dtype in GEMM_DTYPES:
    for _n in GEMM_SIZES:
        add(f"host_gemm_{_dtype}_{_n}", lambda c, d=_dtype, n=_n: run_gemm(c, d, n), on_gpu=False)
