"""Attacks by what the daemon is to hold: mappings, descriptors, connections, rings."""

from __future__ import annotations

import array
import mmap
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from support import raw

from .attack import MEBI, MESSAGE_BYTES, PER_CONNECTION, attack, on_each, register_many, register_some, send
from .flood import Flood, message, messages

LARGEST_BITS = 42  # 4 TiB, more than any machine has


def nothing(it: Flood) -> None:
    """Such an attack has nothing to make ready."""


def registering(it: Flood, until: float) -> None:
    """Each descriptor needs a sendmsg of its own."""
    while time.monotonic() < until:
        for link in it.kept:
            ids = register_some(link, mmap.PAGESIZE, 16)
            for reply in map(link.reply, ids):
                if reply.error is None:
                    link.request("release", {"buffer": reply.result["buffer"]})
            it.counts["registered"] += len(ids)
            link.replies.clear()


@attack("registers", "register and release of memfds, 16 connections", registering)
def registers(it: Flood) -> None:
    it.kept += [it.connect() for _ in range(16)]


@attack("allocs", "`alloc` and `release`, 16 connections")
def allocs(it: Flood) -> None:
    def prepare(link: raw.Connection) -> list[bytes]:
        first = link.call("alloc", {"size": 4096})["buffer"]
        pairs = ((message("alloc", {"size": 4096}, 2 * i), message("release", {"buffer": first + 1 + i}, 2 * i + 1)) for i in range(2000))
        return [piece for pair in pairs for piece in pair]

    on_each(it, 16, prepare, 32)


attack("kept_allocs", "`alloc` of 1 MB until no more is given, 4 connections", heavy=True)(
    lambda it: send(it, 4, messages("alloc", {"size": MEBI}, 1024), 16)
)


def holes(it: Flood, until: float) -> None:
    """Nothing of the memfd is there before the daemon reads it."""
    size = 64 * MEBI
    link = it.kept[0]
    while time.monotonic() < until:
        (register,) = register_some(link, size)
        reply = link.reply(register)
        if reply.error is not None:
            it.said[reply.error["code"]] += 1
            continue
        view = raw.tensor(reply.result["buffer"], [size // 4])
        done = link.reply(link.request("run", {"op": "square", "in": [view], "out": [view]}))
        it.counts["holes"] += done.error is None
        link.call("release", {"buffer": view["buffer"]})


@attack("holes", "squares of memfds of 64 MiB with nothing in them", holes)
def build_holes(it: Flood) -> None:
    it.kept.append(it.connect())


def largest(it: Flood, ask: Callable[[raw.Connection, int], raw.Reply]) -> tuple[raw.Connection, dict] | None:
    """A vector in the largest memory, by halves, that is given."""
    link = it.connect()
    it.kept.append(link)
    for bits in range(LARGEST_BITS, 20, -1):
        reply = ask(link, 1 << bits)
        if reply.error is None:
            it.counts["largest_mib"] = (1 << bits) // MEBI
            return link, raw.tensor(reply.result["buffer"], [(1 << bits) // 4])
        it.said[reply.error["code"]] += 1
    return None


def squares_of(it: Flood, link: raw.Connection, view: dict) -> None:
    it.add(link.socket, messages("run", {"op": "square", "in": [view], "out": [view]}, 64), 2)


@attack("big_holes", "squares of the largest memfd that it may register, with nothing in it", heavy=True, seconds=8)
def big_holes(it: Flood) -> None:
    if found := largest(it, lambda link, size: link.reply(register_some(link, size)[0])):
        squares_of(it, *found)


@attack("big_allocs", "squares of the largest memory that `alloc` gives", heavy=True, seconds=8)
def big_allocs(it: Flood) -> None:
    if found := largest(it, lambda link, size: link.reply(link.request("alloc", {"size": size}))):
        squares_of(it, *found)


def closing(it: Flood, until: float) -> None:
    while time.monotonic() < until:
        it.kept.clear()
        link = it.connect()
        it.kept.append(link)
        for start in range(0, PER_CONNECTION, 200):
            register_some(link, mmap.PAGESIZE, 200)
            link.call("ping")
            link.replies.clear()
            if time.monotonic() > until and start:
                break
        it.counts["closed_with_buffers"] += 1
        link.socket.close()


attack("closes", "connections with 8,000 buffers that are closed", closing)(nothing)


def parting(it: Flood, until: float) -> None:
    """All but the last byte of a message of 1 MB on each; the daemon waits a minute for that."""
    data = memoryview(message("ping", {"x": b"x" * (MESSAGE_BYTES - 100)}))[:-1]
    for link in it.kept:
        link.socket.setblocking(False)
        sent = 0
        while sent < len(data) and time.monotonic() < until:
            try:
                sent += link.socket.send(data[sent : sent + 65536])
            except BlockingIOError:
                time.sleep(0.001)
        it.counts["parts_mib"] += sent >> 20
    time.sleep(max(0.0, until - time.monotonic()))


@attack("parts", "1 MB messages without their last byte, 1000 connections", parting, heavy=True)
def parts(it: Flood) -> None:
    it.kept += [it.connect() for _ in range(1000)]


attack("unread_pings", "1 MB replies that are not read, 500 connections", heavy=True)(
    lambda it: send(it, 500, messages("ping", {"x": b"x" * (MESSAGE_BYTES - 100)}, 8), 8, read=False)
)


def claiming(it: Flood, until: float) -> None:
    """Descriptors that no message claims: the daemon has to take them and to close them."""
    fds = array.array("i", [os.dup(0) for _ in range(250)])
    while time.monotonic() < until:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        link.setblocking(False)
        with suppress(OSError):
            link.connect(it.path)
            link.sendmsg([b"\x94"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            it.counts["sent"] += 1
        it.counts["tried"] += 1
        link.close()


attack("descriptors", "250 descriptors that no message claims, again and again", claiming)(nothing)


def ringing(it: Flood, until: float) -> None:
    one = (1).to_bytes(8, "little")
    while time.monotonic() < until:
        for bell in it.bells:
            os.write(bell, one)
        it.counts["rung"] += len(it.bells)


@attack("bells", "doorbells of 64 connections with nothing in their rings", ringing)
def bells(it: Flood) -> None:
    for _ in range(64):
        link = it.connect()
        it.kept.append(link)
        reply = link.reply(link.request("hello", {"shm": True}))
        bell = reply.fds[reply.get()["shm"]["doorbell"]]
        os.set_blocking(bell, True)
        it.bells.append(bell)


def connecting(it: Flood, until: float) -> None:
    while time.monotonic() < until:
        links = []
        for _ in range(64):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            link.setblocking(False)
            try:
                link.connect(it.path)
            except BlockingIOError:
                it.counts["backlog_full"] += 1
                link.close()
                break
            links.append(link)
        it.counts["connects"] += len(links)
        for link in links:
            link.close()


attack("connects", "connections that are made and closed", connecting)(nothing)


HELLO_SHM = [message("hello", {"shm": True})]


def asking_rings(it: Flood, until: float) -> None:
    """Closes each connection once it has its reply."""
    while time.monotonic() < until:
        it.step(0.05)
        done = [stream for stream in it.streams.values() if stream.answered]
        for stream in done:
            it.close(stream)
        for _ in range(16 - len(it.streams)):
            it.add(None, HELLO_SHM, 1)


attack("rings", "connections that ask for shared memory and close, 16 at a time", asking_rings)(nothing)


@attack("trims", "`trim` of connections with 8,000 buffers, 4 connections", heavy=True)
def trims(it: Flood) -> None:
    register_many(it, 4 * PER_CONNECTION)
    for link in it.kept:
        it.add(link.socket, messages("trim", {}, 64), 16)


def ring_flood(it: Flood, until: float) -> None:
    memory, doorbell, size = it.ring
    words = np.frombuffer(memory, np.uint64, 512)
    sleeps = np.frombuffer(memory, np.uint32, 1024)
    lap = b"".join(messages("ping", {}, 1024))
    at = head = 0
    one = (1).to_bytes(8, "little")
    while time.monotonic() < until:
        words[(256 + 64) // 8] = words[256 // 8]  # all replies count as read
        if sleeps[(256 + 192) // 4]:
            sleeps[(256 + 192) // 4] = 0
            os.write(doorbell, one)
        room = min(size - (head - int(words[64 // 8])), 65536)
        while room > 0:
            n = min(room, len(lap) - at, size - head % size)
            memory[4096 + head % size : 4096 + head % size + n] = lap[at : at + n]
            at, head, room = (at + n) % len(lap), head + n, room - n
        words[0] = head
        if sleeps[128 // 4]:
            sleeps[128 // 4] = 0
            os.write(doorbell, one)
            it.counts["rung"] += 1
    it.counts["answered"] += int(words[256 // 8]) // 17


@attack("busy_ring", "pings through shared memory as fast as they can be written", ring_flood)
def busy_ring(it: Flood) -> None:
    link = it.connect()
    it.kept.append(link)
    reply = link.reply(link.request("hello", {"shm": True}))
    found = reply.get()["shm"]
    size = 4096 + found["request_bytes"] + found["reply_bytes"]
    it.ring = (mmap.mmap(reply.fds[found["fd"]], size), reply.fds[found["doorbell"]], found["request_bytes"])
