"""MessagePack-RPC without I/O: encodes requests, matches replies to them, keeps what is in flight alive.

The synchronous and the asyncio client share this layer. It owns the calls that wait for a reply (`pending`), those that
are not wholly sent (`outbox`) and the bytes that were received and not yet understood (`inbox`). It does no locking:
its driver does.

Interruption. Python raises KeyboardInterrupt between any two bytecodes, also between a system call and the assignment
of its result. So that Ctrl-C leaves a connection usable, every step here is either one call into C that moves data from
one place of safety to another (`inbox.extend(map(recvmsg, …))`), or can be done again without harm: a message is
dropped from the inbox only after it was applied, and applying it twice does what applying it once does.
"""

from __future__ import annotations

import array
import itertools
import os
import reprlib
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from .._base.errors import BadArgument, BadReply, ConnectionLost, DeviceLost, JobTimeout, KopsError, LimitExceeded, from_reply

REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
CANCELLABLE = ("run", "launch", "sequence", "run_program", "compile")
MSGID_MASK = 0xFFFFFFFF
DEFAULT_MESSAGE_BYTES = 64 * 1024  # until hello told the limit
MAX_FDS = 16
MSG_CTRUNC = int(socket.MSG_CTRUNC)  # an enum's operators are slow
MAX_REPLY = 64 << 20
MAX_ELEMENTS = 1 << 20

# As recvmsg returns it: (bytes, control messages, flags, address).
Chunk = tuple[bytes, list[Any], int, Any]

_unpackb = msgpack.unpackb


def ends_daemon(error: KopsError | None) -> bool:
    """The daemon that answered so ends: its device is lost or hangs, and no other process takes the place of the lost one."""
    return isinstance(error, (DeviceLost, JobTimeout)) and error.detail.get("daemon") != "goes_on"


class Descriptors(list[int]):
    """File descriptors that came with a reply. Whoever takes one removes it; the rest is closed in the end."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        while self:
            close(self.pop())


BRING_FDS = ("alloc",)  # the methods whose replies bring descriptors


class Call:
    """One request from its making to its reply.

    `keep` has the memory that the daemon may touch until it has answered; it is dropped with the reply, also when nobody
    waits for that any more. Where the reply came at a deadline, ahead of the work's end, another call keeps it on.
    `undo` turns the result of a request that was given up into a notification that takes it back. `notify` is called
    once the reply is there (on whichever thread received it).
    """

    __slots__ = (
        "abandoned",
        "answered",
        "data",
        "done",
        "error",
        "fds",
        "keep",
        "method",
        "msgid",
        "notify",
        "params",
        "received",
        "result",
        "sent",
        "undo",
    )

    def __init__(
        self,
        method: str,
        params: Mapping[str, Any],
        fds: tuple[int, ...] = (),
        keep: Any = None,
        undo: Callable[[Any], tuple[str, dict[str, Any]]] | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.fds = fds
        self.keep = keep
        self.undo = undo
        self.notify: Callable[[], None] | None = None
        self.msgid = -1
        self.data = b""
        self.sent: list[int] = []  # bytes of each write; a list, so that one C call can add to it
        self.done = False
        self.answered = False  # by the daemon; a call may also end with its connection
        self.abandoned = False
        self.result: Any = None  # where descriptors came with it, they are its `fds`
        self.received = Descriptors()
        self.error: KopsError | None = None

    def outcome(self) -> Any:
        """The result, or raises the error. Only once `done`, and once: an exception that the call kept would keep, by
        its traceback, everything that was there when it was raised."""
        if self.error is not None:
            raise self.take_error()
        return self.result

    def take_error(self) -> KopsError:
        error, self.error = self.error, None
        assert error is not None
        return error


class Session:
    """The state of one connection."""

    def __init__(self) -> None:
        self.pending: dict[int, Call] = {}
        self.outbox: deque[Call] = deque()
        self.inbox: list[Chunk] = []
        self.inflight = 16  # until hello told the limit
        self.message_bytes = DEFAULT_MESSAGE_BYTES
        self.failure: KopsError | None = None
        self.notice: KopsError | None = None  # why the daemon says that it will close
        self.doomed = False  # its device is lost or hangs, and it will close
        self._taken = False  # the descriptors of the first chunk of the inbox are some reply's
        self._applied: set[int] = set()  # requests answered by the first chunk of the inbox, until that is dropped
        self._msgids = itertools.count(1)
        self._pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack

    # Sending

    def enqueue(self, call: Call) -> None:
        """Encodes a request and queues it for sending. Raises the error that refuses it; nothing is queued then."""
        if self.failure is not None:
            raise copy_of(self.failure)
        pending = self.pending
        msgid = next(self._msgids) & MSGID_MASK
        while msgid in pending:
            msgid = next(self._msgids) & MSGID_MASK
        call.data = self._encode([REQUEST, msgid, call.method, [call.params]])
        call.msgid = msgid
        pending[msgid] = call
        self.outbox.append(call)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Queues a notification: carried out like the request of that name, never answered."""
        if self.failure is None:
            call = Call(method, params)
            call.data = self._encode([NOTIFICATION, method, [params]])
            self.outbox.append(call)

    def _encode(self, message: list[Any]) -> bytes:
        try:
            data: bytes = self._pack(message)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadArgument(f"an argument cannot be sent: {error}") from error
        if len(data) > self.message_bytes:
            raise too_long(len(data), self.message_bytes)
        return data

    # Giving up

    def abandon(self, call: Call) -> None:
        """Nobody waits for `call` any more: takes it back if it is unsent, else asks for its cancelling. A late reply
        is dropped, and only then the memory that the call keeps."""
        call.abandoned = True
        if call.done or call.msgid < 0:
            return
        if not call.sent:
            if call in self.outbox:
                self.outbox.remove(call)
            self.pending.pop(call.msgid, None)
        elif call.method in CANCELLABLE and self.failure is None and self.pending.get(call.msgid) is call:
            cancel = Call("cancel", {"msgid": call.msgid})
            cancel.abandoned = True
            self.enqueue(cancel)

    def fail(self, error: KopsError) -> None:
        """The connection is of no more use: every call ends with `error`, or with the reason that the daemon
        gave before it closed."""
        if self.failure is None:
            self.failure = self.notice or error
        self.outbox.clear()
        for call in list(self.pending.values()):
            if not call.done:
                call.error = copy_of(self.failure)
                self._finish(call)

    def _finish(self, call: Call) -> None:
        call.done = True
        call.keep = None
        if call.notify is not None:
            call.notify()
        self.pending.pop(call.msgid, None)

    # Receiving

    def process(self) -> None:
        """Applies every whole message of the inbox."""
        inbox = self.inbox
        try:
            while inbox:
                data, control, flags, _ = inbox[0]
                if not data:
                    self._ended()
                    return
                if flags & MSG_CTRUNC or (control and not self._asks_for_fds()):
                    raise ValueError("descriptors, and no request asks for some")
                try:
                    message = _unpackb(data, max_ext_len=0, ext_hook=_refuse_ext)
                except ValueError:  # part of a message, or several
                    if not self._process_slowly(inbox):
                        return
                else:
                    if control and not _brings_fds(message):
                        raise ValueError("descriptors that belong to no reply")
                    self._apply(message, control)
                    self._drop_first()
        except (ValueError, msgpack.UnpackException) as error:
            for chunk in inbox[1:] if self._taken else inbox:
                close_fds(chunk)
            self.fail(BadReply(f"the daemon sent what is no response: {error}"))
            inbox.clear()

    def _process_slowly(self, inbox: list[Chunk]) -> bool:
        """The first chunk contains several messages, or part of one. False when more bytes are needed."""
        data, control, _, _ = inbox[0]
        unpacker = msgpack.Unpacker(
            max_buffer_size=MAX_REPLY,
            max_array_len=MAX_ELEMENTS,
            max_map_len=MAX_ELEMENTS,
            max_ext_len=0,
            ext_hook=_refuse_ext,
        )
        unpacker.feed(data)
        start = 0
        for message in unpacker:
            self._apply(message, control)
            start = unpacker.tell()
        if start == len(data):
            self._drop_first()
            return True
        _check_announced(data, start)
        if len(inbox) == 1:
            return False
        following, later, flags, _ = inbox[1]
        if not following:
            self._ended()
            return False
        # The rest and the next chunk become one. Descriptors come with a message's first bytes.
        kept = control if not self._taken else []
        inbox[0:2] = [(data[start:] + following, kept + later, flags, None)]
        self._taken = False
        self._applied.clear()
        return True

    def _asks_for_fds(self) -> bool:
        return any(call.method in BRING_FDS for call in list(self.pending.values())) or self._taken

    def _drop_first(self) -> None:
        """The first chunk was applied."""
        if self.inbox[0][1] and not self._taken:
            raise ValueError("descriptors that belong to no reply")
        del self.inbox[0]
        self._taken = False
        self._applied.clear()

    def _take_fds(self, call: Call, result: dict[str, Any], control: list[Any]) -> None:
        """Gives a reply the descriptors that came with it."""
        fds = fds_of(control)
        if call.method not in BRING_FDS or len(fds) != result["nfds"]:
            raise ValueError(f"{len(fds)} descriptors for the result of {call.method}: {_excerpt(result)}")
        self._taken = True
        if not call.received:
            call.received.extend(fds)
        result["fds"] = call.received

    def _ended(self) -> None:
        self.fail(ConnectionLost("the daemon closed the connection"))
        self.inbox.clear()

    def _apply(self, message: Any, control: list[Any]) -> None:
        """Applies one message, of a chunk with these control messages. To apply it twice changes nothing more. Raises ValueError for
        anything but a message."""
        if type(message) is not list:
            raise ValueError(_excerpt(message))
        if len(message) == 4 and message[0] == RESPONSE:
            _, msgid, error, result = message
            call = self.pending.get(msgid) if type(msgid) is int else None
            if msgid in self._applied:  # an interrupt came before the chunk was dropped
                if call is not None:
                    self._finish(call)
                return
            if call is None:
                raise ValueError(f"nobody asked what this answers: {_excerpt(message)}")
            if error is not None:
                call.error = from_reply(error)
                self.doomed |= ends_daemon(call.error)
                if goes_on(call):
                    self.enqueue(barrier_for(call))
            elif type(result) is not dict:
                raise ValueError(f"the result is no map: {_excerpt(message)}")
            else:
                if "nfds" in result and call.method != "ping":  # a ping is answered with the map that it sent
                    self._take_fds(call, result, control)
                call.result = result
                if call.abandoned and call.undo is not None:
                    self.notify(*call.undo(result))
            call.answered = True
            self._applied.add(msgid)
            self._finish(call)
        elif len(message) == 3 and message[0] == NOTIFICATION and message[1] == "error":
            self.notice = from_reply(message[2][0] if isinstance(message[2], list) and message[2] else None)
        else:
            raise ValueError(_excerpt(message))


def fds_of(control: list[Any]) -> array.array[int]:
    """The descriptors of control messages."""
    fds = array.array("i")
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds


# MessagePack heads: how many bytes follow, as the value itself or as the length of a string.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_STRINGS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


def _check_announced(data: bytes, at: int) -> None:
    """Raises ValueError when the incomplete message at `at` announces a string that is longer than any message may be:
    the decoder would wait for it."""
    while at < len(data):
        head = data[at]
        at += 1
        if 0xA0 <= head < 0xC0:
            at += head & 31
        elif head in _STRINGS:
            width = _STRINGS[head]
            if at + width > len(data):
                return
            length = int.from_bytes(data[at : at + width], "big")
            if length > MAX_REPLY:
                raise ValueError(f"a string of {length} bytes is announced")
            at += width + length
        else:
            at += _FIXED.get(head, 0)


def _brings_fds(message: Any) -> bool:
    return type(message) is list and len(message) == 4 and type(message[3]) is dict and "nfds" in message[3]


def _refuse_ext(code: int, data: bytes) -> None:
    raise ValueError("ext types are not used")


def _excerpt(message: Any) -> str:
    return reprlib.repr(message)


def goes_on(call: Call) -> bool:
    """The reply came before the end of the work, which uses the memory that the call keeps."""
    return call.keep is not None and call.error is not None and call.error.detail.get("ended") is False


def barrier_for(call: Call) -> Call:
    """A request that is answered when that work has ended, and keeps the same until then. Nobody waits for it."""
    barrier = Call("trim", {}, keep=call.keep)
    barrier.abandoned = True
    return barrier


def too_long(length: int, limit: int) -> LimitExceeded:
    return LimitExceeded(f"the request has {length} bytes, the daemon takes {limit}", {"limit": limit, "value": length})


def copy_of(error: KopsError) -> KopsError:
    """An instance of its own for every call that fails of it: a raised exception carries its own traceback."""
    return type(error)(error.message, error.detail, error.code)


def close_fds(chunk: Chunk) -> None:
    """Closes the descriptors that came with a chunk."""
    for fd in fds_of(chunk[1]):
        os.close(fd)
