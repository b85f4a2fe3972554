"""The plain link over a pair of sockets whose other end the test has."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kops._base.errors import BadReply, ConnectionLost, KopsError, LimitExceeded, Timeout
from kops._session.link import Call
from kops._session.plain import PlainLink

PATIENCE = 20


class Far:
    """The daemon's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._unpacker = msgpack.Unpacker()

    def write(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        assert self.socket.sendmsg([data], control) == len(data)

    def read(self) -> list[Any]:
        """The messages that have come."""
        self.socket.setblocking(False)
        try:
            self._unpacker.feed(self.socket.recv(1 << 20))
        except BlockingIOError:
            pass
        self.socket.setblocking(True)
        return list(self._unpacker)


def conversation() -> tuple[PlainLink, Far]:
    here, there = socket.socketpair()
    return PlainLink(here), Far(there)


@pytest.fixture
def ends() -> Iterator[tuple[PlainLink, Far]]:
    link, far = conversation()
    yield link, far
    far.socket.close()
    link.close()


def response(msgid: int, result: Any = None, error: Any = None) -> Any:
    return msgpack.packb([1, msgid, error, result])


def outcome(link: PlainLink, call: Call, timeout: float = PATIENCE) -> Any:
    link.exchange(call, timeout)
    return call.outcome()


def test_replies_split_anywhere(ends: Any) -> None:
    link, far = ends
    for msgid, size in enumerate((1, 2, 3, 7, 1000), 1):
        data = response(msgid, {"text": "x" * 40})
        call = Call("ping", {})
        link.put(call)
        for i in range(0, len(data), size):
            far.write(data[i : i + size])
            if i + size < len(data):
                with pytest.raises(TimeoutError):
                    link._receive_until(call, 0.0)
                link._inbox.append(link._socket.recvmsg(1000))
                assert link._next() is None
        link._receive_until(call, None)
        assert call.outcome() == {"text": "x" * 40} and not link._waiting and not link._inbox


def test_late_replies_and_the_awaited_one_in_one_chunk(ends: Any) -> None:
    link, far = ends
    for _ in range(2):
        with pytest.raises(Timeout):
            link.exchange(Call("ping", {}), 0.001)
    far.write(response(2, {}) + response(1, {}) + response(3, {"a": 1}))
    assert outcome(link, Call("ping", {})) == {"a": 1}
    assert not link._waiting and not link._inbox


def test_what_a_call_uses_is_kept_until_the_reply_also_when_it_was_given_up(ends: Any) -> None:
    link, far = ends
    given_up, waited = Call("run", {}, keep=["memory"]), Call("run", {}, keep=["memory"])
    with pytest.raises(Timeout):
        link.exchange(given_up, 0.001)
    assert given_up.keep and [message[:3] for message in far.read()] == [[0, 1, "run"], [2, "cancel", [{"msgid": 1}]]]
    far.write(response(1, {}) + response(2, {}))
    outcome(link, waited)
    assert given_up.keep is None and waited.keep is None


@pytest.mark.parametrize("detail", [{"ended": False}, {"ended": True}, {}])
def test_what_a_call_uses_is_kept_until_its_work_has_ended(ends: Any, detail: dict[str, bool]) -> None:
    """A reply at a deadline may be ahead of that; a barrier behind the work is not."""
    link, far = ends
    late = Call("run", {}, keep=["memory"])
    far.write(response(1, error={"code": "deadline_exceeded", "message": "", "detail": detail}))
    link.exchange(late, PATIENCE)
    assert late.done and late.keep is None and late.error.ended == detail.get("ended", True)
    assert [message[2] for message in far.read()] == (["run"] if late.error.ended else ["run", "trim"])
    if late.error.ended:
        assert not link._waiting
        return
    (barrier,) = link._waiting.values()
    assert barrier.keep == ["memory"]
    far.write(response(2, {"unpinned": 0, "mappings": 0}) + response(3, {}))
    outcome(link, Call("ping", {}))
    assert barrier.keep is None and not link._waiting


def test_what_could_be_sent_in_part_only_ends_the_connection(ends: Any) -> None:
    link, far = ends
    link.message_bytes = 64 << 20
    with pytest.raises(Timeout):
        link.exchange(Call("ping", {"data": b"x" * (32 << 20)}), 0.05)
    with pytest.raises(ConnectionLost):
        link.exchange(Call("ping", {}), PATIENCE)


def test_a_late_registration_is_taken_back(ends: Any) -> None:
    link, far = ends
    call = Call("register", {}, undo="buffer")
    with pytest.raises(Timeout):
        link.exchange(call, 0.001)
    far.read()
    far.write(response(1, {"buffer": 7}) + response(2, {}))
    outcome(link, Call("ping", {}))
    assert [2, "release", [{"buffer": 7}]] in far.read()


@pytest.mark.parametrize("data", [b"\x07", msgpack.packb({"a": 1}), b"\x94\x01\x01\xc0\x81\x01\x02", b"\x94\x01\x01\xc0\xa1\xff"])
def test_garbage_ends_the_connection(ends: Any, data: bytes) -> None:
    link, far = ends
    far.write(data)
    with pytest.raises(BadReply):
        outcome(link, Call("run", {}))


def test_what_is_too_long_is_refused_before_it_is_sent(ends: Any) -> None:
    link, far = ends
    link.message_bytes = 100
    with pytest.raises(LimitExceeded):
        link.exchange(Call("ping", {"data": b"x" * 100}), PATIENCE)
    assert not link._waiting and not far.read()
    far.write(response(2, {}))
    outcome(link, Call("ping", {}))


@pytest.mark.parametrize("result", [{}, {"nfds": 1, "fd": 0}])
@pytest.mark.parametrize("before", [b"", response(1, {})[:3]], ids=["whole", "in part"])
def test_descriptors_that_nobody_asked_for_end_the_connection_and_are_closed(ends: Any, result: Any, before: bytes) -> None:
    link, far = ends
    reply = response(1, result)
    if before:
        far.write(before)
    read, write = os.pipe()
    far.write(reply[len(before) :], (read,))
    os.close(read)
    with pytest.raises(BadReply):
        outcome(link, Call("run", {}))
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)


def test_a_result_that_claims_descriptors_is_none(ends: Any) -> None:
    link, far = ends
    far.write(response(1, {"nfds": 1}))
    assert outcome(link, Call("ping", {})) == {"nfds": 1}, "any map may come back"
    far.write(response(2, {"nfds": 1, "fd": 0}))
    with pytest.raises(BadReply):
        outcome(link, Call("run", {}))


# The golden vectors of the protocol: bytes that every implementation must read and write alike

GOLDEN = Path(__file__).resolve().parents[2] / "proto" / "golden"


def vectors(*files: str) -> list[Any]:
    if not GOLDEN.exists():
        return []  # they come with the source tree
    sys.path.insert(0, str(GOLDEN))
    import golden

    return [pytest.param(vector, id=vector["name"]) for file in files for vector in golden.load(file)]


def plain(value: Any) -> Any:
    """A vector's `message` in Python's own types."""
    if isinstance(value, dict):
        if "$bin" in value:
            return bytes.fromhex(value["$bin"])
        if "$map" in value:
            return {plain(k): plain(v) for k, v in value["$map"]}
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def ask(vector: dict[str, Any], msgid: int, ends: bool) -> tuple[PlainLink, Call, list[int]]:
    """A link that has asked with that msgid and was answered with the vector's bytes. `ends`: nothing follows."""
    link, far = conversation()
    fds = [os.memfd_create("golden") for _ in vector.get("fds", ())]
    nodes = [os.fstat(fd).st_ino for fd in fds]
    far.write(vector["bytes"], tuple(fds))
    for fd in fds:
        os.close(fd)
    if ends:
        far.socket.shutdown(socket.SHUT_WR)
    link._msgids = iter([msgid])  # type: ignore[assignment]
    call = Call("alloc", {})
    link.exchange(call, 20)
    return link, call, nodes


@pytest.mark.parametrize("vector", vectors("responses"))
def test_responses(vector: dict[str, Any]) -> None:
    expect, message = vector["expect"], plain(vector["message"])
    _, call, nodes = ask(vector, expect.get("msgid", 1), expect["kind"] not in ("result", "error"))
    if expect["kind"] == "result":
        result = call.outcome()
        received = result.pop("fds", [])
        assert [os.fstat(fd).st_ino for fd in received] == nodes and result == message[3]
        return
    with pytest.raises(KopsError) as caught:
        call.outcome()
    sent = message[2] if expect["kind"] == "error" else message[2][0]
    assert type(caught.value).code == expect["code"] and caught.value.code == sent["code"]
    assert caught.value.message == sent["message"] and caught.value.detail == sent["detail"]


def descriptors() -> set[int]:
    """The files that this process has open."""
    made = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            made.add(os.fstat(int(name)).st_ino)
    return made


@pytest.mark.parametrize("vector", vectors("bad_responses"))
def test_bad_responses(vector: dict[str, Any]) -> None:
    more = vector["expect"]["kind"] == "more"
    link, call, nodes = ask(vector, 1, more)
    with pytest.raises(ConnectionLost if more else BadReply):
        call.outcome()
    with pytest.raises(ConnectionLost if more else BadReply):
        link.exchange(Call("ping", {}), 20)
    assert not descriptors().intersection(nodes)


@pytest.mark.parametrize("vector", [p for p in vectors("requests") if p.values[0].get("canonical")])
def test_requests_are_encoded_in_the_shortest_form(vector: dict[str, Any]) -> None:
    message = plain(vector["message"])
    link, far = conversation()
    link.message_bytes = 1 << 20
    if message[0] == 0:
        link._msgids = iter([message[1]])  # type: ignore[assignment]
        link.put(Call(message[2], message[3][0]))
    else:
        link.notify(message[1], message[2][0])
    assert far.socket.recv(1 << 20) == vector["bytes"]
