"""What closes a connection: an error notification, end of file, and nothing else in the daemon changes.

tests/functional/test_golden.py covers short frames; here is what takes more than one frame, many bytes, or descriptors.
"""

from __future__ import annotations

import array
import os
import random
import socket
from collections.abc import Callable

import pytest
from arrays import LongRun
from support import memfd, raw


def expect_closed(connection: raw.Connection) -> None:
    notification = connection.wait_closed()
    assert notification is not None and notification["code"] == "protocol_error", notification
    assert notification["message"]


def send_regardless(connection: raw.Connection, data: bytes, fds: tuple[int, ...] = ()) -> None:
    """Sends to a peer that may close at any byte."""
    try:
        connection.send(data, fds)
    except (BrokenPipeError, ConnectionResetError):
        pass


def test_longest_message(connection: raw.Connection, limits: dict[str, int]) -> None:
    """Exactly the limit is served. One byte more, really sent, is a violation."""
    shell = len(raw.pack_request(1, "ping", {"x": bytes(70000)})) - 70000
    params = {"x": bytes(limits["message_bytes"] - shell)}
    assert len(raw.pack_request(1, "ping", params)) == limits["message_bytes"]
    assert connection.call("ping", params) == params
    send_regardless(connection, raw.pack_request(1, "ping", {"x": params["x"] + b"x"}))
    expect_closed(connection)


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 5000))


def mutated_request(rng: random.Random) -> bytes:
    """A good request with a few bytes changed."""
    tensor = raw.tensor(1, [3, 4], "f32", offset=16, strides=[4, 1])
    data = bytearray(raw.pack_request(7, "run", {"op": "add", "in": [tensor, tensor], "out": [tensor], "attrs": {}}))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("make", [noise, mutated_request])
def test_random_bytes(make: Callable[[random.Random], bytes], seed: int, connect: Callable[..., raw.Connection]) -> None:
    """They never harm; most of them close the connection at once."""
    connection = connect()
    send_regardless(connection, make(random.Random(seed)))
    try:
        connection.socket.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    connection.wait_closed()


@pytest.mark.parametrize("method, params", [("run", {"op": "square", "in": [], "out": []}), ("ping", {})])
def test_duplicate_msgid(method: str, params: dict[str, object], connection: raw.Connection) -> None:
    """Two unanswered requests of one msgid, whatever the method is."""
    work = LongRun(connection)
    connection.request(method, params, msgid=work.msgid)
    expect_closed(connection)


def test_msgid_is_free_after_its_reply(connection: raw.Connection) -> None:
    for _ in range(3):
        assert connection.reply(connection.request("ping", {"a": 1}, msgid=77)).result == {"a": 1}


# ---- descriptors ----


@pytest.fixture
def fd() -> int:
    made = memfd.make(4096)
    yield made
    os.close(made)


REGISTER = {"kind": "memfd", "size": 4096, "fd": 0}


@pytest.mark.parametrize("method, params, count", [
    ("register", {**REGISTER, "nfds": 1}, 2),  # too many
    ("register", {**REGISTER, "nfds": 16}, 17),
    ("register", {**REGISTER, "nfds": 1}, 0),
    ("ping", {}, 1),  # that nothing claims
    ("ping", {"nfds": 200}, 200),
])  # fmt: skip
def test_other_descriptors_than_it_says(method: str, params: dict[str, object], count: int, connection: raw.Connection, fd: int) -> None:
    connection.send(raw.pack_request(1, method, params), [fd] * count)
    expect_closed(connection)


def test_descriptors_that_are_taken(connection: raw.Connection, fd: int) -> None:
    """Sixteen are the most that one message may bring. Two messages in one send, the descriptor meant for the second: the daemon
    may take it, since it cannot tell this from two sends that the kernel glued."""
    assert connection.call("register", {**REGISTER, "fd": 15}, [fd] * 16)["size"] == 4096
    data = raw.pack_request(101, "ping", {}) + raw.pack_request(102, "register", {**REGISTER, "nfds": 1})
    connection.send(data, [fd])
    assert connection.reply(101).result == {}
    assert connection.reply(102).result["size"] == 4096


def test_descriptors_without_a_message(connect: Callable[..., raw.Connection], fd: int) -> None:
    """Descriptors with an unfinished message, then end of file: they are closed (the fixture counts them)."""
    connection = connect()
    connection.send(raw.pack_request(1, "register", {**REGISTER, "nfds": 2})[:-1], [fd, fd])
    connection.socket.shutdown(socket.SHUT_WR)
    assert connection.wait_closed() is None


def test_descriptor_flood(connect: Callable[..., raw.Connection], fd: int) -> None:
    """Unfinished messages with descriptors in every piece: refused before they pile up."""
    connection = connect()
    data = raw.pack_request(1, "ping", {"x": bytes(1000), "nfds": 16})
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 16))]
    try:
        for i in range(100):
            connection.socket.sendmsg([data[i : i + 1]], ancillary)
    except (BrokenPipeError, ConnectionResetError):
        pass
    expect_closed(connection)


def test_the_connection_to_the_daemon_itself(connection: raw.Connection) -> None:
    """A socket passed over itself, as garbage would do: a cycle that must not outlive the connection."""
    error = connection.error("register", REGISTER, [connection.socket.fileno()])
    assert error.code == "invalid_fd"


# ---- what a violation takes with it ----


def test_error_of_a_full_reader(connect: Callable[..., raw.Connection]) -> None:
    """One that reads nothing and sends garbage is closed all the same."""
    connection = connect(receive_buffer=4096)
    try:
        connection.socket.setblocking(False)
        for i in range(20):
            connection.socket.send(raw.pack_request(i, "ping", {"x": bytes(1000)}))
        connection.socket.send(b"\xc1" * 100)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        pass
    connection.socket.setblocking(True)
    connection.socket.settimeout(raw.PATIENCE)
    connection.wait_closed()
