"""Attacks by what is sent and asked: large messages, long checks, long answers, many small requests."""

from __future__ import annotations

import time
from contextlib import suppress

from .attack import INFLIGHT, MAPPINGS, MESSAGE_BYTES, OPS, Build, attack, register_many, sequence, several, shared_vectors
from .flood import Flood, message, messages, notification

# ---- large messages ----


def pings(it: Flood, count: int, value: bytes | list[int]) -> None:
    prepared = messages("ping", {"x": value}, 4)
    for _ in range(count):
        it.add(None, prepared, 2)


def refused_values(it: Flood, count: int) -> None:
    """Decoded, found wrong, and refused with a short reply."""
    prepared = messages("run", {"op": "add", "in": [], "out": [], "more": [1] * (MESSAGE_BYTES - 100)}, 4)
    for _ in range(count):
        it.add(None, prepared, 2)


def many_keys(it: Flood, count: int) -> None:
    """A map of as many keys as a message holds, in place of parameters."""
    prepared = messages("run", {f"{i:x}": 1 for i in range(MESSAGE_BYTES // 8)}, 4)
    for _ in range(count):
        it.add(None, prepared, 2)


several("values", "1 MB pings of small values", (1, 64), lambda it, n: pings(it, n, [1] * (MESSAGE_BYTES - 100)))
several("big_pings", "1 MB pings of one string", (16,), lambda it, n: pings(it, n, b"x" * (MESSAGE_BYTES - 100)))
several("refused_values", "1 MB messages of small values that are refused", (16,), refused_values)
several("keys", "1 MB messages with a map of small keys", (16,), many_keys)


@attack("long_names", "1 MB strings where a name is expected, 16 connections")
def long_names(it: Flood) -> None:
    prepared = messages("run", {"op": "x" * MESSAGE_BYTES, "in": [], "out": []}, 4)
    for _ in range(16):
        it.add(None, prepared, 2)


@attack("sources", "sources of 1 MB to compile, 16 connections")
def sources(it: Flood) -> None:
    prepared = messages("compile", {"source": "x" * 900_000, "entries": ["f"], "arch": "sm_90a"}, 4)
    for _ in range(16):
        it.add(None, prepared, 2)


BOMB = """template <int D, int P> struct B { static constexpr long v = B<D - 1, 2 * P>::v + B<D - 1, 2 * P + 1>::v; };
template <int P> struct B<0, P> { static constexpr long v = P; };
extern "C" __global__ void f(long* p) { *p = B<40, 1>::v; }
"""  # 2⁴⁰ templates: it ends at a limit of time or memory
CHEAP = 'extern "C" __global__ void f(float* p) { *p = 1; }\n'


def compiles(it: Flood, source: str, connections: int, each: int, depth: int = 64) -> None:
    """No two sources are the same, so that each has to be compiled."""
    for number in range(connections):
        texts = (f"{source}// {number} {i}" for i in range(each))
        it.add(None, [message("compile", {"source": text, "entries": ["f"], "arch": "sm_90a"}, i) for i, text in enumerate(texts)], depth)


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
    for _ in range(count):
        link = it.connect()
        it.add(link.socket, messages("sequence", sequence(shared_vectors(link, 3)), 512), 4)


def programs(it: Flood, count: int) -> None:
    """Defined and released in turn: an id is one more than the last."""
    for _ in range(count):
        link = it.connect()
        params = sequence(shared_vectors(link, 3))
        first = link.call("program", params)["program"]
        rounds = [
            piece
            for i in range(1000)
            for piece in (message("program", params, 2 * i), message("release", {"program": first + 1 + i}, 2 * i + 1))
        ]
        it.add(link.socket, rounds, 8)


def kept_programs(it: Flood, count: int) -> None:
    """Programs that are kept until no more are allowed."""
    for _ in range(count):
        link = it.connect()
        it.add(link.socket, messages("program", sequence(shared_vectors(link, 3)), 512), 64)


several("sequences", "sequences of 512 ops", (16,), sequences)
several("programs", "programs of 512 ops, released at once", (4,), programs)
several("kept_programs", "programs of 512 ops, kept", (12,), kept_programs, heavy=True)


def hard_checks(it: Flood, count: int) -> None:
    """Repeated sequences whose tensors nearly overlap, interleaved in many dimensions: each pair has to be looked at."""
    shape, strides, extent = [2, 3, 2, 3, 2, 2], [960, 320, 160, 48, 24, 6], 4096
    for _ in range(count):
        link = it.connect()
        (whole,) = shared_vectors(link, 1, 8 * extent)
        view = {**whole, "shape": shape, "strides": strides}
        outs = [{**view, "offset": 4 * (2 * i)} for i in range(OPS)]
        ins = [{**view, "offset": 4 * (2 * i + 1)} for i in range(1024)]
        ops = [{"op": "add", "in": [i, OPS + i], "out": [1024 + i]} for i in range(OPS)]
        it.add(link.socket, messages("sequence", {"tensors": ins + outs, "ops": ops, "repeat": 2}, 64), 4)


several("hard_checks", "sequences whose memory is hard to check", (4,), hard_checks)


def bindings(it: Flood, count: int) -> None:
    """Runs of programs with other memory for every tensor."""
    for _ in range(count):
        link = it.connect()
        tensors = shared_vectors(link, 3 * OPS)
        ops = [{"op": "add", "in": [3 * i, 3 * i + 1], "out": [3 * i + 2]} for i in range(OPS)]
        program = link.call("program", {"tensors": tensors, "ops": ops})["program"]
        bind = [{"index": i, "buffer": its["buffer"], "offset": its["offset"]} for i, its in enumerate(tensors)]
        it.add(link.socket, messages("run_program", {"program": program, "bind": bind}, 64), 8)


several("bindings", "runs of programs of 512 ops with all memory bound anew", (16,), bindings)


def stats(it: Flood, count: int) -> None:
    register_many(it, MAPPINGS)
    for _ in range(count):
        it.add(None, messages("stats", {}, 8), 1)


def queued_stats(it: Flood, count: int) -> None:
    register_many(it, MAPPINGS)
    for _ in range(count):
        it.add(None, messages("stats", {}, 1024), INFLIGHT)


several("stats", "`stats` with as many mappings as it may have", (1, 16), stats, heavy=True)
several("queued_stats", "254 queued `stats` with as many mappings", (1, 16), queued_stats, heavy=True)


@attack("unread_stats", "queued `stats` that are not read, 64 connections", heavy=True)
def unread_stats(it: Flood) -> None:
    register_many(it, MAPPINGS)
    for _ in range(64):
        it.add(None, messages("stats", {}, 1024), INFLIGHT, read=False)


@attack("notified_stats", "`stats` as notifications, which have no reply", heavy=True)
def notified_stats(it: Flood) -> None:
    register_many(it, MAPPINGS)
    for _ in range(16):
        it.add(None, [notification("stats", {})] * 1000, None)


def same(method: str, params: dict, count: int, depth: int = 1) -> Build:
    def build(it: Flood) -> None:
        prepared = messages(method, params, max(4 * depth, 8))
        for _ in range(count):
            it.add(None, prepared, depth)

    return build


def notices(it: Flood) -> None:
    for _ in range(64):
        it.add(None, [notification("metrics", {})] * 1000, None)


attack("notified_metrics_x64", "`metrics` as notifications, 64 connections")(notices)
attack("metrics_x16", "`metrics`, 16 connections")(same("metrics", {}, 16))
attack("clients_x256", "`clients`, 256 connections")(same("clients", {}, 256))
attack("queued_clients_x64", "254 queued `clients`, 64 connections")(same("clients", {}, 64, INFLIGHT))
attack("hellos_x64", "16 queued `hello`, 64 connections")(same("hello", {"protocol": 1}, 64, 16))
attack("pings_x64", "254 queued `ping`, 64 connections")(same("ping", {}, 64, INFLIGHT))
attack("cancels_x64", "254 queued `cancel` of unknown ids, 64 connections")(same("cancel", {"msgid": 5}, 64, INFLIGHT))
attack("unknown_methods_x64", "254 queued unknown methods, 64 connections")(same("nonesuch", {}, 64, INFLIGHT))
attack("unknown_keys_x64", "254 queued requests with unknown keys, 64 connections")(same("run", {"none": 1}, 64, INFLIGHT))
