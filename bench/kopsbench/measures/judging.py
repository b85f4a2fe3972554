"""kops.judge: how many solutions it judges in a second, beside others' work, and how steady its times are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

from ..context import Context, Skipped
from ..harm import SOME, Heard, Scene, counted
from ..record import Record, Summary
from ..user_kernels import KERNELS, UserKernel, fresh, load_inline_missing
from . import add

RATE, STRICT_RATE, OF_LOAD_INLINE = 15.0, 4.0, 20.0
PROCESSES = 16
SPREAD_PERCENT, STALLED_PERCENT = 1.0, 10.0
SIDE, LENGTH = 1024, 1 << 20  # of matrices, of vectors
DEADLINE = 1.0
BEFORE = 3  # solutions of each task that are judged before, after which most draws are there
FAULTS = 'extern "C" __global__ void fault_kernel(float* p) { p[(blockIdx.x + 1ll) << 40] = 1; }'
HANGS = 'extern "C" __global__ void spin_forever(float* p) { while (true) *(volatile float*)p = 1; }'


def tasks(smoke: bool) -> dict[str, Any]:
    """Of the five example kernels, with the names that their signatures have."""
    from kops import judge

    side, length = (16, 1000) if smoke else (SIDE, LENGTH)

    def normal(rng: Any, *shape: int) -> Any:
        return rng.standard_normal(shape, dtype="f4")

    def vectors(rng: Any, n: int) -> dict[str, Any]:
        return {"a": normal(rng, n), "b": normal(rng, n)}

    def matrices(rng: Any, n: int, m: int, k: int) -> dict[str, Any]:
        return {"a": normal(rng, n, k), "b": normal(rng, k, m)}

    of_n = [{"n": length // 3 + 1}, {"n": length}]
    of_sides = [{"height": side - 1, "width": side + 1}, {"height": side, "width": side}]
    of_nmk = [{"n": side // 2 + 1, "m": side // 2, "k": side // 2 - 1}, {"n": side, "m": side, "k": side}]
    made: list[tuple[Any, ...]] = [
        ("add2", lambda a, b: a + b, vectors, of_n, {"outputs": "c"}),
        ("vector_add", lambda a, b: a + b, vectors, of_n, {"outputs": "c"}),
        ("custom", lambda **given: 2 * given["in"], lambda rng, n: {"in": normal(rng, n)}, of_n, {}),
        ("square_matrix", lambda **given: given["in"] ** 2, lambda rng, height, width: {"in": normal(rng, height, width)}, of_sides, {}),
        ("gemm", lambda a, b: a @ b, matrices, of_nmk, {"outputs": "c", "flops": "2 * n * m * k"}),
    ]
    return {name: judge.Task(name, *what, exchange=True, **more) for name, *what, more in made}


def on_standin(context: Context) -> dict[str, Any]:
    """Of a judge: what takes the stand-in, which has no caches, hours to measure or to flush."""
    from kops import judge

    return {"peak_gflop_s": {"f32": 1.0}, "limits": judge.Limits(flush_bytes=1 << 16)} if context.smoke else {}


def solution_of(kernel: UserKernel) -> Any:
    """The example as a source, and as code, that no cache knows."""
    from kops import judge

    launch = judge.Launch(kernel.entry, kernel.signature, kernel.grid, kernel.block)
    return judge.Solution(fresh(kernel.source), [launch], name=kernel.name)


def endless(known: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Tasks with solutions."""
    return ((known[kernel.name], solution_of(kernel)) for kernel in cycle(KERNELS))


def all_right(verdicts: list[Any]) -> None:
    wrong = [verdict for verdict in verdicts if not verdict.right]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {len(verdicts)} right solutions were judged otherwise: {wrong[0]}")


def judged(scene: Scene, many: int, detail: dict[str, Any], **how: Any) -> tuple[list[Any], float]:
    """So many verdicts, and the seconds that they took. The draws are there before. `detail` gets what a solution takes of the process that
    judges, and of the time in which nothing else is judged, by part."""
    from kops import judge

    smoke = scene.context.smoke
    given = endless(tasks(smoke))
    how |= on_standin(scene.context)
    with judge.Judge(scene.daemon.socket_path, deadline=DEADLINE, counters=False, **how) as judging:
        if judging.how != "gpu":
            raise Skipped("the daemon has no GPU")
        for pair in islice(given, (1 if smoke else BEFORE) * len(KERNELS)):
            judging.judge(*pair)
        pairs = list(islice(given, many))
        judging.spent.clear()
        start, used = time.perf_counter(), time.process_time()
        verdicts = [verdict for _, verdict in judging.judge_many(pairs)]
        seconds = time.perf_counter() - start
        detail["judge_cpu_ms"] = 1e3 * (time.process_time() - used) / many
        detail["part_ms"] = {part: 1e3 * spent / many for part, spent in judging.spent.items()}
        return verdicts, seconds


def inline_rate(context: Context, each: int) -> tuple[float, int]:
    """Solutions a second of a pool of processes: each compiles with load_inline, launches, compares, in a process of its own."""
    command = [sys.executable, "-m", "kopsbench.process", "load_inline"]
    how: dict[str, Any] = {"env": context.of_children(), "check": True, "capture_output": True, "timeout": 280}
    with tempfile.TemporaryDirectory(prefix="kops-judging-") as folder:

        def one(number: int) -> None:
            subprocess.run([*command, f"{folder}/{number}"], **how)

        start = time.perf_counter()
        with ThreadPoolExecutor(PROCESSES) as pool:
            list(pool.map(one, range(PROCESSES * each)))
        return PROCESSES * each / (time.perf_counter() - start), PROCESSES * each


def rate(context: Context, name: str, many: int, target: float, measured: str, **how: Any) -> Record:
    detail: dict[str, Any] = {"measured": measured, "n": "solutions", "processors": len(os.sched_getaffinity(0))}
    detail |= {"vectors": LENGTH, "matrices": SIDE}
    with Scene(context, isolate="connection") as scene:
        verdicts, seconds = judged(scene, many, detail, **how)
    all_right(verdicts)
    found = len(verdicts) / seconds
    return Record(name, "/s", "higher", Summary(found, found, len(verdicts)), None, detail, target=target, absolute=True)


def run_rate(context: Context) -> list[Record]:
    measured = (
        "verdicts with times, without counters, on solutions of the five example kernels, all of different sources, by one Judge, after"
        f" {BEFORE} of each kernel"
    )
    ours = rate(context, "judge_rate", 10 if context.smoke else 150, RATE, measured)
    missing = load_inline_missing() or ("the stand-in for torch compiles nothing" if context.smoke else None)
    try:
        theirs, many = inline_rate(context, 1) if missing is None else (0.0, 0)
    except subprocess.SubprocessError as error:  # our own figure stays
        missing = f"{error}: {(getattr(error, 'stderr', None) or b'').decode(errors='replace')[-300:]}"
    if missing is not None:
        ours.detail["no_peer"] = missing
        return [ours]
    peer = Summary(theirs, theirs, many, f"{PROCESSES} processes, each load_inline of one")
    return [ours, Record("judge_rate_vs_load_inline", "/s", "higher", ours.ours, peer, ours.detail, target=OF_LOAD_INLINE)]


def run_strict(context: Context) -> Record:
    measured = "the same, a process of its own on the GPU for each solution"
    return rate(context, "judge_rate_strict", 5 if context.smoke else 30, STRICT_RATE, measured, strict=True)


def run_thousand(context: Context) -> list[Record]:
    """Of a thousand solutions one in twenty faults, and one in twenty never ends."""
    from kops import judge

    many = 20 if context.smoke else 1000
    known = tasks(context.smoke)
    given, first = endless(known), known["vector_add"]
    small = judge.Task("small", first.reference, first.inputs, [{"n": 1000}], outputs="c")
    harmful = {
        3: ("faulted", judge.Solution(FAULTS, [judge.Launch("fault_kernel", "float* c", 1, 1)])),
        13: ("hangs", judge.Solution(HANGS, [judge.Launch("spin_forever", "float* c", 1, 1)])),
    }
    kinds, pairs = [], []
    for number in range(many):
        kind, solution = harmful.get(number % 20, ("right", None))
        kinds.append(kind)
        pairs.append((small, solution) if solution else next(given))
    with Scene(context, isolate="connection") as scene:
        scene.add_bystanders(SOME)
        scene.settle()
        scene.mark()
        start = time.perf_counter()
        with judge.Judge(scene.daemon.socket_path, deadline=DEADLINE, time=False) as judging:
            found = dict(judging.judge_many(pairs))
        seconds = time.perf_counter() - start
        heard = scene.report(Heard())
    others = [f"{found[i].kind} for {kind}" for i, kind in enumerate(kinds) if found[i].kind != kind]
    detail = {
        "measured": f"{many} solutions of which one in 20 faults and one in 20 never ends, deadline {DEADLINE:g} s; others work beside",
        "kinds": dict(Counter(verdict.kind for verdict in found.values())),
        "seconds": seconds,
        **heard.detail(),
    }
    return [
        counted("judge_thousand_wrong_verdicts", "count", len(others), {**detail, "first": others[:5]}, 0),
        counted("judge_thousand_trouble", "count", heard.sum("errors") + heard.sum("wrong"), detail, 0),
        counted("judge_thousand_stalled", "%", heard.stalled_percent(), detail, STALLED_PERCENT),
    ]


def run_spread(context: Context) -> Record:
    """The same solution again and again, while others work."""
    from kops import judge

    task = tasks(context.smoke)["gemm"]
    solution = solution_of(next(kernel for kernel in KERNELS if kernel.name == "gemm"))
    with Scene(context, isolate="connection") as scene:
        scene.add_bystanders(SOME)
        with judge.Judge(scene.daemon.socket_path, deadline=DEADLINE, counters=False, **on_standin(context)) as judging:
            verdicts = [judging.judge(task, solution) for _ in range(3 if context.smoke else 20)]
    all_right(verdicts)
    times = [verdict.time.us for verdict in verdicts]
    spread = 100 * (max(times) - min(times)) / sorted(times)[len(times) // 2]
    detail = {
        "measured": f"gemm of {SIDE}, judged {len(times)} times beside clients that work: the largest time less the smallest, of the"
        " median",
        "us": times,
    }
    return counted("judge_spread", "%", spread, detail, SPREAD_PERCENT)


add("judge_rate", run_rate, on_gpu=True, table=True, seconds=300)
add("judge_rate_strict", run_strict, on_gpu=True, seconds=120)
add("judge_thousand", run_thousand, on_gpu=True, seconds=400)
add("judge_spread", run_spread, on_gpu=True, seconds=120)
