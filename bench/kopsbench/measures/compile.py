"""From the source of a kernel to the end of its first launch: compiled now, by another process, before a restart."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any

from ..context import Context, Skipped
from ..executors import wait_for_spares
from ..nvrtc import Module, Nvrtc
from ..record import Record, Summary, summarise
from ..user_kernels import BLOCK, VECTOR_ADD, fresh, kernel_client, load_inline_missing
from . import add
from .blocking import ELEMENTS, check_sum, timed, vectors
from .peers import rate

COLD_CALLS = 40
PROCESSES = 5
RESTARTS = 5
ASKING = 64
MEASURED = "from the source of vector_add to the end of its first launch on 1024 f32 torch CUDA tensors"


# ---- compiled now ----


def ours_cold(client: Any, tensors: Sequence[Any]) -> Any:
    """Samples of compiling a text that nobody has seen."""
    a, b, c = tensors

    def samples(n: int) -> Iterator[float]:
        for _ in range(n):
            source = fresh(VECTOR_ADD.source)
            start = perf_counter_ns()
            VECTOR_ADD.declare(client, source)(c, a, b, ELEMENTS)
            yield (perf_counter_ns() - start) * 1e-3

    return samples


def bare_cold(nvrtc: Nvrtc, arch: str, tensors: Sequence[Any]) -> Any:
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


def one_by_one(sides: Sequence[Any], n: int) -> list[list[float]]:
    """Not in blocks: a switch of the GPU is nothing beside a compile, and a daemon that is asked now and then is what is
    meant; it gets its next compiler ready meanwhile."""
    samples: list[list[float]] = [[] for _ in sides]
    for turn in range(n + 2):
        for side, its in zip(sides, samples, strict=True):
            its += list(side(1)) if turn >= 2 else list(side(1))[:0]
    return samples


def run_cold(context: Context) -> Record:
    nvrtc = Nvrtc()
    a, b, c = vectors(context, 3)
    with kernel_client(context) as client:
        kernel = VECTOR_ADD.declare(client)
        compiled = kernel.code.compiled
        sides = ours_cold(client, (a, b, c)), bare_cold(nvrtc, compiled.arch, (a, b, c))
        in_a_row = list(sides[0](2 if context.smoke else 8))
        ours, peer = one_by_one(sides, 4 if context.smoke else COLD_CALLS)
        kernel(c, b, b, ELEMENTS)
        check_sum(context, b, b, c)
    return Record(
        "compile_cold_to_first_launch",
        "us",
        "lower",
        summarise(ours),
        summarise(peer, "NVRTC + cuModuleLoadData + launch in process"),
        {
            "measured": f"{MEASURED}, a text that is new each time, blocking; NVRTC of both is loaded and warm; both take turns"
            " call by call",
            "ours_in_a_row_p50_us": summarise(in_a_row).p50,
            "compiler": compiled.compiler,
            "peer_compiler": f"NVRTC {nvrtc.version}, {nvrtc.path}",
            "arch": compiled.arch,
            "compile_us_of_a_call": compiled.compile_us,
            **context.python_link(),
        },
        target=1.15,
    )


# ---- compiled before ----


def child(context: Context, *arguments: str, said: Any = None, seconds: float = 120.0) -> dict[str, Any]:
    """What a process of its own found."""
    command = [sys.executable, "-m", "kopsbench.kernel_process", *arguments]
    text = json.dumps(said) + "\n"
    done = subprocess.run(command, input=text, env=context.of_children(), capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments[:1])} failed: {done.stderr.strip()[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if found.get("right") is False:
        raise RuntimeError("the result is wrong")
    return found


def second_processes(context: Context, count: int) -> list[dict[str, Any]]:
    source = fresh(VECTOR_ADD.source)
    with kernel_client(context) as client:
        VECTOR_ADD.declare(client, source)
        found = [child(context, "launch", context.gpu_daemon.socket_path, said=source) for _ in range(count)]
    wrong = [one["cached"] for one in found if one["cached"] == "no"]
    if wrong:
        raise RuntimeError("the daemon compiled again what it had")
    return found


def run_second(context: Context) -> list[Record]:
    found = second_processes(context, 2 if context.smoke else PROCESSES)
    ours = [one["us"] for one in found]
    detail = {
        "measured": f"{MEASURED} in a process with torch and a connection, of a kernel that another process had compiled",
        "n": "processes",
        "second_launch_p50_us": summarise(one["again_us"] for one in found).p50,
    }
    made = [Record("compile_second_process", "us", "lower", summarise(ours), None, detail, target=1000.0, absolute=True)]
    peer = [one["torch_us"] for one in found if "torch_us" in one]
    name = "torch.cuda._compile_kernel"
    lacking = next((one["torch_missing"] for one in found if "torch_missing" in one), None)
    made.append(versus("compile_second_process_vs_torch_nvrtc", ours, peer, name, 15.0, detail, lacking))
    return made


def versus(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    peer_name: str,
    target: float | None,
    detail: dict[str, Any],
    lacking: str | None,
) -> Record:
    """How many times as fast; without a peer the detail says why."""
    return Record(
        name,
        "calls/s",
        "higher",
        rate(ours),
        rate(peer, peer_name) if peer else None,
        {**detail, **({"no_peer": lacking} if lacking else {})},
        target=target,
    )


def run_load_inline(context: Context) -> list[Record]:
    """An extension takes half a minute, so that is measured once."""
    lacking = "the stand-in has no load_inline" if context.smoke else load_inline_missing()
    few = context.smoke or lacking is not None
    a, b, c = vectors(context, 3)
    with kernel_client(context) as client:
        samples = ours_cold(client, (a, b, c))
        list(samples(2))
        cold = list(samples(3 if few else 10))
    processes = second_processes(context, 2 if few else 3)
    second = [one["us"] for one in processes]
    second_all = [one["us"] + one["ready_us"] for one in processes]
    warm_peer_all: list[float] = []
    cold_peer: list[float] = []
    warm_peer: list[float] = []
    if lacking is None:
        with tempfile.TemporaryDirectory(prefix="kops-inline-") as folder:
            cold_peer = [child(context, "load_inline", folder, seconds=150)["us"]]
            warm = [child(context, "load_inline", folder, seconds=60) for _ in range(3)]
        warm_peer = [one["us"] for one in warm]
        warm_peer_all = [one["us"] + one["ready_us"] for one in warm]
    detail = {"measured": f"{MEASURED}, a text that is new each time; load_inline in a fresh folder and a fresh process"}
    second_detail = {"measured": f"{MEASURED} in a fresh process, of a kernel that was compiled before; load_inline in its folder"}
    return [
        versus("compile_cold_vs_load_inline", cold, cold_peer, "load_inline, cold", 100.0, detail, lacking),
        versus("compile_second_process_vs_load_inline", second, warm_peer, "load_inline, warm", 100.0, second_detail, lacking),
        versus(
            "compile_second_process_with_imports_vs_load_inline",
            second_all,
            warm_peer_all,
            "import torch.utils.cpp_extension and load_inline, warm",
            None,
            {**second_detail, "ours_includes": "import kops and connect"},
            lacking,
        ),
    ]


# ---- after a restart ----


def run_restart(context: Context) -> Record:
    """What the daemon has on its disk. Its executors make their contexts before, and these are not counted."""
    a, b, c = vectors(context, 3)
    source = fresh(VECTOR_ADD.source)
    first: list[float] = []
    contexts: list[float] = []
    with context.daemon(cuda=True) as daemon:  # its cache is a folder of its own, and stays
        for turn in range(1 + (2 if context.smoke else RESTARTS)):
            if turn:
                daemon.stop()
                daemon.start()
            with kernel_client(context, socket=daemon.socket_path) as client:
                contexts += timed(lambda k=client: k.add(a, b, out=c))(1)
                wait_for_spares(client.stats, 1)  # as many as there are by default
                made: list[Any] = []

                def launch(k: Any = client, its: list[Any] = made) -> None:
                    its.append(VECTOR_ADD.declare(k, source))
                    its[0](c, b, b, ELEMENTS)

                (us,) = timed(launch)(1)
                cached = made[0].code.compiled.cached
                if cached != ("disk" if turn else "no"):
                    raise RuntimeError(f"the kernel was cached: {cached}")
                first += [us] if turn else []
            check_sum(context, b, b, c)
    return Record(
        "compile_after_restart",
        "us",
        "lower",
        summarise(first),
        None,
        {
            "measured": f"{MEASURED}, by a daemon that was restarted and has the kernel on its disk, and whose executors are ready",
            "n": "restarts",
            "first_add_with_context_p50_us": summarise(contexts).p50,
            "peer": "none: nothing else keeps it",
            **context.python_link(),
        },
        target=10000.0,
        absolute=True,
    )


# ---- many at once ----


def run_single_flight(context: Context) -> Record:
    """Without a GPU as well: nothing is launched."""
    count = 8 if context.smoke else ASKING
    source = fresh(VECTOR_ADD.source)
    command = [sys.executable, "-m", "kopsbench.kernel_process", "compile"]
    with context.daemon(cuda=False) as daemon, context.connect(daemon.socket_path) as client:
        if "compile" not in client.info.features:
            raise Skipped("the daemon compiles nothing: no NVRTC, or no sandbox can be made here")
        client.compile(fresh(VECTOR_ADD.source), [VECTOR_ADD.entry], arch="sm_90a")  # its helper is warm
        before = client.stats()["kernels"]
        asking = [
            subprocess.Popen(
                [*command, daemon.socket_path],
                env=context.of_children(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(count)
        ]  # fmt: skip
        try:
            answers = ask_together(asking, source)
        finally:
            for process in asking:
                process.kill()
                process.wait()
        after = client.stats()["kernels"]
    if len({answer["key"] for answer in answers}) != 1:
        raise RuntimeError("the answers differ")
    compiles = after["compiles"] - before["compiles"]
    waited = summarise(answer["us"] for answer in answers)
    return Record(
        "compile_single_flight",
        "compiles",
        "lower",
        Summary(compiles, compiles, 1),
        None,
        {
            "measured": f"compiles of the daemon when {count} processes ask for the same new kernel at once",
            "processes": count,
            "joined": after["single_flight_joins"] - before["single_flight_joins"],
            "from_memory": after["cache_memory_hits"] - before["cache_memory_hits"],
            "wait_p50_us": waited.p50,
            "wait_p99_us": waited.p99,
            "peer": "none: each would compile for itself",
        },
        target=1.0,
        absolute=True,
    )


def ask_together(asking: Sequence[subprocess.Popen[str]], source: str) -> list[dict[str, Any]]:
    """Once all are connected."""
    for process in asking:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"a process that was to ask ended with status {process.wait()}")
    line = json.dumps(source) + "\n"
    for process in asking:
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()
    answers = []
    for process in asking:
        assert process.stdout is not None
        answers.append(json.loads(process.stdout.readline()))
    return answers


add("compile_cold_to_first_launch", run_cold, on_gpu=True, table=True)
add("compile_second_process", run_second, on_gpu=True, table=True, seconds=90)
add("compile_load_inline", run_load_inline, on_gpu=True, table=True, seconds=300)
add("compile_after_restart", run_restart, on_gpu=True, table=True)
add("compile_single_flight", run_single_flight, on_gpu=False, table=True)
