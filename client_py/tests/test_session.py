"""The session without any socket: bytes in, bytes out."""

from __future__ import annotations

import array
import os
import socket
from typing import Any

import msgpack
import pytest
from kops._base.errors import BadReply, ConnectionLost, Internal, LimitExceeded, ProtocolError
from kops._session.session import Call, Session


def chunk(data: bytes, fds: tuple[int, ...] = ()) -> Any:
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
    return (data, control, 0, None)


def response(msgid: int, result: Any = None, error: Any = None) -> bytes:
    data: bytes = msgpack.packb([1, msgid, error, result])
    return data


def receive(session: Session, *chunks: Any) -> None:
    for each in chunks:
        session.inbox.append(each if isinstance(each, tuple) else chunk(each))
        session.process()


def start(session: Session, method: str = "run", keep: Any = None, **params: Any) -> Call:
    call = Call(method, params, keep=keep)
    session.enqueue(call)
    return call


def mark_sent(session: Session) -> list[Any]:
    """What a transport does."""
    sent = []
    while session.outbox:
        call = session.outbox.popleft()
        call.sent.append(len(call.data))
        sent.append(msgpack.unpackb(call.data))
    return sent


@pytest.fixture
def session() -> Session:
    return Session()


def test_replies_in_any_order_and_split_anywhere(session: Session) -> None:
    for size in (1, 2, 3, 7, 1000):
        calls = [start(session, "ping") for _ in range(5)]
        mark_sent(session)
        data = b"".join(response(call.msgid, {"text": "x" * call.msgid}) for call in reversed(calls))
        receive(session, *(data[i : i + size] for i in range(0, len(data), size)))
        assert [call.outcome() for call in calls] == [{"text": "x" * call.msgid} for call in calls]
        assert not session.pending and not session.inbox


def test_an_unknown_code_is_internal_and_keeps_its_name(session: Session) -> None:
    call = start(session)
    receive(session, response(call.msgid, error={"code": "from_the_future", "message": "?", "detail": {}}))
    with pytest.raises(Internal) as caught:
        call.outcome()
    assert caught.value.code == "from_the_future"


def test_what_a_call_uses_is_kept_until_the_reply_also_when_it_was_given_up(session: Session) -> None:
    given_up, waited = start(session, keep=["memory"]), start(session, keep=["memory"])
    mark_sent(session)
    session.abandon(given_up)
    assert given_up.keep and given_up.msgid in session.pending
    receive(session, response(given_up.msgid, {}), response(waited.msgid, {}))
    assert given_up.keep is None and waited.keep is None


def test_what_a_call_uses_is_kept_until_its_work_has_ended(session: Session) -> None:
    """A reply at a deadline may be ahead of that; a barrier behind the work is not."""
    late = start(session, keep=["memory"])
    mark_sent(session)
    receive(session, response(late.msgid, error={"code": "deadline_exceeded", "message": "", "detail": {"ended": False}}))
    assert late.done and late.keep is None
    (barrier,) = session.outbox
    assert (barrier.method, barrier.keep) == ("trim", ["memory"])
    mark_sent(session)
    receive(session, response(barrier.msgid, {"unpinned": 0, "mappings": 0}))
    assert barrier.keep is None and not session.pending


@pytest.mark.parametrize("detail", [{"ended": True}, {}])
def test_a_deadline_of_work_that_has_ended(session: Session, detail: dict[str, bool]) -> None:
    call = start(session, keep=["memory"])
    mark_sent(session)
    receive(session, response(call.msgid, error={"code": "deadline_exceeded", "message": "", "detail": detail}))
    assert call.keep is None and not session.outbox
    assert call.error is not None and call.error.ended is True


def test_giving_up_what_was_not_sent_takes_it_back(session: Session) -> None:
    call = start(session)
    session.abandon(call)
    assert not session.outbox and not session.pending


def test_giving_up_what_is_half_sent_sends_the_rest(session: Session) -> None:
    call = start(session)
    call.sent.append(3)
    session.abandon(call)
    assert [c.method for c in session.outbox] == ["run", "cancel"]


def test_a_late_registration_is_taken_back(session: Session) -> None:
    call = Call("register", {}, undo=lambda reply: ("release", {"buffer": reply["buffer"]}))
    session.enqueue(call)
    mark_sent(session)
    session.abandon(call)
    assert not mark_sent(session)
    receive(session, response(call.msgid, {"buffer": 7}))
    assert mark_sent(session) == [[2, "release", [{"buffer": 7}]]]


def test_the_daemon_says_why_it_closes(session: Session) -> None:
    call = start(session)
    notice = {"code": "protocol_error", "message": "too deep", "detail": {}}
    receive(session, msgpack.packb([2, "error", [notice]]), b"")
    with pytest.raises(ProtocolError, match="too deep"):
        call.outcome()


@pytest.mark.parametrize(
    "data",
    [b"\xc1", b"\x07", b"\x90", msgpack.packb([3, 1, 2]), msgpack.packb([1, "x", None, None]), msgpack.packb({"a": 1}),
     msgpack.packb([1, 1, None]), b"\x94\x01\x01\xc0\x81\x01\x02", b"\x94\x01\x01\xc0\xa1\xff"],
)  # fmt: skip
def test_garbage_ends_the_connection(session: Session, data: bytes) -> None:
    call = start(session)
    assert call.msgid == 1
    receive(session, data)
    with pytest.raises(BadReply):
        call.outcome()


def test_a_message_that_the_end_cuts_off_is_dropped(session: Session) -> None:
    call = start(session)
    receive(session, response(call.msgid, {"a": 1})[:-1], b"")
    with pytest.raises(ConnectionLost):
        call.outcome()
    assert not session.inbox


def test_applying_a_chunk_again_changes_nothing(session: Session) -> None:
    """An interrupt can come between the applying of a message and its removal from the inbox."""
    first, second = start(session, "ping"), start(session, "ping")
    mark_sent(session)
    both = chunk(response(first.msgid, {"a": 1}) + response(second.msgid, {"b": 2}))
    again = both

    class Interrupted(Exception):
        pass

    def interrupt() -> None:
        second.notify = None
        raise Interrupted

    second.notify = interrupt
    session.inbox.append(again)
    with pytest.raises(Interrupted):
        session.process()
    session.process()
    assert session.failure is None and not session.inbox and not session.pending
    assert first.outcome() == {"a": 1} and second.outcome() == {"b": 2}


def test_what_is_too_long_is_refused_before_it_is_sent(session: Session) -> None:
    session.message_bytes = 100
    with pytest.raises(LimitExceeded):
        start(session, "ping", data=b"x" * 100)
    assert not session.pending and not session.outbox
    start(session, "ping")


def pipe() -> tuple[int, int]:
    return os.pipe()


@pytest.mark.parametrize("result", [{}, {"nfds": 1, "fd": 0}])
@pytest.mark.parametrize("before", [b"", response(1, {})[:3]], ids=["whole", "in part"])
def test_descriptors_that_nobody_asked_for_end_the_connection_and_are_closed(session: Session, result: Any, before: bytes) -> None:
    call = start(session)
    reply = response(call.msgid, result)
    fds = pipe()
    receive(session, *([reply[:3]] if before else []), chunk(reply[len(before):], fds))
    with pytest.raises(BadReply):
        call.outcome()
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_a_result_that_claims_descriptors_is_none(session: Session) -> None:
    ping, run = start(session, "ping"), start(session)
    receive(session, response(ping.msgid, {"nfds": 1}))
    assert ping.outcome() == {"nfds": 1}, "any map may come back"
    receive(session, response(run.msgid, {"nfds": 1, "fd": 0}))
    with pytest.raises(BadReply):
        run.outcome()
