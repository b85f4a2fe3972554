"""What the harm that one client does costs the others, and itself: a kernel that faults or never ends, in its user's executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..context import Context
from ..harm import DEADLINE_MS, SOME, Heard, Scene, bounded, counted, in_ms
from ..record import Record, Summary
from . import add


@dataclass(frozen=True)
class Harm:
    order: str  # to the culprit
    what: str
    code: str  # that its reply has
    spares: int
    # Bounds of the largest, in ms: reply, next good reply, the others' wait; and of the p99 of the others' calls.
    targets: Sequence[float | None]


TIMES = 10
FAULT = "a kernel of another user writes where no memory is"
HANG = f"a kernel of another user never ends; its deadline is {DEADLINE_MS} ms"
ISOLATED = {
    "fault": Harm("fault", FAULT, "device_fault", 1, (None, 300, 250, None)),
    "fault_no_spare": Harm("fault", FAULT, "device_fault", 0, (None, 900, 250, None)),
    "hang": Harm("hang", HANG, "deadline_exceeded", 1, (250, 350, None, 5)),
}


def run(context: Context, name: str) -> list[Record]:
    """Each time begins when all is as before."""
    harm, heard, said = ISOLATED[name], Heard(), []
    with Scene(context, spares=harm.spares) as scene:
        scene.add_bystanders(SOME)
        culprit = scene.add_culprit()
        for _ in range(2 if context.smoke else TIMES):
            scene.settle()
            scene.mark()
            said.append(culprit.ask(harm.order))
            if said[-1]["code"] != harm.code:
                raise RuntimeError(f"{harm.what}: not {harm.code} came but {said[-1]}")
            scene.report(heard)
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
    rows: list[tuple[str, Summary, str, float | None, Any]] = [
        ("reply", in_ms(one["reply_us"] for one in said), "from the harm's launch", reply, "max"),
        ("next_good", in_ms(one["good_us"] for one in said), "from the harm's launch", good, "max"),
        ("others_wait", in_ms(heard.waits_us(of_kernels=False)), waits, wait, "max"),
        ("others_calls", in_ms(heard.calls_us()), "blocking adds from the harm until the good reply", calls, "p99"),
        ("other_kernels_wait", in_ms(heard.waits_us(of_kernels=True)), kernels, None, "p50"),
    ]
    records = [
        bounded(f"isolation_{name}_{what}", "ms", ours, {**detail, "value": value}, target, statistic)
        for what, ours, value, target, statistic in rows
    ]
    return [*records, counted(f"isolation_{name}_trouble", "count", heard.trouble, detail, 0)]


for _name in ISOLATED:
    add(f"isolation_{_name}", run, _name, on_gpu=True, seconds=120)
