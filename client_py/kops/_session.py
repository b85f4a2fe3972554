"""MessagePack-RPC without I/O: encodes requests, matches replies to them, keeps what is in flight alive.

The synchronous and the asyncio client share this layer. It owns the calls that wait for a reply (`pending`), those that
are not wholly sent (`outbox`) and the bytes that were received and not yet understood (`inbox`). It does no locking: whoever
drives it does.

Interruption. Python raises KeyboardInterrupt between any two bytecodes, also between a system call and the assignment of
its result. So that Ctrl-C leaves a connection usable, every step here is either one call into C that moves data from one
place of safety to another (`inbox.extend(map(recvmsg, …))`), or can be done again without harm: a message is dropped
from the inbox only after it was applied, and applying it twice does what applying it once does.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from ._errors import BadArgument, BadReply, ConnectionLost, KopsError, LimitExceeded, from_reply

REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
MSGID_MASK = 0xFFFFFFFF
MAX_FDS = 16
MAX_REPLY = 64 << 20

# A received chunk is what recvmsg returns: (bytes, control messages, flags, address). A merged one has batches of
# descriptors in place of the control messages: (first byte, end, descriptors).
MERGED = -1  # among its bits is MSG_CTRUNC
Batch = tuple[int, int, tuple[int, ...]]
Chunk = tuple[bytes, list[Any], int, Any]

_unpackb = msgpack.unpackb


class Call:
    """One request from its making to its reply.

    `keep` holds whatever the daemon may touch until it has answered; it is dropped with the reply, also when nobody
    waits for that any more. `undo` turns the result of a request that was given up into a notification that takes
    it back. `notify` is called once the reply is there (on whichever thread received it).
    """

    __slots__ = ("method", "params", "fds", "keep", "undo", "notify", "msgid", "data", "sent", "done", "abandoned", "result", "error",
                 "reply_fds")  # fmt: skip

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
        self.sent: list[int] = []  # what each write took; a list, so that one C call can add to it
        self.done = False
        self.abandoned = False
        self.result: Any = None
        self.error: KopsError | None = None
        self.reply_fds: tuple[int, ...] = ()

    def outcome(self) -> Any:
        """The result, or raises the error. Only once `done`."""
        if self.error is not None:
            raise self.error
        return self.result


class Session:
    """The state of one connection."""

    def __init__(self) -> None:
        self.pending: dict[int, Call] = {}
        self.outbox: deque[Call] = deque()
        self.inbox: list[Chunk] = []
        self.inflight = 16  # until hello told the limit
        self.message_bytes = 64 * 1024
        self.failure: KopsError | None = None
        self.notice: KopsError | None = None  # why the daemon says that it will close
        self._msgids = itertools.count(1)
        self._pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack

    # Sending

    def enqueue(self, call: Call) -> None:
        """Encodes a request and queues it for sending. Raises what refuses it; nothing is queued then."""
        if self.failure is not None:
            raise copy_of(self.failure)
        msgid = next(self._msgids) & MSGID_MASK
        while msgid in self.pending:
            msgid = next(self._msgids) & MSGID_MASK
        call.msgid = msgid
        call.data = self._encode([REQUEST, msgid, call.method, [call.params]])
        self.pending[msgid] = call
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
            raise LimitExceeded(
                f"the request has {len(data)} bytes, the daemon takes {self.message_bytes}",
                {"limit": self.message_bytes, "value": len(data)},
            )
        return data

    # Giving up

    def abandon(self, call: Call) -> None:
        """Nobody waits for `call` any more: takes it back if it is unsent, else asks for its cancelling. A late reply
        is dropped, and only then is what the call keeps alive let go."""
        call.abandoned = True
        if call.done or call.msgid < 0:
            return
        if not call.sent:
            if call in self.outbox:
                self.outbox.remove(call)
            self.pending.pop(call.msgid, None)
        elif call.method == "run" and self.failure is None and self.pending.get(call.msgid) is call:
            cancel = Call("cancel", {"msgid": call.msgid})
            cancel.abandoned = True
            self.enqueue(cancel)

    def fail(self, error: KopsError) -> None:
        """The connection is of no more use: every call ends with `error`, or with what the daemon said before it closed."""
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
                    self.fail(ConnectionLost("the daemon closed the connection"))
                    inbox.clear()
                    return
                if not control and not flags & socket.MSG_CTRUNC:
                    try:
                        message = _unpackb(data)
                    except ValueError:
                        pass  # part of a message, or several
                    else:
                        self._apply(message, ())
                        del inbox[0]
                        continue
                if not self._process_slowly(inbox):
                    return
        except (ValueError, msgpack.UnpackException) as error:
            for chunk in inbox:
                with contextlib.suppress(ValueError):
                    close_fds(_normal(chunk)[1])
            self.fail(BadReply(f"the daemon sent what is no response: {error}"))
            inbox.clear()

    def _process_slowly(self, inbox: list[Chunk]) -> bool:
        """The first chunk holds several messages, part of one, or descriptors. False when more bytes are needed."""
        data, batches = _normal(inbox[0])
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(data)
        start = 0
        for message in unpacker:
            claimed = _claim(batches, message, start)
            self._apply(message, claimed[2] if claimed else ())
            if claimed:
                batches.remove(claimed)
            start = unpacker.tell()
        if start == len(data):
            del inbox[0]
            close_fds(batches)  # nobody claimed them
            return True
        if len(inbox) == 1:
            return False
        if len(data) > MAX_REPLY:
            raise ValueError(f"a message of more than {MAX_REPLY} bytes")
        # The rest and the next chunk become one; descriptors keep the range of bytes that they came with.
        following, following_batches = _normal(inbox[1])
        tail = len(data) - start
        kept = [(max(begin - start, 0), end - start, fds) for begin, end, fds in batches]
        kept += [(begin + tail, end + tail, fds) for begin, end, fds in following_batches]
        inbox[0:2] = [(data[start:] + following, kept, MERGED, None)]
        return True

    def _apply(self, message: Any, fds: tuple[int, ...]) -> None:
        """Does what one message says. Doing it twice is as good as once."""
        if type(message) is not list or not message:
            raise ValueError(str(message)[:80])
        if message[0] == RESPONSE and len(message) == 4 and type(message[1]) is int:
            call = self.pending.get(message[1])
            if call is None or call.done:
                return  # given up long ago, or applied already
            if message[2] is not None:
                call.error = from_reply(message[2])
            else:
                if not fds and type(message[3]) is dict and message[3].get("nfds"):
                    raise ValueError("a reply claims descriptors that did not come with it")
                call.result = message[3]
                call.reply_fds = fds
                if call.abandoned:
                    for fd in fds:
                        os.close(fd)
                    if call.undo is not None:
                        self.notify(*call.undo(call.result))
            self._finish(call)
        elif message[0] == NOTIFICATION and len(message) == 3:
            if message[1] == "error" and isinstance(message[2], list) and message[2]:
                self.notice = from_reply(message[2][0])
        else:
            raise ValueError(str(message)[:80])


def copy_of(error: KopsError) -> KopsError:
    """An instance of its own for every call that fails of it: a raised exception carries its own traceback."""
    return type(error)(error.message, error.detail, error.code)


def _normal(chunk: Chunk) -> tuple[bytes, list[Batch]]:
    """A chunk's bytes and its descriptors as (first byte, end, descriptors): the range in which their message starts."""
    data, control, flags, _ = chunk
    if flags == MERGED:
        return data, list(control)
    if flags & socket.MSG_CTRUNC:
        raise ValueError("descriptors of a reply were cut off")
    fds = array.array("i")
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, [(0, len(data), tuple(fds))] if fds else []


def _claim(batches: list[Batch], message: Any, start: int) -> Batch | None:
    """The descriptors that the message starting at `start` brought."""
    result = message[3] if type(message) is list and len(message) == 4 else None
    claims = result.get("nfds", 0) if isinstance(result, dict) else 0
    if claims:
        for batch in batches:
            if batch[0] <= start < batch[1]:
                if len(batch[2]) != claims:
                    raise ValueError(f"a reply claims {claims} descriptors and brought {len(batch[2])}")
                return batch
    return None


def close_fds(batches: list[Batch]) -> None:
    """Closes descriptors that nobody will claim."""
    for _begin, _end, fds in batches:
        for fd in fds:
            os.close(fd)
