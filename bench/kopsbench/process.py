"""Processes that measures start: python -m kopsbench.process …

    launch SOCKET       a kernel by kopsd, then by torch.cuda._compile_kernel; reads the source
    here SOCKET         a kernel by kopsd, launched in this process's context; reads the source
    load_inline FOLDER  a kernel by torch's load_inline
    extension -         an extension by kops's or torch's load_inline; reads which, and the source
    node SOCKET         has many kernels compiled by kopsd
    nvrtc ARCH          compiles them itself
    client SOCKET       one of many clients with torch, as bench_calls --client is one in C

The first four know nothing of a kernel yet and tell how long it takes from the source to the end of the first launch; importing torch,
making the context and connecting are not timed. `node` and `nvrtc` say `"ready"`, then read a list of [source, entry], tell their
processor time since then, and live until stdin ends. What is read and told are lines of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, perf_counter_ns, sleep
from typing import Any

from .context import Skipped, torch_of_a_child
from .user_kernels import BLOCK, VECTOR_ADD, load_inline, load_wrapper, torch_kernel

ELEMENTS = 1024


def heard() -> Any:
    return json.loads(sys.stdin.readline())


def tell(what: Any) -> None:
    print(json.dumps(what), flush=True)


def timed(call: Callable[[], Any]) -> float:
    start = perf_counter_ns()
    call()
    return (perf_counter_ns() - start) * 1e-3


def vectors(torch: Any) -> list[Any]:
    made = [torch.full((ELEMENTS,), float(i), device="cuda") for i in range(1, 5)]
    torch.cuda.synchronize()
    return made


# ---- from a source to the end of the first launch ----


def launch(socket: str) -> None:
    torch, source = torch_of_a_child(), heard()
    a, b, c, d = vectors(torch)
    import kops

    with kops.connect(socket, blocking=True) as client:
        client.add(a, b, out=c)  # the tensors are known
        made: list[Any] = []

        def ours() -> None:
            made.append(VECTOR_ADD.declare(client, source))
            made[0](c, a, a, ELEMENTS)

        found = {"us": timed(ours), "cached": made[0].code.compiled.cached, "right": bool(torch.equal(c, torch.add(a, a)))}

    def peer() -> None:
        kernel = torch_kernel(torch, source, VECTOR_ADD.entry)
        kernel(((ELEMENTS + BLOCK - 1) // BLOCK, 1, 1), (BLOCK, 1, 1), (d, a, b, ELEMENTS))
        torch.cuda.synchronize()

    try:
        found["torch_us"] = timed(peer)
    except Skipped as reason:
        found["torch_missing"] = str(reason)
    tell(found)


def tell_first(torch: Any, launch: Callable[[Any, Any, Any], None]) -> None:
    """A launch that writes its first operand, waited for."""
    a, b, c, _ = vectors(torch)

    def first() -> None:
        launch(c, a, b)
        torch.cuda.synchronize()

    tell({"us": timed(first), "right": bool(torch.equal(c, torch.add(a, b)))})


def here(socket: str) -> None:
    torch, source = torch_of_a_child(), heard()
    torch.cuda.synchronize()
    import kops

    with kops.connect(socket) as client:
        client.ping()
        made: list[Any] = []  # kept until the launch has ended

        def launch(c: Any, a: Any, b: Any) -> None:
            made.append(VECTOR_ADD.declare(client, source))
            made[0](c, a, b, ELEMENTS, where="here")

        tell_first(torch, launch)


def inline(folder: str) -> None:
    torch = torch_of_a_child()
    importlib.import_module("torch.utils.cpp_extension")
    modules: list[Any] = []  # kept, too

    def launch(c: Any, a: Any, b: Any) -> None:
        modules.append(load_inline(Path(folder)))
        modules[0].vector_add_call(c, a, b)

    tell_first(torch, launch)


def extension(_: str) -> None:
    torch, said = torch_of_a_child(), heard()
    a, b, *_ = vectors(torch)
    importlib.import_module("torch.utils.cpp_extension")
    os.environ["KOPS_SOCKET"] = said["socket"]
    import kops  # noqa: F401

    made: list[Any] = []
    us = timed(lambda: made.append(load_wrapper(said["who"], said["source"], Path(said["folder"]))))
    tell({"us": us, "right": bool(torch.equal(made[0].added(a, b), torch.add(a, b)))})


# ---- one of a machine whose processes all need the same kernels ----


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def compile_all(compile: Callable[[str, str], Any]) -> None:
    tell("ready")
    kernels = heard()
    before = cpu_ms()
    found = [compile(source, entry) for source, entry in kernels]
    tell({"cpu_ms": cpu_ms() - before, "found": found})
    sys.stdin.readline()  # its end is not measured


def node(socket: str) -> None:
    import kops

    with kops.connect(socket, blocking=True) as client:
        compile_all(lambda source, entry: client.compile(source, [entry], arch="sm_90a").key)


def nvrtc(arch: str) -> None:
    from .nvrtc import Nvrtc

    compiler = Nvrtc()
    compile_all(lambda source, entry: len(compiler.compile(source, arch)))


# ---- one of many clients ----


def client(socket: str) -> None:
    import kops
    import torch

    with kops.connect(socket, timeout=60) as client:
        a, b, out = (torch.full((ELEMENTS,), float(i), device="cuda") for i in range(3))
        for _ in range(100):
            client.add(a, b, out=out)
        tell("ready")
        for line in sys.stdin:
            begin, end = json.loads(line)
            sleep(max(0, begin - monotonic_ns()) * 1e-9)
            times, before = [], monotonic_ns()
            while before < end:
                client.add(a, b, out=out)
                now = monotonic_ns()
                times.append(now - before)
                before = now
            times.sort()
            if float(out[0]) != 1.0:
                raise RuntimeError("the result is wrong")
            p50, p99 = (times[int(len(times) * part)] * 1e-3 for part in (0.5, 0.99))
            tell({"calls": {"n": len(times), "p50": p50, "p99": p99}})


if __name__ == "__main__":
    roles = {"launch": launch, "here": here, "load_inline": inline, "extension": extension, "node": node, "nvrtc": nvrtc, "client": client}
    roles[sys.argv[1]](sys.argv[2])
