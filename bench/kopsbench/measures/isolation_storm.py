"""Faults and kernels that do not end, one after the other, of four clients of two users, while eight others work."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..context import Context
from ..isolation.scene import EIGHT, Heard, Process, Scene, bounded, counted, in_ms
from ..record import Record, Summary
from . import add

USERS = (1, 1, 2, 2)
MINUTE_S = 60.0
STALLED_PERCENT = 2.0
GPU_MIB = 64.0  # that may be free less: the driver keeps some
MIB = 1 << 20


def storm(scene: Scene, culprits: list[Process], **how: Any) -> None:
    for culprit in culprits:
        culprit.tell({"do": "storm", **how})


def heard_of(culprits: list[Process], seconds: float) -> dict[str, Any]:
    codes: Counter[str] = Counter()
    took = 0.0
    for culprit in culprits:
        said = culprit.hear(seconds)
        codes.update(said["codes"])
        took = max(took, said["seconds"])
    return {"replies_to_culprits": dict(codes), "seconds": took}


def run_storm(context: Context) -> list[Record]:
    each = len(USERS)
    faults, hangs, seconds = (8, 4, 20.0) if context.smoke else (context.faults, context.hangs, context.storm_seconds)
    with Scene(context) as scene:
        scene.add_bystanders(EIGHT)
        culprits = scene.add_culprits(USERS)
        scene.settle()
        before = scene.held()
        counts = scene.stats()["executor_counts"]
        scene.mark()
        storm(scene, culprits, faults=-(-faults // each), hangs=-(-hangs // each), seconds=seconds)
        detail = heard_of(culprits, seconds + 60)
        heard = scene.report(Heard())
        good = [culprit.ask({"do": "good"}) for culprit in culprits]
        scene.settle()
        after = scene.held()
        counts = {key: n - counts[key] for key, n in scene.stats()["executor_counts"].items()}
    detail |= {
        "measured": f"{faults} faults and {hangs} endless kernels, or {seconds:g} s of them, by {each} clients of 2 users;"
        f" {len(EIGHT)} others work",
        "executors": counts,
        "faults_a_second": counts["faults"] / detail["seconds"],
        "isolate": scene.isolate,
        "culprits_right_afterwards": all(one["right"] for one in good),
        **heard.detail(),
        "before": vars(before),
        "after": vars(after),
    }
    if not all(one["right"] for one in good):
        raise RuntimeError(f"after the storm its users get no right results: {good}")
    lost = (before.gpu_free - after.gpu_free) / MIB
    rss = (after.rss_kb - before.rss_kb) / 1024
    return [
        counted("isolation_storm_trouble", "count", heard.trouble, detail, 0),
        bounded("isolation_storm_others_wait", "ms", in_ms(heard.waits_us), detail),
        bounded("isolation_storm_others_calls", "ms", in_ms(heard.calls_us), {**detail, "value": "the latest calls of each"}),
        counted("isolation_storm_stalled", "%", heard.stalled_of_all(), detail),
        counted("isolation_storm_descriptors", "count", after.descriptors - before.descriptors, detail, 0),
        counted("isolation_storm_mappings", "count", after.mappings - before.mappings, detail),
        counted("isolation_storm_rss", "MiB", rss, detail),
        counted("isolation_storm_gpu", "MiB", lost, detail, GPU_MIB),
    ]


def run_budget(context: Context) -> list[Record]:
    minute = 2.0 if context.smoke else MINUTE_S
    found = []
    with Scene(context, unbounded=False) as scene:
        scene.add_bystanders(EIGHT)
        culprits = scene.add_culprits(USERS)
        scene.settle()
        storm(scene, culprits, faults=None, hangs=None, seconds=2 * minute)
        for _ in range(2):
            scene.mark()
            scene.wait(minute)
            found.append(scene.report(Heard()))
        detail = heard_of(culprits, 60)
        detail |= {"executors": scene.stats()["executor_counts"], "isolate": scene.isolate}
    first, second = found
    detail |= {
        "measured": f"4 clients of 2 users make faults and endless kernels for {2 * minute:g} s, as far as the daemon lets them;"
        f" the share of the others' time in waits of 5 ms and more, after the first {minute:g} s",
        "first_minute": first.detail(),
        "second_minute": second.detail(),
        "of_each": second.stalled(),
    }
    worst = max(second.stalled())
    return [
        bounded(
            "isolation_budget_stalled", "%", Summary(second.stalled_of_all(), worst, len(EIGHT), max=worst), detail,
            STALLED_PERCENT,
        ),
        bounded("isolation_budget_others_wait", "ms", in_ms(second.waits_us), detail),
        counted("isolation_budget_trouble", "count", first.trouble + second.trouble, detail, 0),
    ]  # fmt: skip


add("isolation_budget", run_budget, on_gpu=True, seconds=240)
add("isolation_storm", run_storm, on_gpu=True, seconds=600)
