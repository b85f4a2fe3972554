"""A daemon whose allocations and system calls fail by number (inject.c), and what a fault may do to clients."""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import struct
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support import backends, daemon, raw, records

# inject.c has the same.
KINDS = (
    "none", "alloc", "mmap", "memfd", "ftruncate", "receive", "send", "accept", "getsockopt", "socket", "epoll",
    "epoll_wait", "eventfd", "timerfd", "pipe", "fstat", "fcntl", "open", "pidfd", "folder",
)  # fmt: skip
SHORT = -1  # instead of an errno: one byte goes
OWNER, ON, KIND, NTH, LASTS, HOW, FIRED, _, COUNTS = range(9)
ALWAYS = 1 << 62

# What each kind of call can answer.
ANSWERS: dict[str, tuple[int, ...]] = {
    "alloc": (errno.ENOMEM,),
    "mmap": (errno.ENOMEM,),
    "memfd": (errno.EMFILE, errno.ENOMEM),
    "ftruncate": (errno.ENOSPC, errno.EINTR),
    "receive": (errno.EAGAIN, errno.EINTR, errno.ECONNRESET, errno.ENOMEM, SHORT),
    "send": (errno.EAGAIN, errno.EINTR, errno.EPIPE, errno.ENOBUFS, errno.ENOMEM, SHORT),
    "accept": (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR, errno.EAGAIN),
    "getsockopt": (errno.ENOBUFS,),
    "socket": (errno.EMFILE, errno.ENFILE),
    "epoll": (errno.ENOMEM, errno.ENOSPC),
    "epoll_wait": (errno.EINTR,),
    "eventfd": (errno.EMFILE, errno.ENFILE),
    "timerfd": (errno.EMFILE,),
    "pipe": (errno.EMFILE,),
    "fstat": (errno.ENOMEM,),
    "fcntl": (errno.EMFILE, errno.EINVAL),
    "open": (errno.EMFILE, errno.ENFILE),
    "pidfd": (errno.EMFILE, errno.ENOMEM, errno.ENOSYS),
    "folder": (errno.ENOMEM, errno.EIO),
}
# What may last: whoever waits for it to pass would wait until the round is over.
LASTING = frozenset(
    {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EPIPE, errno.ECONNRESET, errno.EINVAL}
)
ALL = os.environ.get("KOPS_FAULTS") == "all"
STRIDE = 1 if ALL else int(os.environ.get("KOPS_FAULTS", "3"))


class Outcomes(Counter[str]):
    """What came of the points of a test; `failures` says what was wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []
        self._began = time.monotonic()

    def take(self, which: daemon.Daemon, what: str, point: Callable[[], str]) -> bool:
        """Counts what came of a point. False: something was wrong, and the daemon has been ended, whatever state it was in."""
        try:
            self[point()] += 1
            return True
        except (AssertionError, OSError, raw.RpcError, raw.Closed) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failures.append(f"{what}: {error!r} in {where.name}: {where.line}; the log: {which.log()[-2000:]}")
            if which.running() and which.process:
                which.process.kill()
                which.process.wait()
            return False

    def tell(self, measure: str, **more: Any) -> None:
        """As a line and as a record; AssertionError: something was wrong."""
        seconds = round(time.monotonic() - self._began)
        print(f"{measure}, {more}: {self.total()} points, {dict(self)}, {len(self.failures)} failed; {seconds} s")
        records.keep(measure, "points", self.total(), seconds=seconds, outcomes=dict(self), failed=len(self.failures), **more)
        assert not self.failures, "\n\n".join(self.failures)


class Faults:
    """The file that a daemon shares with its test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(4096))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 4096)

    def get(self, word: int) -> int:
        return struct.unpack_from("<q", self.memory, 8 * word)[0]

    def set(self, word: int, value: int) -> None:
        struct.pack_into("<q", self.memory, 8 * word, value)

    def count(self) -> None:
        """From now on calls are counted, and none fails."""
        self.arm("none", 1, 0)

    def arm(self, kind: str, nth: int, how: int, lasts: int = 1) -> None:
        """The nth call of that kind from now on fails, and so do those behind it, `lasts` in all."""
        self.set(ON, 0)
        for i in range(len(KINDS)):
            self.set(COUNTS + i, 0)
        for word, value in ((KIND, KINDS.index(kind)), (NTH, nth), (LASTS, lasts), (HOW, how), (FIRED, 0)):
            self.set(word, value)
        self.set(ON, 1)

    def disarm(self) -> dict[str, int]:
        """Nothing fails any more. How often each was called since arm()."""
        self.set(ON, 0)
        self.set(LASTS, 0)
        return {kind: self.get(COUNTS + i) for i, kind in enumerate(KINDS) if i}

    @property
    def fired(self) -> int:
        return self.get(FIRED)

    def new_process(self) -> None:
        self.set(OWNER, 0)
        self.set(ON, 0)


def points(counts: dict[str, int], offset: int = 0) -> Iterator[tuple[str, int, int]]:
    """Every STRIDEth of (kind, number of the call, answer). Each kind begins at another one, so that a sample is not of
    the same phase everywhere."""
    n = offset
    for i, (kind, answers) in enumerate(ANSWERS.items()):
        for how in answers:
            n += i
            for nth in range(1, counts.get(kind, 0) + 1):
                n += 1
                if n % STRIDE == 0:
                    yield kind, nth, how


def may_last(kind: str, how: int) -> bool:
    return how in LASTING and (kind, how) != ("send", errno.ENOMEM) and kind != "accept"


def describe(kind: str, nth: int, how: int) -> str:
    return f"{kind} #{nth}: {'short' if how == SHORT else errno.errorcode[how]}"


class FaultyDaemon(daemon.Daemon):
    """Runs kopsd_faults. `faults` tells it what is to fail."""

    def __init__(self, *args: str, config: str | None = None, start: bool = True, **more: Any) -> None:
        super().__init__(*args, config=config or backends.config(backends.HOST), start=False, **more)
        self.command[0] = str(daemon.build_folder() / "bin" / "kopsd_faults")
        self.faults = Faults(self.folder / "faults")
        self.env["KOPS_FAULTS_FILE"] = str(self.faults.path)
        # Its allocator says no, too, instead of ending the process.
        self.env["ASAN_OPTIONS"] += ":allocator_may_return_null=1:handle_segv=1"
        if start:
            self.start()

    def start(self) -> None:
        self.faults.new_process()
        super().start()

    def try_start(self, kind: str = "none", nth: int = 1, how: int = 0) -> int | None:
        """Its status, or None when it is ready."""
        self.log_path.unlink(missing_ok=True)
        self.faults.new_process()
        self.faults.arm(kind, nth, how)
        path = str(self.folder / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
            notify.bind(path)
            self.env["NOTIFY_SOCKET"] = path
            try:
                with open(self.log_path, "ab") as log:
                    self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                self.pidfd = os.pidfd_open(self.process.pid)
                while True:
                    ready, _, _ = select.select([notify, self.pidfd], [], [], 1)
                    if notify in ready and "READY=1" in notify.recv(4096).decode():
                        return None
                    if self.pidfd in ready:
                        os.close(self.pidfd)
                        return self.wait()
                    # Where what fails is the message that it is ready, only trying tells.
                    if not ready and "event=ready" in self.log():
                        return None
            finally:
                os.unlink(path)


class Client:
    """One that takes what a fault does to it: errors that say so, or the end of its connection."""

    # What a request may be answered with because of a fault.
    CODES = frozenset({"out_of_memory", "quota_exceeded", "internal", "device_error", "device_lost", "memory_fault", "invalid_fd"})

    def __init__(self, which: FaultyDaemon, name: str) -> None:
        self.daemon, self.name = which, name
        self.dead = False
        self.errors: list[str] = []
        try:
            self.connection = which.connect()
        except OSError as error:
            raise AssertionError(f"{name} could not even connect") from error

    def attempt(self, what: Any, *arguments: Any, also: tuple[str, ...] = ()) -> Any:
        """What it returns; None when it failed because of the fault, or after the connection has ended."""
        if self.dead:
            return None
        try:
            return what(*arguments)
        except raw.RpcError as error:
            self.errors.append(error.code)
            assert error.code in self.CODES or error.code in also, f"{self.name}: {error}"
            if error.code in also:
                return None
            assert self.daemon.faults.fired, f"{self.name}, without a fault: {error}"
        except (raw.Closed, ConnectionError) as error:
            assert self.daemon.faults.fired, f"{self.name}, without a fault: {error}"
            self.dead = True
            said = self.connection.notification
            assert said is None or said["code"] in self.CODES, f"{self.name}: {said}"
        return None

    def close(self) -> None:
        self.connection.close()
