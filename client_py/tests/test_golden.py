"""The golden vectors of the protocol: bytes that every implementation must read and write alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kops._base.errors import BadReply, ConnectionLost, KopsError
from kops._session.session import Call, Session
from test_session import chunk, receive

GOLDEN = Path(__file__).resolve().parents[2] / "proto" / "golden"
if not (GOLDEN / "golden.py").exists():
    pytest.skip("the vectors come with the source tree", allow_module_level=True)
sys.path.insert(0, str(GOLDEN))
import golden  # noqa: E402


def vectors(*files: str) -> list[Any]:
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


def open_fds(vector: dict[str, Any]) -> tuple[int, ...]:
    return tuple(os.memfd_create("golden") for _ in vector.get("fds", ()))


def conversation(msgid: int) -> tuple[Session, Call]:
    """A session in which a request of that msgid was sent."""
    session, call = Session(), Call("alloc", {})
    session.enqueue(call)
    session.outbox.clear()
    del session.pending[call.msgid]
    call.msgid = msgid
    call.sent = [1]
    session.pending[msgid] = call
    return session, call


@pytest.mark.parametrize("vector", vectors("responses"))
def test_responses(vector: dict[str, Any]) -> None:
    expect, message = vector["expect"], plain(vector["message"])
    session, call = conversation(expect.get("msgid", 1))
    fds = open_fds(vector)
    receive(session, chunk(vector["bytes"], fds))
    if expect["kind"] == "result":
        assert call.outcome() == ({**message[3], "fds": list(fds)} if fds else message[3])
    elif expect["kind"] == "error":
        with pytest.raises(KopsError) as caught:
            call.outcome()
        sent = message[2]
        assert type(caught.value).code == expect["code"] and caught.value.code == sent["code"]
        assert caught.value.message == sent["message"] and caught.value.detail == sent["detail"]
        assert "key" not in expect or caught.value.detail["key"] == expect["key"]
    else:
        receive(session, b"")
        with pytest.raises(KopsError) as caught:
            call.outcome()
        assert caught.value.code == expect["code"]


@pytest.mark.parametrize("vector", vectors("bad_responses"))
def test_bad_responses(vector: dict[str, Any]) -> None:
    session, call = conversation(1)
    fds = open_fds(vector)
    receive(session, chunk(vector["bytes"], fds))
    if vector["expect"]["kind"] == "more":
        assert session.failure is None and not call.done
        receive(session, b"")
        with pytest.raises(ConnectionLost):
            call.outcome()
    else:
        with pytest.raises(BadReply):
            call.outcome()
        with pytest.raises(BadReply):
            session.enqueue(Call("ping", {}))
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)


@pytest.mark.parametrize("vector", [p for p in vectors("requests") if p.values[0].get("canonical")])
def test_requests_are_encoded_in_the_shortest_form(vector: dict[str, Any]) -> None:
    message = plain(vector["message"])
    session = Session()
    if message[0] == 0:
        session._msgids = iter([message[1]])  # type: ignore[assignment]
        session.enqueue(Call(message[2], message[3][0]))
    else:
        session.notify(message[1], message[2][0])
    assert session.outbox[0].data == vector["bytes"]
