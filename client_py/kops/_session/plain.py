"""A connection in plain Python, for machines on which nothing was compiled, and an example of the protocol: MessagePack-RPC over a Unix
socket, one request at a time. And where a client and a daemon meet: the sockets that are tried, and which server at one is trusted.
libkops and the daemon have that rule in C (`daemon/util/places.c`); both run `tests/vectors/places.json`.

Threads take turns: one holds the link from its request to the reply. A request that is given up is cancelled where it can be; its late
reply is dropped, and only then the memory that it keeps. What the compiled part has beyond this is not here: nothing is repeated when
a daemon ends, nothing is ordered on CUDA streams, and `submit` waits.

Interruption. Python raises KeyboardInterrupt between any two bytecodes, also between a system call and the assignment of its result.
So that Ctrl-C leaves a connection usable, bytes are moved by single calls into C (`inbox.extend(map(recvmsg, …))`), and a message leaves
the inbox only after it was applied; applying it twice does what applying it once does.
"""

from __future__ import annotations

import array
import errno
import grp
import itertools
import os
import pwd
import reprlib
import shutil
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from .._base.errors import BadReply, ConnectFailed, ConnectionLost, KopsError, Timeout, from_reply
from .._version import PROTOCOL, VERSION
from .link import CANCELLABLE, MSGID_MASK, Call, Link, barrier_for, copy_of, ends_daemon, goes_on, no_reply, packed, too_long

SYSTEM = "/run/kopsd/kopsd.sock"  # socket of the machine's daemon
SHARED = stat.S_IWGRP | stat.S_IWOTH


def listed(runtime: str | None, uid: int, is_private: Callable[[str], bool]) -> list[str]:
    """The sockets to try, in order: those of the user's own folders up to the first private one, where a daemon of the user's is
    started, then the system's. `runtime` is XDG_RUNTIME_DIR."""
    own = dict.fromkeys([f"/run/user/{uid}", f"/tmp/.kopsd-{uid}"])
    if runtime and runtime.startswith("/"):
        own = dict.fromkeys([runtime, *own])
    paths = []
    for folder in own:
        paths.append(f"{folder}/kopsd.sock")
        if is_private(folder):
            break
    return [*paths, SYSTEM]


def candidates(path: str | os.PathLike[str] | None = None) -> list[str]:
    """The socket paths to try, in order. A path that was given, or KOPS_SOCKET, is the only one."""
    if path is not None:
        return [os.fspath(path)]
    named = os.environ.get("KOPS_SOCKET")
    return [named] if named else listed(os.environ.get("XDG_RUNTIME_DIR"), os.geteuid(), _is_private)


@dataclass(frozen=True)
class Server:
    """A server that has taken a connection, as this process sees it. None: there is no such user."""

    uid: int
    self: int
    kops: int | None  # the user kops
    unmapped: int | None  # the number of every user from outside this process's user namespace
    folder: int | None  # the owner of the socket's folder
    folder_shared: bool  # others may write to it
    parent_shared: bool  # others may write to the folder above
    system: bool  # the socket is SYSTEM
    named: bool  # KOPS_TRUST_USER has the server's user

    @property
    def trusted(self) -> bool:
        if self.named:
            return True
        if self.uid == self.unmapped:
            # The number alone proves nothing, but the folder does: it was put here by the user who made this namespace,
            # unless a user of the namespace could make it.
            return self.folder in (0, self.unmapped) and not self.folder_shared and not self.parent_shared
        given = self.system and self.uid == self.folder and not self.folder_shared  # by root
        return self.uid in (0, self.self, self.kops) or given


def distrust(path: str, sock: socket.socket) -> str | None:
    """Why the server at a connected socket is not trusted, and what to do; None: it is."""
    uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] & 0xFFFFFFFF
    unmapped, at = _unmapped_user(), os.path.dirname(path) or "."
    (folder, folder_shared), (_, parent_shared) = _look_at(at), _look_at(f"{at}/..")
    me = os.geteuid()
    server = Server(uid, me, _user_called("kops"), unmapped, folder, folder_shared, parent_shared, path == SYSTEM, _is_named(uid))
    if server.trusted:
        return None
    if uid == unmapped:
        return (
            "its server is a user from outside this user namespace, and users of the namespace may have made its folder: mount the "
            f"folder that root made, or trust such users with KOPS_TRUST_USER={uid}"
        )
    expected = "root or kops" if me == 0 else f"{_described(me)}, root or kops"
    return f"its server is user {_described(uid)}, expected is {expected}: KOPS_TRUST_USER={uid} trusts that user"


def explained(path: str, error: OSError) -> str:
    """Why connecting failed; for EACCES also who may connect, and how to become one of them."""
    text = error.strerror or str(error)
    if error.errno != errno.EACCES:
        return text
    try:
        found = os.stat(path)
    except OSError:
        return text
    if not found.st_mode & stat.S_IWGRP:
        return f"{text}: only its owner {_described(found.st_uid)} may connect"
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = "USER"
    return f"{text}: the group {group} may connect, `sudo usermod -aG {group} {user}` and a new login join it"


def _is_private(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & SHARED


def _look_at(folder: str) -> tuple[int | None, bool]:
    try:
        found = os.stat(folder)
    except OSError:
        return None, True
    return found.st_uid, bool(found.st_mode & SHARED)


def _user_called(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _described(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def _unmapped_user() -> int | None:
    """The number that stands for users without one in this user namespace. The first namespace gives every user one, and has
    none to spare: 65534 is a user like others there."""
    try:
        if Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:3] == ["0", "0", "4294967295"]:
            return None
    except OSError:
        return None
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except OSError:
        return 65534


def _is_named(uid: int) -> bool:
    """By KOPS_TRUST_USER: names or numbers, with commas between them."""
    names = os.environ.get("KOPS_TRUST_USER", "").split(",")
    return any(uid == (int(name) if name.isdecimal() else _user_called(name)) for name in names if name)


# The connection


REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
BRING_FDS = ("alloc",)  # the methods whose replies bring descriptors
MAX_FDS = 16
MAX_REPLY, MAX_ELEMENTS = 64 << 20, 1 << 20
RECEIVE = ((65536,), (socket.CMSG_SPACE(MAX_FDS * 4),), (int(socket.MSG_CMSG_CLOEXEC),))
CONNECT_LIMIT = 30.0  # seconds that a daemon may take to answer where calls have no limit, as in libkops: it may be starting
INTERRUPT_GRACE = 0.25  # seconds that Ctrl-C waits for the cancelled request's reply

# As recvmsg returns it: (bytes, control messages, flags, address).
Chunk = tuple[bytes, list[Any], int, Any]


class PlainLink(Link):
    """One connection, of a socket that is connected."""

    def __init__(self, sock: socket.socket, path: str = "") -> None:
        super().__init__()
        self.path = path
        self._socket = sock
        self._turn = threading.Lock()
        self._inbox: list[Chunk] = []
        self._waiting: dict[int, Call] = {}  # without a reply, by msgid
        self._applied = 0  # the last request that was answered
        self._notice: KopsError | None = None  # the daemon's reason for closing
        self._msgids = itertools.count(1)

    # Calls

    def exchange(self, call: Call, timeout: float | None) -> None:
        """Sends a request and waits until its reply is there."""
        end = None if timeout is None else time.monotonic() + timeout
        turn: list[bool] = []
        try:
            turn.extend(map(self._turn.acquire, (True,), (-1 if timeout is None else timeout,)))
            if not turn[0]:
                raise no_reply(call.method, timeout)
            try:
                self.check()
                self._socket.settimeout(_left(end))
                while self.garbage:
                    self.notify("release", dict([self.garbage.popleft()]))
                self.put(call)
                self._receive_until(call, end)
            except BaseException as error:
                self._give_up(call, error)
                if isinstance(error, TimeoutError):
                    raise no_reply(call.method, timeout) from None
                raise
        finally:
            if turn and turn[0]:
                self._turn.release()

    def send(self, call: Call, timeout: float | None) -> None:
        """Sends a request, whose reply is waited for here."""
        self.exchange(call, timeout)

    def wait(self, call: Call, timeout: float | None) -> None:
        """The reply to a request that was sent is there."""

    def poll(self) -> None:
        """As for `wait`."""

    def cancel(self, call: Call, timeout: float | None) -> bool:
        """The request has ended."""
        return False

    def synchronize(self, timeout: float | None) -> None:
        """No call is ordered here: each has waited for its result."""

    def _give_up(self, call: Call, error: BaseException) -> None:
        """Cancels a request whose caller leaves with `error`."""
        call.abandoned = True
        if call.msgid not in self._waiting or self.failure is not None:
            return
        self._socket.settimeout(INTERRUPT_GRACE)
        try:
            if call.method in CANCELLABLE:
                self.notify("cancel", {"msgid": call.msgid})
            if isinstance(error, KeyboardInterrupt):
                self._receive_until(call, time.monotonic() + INTERRUPT_GRACE)  # let the outputs come to rest before the user is back
        except (TimeoutError, KopsError):
            pass

    # Sending

    def put(self, call: Call) -> None:
        """Writes a request."""
        self.check()
        msgid = next(self._msgids) & MSGID_MASK
        while msgid in self._waiting:
            msgid = next(self._msgids) & MSGID_MASK
        data = self._packed([REQUEST, msgid, call.method, [call.params]])
        call.msgid = msgid
        self._waiting[msgid] = call
        sent: list[int] = []
        try:
            self._write(data, sent, call.fds)
        finally:
            call.sent = bool(sent)
            if not sent:
                self._waiting.pop(msgid, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Writes a notification: carried out like the request of that name, never answered."""
        self.check()
        self._write(self._packed([NOTIFICATION, method, [params]]), [])

    def _packed(self, message: list[Any]) -> bytes:
        data = packed(message, msgpack.packb)
        if len(data) > self.message_bytes:
            raise too_long(len(data), self.message_bytes)
        return data

    def _write(self, data: bytes, sent: list[int], fds: Iterable[int] = ()) -> None:
        """`sent` gets the bytes of each write. A message that leaves in part ends the connection. A broken socket is left for the reader
        to find: the daemon's reason may still be unread."""
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            while sum(sent) < len(data):
                sent.extend(map(self._socket.sendmsg, ([memoryview(data)[sum(sent) :]],), (control if not sent else [],)))
        except TimeoutError:
            raise
        except OSError:
            sent.append(len(data) - sum(sent))
        finally:
            if 0 < sum(sent) < len(data):
                self._end(ConnectionLost("a request could not be written as a whole"))

    # Receiving

    def _receive_until(self, call: Call, end: float | None) -> None:
        """Raises TimeoutError when the time is over."""
        while not call.done:
            try:
                found = self._next()
                if found is None:
                    self._socket.settimeout(_left(end))
                    self._inbox.extend(map(self._socket.recvmsg, *RECEIVE))
                    if not self._inbox[-1][0]:
                        self._end(ConnectionLost("the daemon closed the connection"))
                else:
                    message, fds, rest = found
                    self._apply(message, fds)
                    self._inbox[:] = rest
            except TimeoutError:
                raise
            except OSError as error:
                self._end(ConnectionLost(f"cannot read from the daemon: {error.strerror or error}"))
            except (ValueError, msgpack.UnpackException) as error:
                self._end(BadReply(f"the daemon sent what is no response: {error}"))

    def _next(self) -> tuple[Any, list[int], list[Chunk]] | None:
        """The first whole message of the inbox, the descriptors that came with it, and the inbox without both; None: more bytes are
        needed. Raises ValueError for descriptors that nobody asked for."""
        if not self._inbox:
            return None
        control = [one for chunk in self._inbox for one in chunk[1]]
        if any(chunk[2] & socket.MSG_CTRUNC for chunk in self._inbox) or (control and not self._asks_for_fds()):
            raise ValueError("descriptors, and no request asks for some")
        data = b"".join(chunk[0] for chunk in self._inbox)
        limits = {"max_array_len": MAX_ELEMENTS, "max_map_len": MAX_ELEMENTS, "max_ext_len": 0}
        unpacker = msgpack.Unpacker(max_buffer_size=MAX_REPLY, ext_hook=_refuse_ext, **limits)
        unpacker.feed(data)
        try:
            message = next(unpacker)
        except StopIteration:
            _check_announced(data)
            return None
        rest = data[unpacker.tell() :]
        brings = _brings_fds(message)
        fds = _fds_of(control) if brings else []
        if control and not brings and not rest:
            raise ValueError("descriptors that belong to no reply")
        return message, fds, [(rest, [] if brings else control, 0, None)] if rest else []

    def _asks_for_fds(self) -> bool:
        return any(call.method in BRING_FDS for call in self._waiting.values())

    def _apply(self, message: Any, fds: list[int]) -> None:
        """Applies one message. Raises ValueError for anything but one."""
        if type(message) is list and len(message) == 4 and message[0] == RESPONSE:
            _, msgid, error, result = message
            call = self._waiting.get(msgid) if type(msgid) is int else None
            if call is None and msgid == self._applied:  # an interrupt came before the message was dropped
                return
            if call is None or (error is None and type(result) is not dict):
                raise ValueError(f"nobody asked for this: {reprlib.repr(message)}")
            brings = error is None and "nfds" in result and call.method != "ping"  # a ping is answered with the map that it sent
            if brings and (call.method not in BRING_FDS or len(fds) != result["nfds"]):
                raise ValueError(f"{len(fds)} descriptors for the result of {call.method}: {reprlib.repr(result)}")
            if not call.received:
                call.received.extend(fds)
            if error is not None:
                call.error = from_reply(error)
                self.doomed |= ends_daemon(call.error)
                if goes_on(call):
                    self.put(barrier_for(call))
            else:
                call.result = {**result, "fds": call.received} if brings else result
                if call.abandoned and call.undo is not None:
                    self.notify("release", {call.undo: result[call.undo]})
            call.answered = True
            self._applied = msgid
            self._waiting.pop(msgid, None)
            call.end()
        elif type(message) is list and len(message) == 3 and message[:2] == [NOTIFICATION, "error"]:
            self._notice = from_reply(message[2][0] if isinstance(message[2], list) and message[2] else None)
        else:
            raise ValueError(reprlib.repr(message))

    # Connecting and closing

    def _end(self, error: KopsError) -> None:
        """The connection is of no more use: every call ends with `error`, or with the reason that the daemon gave before it closed."""
        if self.failure is None:
            self.failure = self._notice or error
        for chunk in self._inbox:
            _close(_fds_of(chunk[1]))
        self._inbox.clear()
        self._socket.close()
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            call.error = copy_of(self.failure)
            call.end()

    def close(self, why: str = "the client was closed") -> None:
        """Ends it; a call of another thread fails."""
        if self.failure is None:
            self.failure = ConnectionLost(why, {"closed": True})
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if self._turn.acquire(blocking=False):
            self._end(self.failure)
            self._turn.release()

    def forsake(self) -> None:
        """In a forked child: closes the parent's socket here, and sends nothing on it."""
        self._turn = threading.Lock()
        self._end(ConnectionLost("this connection belongs to the parent process", {"closed": True}))


def _left(end: float | None) -> float | None:
    """Seconds until then. Raises TimeoutError when it is over."""
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _fds_of(control: Iterable[Any]) -> list[int]:
    """The descriptors of control messages."""
    fds = array.array("i")
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _brings_fds(message: Any) -> bool:
    return type(message) is list and len(message) == 4 and type(message[3]) is dict and "nfds" in message[3]


# MessagePack heads: how many bytes follow, as the value itself or as the length of a string.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_STRINGS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


def _check_announced(data: bytes) -> None:
    """Raises ValueError when an incomplete message announces a string that is longer than any message may be: the decoder would wait
    for it."""
    at = 0
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


def _refuse_ext(code: int, data: bytes) -> None:
    raise ValueError("ext types are not used")


# Finding a daemon, as client_c/src/session/connect.c and starter.c do for libkops

PACKAGE = Path(__file__).resolve().parents[1]
SBIN = "/usr/local/sbin:/usr/sbin"  # folders where packages put kopsd, which users' PATH may lack


def connect(
    path: str | os.PathLike[str] | None, autostart: bool, patience: float | None, isolate: str | None
) -> PlainLink:
    """The first of the candidates that accepts and is trusted. Where none does, a daemon is started for this user, which takes
    `patience` seconds at most. The daemon has answered `hello`, for which it has as long, and CONNECT_LIMIT. Raises ConnectFailed, which
    lists what was tried, and Timeout."""
    timeout = CONNECT_LIMIT if patience is None else min(patience, CONNECT_LIMIT)
    try:
        made = _connect(path, timeout)
    except ConnectFailed as error:
        # A socket that was named is the only one.
        if not autostart or path is not None or os.environ.get("KOPS_SOCKET") or os.environ.get("KOPS_AUTOSTART") == "0":
            raise
        made = _connect(_start(patience, error), timeout)
    params = {"client": f"kops-python {VERSION}", "protocol": PROTOCOL}
    call = Call("hello", params if isolate is None else {**params, "isolate": isolate})
    try:
        made.exchange(call, timeout)
        made.greeted(call.outcome())
    except BaseException as error:
        made.close("the daemon did not answer hello")
        if not isinstance(error, Timeout):
            raise
        why = (
            f"{made.path}: kopsd does not answer: it took the connection and has said nothing for {timeout:g} s; start it anew, or "
            "name another socket in KOPS_SOCKET"
        )
        raise Timeout(why, {"method": "hello"}) from None
    return made


def _connect(path: str | os.PathLike[str] | None, timeout: float) -> PlainLink:
    tried = []
    for candidate in candidates(path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # settimeout() would refuse on a full backlog.
            micro = max(1, int(timeout * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", micro // 1000000, micro % 1000000))
            sock.connect(candidate)
            why = distrust(candidate, sock)
            if why is None:
                return PlainLink(sock, candidate)
        except OSError as error:
            why = explained(candidate, error)
        sock.close()
        tried.append(f"{candidate}: {why}")
    why = "no kopsd answers: " + "; ".join(tried) + ". Start one, or name its socket in KOPS_SOCKET"
    raise ConnectFailed(why, {"tried": tried})


def _program() -> str | None:
    """The daemon's program: that of KOPSD, of this package, or of PATH."""
    own = PACKAGE / "bin" / "kopsd"
    if named := os.environ.get("KOPSD"):
        return named
    if os.access(own, os.X_OK):
        return str(own)
    return shutil.which("kopsd") or shutil.which("kopsd", path=SBIN)


def _start(timeout: float | None, why: ConnectFailed) -> str:
    """Runs `kopsd --autostart`, which has the rule, and waits until a daemon is ready: the path of its socket. `why` says that none
    answers."""
    found = _program()
    if found is None:
        raise _failed("no program kopsd is in this package or in PATH; install it, or name it in the variable KOPSD", why)
    try:
        done = subprocess.run(
            [found, "--autostart"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise Timeout(f"{found} --autostart has not ended within {timeout:g} s", {"method": "connect"}) from None
    except OSError as error:
        raise _failed(f"{found}: {error.strerror or error}", why) from None
    text = done.stdout.decode(errors="replace").rstrip("\n")
    path = text[text.rfind("\n") + 1 :]
    if not path.startswith("/"):
        raise _failed(text or f"{found} --autostart has ended without a word", why)
    return path


def _failed(text: str, why: ConnectFailed) -> ConnectFailed:
    return ConnectFailed(f"no daemon could be started: {text} ({why.message.partition('. Start one')[0]})", why.detail)
