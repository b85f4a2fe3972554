"""What a server can do to the nodes that share code by it, and what the helper could that speaks to it: nothing but cost them
their own compiler's time. After each attack the daemon serves on, holds nothing more, and takes a right answer."""

from __future__ import annotations

import fcntl
import gzip
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import proc, raw, shared_cache
from support.http_store import Exchange, Store
from support.shared_cache import PATIENT, Key, compile_on, counters, helper, node, state, wait_for

pytestmark = pytest.mark.skipif(bool(shared_cache.why_not()), reason=shared_cache.why_not())
# Far more than a body may have, and than is ever sent.
HUGE = 10 << 30


@dataclass
class Bodies:
    """What honest nodes have put on a server: of the source that is asked for, of another one, and by a stranger."""

    key: Key
    right: bytes
    other: bytes
    strangers: bytes
    path: str


def published(store: Store, key: Key, name: str) -> tuple[str, bytes]:
    with node(store.url, remote_key=key.path, **PATIENT) as d, d.connect() as c:
        compile_on(c, name)
        wait_for(c, "remote_uploads")
    ((path, body),) = store.bodies.items()
    store.bodies.clear()
    return path, body


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> Bodies:
    folder = tmp_path_factory.mktemp("keys")
    key, stranger = Key(folder / "one"), Key(folder / "two")
    with Store() as store:
        path, right = published(store, key, "asked")
        _, other = published(store, key, "another")
        _, strangers = published(store, stranger, "asked")
    return Bodies(key, right, other, strangers, path)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as s:
        yield s


def flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :]


def pours_body(x: Exchange) -> None:
    x.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n".encode())
    x.pour(b"KOPS signed 1\0\0\0" * 65536)


def pours_chunks(x: Exchange) -> None:
    x.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    x.pour(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")


def pours_headers(x: Exchange) -> None:
    x.raw(b"HTTP/1.1 200 OK\r\n")
    x.pour(b"X-More: " + b"y" * 1000 + b"\r\n")


def pours_answers(x: Exchange) -> None:
    x.pour(b"HTTP/1.1 100 Continue\r\n\r\n")


def drips(x: Exchange) -> None:
    x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not x.over.wait(0.05):
        x.raw(b"x")


# What else a signature does not let pass: tests/unit/compile/test_signed.c
REJECTED: dict[str, Callable[[Bodies], bytes]] = {
    "garbage": lambda b: os.urandom(5000),
    "an error page with status 200": lambda b: b"<html>please log in</html>",
    "nothing": lambda b: b"",
    "an archive that is cut off": lambda b: b.right[:-1],
    "another key's archive": lambda b: b.other,
    "a stranger's archive": lambda b: b.strangers,
    "a stranger's signature under the right name": lambda b: b.right[:-64] + b.strangers[-64:],
    "a changed binary": lambda b: flipped(b.right, len(b.right) - 100),
    "an archive of kopsctl's": lambda b: b"KOPS archive 1\0\0" + struct.pack("<QQ", 1, len(b.right)) + b.right[96:],
}
FAILED: dict[str, Callable[[Exchange], None]] = {
    "status 500": lambda x: x.answer(500, b"no"),
    "status 401": lambda x: x.answer(401, b"no", 'WWW-Authenticate: Basic realm="x"'),
    "status 206": lambda x: x.answer(206, b"part"),
    "status 304": lambda x: x.answer(304),
    "a redirect to a file": lambda x: x.answer(302, b"", "Location: file:///etc/passwd"),
    "a redirect to itself": lambda x: x.answer(307, b"", f"Location: {x.request.path}"),
    "a redirect to another protocol": lambda x: x.answer(301, b"", "Location: gopher://127.0.0.1:1/x"),
    "no HTTP": lambda x: x.raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "HTTP 0.9": lambda x: x.raw(b"just a body"),
    "an end before the answer": lambda x: None,
    "a reset": lambda x: x.reset(),
    "an end in the first line": lambda x: x.raw(b"HTTP/1.1 20"),
    "less than was promised": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nKOPS signed 1"),
    "a length that is none": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nx"),
    "a negative length": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx"),
    "chunks that are none": lambda x: x.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"),
    "a body of 10 GB": pours_body,
    "a body without an end": pours_chunks,
    "headers without an end": pours_headers,
    "intermediate answers without an end": pours_answers,
    "no answer": lambda x: x.over.wait() and None,
    "a body that drips": drips,
}


# Those that only the time limit ends. It is one of the right answers before and after as well.
ENDLESS = (
    "a body of 10 GB", "a body without an end", "headers without an end", "intermediate answers without an end", "no answer",
    "a body that drips",
)  # fmt: skip


def after(d: shared_cache.Daemon, c: raw.Connection, store: Store, bodies: Bodies, before: dict[str, int]) -> None:
    """The daemon is as it was, and takes what is right."""
    d.wait_holdings(before)
    store.behave = None
    store.bodies[bodies.path] = bodies.right
    c.call("cache", {"action": "clear"})
    assert compile_on(c, "asked")["cached"] == "remote"
    assert d.running() and helper(d)


@pytest.mark.parametrize("what", REJECTED)
def test_what_is_not_right_is_refused(what: str, store: Store, bodies: Bodies) -> None:
    with node(store.url, remote_trust=bodies.key.public, **PATIENT) as d, d.connect() as c:
        compile_on(c, "warm")
        before = d.holdings()
        store.bodies[bodies.path] = REJECTED[what](bodies)
        reply = compile_on(c, "asked")
        n = counters(c)
        assert reply["cached"] == "no" and (n["remote_rejected"], n["cache_remote_hits"]) == (1, 0), n
        assert "event=remote_cache refused=" in d.log()
        after(d, c, store, bodies, before)


@pytest.mark.parametrize("what", FAILED)
def test_what_is_no_answer_is_a_failure(what: str, store: Store, bodies: Bodies) -> None:
    settings = {**PATIENT, "remote_timeout_ms": 1500} if what in ENDLESS else PATIENT
    with node(store.url, remote_trust=bodies.key.public, **settings) as d, d.connect() as c:
        compile_on(c, "warm")
        before = d.holdings()
        store.behave = FAILED[what]
        assert compile_on(c, "asked")["cached"] == "no"
        n = counters(c)
        assert n["remote_failures"] == 1 and n["cache_remote_hits"] == 0, n
        if (why := c.call("hello")["kernels"]["remote_why"]) and "redirect" in what:
            assert "it answers with status 30" in why
        assert store.count("GET") == 2  # no redirect was followed
        after(d, c, store, bodies, before)


def test_a_body_that_unpacks_is_not_unpacked(store: Store, bodies: Bodies) -> None:
    """A small one that would be a large one, were it asked for."""
    bomb = gzip.compress(bytes(200 << 20))
    with node(store.url, remote_trust=bodies.key.public, **PATIENT) as d, d.connect() as c:
        store.behave = lambda x: x.answer(200, bomb, "Content-Encoding: gzip")
        assert compile_on(c, "asked")["cached"] == "no"
        assert counters(c)["remote_rejected"] == 1 and len(bomb) < 1 << 20
        assert all("accept-encoding" not in r.headers for r in store.requests)


def test_memory_and_time_are_bounded_for_many_at_once(store: Store, bodies: Bodies) -> None:
    """As many as may be on their way pour at once: neither the daemon nor the helper grows by what they pour."""
    settings = {**PATIENT, "remote_timeout_ms": 2000}
    with node(store.url, remote_trust=bodies.key.public, **settings) as d, d.connect() as c, d.connect() as watcher:
        compile_on(c, "warm")
        pid, before, poured = helper(d), proc.status(d.pid, "VmRSS"), threading.Event()

        def pour(x: Exchange) -> None:
            poured.set()
            pours_chunks(x)

        store.behave = pour
        ids = [c.request("compile", shared_cache.request_of(str(i))) for i in range(24)]
        assert poured.wait(raw.PATIENCE)
        for i in ids:
            assert c.reply(i).get()["cached"] == "no"
        assert counters(watcher)["remote_failures"] == 24 - counters(watcher)["remote_skipped"]
        assert helper(d) == pid and state(watcher) == "resting"
        assert proc.status(d.pid, "VmRSS") - before < 64 << 10  # KiB


def test_a_body_is_sent_again_where_a_kept_connection_ends(store: Store, bodies: Bodies) -> None:
    """Servers close idle connections at any time, also while the next request is on its way."""
    on_kept = []

    def ends_at_the_second(x: Exchange) -> None:
        if x.request.method == "PUT":
            store.keep(x)
            return
        x.raw(b"HTTP/1.1 404 whatever\r\nContent-Length: 0\r\n\r\n")
        got = b""
        while not got.partition(b"\r\n\r\n")[2]:
            got += x.connection.recv(512)
        on_kept.append(got[:4])

    store.behave = ends_at_the_second
    with node(store.url, remote_key=bodies.key.path, **PATIENT) as d, d.connect() as c:
        compile_on(c, "asked")
        wait_for(c, "remote_uploads")
        assert on_kept == [b"PUT "] and counters(c)["remote_upload_failures"] == 0


def test_a_server_that_hangs_at_uploads_holds_up_nothing(store: Store, bodies: Bodies) -> None:
    def get_only(x: Exchange) -> None:
        if x.request.method == "PUT":
            x.over.wait()
        else:
            store.keep(x)

    store.behave = get_only
    settings = {**PATIENT, "remote_timeout_ms": 1000}
    with node(store.url, remote_key=bodies.key.path, **settings) as d, d.connect() as c:
        for i in range(3):
            assert compile_on(c, f"{i}")["cached"] == "no"
        wait_for(c, "remote_upload_failures", 3)
        assert state(c) == "serving"  # questions go on
        compile_on(c, "another")
        n = counters(c)
        assert n["remote_misses"] == 4
        wait_for(c, "remote_upload_drops")  # uploads rest
        store.bodies[bodies.path] = bodies.right
        assert compile_on(c, "asked")["cached"] == "remote"


# ---- a helper that was taken over: it says what it likes ----

READY, FAILED_EVENT, ANSWER = 1, 2, 3
OK, MISSING, NO = 0, 1, 2
EVENT = struct.Struct("<IIQ160s")
ORDER = struct.Struct("<IIQ32s")


@dataclass
class Helper:
    """The test's own in the place of kopsd's, by the socket of the service manager."""

    listener: socket.socket
    socket: socket.socket | None = None

    def accept(self) -> None:
        self.socket, _ = self.listener.accept()
        assert len(self.socket.recv(1 << 16)) > 4096  # the setup
        self.say(READY)

    def say(self, kind: int, answer: int = 0, number: int = 0, why: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        assert self.socket is not None
        socket.send_fds(self.socket, [EVENT.pack(kind, answer, number, why)], list(fds))

    def order(self) -> int:
        assert self.socket is not None
        return int(ORDER.unpack(self.socket.recv(1 << 16))[2])


def file_of(data: bytes, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL) -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


# What it does for an order of that number, and whether the daemon must give it up for that.
LIES: dict[str, tuple[Callable[[Helper, int, Bodies], None], bool]] = {
    "a body that can still change": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.right, 0),)), False),
    "a pipe": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(os.pipe()[0],)), False),
    "a device": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(os.open("/dev/zero", os.O_RDONLY),)), False),
    "a folder": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(os.open("/", os.O_RDONLY),)), False),
    "another archive": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.other),)), False),
    "an end within its bytes": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.right[:50]),)), False),
    "no body": (lambda h, n, b: h.say(ANSWER, OK, n), True),
    "a body with a miss": (lambda h, n, b: h.say(ANSWER, MISSING, n, fds=(file_of(b.right),)), True),
    "two bodies": (lambda h, n, b: h.say(ANSWER, OK, n, fds=(file_of(b.right), file_of(b.right))), True),
    "many descriptors": (lambda h, n, b: h.say(ANSWER, OK, n, fds=tuple(file_of(b"") for _ in range(20))), True),
    "half a packet": (lambda h, n, b: h.socket.send(b"x" * 7) and None, True),  # type: ignore[union-attr]
    "a packet that is too long": (lambda h, n, b: h.socket.send(b"x" * 70000) and None, True),  # type: ignore[union-attr]
    "words that are no text": (lambda h, n, b: h.say(ANSWER, NO, n, b"\xff\x00\x1b[2J\n" * 12), False),
    "a failure without an end": (lambda h, n, b: h.say(ANSWER, NO, n, b"\xff" * 160), False),
    "an end": (lambda h, n, b: h.say(FAILED_EVENT, 0, 0, b"it was \xfe nice"), True),
    "a kind that is none": (lambda h, n, b: (h.say(99, 0, n), h.say(ANSWER, 77, n), h.say(ANSWER, NO, n))[-1], False),
    "answers that nobody asked for": (
        lambda h, n, b: ([h.say(ANSWER, OK, n + 1 + i, fds=(file_of(b.right),)) for i in range(50)], h.say(ANSWER, NO, n))[-1],
        False,
    ),
}


@pytest.mark.parametrize("what", LIES)
def test_a_helper_that_lies_is_as_harmless(what: str, tmp_path: Path, bodies: Bodies) -> None:
    lie, gives_up = LIES[what]
    path = str(tmp_path / "cache.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        h = Helper(listener)
        settings = {"remote_trust": bodies.key.public, "remote_helper": path, **PATIENT}
        with node("http://127.0.0.1:1", **settings) as d, d.connect() as c:
            h.accept()
            warm = c.request("compile", shared_cache.request_of("warm"))
            h.say(ANSWER, MISSING, h.order())
            c.reply(warm).get()
            before = d.holdings()
            waits = c.request("compile", shared_cache.request_of("asked"))
            lie(h, h.order(), bodies)
            assert c.reply(waits).get()["cached"] == "no"
            if gives_up:
                h.accept()  # the daemon connects anew
                assert "helper=down" in d.log()
            proc.eventually(lambda: state(c) == "serving", lambda: state(c))
            assert c.call("hello")["kernels"].get("remote_why", "").isascii()
            d.wait_holdings(before)
            c.call("cache", {"action": "clear"})
            waits = c.request("compile", shared_cache.request_of("asked"))
            h.say(ANSWER, OK, h.order(), fds=(file_of(bodies.right),))
            assert c.reply(waits).get()["cached"] == "remote"
