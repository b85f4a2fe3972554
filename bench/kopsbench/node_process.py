"""A process of a machine whose processes all need the same kernels.

    python -m kopsbench.node_process daemon SOCKET   has them compiled by kopsd
    python -m kopsbench.node_process nvrtc ARCH      compiles them itself

Says `ready`, then waits for a line of JSON, a list of [source, entry]. Writes a line of JSON: its processor time and the time that
passed since then, and what its imports cost.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

Kernels = list[tuple[str, str]]


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def measured(compile: Callable[[Kernels], list[Any]]) -> None:
    ready_ms = cpu_ms()
    print("ready", flush=True)
    kernels = json.loads(sys.stdin.readline())
    before, start = cpu_ms(), perf_counter()
    found = compile(kernels)
    print(json.dumps({"cpu_ms": cpu_ms() - before, "seconds": perf_counter() - start, "ready_ms": ready_ms, "found": found}), flush=True)
    sys.stdin.readline()  # until it is ended: its end is not measured


def daemon(socket: str) -> None:
    import kops

    with kops.connect(socket, blocking=True) as client:
        measured(lambda kernels: [client.compile(source, [entry], arch="sm_90a").key for source, entry in kernels])


def nvrtc(arch: str) -> None:
    from .nvrtc import Nvrtc

    compiler = Nvrtc()
    measured(lambda kernels: [len(compiler.compile(source, arch)) for source, _ in kernels])


if __name__ == "__main__":
    {"daemon": daemon, "nvrtc": nvrtc}[sys.argv[1]](sys.argv[2])
