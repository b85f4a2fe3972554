"""What a user may do to its neighbours: each attack by name. An attack makes ready on a Flood, and is then run for a time.

Everything stays within what an ordinary user may do with the daemon's defaults. Attacks are of one process and one
thread; their memory is bounded."""

from __future__ import annotations

import array
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count

import numpy as np
from support import memfd, raw
from support.kernels import ENDLESS

from .flood import Flood, message, messages, notifications

MEBI = 1 << 20
MESSAGE_BYTES = 1_000_000  # below the default of limits.message_bytes
ALMOST = MESSAGE_BYTES - 100  # bytes left for a text, beside the rest of the message
SMALL, LARGE = 16, 1 << 17  # elements of vectors: a small one, one whose add is not done at once
OPS = 512  # of a sequence
MAPPINGS = 49_152  # the most that a daemon takes
PER_CONNECTION = 8_000  # buffers
INFLIGHT = 254  # requests
LARGEST_BITS = 42  # 4 TiB, more than any machine has
ARCH = "sm_90a"
NUMBERS = count()  # no two connections have one

Prepare = Callable[[raw.Connection], Sequence[bytes]]  # the messages of a connection


def on_each(it: Flood, connections: int, prepare: Prepare, depth: int | None, *, read: bool = True) -> None:
    """The messages round and round on so many connections, at most `depth` without a reply."""
    for _ in range(connections):
        link = it.connect()
        it.add(link.socket, prepare(link), depth, read=read)


@dataclass(frozen=True)
class Attack:
    name: str
    title: str
    connections: int = 0  # that send messages, and of these at most `depth` without a reply
    prepare: Prepare | None = None
    depth: int | None = None
    read: bool = True  # the replies
    before: Callable[[Flood], None] | None = None
    run: Callable[[Flood, float], None] = Flood.run
    cuda: bool = False  # needs a device that ordered work can be given to
    elements: int = 1024  # of the other user's adds meanwhile
    compiles: bool = False  # the other user compiles
    seconds: float = 2.0  # in which it shows

    def build(self, it: Flood) -> None:
        if self.before:
            self.before(it)
        if self.prepare:
            on_each(it, self.connections, self.prepare, self.depth, read=self.read)


# ---- messages ----


def same(make: Callable[..., Sequence[bytes]], *arguments: object) -> Prepare:
    """All connections send equal messages, made when the first one wants them."""
    made = cache(lambda: make(*arguments))
    return lambda _: made()


def asking(method: str, params: dict, n: int) -> Prepare:
    return same(messages, method, params, n)


def register_some(link: raw.Connection, size: int, n: int = 1) -> list[int]:
    """Registers new memfds without waiting; the requests' ids."""
    ids = []
    for _ in range(n):
        fd = memfd.make(size)
        ids.append(link.request("register", {"kind": "memfd", "size": size, "fd": 0}, [fd]))
        os.close(fd)
    return ids


def shared_vectors(link: raw.Connection, n: int, elements: int = SMALL) -> list[dict]:
    """Tensors in one memfd of this connection's; the daemon's mapping keeps it."""
    (register,) = register_some(link, 4 * elements * n)
    buffer = link.reply(register).get()["buffer"]
    return [raw.tensor(buffer, [elements], offset=4 * elements * i) for i in range(n)]


def add(link: raw.Connection, elements: int = SMALL) -> dict:
    a, b, out = shared_vectors(link, 3, elements)
    return {"op": "add", "in": [a, b], "out": [out]}


def adds(elements: int = SMALL) -> Prepare:
    return lambda link: messages("run", {**add(link, elements), "timing": False}, 1024)


def gemm(link: raw.Connection, n: int) -> dict:
    a, b, out = shared_vectors(link, 3, n * n)
    return {"op": "gemm", "in": [{**a, "shape": [n, n]}, {**b, "shape": [n, n]}], "out": [{**out, "shape": [n, n]}]}


def gemms(link: raw.Connection) -> list[bytes]:
    return messages("run", gemm(link, 1024), 256)


def endless_gemm(link: raw.Connection) -> dict:
    """A gemm of 2⁴⁰ products, from 12 bytes of memory."""
    a, b, out = shared_vectors(link, 3, 1)
    long = {"shape": [1, 1 << 40], "strides": [0, 0]}, {"shape": [1 << 40, 1], "strides": [0, 0]}
    return {"op": "gemm", "in": [{**a, **long[0]}, {**b, **long[1]}], "out": [{**out, "shape": [1, 1]}]}


def behind_endless(prepare: Prepare) -> Prepare:
    def both(link: raw.Connection) -> Sequence[bytes]:
        link.request("run", endless_gemm(link))
        return prepare(link)

    return both


def on_streams(params: Callable[[raw.Connection], dict], streams: int, n: int) -> Prepare:
    def prepare(link: raw.Connection) -> list[bytes]:
        run = params(link)
        return [message("run", {**run, "stream": i % streams}, i) for i in range(n)]

    return prepare


def sequence(link: raw.Connection) -> dict:
    return {"tensors": shared_vectors(link, 3), "ops": [{"op": "add", "in": [0, 1], "out": [2]} for _ in range(OPS)]}


def sequences(link: raw.Connection) -> list[bytes]:
    return messages("sequence", sequence(link), 512)


def made_and_released(method: str, what: str, params: Callable[[raw.Connection], dict], n: int) -> Prepare:
    """In turn: an id is one more than the last."""

    def prepare(link: raw.Connection) -> list[bytes]:
        given = params(link)
        first = link.call(method, given)[what]
        pairs = ((message(method, given, 2 * i), message("release", {what: first + 1 + i}, 2 * i + 1)) for i in range(n))
        return list(chain.from_iterable(pairs))

    return prepare


def hard_checks(link: raw.Connection) -> list[bytes]:
    """Repeated sequences whose tensors nearly overlap, interleaved in many dimensions: each pair has to be looked at."""
    shape, strides, extent = [2, 3, 2, 3, 2, 2], [960, 320, 160, 48, 24, 6], 4096
    (whole,) = shared_vectors(link, 1, 8 * extent)
    view = {**whole, "shape": shape, "strides": strides}
    outs = [{**view, "offset": 4 * (2 * i)} for i in range(OPS)]
    ins = [{**view, "offset": 4 * (2 * i + 1)} for i in range(1024)]
    ops = [{"op": "add", "in": [i, OPS + i], "out": [1024 + i]} for i in range(OPS)]
    return messages("sequence", {"tensors": ins + outs, "ops": ops, "repeat": 2}, 64)


def bindings(link: raw.Connection) -> list[bytes]:
    """Runs of programs with other memory for every tensor."""
    tensors = shared_vectors(link, 3 * OPS)
    ops = [{"op": "add", "in": [3 * i, 3 * i + 1], "out": [3 * i + 2]} for i in range(OPS)]
    program = link.call("program", {"tensors": tensors, "ops": ops})["program"]
    bind = [{"index": i, "buffer": its["buffer"], "offset": its["offset"]} for i, its in enumerate(tensors)]
    return messages("run_program", {"program": program, "bind": bind}, 64)


def shapes(link: raw.Connection) -> list[bytes]:
    (whole,) = shared_vectors(link, 1, 8192)
    number, runs = next(NUMBERS), []
    for i in range(1024):
        a = {**whole, "shape": [1 + i % 32, 1 + i // 32, 1 + number % 4]}
        runs.append(message("run", {"op": "add", "in": [a, a], "out": [{**a, "offset": 16384}]}, i))
    return runs


def compiles(source: str, n: int) -> Prepare:
    """No two sources are the same, so that each has to be compiled."""

    def prepare(_: raw.Connection) -> list[bytes]:
        number = next(NUMBERS)
        texts = (f"{source}// {number} {i}" for i in range(n))
        return [message("compile", {"source": text, "entries": ["k"], "arch": ARCH}, i) for i, text in enumerate(texts)]

    return prepare


# ---- setup of attacks ----


def connected(n: int) -> Callable[[Flood], None]:
    return lambda it: it.kept.extend(it.connect() for _ in range(n))


def register_many(it: Flood, n: int) -> None:
    """Registers one-page memfds on as many connections as it takes, until `n` or a refusal."""
    while it.counts["mappings"] < n:
        link = it.connect()
        it.kept.append(link)
        want = min(PER_CONNECTION, n - it.counts["mappings"])
        for start in range(0, want, 200):
            replies = [link.reply(i) for i in register_some(link, mmap.PAGESIZE, min(200, want - start))]
            it.counts["mappings"] += sum(reply.error is None for reply in replies)
            refused = next((reply.error for reply in replies if reply.error is not None), None)
            if refused is not None:
                it.said[refused["code"]] += 1
                return


def trims(it: Flood) -> None:
    register_many(it, 4 * PER_CONNECTION)
    for link in it.kept:
        it.add(link.socket, messages("trim", {}, 64), 16)


def squares_of_largest(ask: Callable[[raw.Connection, int], int]) -> Callable[[Flood], None]:
    """Squares of a vector in the largest memory, by halves, that is given to who asks so."""

    def build(it: Flood) -> None:
        link = it.connect()
        it.kept.append(link)
        for bits in range(LARGEST_BITS, 20, -1):
            reply = link.reply(ask(link, 1 << bits))
            if reply.error is None:
                it.counts["largest_mib"] = (1 << bits) // MEBI
                view = raw.tensor(reply.result["buffer"], [(1 << bits) // 4])
                it.add(link.socket, messages("run", {"op": "square", "in": [view], "out": [view]}, 64), 2)
                return
            it.said[reply.error["code"]] += 1

    return build


def ring_of(it: Flood) -> tuple[raw.Reply, dict]:
    """A connection's shared memory."""
    link = it.connect()
    it.kept.append(link)
    reply = link.reply(link.request("hello", {"shm": True}))
    return reply, reply.get()["shm"]


def bells(it: Flood) -> None:
    for reply, shm in (ring_of(it) for _ in range(64)):
        bell = reply.fds[shm["doorbell"]]
        os.set_blocking(bell, True)
        it.bells.append(bell)


def busy_ring(it: Flood) -> None:
    reply, shm = ring_of(it)
    size = 4096 + shm["request_bytes"] + shm["reply_bytes"]
    it.ring = (mmap.mmap(reply.fds[shm["fd"]], size), reply.fds[shm["doorbell"]], shm["request_bytes"])


def held(it: Flood) -> None:
    """As many as are allowed: 255 on each connection."""
    sent = 0
    for _ in range(120):
        link = it.connect()
        it.kept.append(link)
        device = next(d["uuid"] for d in link.call("hello")["devices"] if d["backend"] == "cuda")
        link.reply(link.request("timelines", {})).get()
        tensor = raw.tensor(link.call("alloc", {"size": 4096, "device": device})["buffer"], [SMALL])
        link.socket.setblocking(False)
        params = {"op": "square", "in": [tensor], "out": [tensor], "ready": 1}
        data = b"".join(message("run", {**params, "stream": i}, i) for i in range(255))
        with suppress(BlockingIOError):
            sent += link.socket.send(data) == len(data)
    it.counts["connections_held"] = sent


# ---- bodies of attacks ----


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


def parting(it: Flood, until: float) -> None:
    """All but the last byte of a message of 1 MB on each; the daemon waits a minute for that."""
    data = memoryview(message("ping", {"x": b"x" * ALMOST}))[:-1]
    for link in it.kept:
        link.socket.setblocking(False)
        sent = 0
        while sent < len(data) and time.monotonic() < until:
            try:
                sent += link.socket.send(data[sent : sent + 65536])
            except BlockingIOError:
                time.sleep(0.001)
        it.counts["parts_mib"] += sent >> 20
    idle(it, until)


def pieces(it: Flood, until: float) -> None:
    """Each byte wakes the daemon, which then has a part of a message."""
    data = message("ping", {"x": [1] * 10_000})
    for link in it.kept:
        link.socket.setblocking(False)
    at = 0
    while time.monotonic() < until:
        piece = data[at : at + 1]
        at = (at + 1) % len(data)
        for link in it.kept:
            with suppress(BlockingIOError):
                link.socket.send(piece)
                it.counts["pieces"] += 1
            if at == 0:
                with suppress(BlockingIOError):
                    link.socket.recv(1 << 20)


def client_socket() -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    link.setblocking(False)
    return link


def claiming(it: Flood, until: float) -> None:
    """Descriptors that no message claims: the daemon has to take them and to close them."""
    fds = array.array("i", [os.dup(0) for _ in range(250)])
    while time.monotonic() < until:
        link = client_socket()
        with suppress(OSError):
            link.connect(it.path)
            link.sendmsg([b"\x94"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            it.counts["sent"] += 1
        it.counts["tried"] += 1
        link.close()


def connecting(it: Flood, until: float) -> None:
    while time.monotonic() < until:
        links: list[socket.socket] = []
        with suppress(BlockingIOError):
            while len(links) < 64:
                links.append(client_socket())
                links[-1].connect(it.path)
                it.counts["connects"] += 1
        for link in links:
            link.close()


def ringing(it: Flood, until: float) -> None:
    one = (1).to_bytes(8, "little")
    while time.monotonic() < until:
        for bell in it.bells:
            os.write(bell, one)
        it.counts["rung"] += len(it.bells)


def asking_rings(it: Flood, until: float) -> None:
    """Closes each connection once it has its reply."""
    hello = [message("hello", {"shm": True})]
    while time.monotonic() < until:
        it.step(0.05)
        for stream in [stream for stream in it.streams.values() if stream.answered]:
            it.close(stream)
        on_each(it, 16 - len(it.streams), lambda _: hello, 1)


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


def dropping(it: Flood, until: float) -> None:
    """Connections with as much queued as they may have, all closed at once."""
    while time.monotonic() < until:
        it.close_all()
        on_each(it, 32, behind_endless(lambda link: messages("run", gemm(link, 256), 512)), INFLIGHT)
        it.run(min(until, time.monotonic() + 0.3))
        it.counts["rounds"] += 1


def idle(_: Flood, until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))  # the attack is that it holds what it has


# ---- all of them ----


def several(name: str, title: str, connections: int, *rest: object, **more: object) -> Attack:
    """An attack whose title ends with the number of its connections."""
    return Attack(name, f"{title}, {connections} connection{'s' * (connections > 1)}", connections, *rest, **more)  # type: ignore[arg-type]


def by_what_is_held() -> Iterable[Attack]:
    """Mappings, descriptors, connections, rings."""
    yield several("registers", "register and release of memfds", 16, before=connected(16), run=registering)
    yield several("allocs", "`alloc` and `release`", 16, made_and_released("alloc", "buffer", lambda _: {"size": 4096}, 2000), 32)
    yield several("kept_allocs", "`alloc` of 1 MB until no more is given", 4, asking("alloc", {"size": MEBI}, 1024), 16)
    yield Attack("holes", "squares of memfds of 64 MiB with nothing in them", before=connected(1), run=holes)
    largest = squares_of_largest(lambda link, size: register_some(link, size)[0])
    yield Attack("big_holes", "squares of the largest memfd that it may register, with nothing in it", before=largest, seconds=8)
    largest = squares_of_largest(lambda link, size: link.request("alloc", {"size": size}))
    yield Attack("big_allocs", "squares of the largest memory that `alloc` gives", before=largest, seconds=8)
    yield Attack("closes", "connections with 8,000 buffers that are closed", run=closing)
    yield several("parts", "1 MB messages without their last byte", 1000, before=connected(1000), run=parting)
    big = asking("ping", {"x": b"x" * ALMOST}, 8)
    yield several("unread_pings", "1 MB replies that are not read", 500, big, 8, read=False)
    yield Attack("descriptors", "250 descriptors that no message claims, again and again", run=claiming)
    yield Attack("bells", "doorbells of 64 connections with nothing in their rings", before=bells, run=ringing)
    yield Attack("connects", "connections that are made and closed", run=connecting)
    yield Attack("rings", "connections that ask for shared memory and close, 16 at a time", run=asking_rings)
    yield several("trims", "`trim` of connections with 8,000 buffers", 4, before=trims)
    yield Attack("busy_ring", "pings through shared memory as fast as they can be written", before=busy_ring, run=ring_flood)


def by_what_is_asked() -> Iterator[Attack]:
    """Large messages, long checks, long answers, many small requests."""
    values = [1] * ALMOST
    empty = {"op": "add", "in": [], "out": []}
    yield several("values", "1 MB pings of small values", 1, asking("ping", {"x": values}, 4), 2)
    yield several("values_x64", "1 MB pings of small values", 64, asking("ping", {"x": values}, 4), 2)
    yield several("big_pings_x16", "1 MB pings of one string", 16, asking("ping", {"x": b"x" * ALMOST}, 4), 2)
    # Decoded, found wrong, and refused with a short reply.
    refused = asking("run", {**empty, "more": values}, 4)
    yield several("refused_values_x16", "1 MB messages of small values that are refused", 16, refused, 2)
    # As many keys as a message holds, in place of parameters.
    keys = asking("run", {f"{i:x}": 1 for i in range(MESSAGE_BYTES // 8)}, 4)
    yield several("keys_x16", "1 MB messages with a map of small keys", 16, keys, 2)
    yield several("long_names", "1 MB strings where a name is expected", 16, asking("run", {**empty, "op": "x" * MESSAGE_BYTES}, 4), 2)
    source = asking("compile", {"source": "x" * 900_000, "entries": ["f"], "arch": ARCH}, 4)
    yield several("sources", "sources of 1 MB to compile", 16, source, 2)
    title = "sources whose compile does not end, 64 on each of 8 connections, beside compiles"
    yield Attack("bombs", title, 8, compiles(ENDLESS, 64), 64, compiles=True, seconds=8)
    title = "small new sources, 254 on each of 16 connections, beside compiles"
    cheap = compiles('extern "C" __global__ void k(float* p) { *p = 1; }\n', 1024)
    yield Attack("cheap_compiles", title, 16, cheap, INFLIGHT, compiles=True, seconds=8)
    yield several("pieces", "messages byte by byte", 64, before=connected(64), run=pieces)
    yield several("sequences_x16", "sequences of 512 ops", 16, sequences, 4)
    programs = made_and_released("program", "program", sequence, 1000)
    yield several("programs_x4", "programs of 512 ops, released at once", 4, programs, 8)
    kept = lambda link: messages("program", sequence(link), 512)  # noqa: E731
    yield several("kept_programs_x12", "programs of 512 ops, kept", 12, kept, 64)
    yield several("hard_checks_x4", "sequences whose memory is hard to check", 4, hard_checks, 4)
    yield several("bindings_x16", "runs of programs of 512 ops with all memory bound anew", 16, bindings, 8)
    one_by_one, queued = asking("stats", {}, 8), asking("stats", {}, 1024)
    most_mappings = partial(register_many, n=MAPPINGS)
    for n, suffix in ((1, ""), (16, "_x16")):
        yield several(f"stats{suffix}", "`stats` with as many mappings as it may have", n, one_by_one, 1, before=most_mappings)
        yield several(f"queued_stats{suffix}", "254 queued `stats` with as many mappings", n, queued, INFLIGHT, before=most_mappings)
    yield several("unread_stats", "queued `stats` that are not read", 64, queued, INFLIGHT, read=False, before=most_mappings)
    title = "`stats` as notifications, which have no reply"
    yield Attack("notified_stats", title, 16, same(notifications, "stats", 1000), before=most_mappings)
    yield several("notified_metrics_x64", "`metrics` as notifications", 64, same(notifications, "metrics", 1000))
    # Name, title, connections, requests without a reply on each, method, parameters.
    for name, title, connections, depth, method, params in (
        ("metrics_x16", "`metrics`", 16, 1, "metrics", {}),
        ("clients_x256", "`clients`", 256, 1, "clients", {}),
        ("queued_clients_x64", "254 queued `clients`", 64, INFLIGHT, "clients", {}),
        ("hellos_x64", "16 queued `hello`", 64, 16, "hello", {"protocol": 1}),
        ("pings_x64", "254 queued `ping`", 64, INFLIGHT, "ping", {}),
        ("cancels_x64", "254 queued `cancel` of unknown ids", 64, INFLIGHT, "cancel", {"msgid": 5}),
        ("unknown_methods_x64", "254 queued unknown methods", 64, INFLIGHT, "nonesuch", {}),
        ("unknown_keys_x64", "254 queued requests with unknown keys", 64, INFLIGHT, "run", {"none": 1}),
    ):
        yield several(name, title, connections, asking(method, params, max(4 * depth, 8)), depth)


def by_what_is_run() -> Iterator[Attack]:
    """Work that the daemon is to run, or to keep until it may run."""
    yield several("adds", "254 queued adds", 1, adds(), INFLIGHT)
    yield several("adds_x64", "254 queued adds", 64, adds(), INFLIGHT)
    yield several("gemms", "gemms of 1024 × 1024", 16, gemms, 16)
    repeated = lambda link: messages("run", {**add(link, 1 << 20), "repeat": 10_000}, 256)  # noqa: E731
    yield several("repeats", "adds of 4 MB repeated 10,000 times", 16, repeated, 8)
    endless = on_streams(endless_gemm, 64, 64)
    yield Attack("endless", "gemms of 2⁴⁰ products, 4 × 64 streams", 4, endless, 64)
    yield Attack("endless_beside_large", "the same, beside adds of 512 KiB", 4, endless, 64, elements=LARGE)
    title = "gemms of 1024 × 1024, 16 connections, beside adds of 512 KiB"
    yield Attack("gemms_beside_large", title, 16, gemms, 16, elements=LARGE)
    title = "254 queued adds of 512 KiB, 64 connections, beside adds of 512 KiB"
    yield Attack("adds_beside_large", title, 64, adds(LARGE), INFLIGHT, elements=LARGE)
    title = "sequences of 512 ops that wait behind an endless gemm"
    yield several("waiting_sequences", title, 64, behind_endless(sequences), INFLIGHT)
    yield Attack("drops", "32 connections with 254 runs queued behind an endless gemm, closed and made anew", run=dropping)
    yield several("shapes", "adds of ever different shapes, which are rows of the statistics", 16, shapes, INFLIGHT)
    late = lambda link: messages("run", {**gemm(link, 256), "deadline_ms": 1}, 1024)  # noqa: E731
    yield several("deadlines", "queued gemms with a deadline of 1 ms", 16, late, INFLIGHT)
    yield several("streams", "adds on 256 streams", 16, on_streams(add, 256, 1024), INFLIGHT)
    yield Attack("held", "30,600 ordered runs whose stream never comes", before=held, run=idle, cuda=True)
    title = "as many ordered runs that wait, and pings one after the other"
    yield Attack("held_and_pings", title, 1, asking("ping", {}, 8), 1, before=held, cuda=True)


ATTACKS = {attack.name: attack for attack in chain(by_what_is_held(), by_what_is_asked(), by_what_is_run())}
