"""From the source of a kernel to the end of its first launch: compiled now, by another process, before a restart; and what the machine
pays when processes that start at once need the same new kernels."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from time import perf_counter_ns
from typing import Any

from ..children import children
from ..context import Context, Skipped
from ..harm import wait_for_spares
from ..nvrtc import Module, Nvrtc
from ..processors import tree_ms
from ..record import Record, Summary, summarise
from ..user_kernels import BLOCK, KERNELS, VECTOR_ADD, fresh, load_inline_missing
from . import add
from .common import ELEMENTS, Samples, beside, check, client_with, rate_beside, vectors

COLD_CALLS, PROCESSES, RESTARTS = 40, 5, 5
NODE_PROCESSES, NODE_KERNELS, NODE_ROUNDS = 8, 20, 3
ARCH = "sm_90a"
COMPILING_S = 100.0
MEASURED = "from the source of vector_add to the end of its first launch on 1024 f32 torch CUDA tensors"
PROCESS = [sys.executable, "-m", "kopsbench.process"]

# ---- sources that are in no cache ----


def ours_cold(client: Any, tensors: Sequence[Any]) -> Samples:
    a, b, c = tensors

    def samples(n: int) -> Iterator[float]:
        for _ in range(n):
            source = fresh(VECTOR_ADD.source)
            start = perf_counter_ns()
            VECTOR_ADD.declare(client, source)(c, a, b, ELEMENTS)
            yield (perf_counter_ns() - start) * 1e-3

    return samples


def bare_cold(nvrtc: Nvrtc, arch: str, tensors: Sequence[Any]) -> Samples:
    from standin_cuda import Driver

    driver = Driver()
    a, b, c = tensors
    arguments = [*(ctypes.c_void_p(tensor.data_ptr()) for tensor in (c, a, b)), ctypes.c_int(ELEMENTS)]

    def samples(n: int) -> Iterator[float]:
        for _ in range(n):
            source = fresh(VECTOR_ADD.source)
            start = perf_counter_ns()
            module = Module(driver, nvrtc.compile(source, arch), VECTOR_ADD.entry)
            module.launch(-(-ELEMENTS // BLOCK), BLOCK, arguments)
            driver.synchronize()
            yield (perf_counter_ns() - start) * 1e-3
            module.unload()

    return samples


def run_cold(context: Context) -> Record:
    nvrtc = Nvrtc()
    a, b, c = vectors(context, 3)
    with client_with(context, "kernels") as client:
        kernel = VECTOR_ADD.declare(client)
        compiled = kernel.code.compiled
        sides = ours_cold(client, (a, b, c)), bare_cold(nvrtc, compiled.arch, (a, b, c))
        list(sides[0](2))
        # In turns, not in blocks: between two requests the daemon starts its next compiler, as it does for users who ask now and then.
        turns = [[next(iter(side(1))) for side in sides] for _ in range(2 + (4 if context.smoke else COLD_CALLS))][2:]
        kernel(c, b, b, ELEMENTS)
        check(context, c, 4.0)
    ours, peer = zip(*turns)
    measured = f"{MEASURED}, a text that is new each time, blocking; NVRTC of both is loaded and warm; both take turns call by call"
    detail = {"compiler": compiled.compiler, "peer_compiler": nvrtc.name, "arch": compiled.arch, **context.python_link()}
    by = (peer, "NVRTC + cuModuleLoadData + launch in process")
    return beside("compile_cold_to_first_launch", ours, by, measured, 1.15, **detail)


# ---- compiled before ----


def child(context: Context, role: str, argument: str, said: Any = None, seconds: float = 120.0) -> dict[str, Any]:
    """What a process of its own found."""
    text = json.dumps(said) + "\n"
    done = subprocess.run(
        [*PROCESS, role, argument], input=text, env=context.of_children(), capture_output=True, text=True, timeout=seconds
    )
    if done.returncode != 0:
        raise RuntimeError(f"{role} failed: {done.stderr.strip()[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if found.get("right") is False:
        raise RuntimeError("the result is wrong")
    return found


def second_processes(context: Context, count: int) -> list[dict[str, Any]]:
    """So many that launch a kernel by the daemon that another process had compiled."""
    source = fresh(VECTOR_ADD.source)
    with client_with(context, "kernels") as client:
        VECTOR_ADD.declare(client, source)
        found = [child(context, "launch", context.gpu_daemon.socket_path, said=source) for _ in range(count)]
    if any(one["cached"] == "no" for one in found):
        raise RuntimeError("the daemon compiled again what it had")
    return found


def took(found: Sequence[dict[str, Any]]) -> list[float]:
    return [one["us"] for one in found]


def versus(
    name: str, ours: Sequence[float], peer: Sequence[float], who: str, target: float | None, detail: dict[str, Any], lacking: str | None
) -> Record:
    """How many times as fast; without a peer the detail says why."""
    without = {"no_peer": lacking} if lacking else {}
    return rate_beside(name, ours, (peer, who) if peer else None, target=target, **detail, **without)


def absolute(name: str, found: Sequence[float], measured: str, target: float, **detail: Any) -> Record:
    """A time whose target bounds itself."""
    return Record(name, "us", "lower", summarise(found), None, {"measured": measured, **detail}, target=target, absolute=True)


def run_second(context: Context) -> list[Record]:
    found = second_processes(context, 2 if context.smoke else PROCESSES)
    ours = took(found)
    measured = f"{MEASURED} in a process with torch and a connection, of a kernel that another process had compiled"
    first = absolute("compile_second_process", ours, measured, 1000.0, n="processes")
    peer = [one["torch_us"] for one in found if "torch_us" in one]
    lacking = next((one["torch_missing"] for one in found if "torch_missing" in one), None)
    return [first, versus("compile_second_process_vs_torch_nvrtc", ours, peer, "torch.cuda._compile_kernel", 15.0, first.detail, lacking)]


def run_load_inline(context: Context) -> list[Record]:
    """An extension takes half a minute, so that is measured once."""
    lacking = "the stand-in has no load_inline" if context.smoke else load_inline_missing()
    few = context.smoke or lacking is not None
    tensors = vectors(context, 3)
    with client_with(context, "kernels") as client:
        samples = ours_cold(client, tensors)
        list(samples(2))
        cold = list(samples(3 if few else 10))
    second = second_processes(context, 2 if few else 3)
    cold_peer: list[float] = []
    warm: list[dict[str, Any]] = []
    if lacking is None:
        with tempfile.TemporaryDirectory(prefix="kops-inline-") as folder:
            cold_peer = [child(context, "load_inline", folder, seconds=150)["us"]]
            warm = [child(context, "load_inline", folder, seconds=60) for _ in range(3)]
    detail = {"measured": f"{MEASURED}, a text that is new each time; load_inline in a fresh folder and a fresh process"}
    later = {"measured": f"{MEASURED} in a fresh process, of a kernel that was compiled before; load_inline in its folder"}
    ours, peer = took(second), took(warm)
    return [
        versus("compile_cold_vs_load_inline", cold, cold_peer, "load_inline, cold", 100.0, detail, lacking),
        versus("compile_second_process_vs_load_inline", ours, peer, "load_inline, warm", 100.0, later, lacking),
    ]


def run_here_second(context: Context) -> Record:
    """A fresh process, from the source to the first launch here, of a kernel that the daemon has."""
    found = []
    for _ in range(2 if context.smoke else 7):
        source = fresh(VECTOR_ADD.source)
        with client_with(context, "kernels") as client:
            client.compile(source, [VECTOR_ADD.entry])
        found.append(child(context, "here", context.gpu_daemon.socket_path, said=source))
    measured = (
        "Client.kernel() and its first launch here, waited for, in a fresh process with torch's context and a connection;"
        " another process compiled the source before"
    )
    return absolute("here_second_process", took(found), measured, 1000.0, n="processes")


def run_restart(context: Context) -> Record:
    """What the daemon has on its disk. Its executors make their contexts before, and these are not counted."""
    a, b, c = vectors(context, 3)
    source = fresh(VECTOR_ADD.source)
    first: list[float] = []
    with context.daemon(cuda=True) as daemon:  # its cache is a folder of its own, and stays
        for turn in range(1 + (2 if context.smoke else RESTARTS)):
            if turn:
                daemon.stop()
                daemon.start()
            with client_with(context, "kernels", socket=daemon.socket_path) as client:
                client.add(a, b, out=c)
                wait_for_spares(client.stats, 1)  # as many as there are by default
                start = perf_counter_ns()
                kernel = VECTOR_ADD.declare(client, source)
                kernel(c, b, b, ELEMENTS)
                first.append((perf_counter_ns() - start) * 1e-3)
                cached = kernel.code.compiled.cached
                if cached != ("disk" if turn else "no"):
                    raise RuntimeError(f"the kernel was cached: {cached}")
            check(context, c, 4.0)
    measured = f"{MEASURED}, by a daemon that was restarted and has the kernel on its disk, and whose executors are ready"
    detail = {"n": "restarts", "peer": "none: nothing else keeps it", **context.python_link()}
    return absolute("compile_after_restart", first[1:], measured, 10000.0, **detail)


# ---- many at once ----


def new_kernels(count: int) -> list[tuple[str, str]]:
    """Texts and names of kernels that nobody has compiled: the tutorials'."""
    return [(fresh(kernel.source), kernel.entry) for kernel in islice(cycle(KERNELS), count)]


def together(context: Context, arguments: Sequence[str], count: int, kernels: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """What processes found that were started, and then told to compile at once."""
    with children([*PROCESS, *arguments], count, context.of_children()) as started:
        for one in started:
            one.tell(json.dumps(kernels))
        return [one.hear(COMPILING_S) for one in started]


def cpu_s(answers: Sequence[dict[str, Any]], more_ms: float = 0.0) -> float:
    return (more_ms + sum(one["cpu_ms"] for one in answers)) / 1e3


def middle(found: Sequence[float], who: str | None = None) -> Summary:
    ordered = sorted(found)
    return Summary(ordered[len(ordered) // 2], ordered[-1], len(ordered), who)


def run_node(context: Context) -> list[Record]:
    """Without a GPU as well: nothing is launched."""
    nvrtc = Nvrtc()
    processes, count, rounds = (3, 5, 1) if context.smoke else (NODE_PROCESSES, NODE_KERNELS, NODE_ROUNDS)
    ours: list[float] = []
    peers: list[float] = []
    most = 0
    with context.daemon(cuda=False) as daemon, context.connect(daemon.socket_path) as client:
        if "compile" not in client.info.features:
            raise Skipped("the daemon compiles nothing: no NVRTC, or no sandbox can be made here")
        ((text, entry),) = new_kernels(1)
        compiler = client.compile(text, [entry], arch=ARCH).compiler
        for _ in range(rounds):
            kernels = new_kernels(count)
            before, began = client.stats()["kernels"], tree_ms(daemon.pid)
            answers = together(context, ("node", daemon.socket_path), processes, kernels)
            after, daemon_ms = client.stats()["kernels"], tree_ms(daemon.pid) - began
            if len({tuple(answer["found"]) for answer in answers}) != 1:
                raise RuntimeError("the processes got different binaries")
            most = max(most, after["compiles"] - before["compiles"])
            ours.append(cpu_s(answers, daemon_ms))
            peers.append(cpu_s(together(context, ("nvrtc", ARCH), processes, kernels)))
    name = f"{processes} × NVRTC in process"
    detail = {
        "measured": "processor time of all processes, user and system, from when each of them is ready to compile (imports done, connected,"
        " NVRTC loaded) until each has the binaries of the same new kernels",
        "processes": processes,
        "kernels": count,
        "n": "rounds, in turns",
        "compiler": compiler,
        "peer_compiler": nvrtc.name,
        **context.python_link(),
    }
    told = {"measured": f"compiles when {processes} processes that start at once need the same {count} new kernels"}
    each = Summary(processes * count, processes * count, rounds, name)
    return [
        Record("compile_node_cpu", "s", "lower", middle(ours), middle(peers, name), detail, target=1 / 6),
        Record("compile_node_compiles", "compiles", "lower", Summary(most, most, rounds), each, told, target=count, absolute=True),
    ]


add("compile_cold_to_first_launch", run_cold, on_gpu=True, table=True)
add("compile_second_process", run_second, on_gpu=True, table=True, seconds=90)
add("compile_load_inline", run_load_inline, on_gpu=True, table=True, seconds=300)
add("compile_after_restart", run_restart, on_gpu=True, table=True)
add("compile_node", run_node, on_gpu=False, table=True, seconds=120)
add("here_second_process", run_here_second, on_gpu=True, table=True, seconds=120)
