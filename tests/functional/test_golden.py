"""The golden vectors over a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import golden
import pytest
from support import memfd, raw

SERVER_FILES = ("requests", "request_errors", "invalid")
VECTORS = [v for file in SERVER_FILES for v in golden.load(file)]


def send(connection: raw.Connection, vector: dict[str, Any]) -> None:
    fds = [memfd.from_spec(spec) for spec in vector.get("fds", [])]
    try:
        connection.send(vector["bytes"], fds)
    except (BrokenPipeError, ConnectionResetError):
        assert vector["expect"]["kind"] == "close"
    finally:
        for fd in fds:
            os.close(fd)


def contains(result: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(result, dict) and all(k in result and contains(result[k], v) for k, v in expected.items())
    return type(result) is type(expected) and result == expected


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vector(vector: dict[str, Any], connect: Callable[..., raw.Connection]) -> None:
    connection, expect = connect(), vector["expect"]
    send(connection, vector)
    if expect["kind"] == "close":
        notification = connection.wait_closed()
        assert notification is not None, "closed without a word"
        assert notification["code"] == "protocol_error" and notification["message"]
        assert not connection.replies or vector.get("fds"), "answered"
        return
    if expect["kind"] == "more":
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.wait_closed() is None
        return
    if expect["kind"] != "none":
        reply = connection.reply(vector["message"][1])
        if expect["kind"] == "reply":
            result = reply.get()
            assert contains(result, expect.get("result", {})), result
        else:
            assert reply.error is not None, f"no error, but {reply.result}"
            error = raw.RpcError(reply.error)
            assert error.code == expect["code"], error
            assert "key" not in expect or error.key == expect["key"], error
            assert error.message
        for fd in reply.fds:
            os.close(fd)
    connection.next_msgid = 1000
    assert connection.alive()
