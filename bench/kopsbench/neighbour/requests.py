"""Attacks by what is sent and asked: large messages, long checks, long answers, many small requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from support import raw

from .attack import INFLIGHT, MAPPINGS, MESSAGE_BYTES, OPS, Build, attack, on_each, register_many, send, sequence, several, shared_vectors
from .flood import Flood, message, messages, notification

ARCH = "sm_90a"

# ---- large messages ----

SMALL_VALUES = [1] * (MESSAGE_BYTES - 100)


def large(method: str, params: dict[str, Any]) -> Callable[[Flood, int], None]:
    return lambda it, connections: send(it, connections, messages(method, params, 4), 2)


several("values", "1 MB pings of small values", (1, 64), large("ping", {"x": SMALL_VALUES}))
several("big_pings", "1 MB pings of one string", (16,), large("ping", {"x": b"x" * (MESSAGE_BYTES - 100)}))
# Decoded, found wrong, and refused with a short reply.
wrong_values = {"op": "add", "in": [], "out": [], "more": SMALL_VALUES}
several("refused_values", "1 MB messages of small values that are refused", (16,), large("run", wrong_values))
# As many keys as a message holds, in place of parameters.
several("keys", "1 MB messages with a map of small keys", (16,), large("run", {f"{i:x}": 1 for i in range(MESSAGE_BYTES // 8)}))
attack("long_names", "1 MB strings where a name is expected, 16 connections")(
    lambda it: large("run", {"op": "x" * MESSAGE_BYTES, "in": [], "out": []})(it, 16)
)
attack("sources", "sources of 1 MB to compile, 16 connections")(
    lambda it: large("compile", {"source": "x" * 900_000, "entries": ["f"], "arch": ARCH})(it, 16)
)

BOMB = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
template <int P> struct B<0, P> { static constexpr long v = P; };
extern "C" __global__ void f(long* p) { *p = B<40, 1>::v; }
"""  # 2⁴⁰ templates: it ends at a limit of time or memory
CHEAP = 'extern "C" __global__ void f(float* p) { *p = 1; }\n'


def compiles(it: Flood, source: str, connections: int, each: int, depth: int = 64) -> None:
    """No two sources are the same, so that each has to be compiled."""
    for number in range(connections):
        texts = (f"{source}// {number} {i}" for i in range(each))
        it.add(None, [message("compile", {"source": text, "entries": ["f"], "arch": ARCH}, i) for i, text in enumerate(texts)], depth)


attack("bombs", "sources whose compile does not end, 64 on each of 8 connections, beside compiles", compiles=True, seconds=8)(
    lambda it: compiles(it, BOMB, 8, 64)
)
attack("cheap_compiles", "small new sources, 254 on each of 16 connections, beside compiles", compiles=True, seconds=8)(
    lambda it: compiles(it, CHEAP, 16, 1024, INFLIGHT)
)


def bytes_one_by_one(it: Flood, until: float) -> None:
    """Each byte wakes the daemon, which then has a part of a message."""
    links = list(it.kept)
    data = message("ping", {"x": [1] * 10_000})
    at = 0
    while time.monotonic() < until:
        piece = data[at : at + 1]
        at = (at + 1) % len(data)
        for link in links:
            with suppress(BlockingIOError):
                link.socket.send(piece)
                it.counts["pieces"] += 1
        if at == 0:
            for link in links:
                with suppress(BlockingIOError):
                    link.socket.recv(1 << 20)


@attack("pieces", "messages byte by byte, 64 connections", bytes_one_by_one)
def pieces(it: Flood) -> None:
    for _ in range(64):
        it.kept.append(it.connect())
        it.kept[-1].socket.setblocking(False)


# ---- what takes long to check or to answer ----


def sequences(it: Flood, count: int) -> None:
    on_each(it, count, lambda link: messages("sequence", sequence(shared_vectors(link, 3)), 512), 4)


def programs(it: Flood, count: int) -> None:
    """Defined and released in turn: an id is one more than the last."""

    def prepare(link: raw.Connection) -> list[bytes]:
        params = sequence(shared_vectors(link, 3))
        first = link.call("program", params)["program"]
        pairs = ((message("program", params, 2 * i), message("release", {"program": first + 1 + i}, 2 * i + 1)) for i in range(1000))
        return [piece for pair in pairs for piece in pair]

    on_each(it, count, prepare, 8)


def kept_programs(it: Flood, count: int) -> None:
    """Programs that are kept until no more are allowed."""
    on_each(it, count, lambda link: messages("program", sequence(shared_vectors(link, 3)), 512), 64)


several("sequences", "sequences of 512 ops", (16,), sequences)
several("programs", "programs of 512 ops, released at once", (4,), programs)
several("kept_programs", "programs of 512 ops, kept", (12,), kept_programs, heavy=True)


def hard_checks(it: Flood, count: int) -> None:
    """Repeated sequences whose tensors nearly overlap, interleaved in many dimensions: each pair has to be looked at."""
    shape, strides, extent = [2, 3, 2, 3, 2, 2], [960, 320, 160, 48, 24, 6], 4096

    def prepare(link: raw.Connection) -> list[bytes]:
        (whole,) = shared_vectors(link, 1, 8 * extent)
        view = {**whole, "shape": shape, "strides": strides}
        outs = [{**view, "offset": 4 * (2 * i)} for i in range(OPS)]
        ins = [{**view, "offset": 4 * (2 * i + 1)} for i in range(1024)]
        ops = [{"op": "add", "in": [i, OPS + i], "out": [1024 + i]} for i in range(OPS)]
        return messages("sequence", {"tensors": ins + outs, "ops": ops, "repeat": 2}, 64)

    on_each(it, count, prepare, 4)


several("hard_checks", "sequences whose memory is hard to check", (4,), hard_checks)


def bindings(it: Flood, count: int) -> None:
    """Runs of programs with other memory for every tensor."""

    def prepare(link: raw.Connection) -> list[bytes]:
        tensors = shared_vectors(link, 3 * OPS)
        ops = [{"op": "add", "in": [3 * i, 3 * i + 1], "out": [3 * i + 2]} for i in range(OPS)]
        program = link.call("program", {"tensors": tensors, "ops": ops})["program"]
        bind = [{"index": i, "buffer": its["buffer"], "offset": its["offset"]} for i, its in enumerate(tensors)]
        return messages("run_program", {"program": program, "bind": bind}, 64)

    on_each(it, count, prepare, 8)


several("bindings", "runs of programs of 512 ops with all memory bound anew", (16,), bindings)


def stats(connections: int, prepared: Sequence[bytes], depth: int | None, *, read: bool = True) -> Build:
    """Asked for by a user with as many mappings as it may have."""

    def build(it: Flood) -> None:
        register_many(it, MAPPINGS)
        send(it, connections, prepared, depth, read=read)

    return build


ONE_BY_ONE, QUEUED = messages("stats", {}, 8), messages("stats", {}, 1024)
several("stats", "`stats` with as many mappings as it may have", (1, 16), lambda it, n: stats(n, ONE_BY_ONE, 1)(it), heavy=True)
several("queued_stats", "254 queued `stats` with as many mappings", (1, 16), lambda it, n: stats(n, QUEUED, INFLIGHT)(it), heavy=True)
attack("unread_stats", "queued `stats` that are not read, 64 connections", heavy=True)(stats(64, QUEUED, INFLIGHT, read=False))
attack("notified_stats", "`stats` as notifications, which have no reply", heavy=True)(stats(16, [notification("stats", {})] * 1000, None))
attack("notified_metrics_x64", "`metrics` as notifications, 64 connections")(
    lambda it: send(it, 64, [notification("metrics", {})] * 1000, None)
)
# Name, title, connections, requests without a reply on each, method, parameters.
for _name, _title, _connections, _depth, _method, _params in (
    ("metrics_x16", "`metrics`", 16, 1, "metrics", {}),
    ("clients_x256", "`clients`", 256, 1, "clients", {}),
    ("queued_clients_x64", "254 queued `clients`", 64, INFLIGHT, "clients", {}),
    ("hellos_x64", "16 queued `hello`", 64, 16, "hello", {"protocol": 1}),
    ("pings_x64", "254 queued `ping`", 64, INFLIGHT, "ping", {}),
    ("cancels_x64", "254 queued `cancel` of unknown ids", 64, INFLIGHT, "cancel", {"msgid": 5}),
    ("unknown_methods_x64", "254 queued unknown methods", 64, INFLIGHT, "nonesuch", {}),
    ("unknown_keys_x64", "254 queued requests with unknown keys", 64, INFLIGHT, "run", {"none": 1}),
):
    _same = partial(send, connections=_connections, prepared=messages(_method, _params, max(4 * _depth, 8)), depth=_depth)
    attack(_name, f"{_title}, {_connections} connections")(_same)
