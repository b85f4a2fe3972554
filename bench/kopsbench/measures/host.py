"""The host backend's kernels against NumPy's and torch's, on the same machine with the same number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns, process_time_ns, sleep
from typing import Any

from ..calls import profile
from ..context import Context, Skipped
from ..record import Record, summarise, summarise_rate
from . import add, alternate

KIB = 1024
ADD_BYTES = {"4KiB": 4 * KIB, "64KiB": 64 * KIB, "1MiB": KIB**2, "16MiB": 16 * KIB**2, "256MiB": 256 * KIB**2}
ADD_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16"}
GEMM_DTYPES = {"f32": "float32", "f64": "float64"}
GEMM_SIZES = (64, 128, 256, 512, 1024, 2048)
TORCH_DTYPES = {"f32": "float32", "bf16": "bfloat16"}
SETTLING_CALLS = 24
WAKING_CALLS = 2  # of a turn, which wake the side's threads and fetch its memory; not counted
STILL_S = 0.02
STILL_TRIES = 250  # five seconds
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


def gemm_threads() -> int:
    """Of both sides. NumPy's is a matter of the environment that it was loaded with."""
    return int(os.environ.get("OPENBLAS_NUM_THREADS") or os.cpu_count() or 1)


def gemm_name(dtype: str, size: int, peer: str = "") -> str:
    every = gemm_threads() == os.cpu_count()
    return f"host_gemm_{dtype}_{size}{peer}" + ("" if every else f"_{gemm_threads()}_threads")


def settle(client: Any, a: Any, b: Any, out: Any) -> None:
    """The first products of a size are the turns of all variants; the daemon then keeps to one."""
    for _ in range(SETTLING_CALLS):
        profile(client, "gemm", (a, b), out, repeat=1)


def wait_until_still() -> None:
    """Threads of NumPy's BLAS and of torch poll for a while after a product, on processors that the daemon's then want. So this waits until
    this process has used none for a moment."""
    for _ in range(STILL_TRIES):
        before = process_time_ns()
        sleep(STILL_S)
        if process_time_ns() - before < STILL_S * 1e9 / 10:
            return
    raise Skipped("the peer's threads never stop polling, as with OMP_WAIT_POLICY=active: unset it")


def measure_gemm(context: Context, name: str, arrays: Sequence[Any], client: Any, multiply: Callable[[], Any]) -> Record:
    """`multiply` is one product of the peer's."""
    a, b, out = arrays
    size = int(a.shape[0])
    calls = max(20, min(context.calls, int(context.calls * (512 / size) ** 2)))
    variants: list[str] = []

    def ours(n: int) -> Iterable[float]:
        wait_until_still()
        return profile(client, "gemm", (a, b), out, repeat=WAKING_CALLS + n, ret_variant=variants)[WAKING_CALLS:]

    def peer(n: int) -> Iterable[float]:
        for _ in range(WAKING_CALLS):
            multiply()
        for _ in range(n):
            start = perf_counter_ns()
            multiply()
            yield (perf_counter_ns() - start) * 1e-3

    settle(client, a, b, out)
    variants.clear()
    # Short blocks in many turns: what else the machine does comes to both sides.
    our_times, peer_times = alternate(replace(context, blocks=max(context.blocks, 20)), ours, peer, calls=calls, warmup=3)
    blocking = []
    for _ in range(20):
        start = perf_counter_ns()
        client.gemm(a, b, out=out)
        blocking.append((perf_counter_ns() - start) * 1e-3)
    work = 2.0 * size**3
    return Record(
        name,
        "GFLOP/s",
        "higher",
        summarise_rate(our_times, work),
        summarise_rate(peer_times, work),
        {
            "measured": "host_us of repeated executions in the daemon against calls of the peer that have an out array",
            "turns": f"ours begin when the peer's threads have stopped polling; {WAKING_CALLS} more products begin each side's and are not "
            "counted",
            "variants": {variant: variants.count(variant) for variant in sorted(set(variants))},
            "best_us": {"ours": round(min(our_times), 1), "peer": round(min(peer_times), 1)},
            "threads": gemm_threads(),
            "whole_blocking_call_p50_us": summarise(blocking).p50,
            "blas_peer": blas_of(os.getpid()),
        },
        target=1.0,
    )


def run_gemm(context: Context, dtype: str, size: int) -> Record:
    import kops
    import numpy

    np_dtype = numpy.dtype(GEMM_DTYPES[dtype])
    generator = numpy.random.default_rng(1)
    threads = f"host.threads={gemm_threads()}"
    with context.daemon("--set", threads, cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        arrays = [client.empty((size, size), np_dtype) for _ in range(3)]
        arrays[0][:] = generator.standard_normal((size, size))
        arrays[1][:] = generator.standard_normal((size, size))
        local = [numpy.array(x) for x in arrays]
        record = measure_gemm(
            context, gemm_name(dtype, size), arrays, client, lambda: numpy.matmul(local[0], local[1], out=local[2])
        )
        record.detail["blas_ours"] = blas_of(daemon.pid)
    assert record.peer
    record.peer.name = "numpy.matmul(out=)"
    return record


def run_gemm_torch(context: Context, dtype: str, size: int) -> Record:
    import kops

    try:
        import torch
    except ImportError:
        raise Skipped("torch is not installed") from None
    torch.set_num_threads(gemm_threads())
    torch_dtype = getattr(torch, TORCH_DTYPES[dtype])
    threads = f"host.threads={gemm_threads()}"
    with context.daemon("--set", threads, cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        arrays = [client.array(torch.randn(size, size).to(torch_dtype)) for _ in range(3)]
        local = [x.clone() for x in arrays]
        record = measure_gemm(
            context,
            gemm_name(dtype, size, "_vs_torch"),
            arrays,
            client,
            lambda: torch.mm(local[0], local[1], out=local[2]),
        )
        record.detail["blas_ours"] = blas_of(daemon.pid)
    assert record.peer
    record.peer.name = f"torch.mm(out=), torch {torch.__version__}, CPU"
    return record


for _dtype in ADD_DTYPES:
    for _size in ADD_BYTES:
        add(f"host_add_{_dtype}_{_size}", lambda c, d=_dtype, s=_size: run_add(c, d, s), on_gpu=False)
for _dtype in GEMM_DTYPES:
    for _n in GEMM_SIZES:
        add(f"host_gemm_{_dtype}_{_n}", lambda c, d=_dtype, n=_n: run_gemm(c, d, n), on_gpu=False, seconds=240.0)
for _dtype in TORCH_DTYPES:
    for _n in GEMM_SIZES:
        add(
            f"host_gemm_{_dtype}_{_n}_vs_torch",
            lambda c, d=_dtype, n=_n: run_gemm_torch(c, d, n),
            on_gpu=False,
            seconds=240.0,
        )
