"""Kernels of four users at once: the GPU time of each, and the time of the others' ops."""

from __future__ import annotations

from functools import partial

from ..context import Context, Skipped
from ..isolation.scene import Heard, Scene, bounded, counted, in_ms
from ..record import Record, Summary
from . import add

USERS = (1, 2, 3, 4)
LENGTHS_US = {"equal": (500, 500, 500, 500), "unequal": (100, 300, 1000, 3000)}
DEPTH = 4
SECONDS = 5.0
FAIR, CALLS_P99_MS = 0.9, 10.0
OTHERS = ("torch", "shared", "c", "c")


def jain(shares: list[float]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def device_us(scene: Scene) -> dict[int, float]:
    return {row["uid"]: row["device_us"] for row in scene.stats()["executors"] if row.get("domain") == "user" and row["uid"]}


def run(context: Context, name: str) -> list[Record]:
    seconds = 0.5 if context.smoke else SECONDS
    with Scene(context) as scene:
        if scene.isolate != "user":
            raise Skipped("only root can become several users")
        scene.add_bystanders(OTHERS)
        culprits = scene.add_culprits(USERS)
        scene.settle()
        before = device_us(scene)
        scene.mark()
        for culprit, us in zip(culprits, LENGTHS_US[name], strict=True):
            culprit.tell({"do": "share", "us": us, "depth": DEPTH, "seconds": seconds})
        said = [culprit.hear() for culprit in culprits]
        heard = scene.report(Heard())
        after = device_us(scene)
    shares = [after[uid] - before.get(uid, 0.0) for uid in sorted(after)]
    if len(shares) != len(USERS):
        raise RuntimeError(f"GPU time of {len(shares)} users instead of {len(USERS)}: {after}")
    detail = {
        "measured": f"4 users have {DEPTH} kernels each under way for {seconds:g} s, of {LENGTHS_US[name]} µs; GPU time of their executors",
        "device_us": shares,
        "gpu_us_of_replies": [one["gpu_us"] for one in said],
        "runs": [one["runs"] for one in said],
        "jain_of_replies": jain([one["gpu_us"] for one in said]),
        **heard.detail(),
    }
    index = jain(shares)
    prefix = f"isolation_share_{name}"
    return [
        Record(f"{prefix}_jain", "Jain's index", "higher", Summary(index, index, 1), None, detail, FAIR, absolute=True),
        bounded(f"{prefix}_others_calls", "ms", in_ms(heard.calls_us), detail, CALLS_P99_MS, "p99"),
        counted(f"{prefix}_trouble", "count", heard.trouble, detail, 0),
    ]


for _name in LENGTHS_US:
    add(f"isolation_share_{_name}", partial(run, name=_name), on_gpu=True, seconds=90)
