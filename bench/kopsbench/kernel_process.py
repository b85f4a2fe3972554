"""A process that knows nothing of a kernel yet: how long it takes from a source to the end of the first launch.

    python -m kopsbench.kernel_process launch SOCKET       by kopsd, then by torch.cuda._compile_kernel; reads the source
    python -m kopsbench.kernel_process here SOCKET         by kopsd, launched in this process's context; reads the source
    python -m kopsbench.kernel_process load_inline FOLDER  by torch's load_inline
    python -m kopsbench.kernel_process node SOCKET         has many kernels compiled by kopsd
    python -m kopsbench.kernel_process nvrtc ARCH          compiles them itself

Each reads one line of JSON from stdin and writes one. Importing torch, making the context and connecting are not timed. `node` and
`nvrtc` say `"ready"`, then read a list of [source, entry], tell their processor time and the time that passed since then, and what their
imports cost, and live until stdin ends.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from .context import Skipped, torch_of_a_child
from .user_kernels import BLOCK, VECTOR_ADD, load_inline, torch_kernel

ELEMENTS = 1024


def _timed(call: Callable[[], Any]) -> float:
    start = perf_counter_ns()
    call()
    return (perf_counter_ns() - start) * 1e-3


def _vectors(torch: Any) -> list[Any]:
    made = [torch.full((ELEMENTS,), float(i), device="cuda") for i in range(1, 5)]
    torch.cuda.synchronize()
    return made


def launch(socket: str) -> dict[str, Any]:
    torch, source = torch_of_a_child(), json.loads(sys.stdin.readline())
    a, b, c, d = _vectors(torch)
    began = perf_counter_ns()
    import kops

    with kops.connect(socket, blocking=True) as client:
        found: dict[str, Any] = {"ready_us": (perf_counter_ns() - began) * 1e-3}
        client.add(a, b, out=c)  # the tensors are known
        made: list[Any] = []

        def ours() -> None:
            made.append(VECTOR_ADD.declare(client, source))
            made[0](c, a, a, ELEMENTS)

        found["us"] = _timed(ours)
        found["again_us"] = _timed(lambda: made[0](c, b, b, ELEMENTS))
        found["cached"] = made[0].code.compiled.cached
        found["right"] = bool(torch.equal(c, torch.add(b, b)))

    def peer() -> None:
        kernel = torch_kernel(torch, source, VECTOR_ADD.entry)
        kernel(((ELEMENTS + BLOCK - 1) // BLOCK, 1, 1), (BLOCK, 1, 1), (d, a, b, ELEMENTS))
        torch.cuda.synchronize()

    try:
        found["torch_us"] = _timed(peer)
    except Skipped as reason:
        found["torch_missing"] = str(reason)
    return found


def here(socket: str) -> dict[str, Any]:
    torch, source = torch_of_a_child(), json.loads(sys.stdin.readline())
    a, b, c, _ = _vectors(torch)
    import kops

    with kops.connect(socket) as client:
        client.ping()
        made: list[Any] = []

        def first() -> None:
            made.append(VECTOR_ADD.declare(client, source))
            again()

        def again() -> None:
            made[0](c, a, b, ELEMENTS, where="here")
            torch.cuda.synchronize()

        return {"us": _timed(first), "again_us": _timed(again), "right": bool(torch.equal(c, torch.add(a, b)))}


def inline(folder: str) -> dict[str, Any]:
    torch = torch_of_a_child()
    a, b, c, _ = _vectors(torch)
    imports = _timed(lambda: importlib.import_module("torch.utils.cpp_extension"))

    def call() -> None:
        module = load_inline((VECTOR_ADD,), "kops_bench_inline", Path(folder))
        module.vector_add_call(c, a, b)
        torch.cuda.synchronize()

    return {"us": _timed(call), "ready_us": imports, "right": bool(torch.equal(c, torch.add(a, b)))}


# ---- one of a machine whose processes all need the same kernels ----


def _cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def _many(compile: Callable[[str, str], Any]) -> dict[str, Any]:
    ready_ms = _cpu_ms()
    print('"ready"', flush=True)
    kernels = json.loads(sys.stdin.readline())
    before, start = _cpu_ms(), perf_counter()
    found = [compile(source, entry) for source, entry in kernels]
    return {"cpu_ms": _cpu_ms() - before, "seconds": perf_counter() - start, "ready_ms": ready_ms, "found": found}


def node(socket: str) -> dict[str, Any]:
    import kops

    with kops.connect(socket, blocking=True) as client:
        return _many(lambda source, entry: client.compile(source, [entry], arch="sm_90a").key)


def nvrtc(arch: str) -> dict[str, Any]:
    from .nvrtc import Nvrtc

    compiler = Nvrtc()
    return _many(lambda source, entry: len(compiler.compile(source, arch)))


if __name__ == "__main__":
    ways = {"launch": launch, "here": here, "load_inline": inline, "node": node, "nvrtc": nvrtc}
    print(json.dumps(ways[sys.argv[1]](sys.argv[2])), flush=True)
    if sys.argv[1] in ("node", "nvrtc"):
        sys.stdin.readline()  # their end is not measured
