"""The golden vectors of the protocol: bytes that every implementation must read and write alike."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from kops._base.errors import BadReply, ConnectionLost, KopsError
from kops._session.link import Call
from kops._session.plain import PlainLink
from test_session import conversation

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
