"""What a daemon costs that has nothing to do: processor time and memory."""

from __future__ import annotations

import os
import threading

from support import proc

from ..context import Context
from ..record import Record, Summary
from . import add

IDLE_SECONDS = 10.0
RSS_TARGET_MB = 20.0


def run_idle(context: Context) -> Record:
    import kops
    import numpy

    with context.daemon(cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        a = numpy.ones(1 << 16, numpy.float32)
        client.add(a, a)  # a daemon that has worked, with a connection that stays open
        threading.Event().wait(1.0)
        before = proc.cpu_ticks(daemon.pid)
        threading.Event().wait(IDLE_SECONDS)
        ticks = proc.cpu_ticks(daemon.pid) - before
    share = 100.0 * ticks / os.sysconf("SC_CLK_TCK") / IDLE_SECONDS
    return Record(
        "idle_cpu",
        "percent of one core",
        "lower",
        Summary(share, share, 1),
        None,
        {
            "measured": f"user and system ticks over {IDLE_SECONDS:g} s, one idle connection, after one add",
            "ticks": ticks,
            "peer": "none: nothing else does the same work",
        },
        target=0.0,
        absolute=True,
    )


def run_rss(context: Context) -> Record:
    import kops
    import numpy

    with context.daemon(cuda=False) as daemon, kops.connect(daemon.socket_path) as client:
        a = numpy.ones(256, numpy.float32)
        client.add(a, a)
        rss = proc.status(daemon.pid, "VmRSS") / 1024
    return Record(
        "rss_mb",
        "MiB",
        "lower",
        Summary(rss, rss, 1),
        None,
        {
            "measured": "VmRSS of a daemon without CUDA after one small add, before the first call of a BLAS",
            "peer": "none: nothing else does the same work",
        },
        target=RSS_TARGET_MB,
        absolute=True,
    )


add("idle_cpu", run_idle, on_gpu=False)
add("rss_mb", run_rss, on_gpu=False)
