"""Attacks by what the daemon is to run, or to keep until it may run."""

from __future__ import annotations

import time
from contextlib import suppress

from support import raw

from .attack import INFLIGHT, SMALL, attack, on_each, sequence, several, shared_vectors
from .flood import Flood, message, messages


def adds(it: Flood, count: int, elements: int = SMALL, depth: int = INFLIGHT) -> None:
    def prepare(link: raw.Connection) -> list[bytes]:
        a, b, out = shared_vectors(link, 3, elements)
        return messages("run", {"op": "add", "in": [a, b], "out": [out], "timing": False}, 1024)

    on_each(it, count, prepare, depth)


several("adds", "254 queued adds", (1, 64), adds)


def gemm(link: raw.Connection, n: int) -> dict:
    a, b, out = shared_vectors(link, 3, n * n)
    return {"op": "gemm", "in": [{**a, "shape": [n, n]}, {**b, "shape": [n, n]}], "out": [{**out, "shape": [n, n]}]}


def gemms(it: Flood) -> None:
    on_each(it, 16, lambda link: messages("run", gemm(link, 1024), 256), 16)


attack("gemms", "gemms of 1024 × 1024, 16 connections")(gemms)


@attack("repeats", "adds of 4 MB repeated 10,000 times, 16 connections")
def repeats(it: Flood) -> None:
    def prepare(link: raw.Connection) -> list[bytes]:
        a, b, out = shared_vectors(link, 3, 1 << 20)
        return messages("run", {"op": "add", "in": [a, b], "out": [out], "repeat": 10_000}, 256)

    on_each(it, 16, prepare, 8)


def endless_gemm(link: raw.Connection) -> dict:
    """Of 2⁴⁰ products, from 12 bytes of memory."""
    a, b, out = shared_vectors(link, 3, 1)
    long = {"shape": [1, 1 << 40], "strides": [0, 0]}, {"shape": [1 << 40, 1], "strides": [0, 0]}
    return {"op": "gemm", "in": [{**a, **long[0]}, {**b, **long[1]}], "out": [{**out, "shape": [1, 1]}]}


def endless(it: Flood) -> None:
    def prepare(link: raw.Connection) -> list[bytes]:
        params = endless_gemm(link)
        return [message("run", {**params, "stream": i}, i) for i in range(64)]

    on_each(it, 4, prepare, 64)


LARGE = 1 << 17  # elements of an add that is not done at once
attack("endless", "gemms of 2⁴⁰ products, 4 × 64 streams")(endless)
attack("endless_beside_large", "the same, beside adds of 512 KiB", elements=LARGE)(endless)
attack("gemms_beside_large", "gemms of 1024 × 1024, 16 connections, beside adds of 512 KiB", elements=LARGE)(gemms)
attack("adds_beside_large", "254 queued adds of 512 KiB, 64 connections, beside adds of 512 KiB", elements=LARGE)(
    lambda it: adds(it, 64, elements=LARGE)
)


@attack("waiting_sequences", "sequences of 512 ops that wait behind an endless gemm, 64 connections", heavy=True)
def waiting_sequences(it: Flood) -> None:
    def prepare(link: raw.Connection) -> list[bytes]:
        link.request("run", endless_gemm(link))
        return messages("sequence", sequence(shared_vectors(link, 3)), 512)

    on_each(it, 64, prepare, INFLIGHT)


def dropping(it: Flood, until: float) -> None:
    """Connections with as much queued as they may have, all closed at once."""

    def prepare(link: raw.Connection) -> list[bytes]:
        link.request("run", endless_gemm(link))
        return messages("run", gemm(link, 256), 512)

    while time.monotonic() < until:
        it.close_all()
        on_each(it, 32, prepare, INFLIGHT)
        it.run(min(until, time.monotonic() + 0.3))
        it.counts["rounds"] += 1


attack("drops", "32 connections with 254 runs queued behind an endless gemm, closed and made anew", dropping)(lambda it: None)


@attack("shapes", "adds of ever different shapes, which are rows of the statistics, 16 connections")
def shapes(it: Flood) -> None:
    for number in range(16):
        link = it.connect()
        (whole,) = shared_vectors(link, 1, 8192)
        runs = []
        for i in range(1024):
            a = {**whole, "shape": [1 + i % 32, 1 + i // 32, 1 + number % 4]}
            runs.append(message("run", {"op": "add", "in": [a, a], "out": [{**a, "offset": 16384}]}, i))
        it.add(link.socket, runs, INFLIGHT)


@attack("deadlines", "queued gemms with a deadline of 1 ms, 16 connections")
def deadlines(it: Flood) -> None:
    on_each(it, 16, lambda link: messages("run", {**gemm(link, 256), "deadline_ms": 1}, 1024), INFLIGHT)


@attack("streams", "adds on 256 streams, 16 connections")
def streams(it: Flood) -> None:
    def prepare(link: raw.Connection) -> list[bytes]:
        a, b, out = shared_vectors(link, 3)
        params = {"op": "add", "in": [a, b], "out": [out]}
        return [message("run", {**params, "stream": i % 256}, i) for i in range(1024)]

    on_each(it, 16, prepare, INFLIGHT)


def idle(_: Flood, until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))  # the attack is that it holds what it has


@attack("held", "30,600 ordered runs whose stream never comes", idle, cuda=True, heavy=True)
def held(it: Flood) -> None:
    """As many as are allowed: 255 on each connection."""
    sent = 0
    for _ in range(120):
        link = it.connect()
        it.kept.append(link)
        device = next(d["uuid"] for d in link.call("hello")["devices"] if d["backend"] == "cuda")
        reply = link.reply(link.request("timelines", {}))
        reply.get()
        tensor = raw.tensor(link.call("alloc", {"size": 4096, "device": device})["buffer"], [SMALL])
        link.socket.setblocking(False)
        params = {"op": "square", "in": [tensor], "out": [tensor], "ready": 1}
        data = b"".join(message("run", {**params, "stream": i}, i) for i in range(255))
        with suppress(BlockingIOError):
            sent += link.socket.send(data) == len(data)
    it.counts["connections_held"] = sent


@attack("held_and_pings", "as many ordered runs that wait, and pings one after the other", cuda=True, heavy=True)
def held_and_pings(it: Flood) -> None:
    held(it)
    it.add(None, messages("ping", {}, 8), 1)
