"""A process that knows nothing of a kernel yet: how long it takes from a source to the end of the first launch.

    python -m kopsbench.kernel_process launch SOCKET       by kopsd, then by torch.cuda._compile_kernel; reads the source
    python -m kopsbench.kernel_process here SOCKET         by kopsd, launched in this process's context
    python -m kopsbench.kernel_process load_inline FOLDER  by torch's load_inline
    python -m kopsbench.kernel_process compile SOCKET      by kopsd, only compiled; says `ready`, then waits for the source

Sources come by stdin, each in one line of JSON. Writes a line of JSON. torch is imported, the context made and the
connection open before the time begins.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from .context import Skipped
from .user_kernels import BLOCK, VECTOR_ADD, load_inline, torch_kernel

ELEMENTS = 1024


def _torch() -> Any:
    if os.environ.get("KOPS_BENCH_SMOKE"):
        from . import smoke_torch

        return smoke_torch
    import torch

    return torch


def _timed(call: Callable[[], Any]) -> float:
    start = perf_counter_ns()
    call()
    return (perf_counter_ns() - start) * 1e-3


def launch(socket: str) -> dict[str, Any]:
    torch = _torch()
    source = json.loads(sys.stdin.readline())
    a, b, c, d = (torch.full((ELEMENTS,), float(i), device="cuda") for i in range(1, 5))
    torch.cuda.synchronize()
    found: dict[str, Any] = {}
    began = perf_counter_ns()
    import kops

    with kops.connect(socket, blocking=True) as client:
        found["ready_us"] = (perf_counter_ns() - began) * 1e-3
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
    torch = _torch()
    source = json.loads(sys.stdin.readline())
    a, b, c = (torch.full((ELEMENTS,), float(i), device="cuda") for i in range(1, 4))
    torch.cuda.synchronize()
    import kops

    with kops.connect(socket) as client:
        client.ping()
        made: list[Any] = []

        def first() -> None:
            made.append(VECTOR_ADD.declare(client, source))
            made[0](c, a, a, ELEMENTS, where="here")
            torch.cuda.synchronize()

        def again() -> None:
            made[0](c, a, b, ELEMENTS, where="here")
            torch.cuda.synchronize()

        us = _timed(first)
        return {"us": us, "again_us": _timed(again), "right": bool(torch.equal(c, torch.add(a, b)))}


def inline(folder: str) -> dict[str, Any]:
    torch = _torch()
    a, b, c = (torch.full((ELEMENTS,), float(i), device="cuda") for i in range(1, 4))
    torch.cuda.synchronize()
    imports = _timed(lambda: importlib.import_module("torch.utils.cpp_extension"))

    def call() -> None:
        module = load_inline((VECTOR_ADD,), "kops_bench_inline", Path(folder))
        module.vector_add_call(c, a, b)
        torch.cuda.synchronize()

    us = _timed(call)
    return {"us": us, "ready_us": imports, "right": bool(torch.equal(c, torch.add(a, b)))}


def only_compile(socket: str) -> dict[str, Any]:
    import kops

    with kops.connect(socket, blocking=True) as client:
        print("ready", flush=True)
        source = json.loads(sys.stdin.readline())
        made: list[Any] = []
        us = _timed(lambda: made.append(client.compile(source, [VECTOR_ADD.entry], arch="sm_90a")))
        return {"us": us, "cached": made[0].cached, "key": made[0].key}


if __name__ == "__main__":
    print(json.dumps({"launch": launch, "here": here, "load_inline": inline, "compile": only_compile}[sys.argv[1]](sys.argv[2])))
