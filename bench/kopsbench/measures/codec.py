"""The MessagePack codec beside msgpack-c, on the golden messages: what reading where the message lies buys, and what it
costs to let msgpack-c's templates write into memory that is there."""

from __future__ import annotations

import os
from typing import Any

from ..context import Context
from ..record import Record
from . import add
from .noop import summary

MEASURED = {
    "read": "every value of every golden message visited",
    "fields": "the golden `run` requests taken apart down to the declared fields of their tensors",
    "write": "every golden message written again, from msgpack-c's objects",
}
PEERS = {
    "read": "msgpack_unpack() and a walk over its objects",
    "fields": "msgpack_unpack() and its objects matched with the fields",
    "write": "msgpack_pack_object() to an msgpack_sbuffer",
}


def record(found: dict[str, Any], what: str) -> Record:
    ours, peer = found[what], found[f"{what}_msgpack_c"]
    detail = {
        "measured": f"{MEASURED[what]}; microseconds a message, both sides in turns",
        "p99_ratio": ours["p99"] / peer["p99"],
        "load_average": os.getloadavg()[0],
        "peer": PEERS[what],
    }
    if what == "read":
        detail["peer_without_limits_p50"] = found["read_msgpack_c_alone"]["p50"]
    if what != "write":
        detail["both"] = "codec/scan goes first on both sides: msgpack-c itself has no limits of extent, depth and counts"
    return Record(f"codec_{what}", "us", "lower", summary(ours), summary(peer, "msgpack-c"), detail)


def run(context: Context) -> list[Record]:
    counts = ("--rounds", 20) if context.smoke else ()
    found = context.run_program("bench_codec", *counts, socket=None)
    return [record(found, what) for what in MEASURED]


add("codec", run, on_gpu=False)
