"""The host backend's add against NumPy's, on the same machine with the same number of threads; and what an idle daemon costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

from support import proc

from ..context import Context
from ..record import Record, Summary, summarise, summarise_rate
from . import add
from .common import rounds, timed

KIB = 1024
ADD_BYTES = {"4KiB": 4 * KIB, "64KiB": 64 * KIB, "1MiB": KIB**2, "16MiB": 16 * KIB**2, "256MiB": 256 * KIB**2}
# Each side measures at least that long in all, so that 4 KiB is not one clock tick.
CALLS_FOR_BYTES = ((KIB**2, 10), (64 * KIB**2, 2))
STILL_S, STILL_TRIES = 0.02, 250  # five seconds
IDLE_SECONDS, RSS_TARGET_MB = 10.0, 20.0


@contextmanager
def on_the_host(context: Context, *settings: str) -> Iterator[tuple[Any, Any]]:
    import kops

    arguments = [word for setting in settings for word in ("--set", setting)]
    with context.daemon(*arguments, cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
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
        # Ordinary memory may lie in huge pages where shared memory may not.
        shared, blocking = timed(lambda: numpy.add(a, b, out=out))(50), timed(lambda: client.add(a, b, out=out))(50)
        detail = {
            "measured": "host_us of repeated executions in the daemon against numpy.add with out=; bytes of 3 arrays",
            "numpy_on_the_same_shared_memory_p50": summarise_rate(shared, 3 * n_bytes).p50,
            "whole_blocking_call_p50_us": summarise(blocking).p50,
        }
    rates = summarise_rate(ours, 3 * n_bytes), summarise_rate(peer, 3 * n_bytes, "numpy.add(out=)")
    return Record(f"host_add_f32_{size}", "GB/s", "higher", *rates, detail, target=1.0)


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


for _size in ADD_BYTES:
    add(f"host_add_f32_{_size}", run_add, _size, on_gpu=False)
add("idle_cpu", run_idle, on_gpu=False)
add("rss_mb", run_rss, on_gpu=False)
