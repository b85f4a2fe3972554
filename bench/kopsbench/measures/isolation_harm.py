"""The cost of a fault, or of a kernel that does not end, for its user and for the others."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..context import Context
from ..isolation.culprit import DEADLINE_MS
from ..isolation.scene import SOME, Heard, Process, Scene, bounded, counted, in_ms
from ..record import Record
from . import add

TIMES = 10
# In milliseconds, the largest of all: reply, next good reply, wait of the others. None: for information.
TARGETS: dict[str, tuple[float | None, float | None, float | None]] = {
    "fault": (None, 300, 250),
    "fault_no_spare": (None, 900, 250),
    "hang": (250, 350, None),
    "mps_fault": (None, None, None),
    "mps_hang": (None, None, None),
}
CALLS_P99_MS = {"hang": 5.0}
CODES = {"fault": "device_fault", "hang": "deadline_exceeded"}
WHAT = {
    "fault": "a kernel of another user writes where no memory is",
    "hang": f"a kernel of another user never ends; its deadline is {DEADLINE_MS} ms",
}


def harm(scene: Scene, culprit: Process, what: str, times: int) -> tuple[list[dict[str, Any]], Heard]:
    """The culprit's answers, and the reports of the others meanwhile. Each time begins when all is as before."""
    said, heard = [], Heard()
    for _ in range(times):
        scene.settle()
        scene.mark()
        said.append(culprit.ask({"do": what}))
        scene.report(heard)
    return said, heard


def records(name: str, what: str, said: list[dict[str, Any]], heard: Heard, detail: dict[str, Any]) -> list[Record]:
    reply, good, wait = TARGETS[name]
    prefix = f"isolation_{name}"
    never = [one for one in said if "good_us" not in one]
    other_codes = [one["code"] for one in said if one["code"] != CODES[what]]
    detail = {
        "measured": f"{WHAT[what]}, {len(said)} times",
        **detail,
        **heard.detail(),
        "replies": said[0]["message"],
        "details": said[0]["detail"],
        "other_codes": other_codes,
        "failed_before_good": [one["failed_before_good"] for one in said],
    }
    if never or other_codes:
        raise RuntimeError(f"{len(never)} times no good reply came; instead of {CODES[what]} came {other_codes}: {never[:1]}")
    return [
        bounded(f"{prefix}_reply", "ms", in_ms(one["reply_us"] for one in said), detail, reply, "max"),
        bounded(f"{prefix}_next_good", "ms", in_ms(one["good_us"] for one in said), {**detail, "from": "the harm's launch"}, good, "max"),
        bounded(
            f"{prefix}_others_wait", "ms", in_ms(heard.waits_us),
            {**detail, "value": "the longest of each from a blocking add until its right answer"}, wait, "max",
        ),
        bounded(
            f"{prefix}_others_calls", "ms", in_ms(heard.calls_us), {**detail, "value": "blocking adds from the harm until the good reply"},
            CALLS_P99_MS.get(name), "p99",
        ),
        bounded(
            f"{prefix}_other_kernels_wait", "ms", in_ms(heard.kernel_waits_us),
            {**detail, "value": "the same of a client that launches kernels of its own, in a domain of its own, and waits for its turn"},
        ),
        counted(f"{prefix}_trouble", "count", heard.trouble, detail, 0),
    ]  # fmt: skip


def run(context: Context, name: str, spares: int = 1) -> list[Record]:
    what = "hang" if "hang" in name else "fault"
    with Scene(context, spares=spares) as scene:
        scene.add_bystanders(SOME)
        (culprit,) = scene.add_culprits([1])
        said, heard = harm(scene, culprit, what, 2 if context.smoke else TIMES)
        detail = {"isolate": scene.isolate, "spares": scene.spares, "others": SOME, "executors": scene.stats()["executor_counts"]}
    return records(name, what, said, heard, detail)


for _name in TARGETS:
    _mps = _name.startswith("mps_")
    add(f"isolation_{_name}", partial(run, name=_name, spares=0 if _name.endswith("no_spare") else 1), on_gpu=True, mps=_mps, seconds=120)
