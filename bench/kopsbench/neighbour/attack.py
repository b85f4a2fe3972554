"""What an attack is, the table of them, and what several of them need."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from support import memfd, raw

from .flood import Flood

MEBI = 1 << 20
MESSAGE_BYTES = 1_000_000  # below the default of limits.message_bytes
SMALL = 16  # elements of a small vector
OPS = 512  # of a sequence
MAPPINGS = 49_152  # the most that a daemon takes
PER_CONNECTION = 8_000  # buffers
INFLIGHT = 254  # requests

Build = Callable[[Flood], None]
Run = Callable[[Flood, float], None]


def flood(it: Flood, until: float) -> None:
    it.run(until)


@dataclass(frozen=True)
class Attack:
    name: str
    title: str
    build: Build
    run: Run = flood
    cuda: bool = False  # needs a device that ordered work can be given to
    heavy: bool = False  # takes long to make ready, or much memory
    elements: int = 1024  # of the other user's adds meanwhile
    compiles: bool = False  # these are compiles
    seconds: float = 2.0  # in which it shows


ATTACKS: dict[str, Attack] = {}


def attack(name: str, title: str, run: Run = flood, **more: Any) -> Callable[[Build], Build]:
    def keep(build: Build) -> Build:
        ATTACKS[name] = Attack(name, title, build, run, **more)
        return build

    return keep


def several(name: str, title: str, counts: tuple[int, ...], build: Callable[[Flood, int], None], **more: Any) -> None:
    """The same with so many connections each."""
    for count in counts:
        suffix, of = ("", "1 connection") if count == 1 else (f"_x{count}", f"{count} connections")
        ATTACKS[name + suffix] = Attack(name + suffix, f"{title}, {of}", lambda it, n=count: build(it, n), **more)


def send(it: Flood, connections: int, prepared: Sequence[bytes], depth: int | None, *, read: bool = True) -> None:
    """The messages round and round on so many connections, at most `depth` without a reply."""
    for _ in range(connections):
        it.add(None, prepared, depth, read=read)


def on_each(it: Flood, connections: int, prepare: Callable[[raw.Connection], Sequence[bytes]], depth: int) -> None:
    """The same with messages of each connection's own."""
    for _ in range(connections):
        link = it.connect()
        it.add(link.socket, prepare(link), depth)


# ---- operands ----


def register_some(link: raw.Connection, size: int, count: int = 1) -> list[int]:
    """Registers new memfds without waiting; the requests' ids."""
    ids = []
    for _ in range(count):
        fd = memfd.make(size)
        ids.append(link.request("register", {"kind": "memfd", "size": size, "fd": 0}, [fd]))
        os.close(fd)
    return ids



def shared_vectors(link: raw.Connection, count: int, elements: int = SMALL) -> list[dict]:
    """Tensors in one memfd of this connection's; the daemon's mapping keeps it."""
    (register,) = register_some(link, 4 * elements * count)
    buffer = link.reply(register).get()["buffer"]
    return [raw.tensor(buffer, [elements], offset=4 * elements * i) for i in range(count)]


def sequence(tensors: list[dict], ops: int = OPS) -> dict:
    return {"tensors": tensors, "ops": [{"op": "add", "in": [0, 1], "out": [2]} for _ in range(ops)]}


def register_many(it: Flood, count: int) -> int:
    """Registers one-page memfds on as many connections as it takes, until `count` or a refusal; how many there are."""
    taken = 0
    while taken < count:
        link = it.connect()
        it.kept.append(link)
        want = min(PER_CONNECTION, count - taken)
        for start in range(0, want, 200):
            replies = [link.reply(i) for i in register_some(link, mmap.PAGESIZE, min(200, want - start))]
            taken += sum(reply.error is None for reply in replies)
            refused = next((reply.error for reply in replies if reply.error is not None), None)
            if refused is not None:
                it.said[refused["code"]] += 1
                it.counts["mappings"] = taken
                return taken
    it.counts["mappings"] = taken
    return taken
