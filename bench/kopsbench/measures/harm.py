"""What the harm that one client does costs the others, and itself: a kernel that faults or never ends, in its user's executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..children import Child
from ..context import Context
from ..harm.culprit import DEADLINE_MS
from ..harm.scene import SOME, Heard, Scene, bounded, counted, in_ms
from ..record import Record, Summary
from . import add


@dataclass(frozen=True)
class Harm:
    order: str  # to the culprit
    what: str
    codes: tuple[str | None, ...] = (None,)  # that its reply may have
    times: int = 3
    spares: int = 1
    # Bounds of the largest, in ms: reply, next good reply, the others' wait; and of the p99 of the others' calls.
    targets: Sequence[float | None] = (None, None, None, None)


FAULT = "a kernel of another user writes where no memory is"
HANG = f"a kernel of another user never ends; its deadline is {DEADLINE_MS} ms"
ISOLATED = {
    "fault": Harm("fault", FAULT, ("device_fault",), 10, 1, (None, 300, 250, None)),
    "fault_no_spare": Harm("fault", FAULT, ("device_fault",), 10, 0, (None, 900, 250, None)),
    "hang": Harm("hang", HANG, ("deadline_exceeded",), 10, 1, (250, 350, None, 5)),
}

def do(scene: Scene, culprit: Child, harm: Harm, times: int, heard: Heard) -> list[dict[str, Any]]:
    """The culprit's answers; `heard` gets the reports of the others meanwhile. Each time begins when all is as before."""
    said = []
    for _ in range(times):
        scene.settle()
        scene.mark()
        said.append(culprit.ask(harm.order))
        if said[-1]["code"] not in harm.codes:
            raise RuntimeError(f"{harm.what}: not {harm.codes} came but {said[-1]}")
        scene.report(heard)
    return said


def run_isolated(context: Context, name: str) -> list[Record]:
    harm, heard = ISOLATED[name], Heard()
    with Scene(context, spares=harm.spares) as scene:
        scene.add_bystanders(SOME)
        said = do(scene, scene.add_culprit(), harm, 2 if context.smoke else harm.times, heard)
        executors = scene.stats()["executor_counts"]
    never = [one for one in said if "good_us" not in one]
    if never:
        raise RuntimeError(f"{len(never)} times no good reply came: {never[0]}")
    detail = {
        "measured": f"{harm.what}, {len(said)} times",
        "isolate": scene.isolate,
        "spares": scene.spares,
        "others": SOME,
        "executors": executors,
        **heard.detail(),
        "replies": said[0]["message"],
        "details": said[0]["detail"],
        "failed_before_good": [one["failed_before_good"] for one in said],
    }
    reply, good, wait, calls = harm.targets
    kernels = "the same of a client that launches kernels of its own, in a domain of its own, and waits for its turn"
    waits = "the longest of each from a blocking add until its right answer"
    rows: list[tuple[str, Summary, str, float | None, str]] = [
        ("reply", in_ms(one["reply_us"] for one in said), "from the harm's launch", reply, "max"),
        ("next_good", in_ms(one["good_us"] for one in said), "from the harm's launch", good, "max"),
        ("others_wait", in_ms(heard.waits_us), waits, wait, "max"),
        ("others_calls", in_ms(heard.calls_us), "blocking adds from the harm until the good reply", calls, "p99"),
        ("other_kernels_wait", in_ms(heard.kernel_waits_us), kernels, None, "p50"),
    ]
    records = [
        bounded(f"isolation_{name}_{what}", "ms", ours, {**detail, "value": value}, target, statistic)
        for what, ours, value, target, statistic in rows
    ]
    return [*records, counted(f"isolation_{name}_trouble", "count", heard.trouble, detail, 0)]


for _name in ISOLATED:
    add(f"isolation_{_name}", partial(run_isolated, name=_name), on_gpu=True, seconds=120)
