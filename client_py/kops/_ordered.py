"""Ordered calls: ops as part of a CUDA stream, without a thread that waits.

For each call the stream writes *ready* and then waits for *done*, both words in a page that the daemon made; the daemon
waits for the one and writes the other on a stream of its own. So the caller goes on at once, and whatever it puts on
its stream before or after is in order with the op. The words only rise. A stream of ours is tied to one of the daemon's
(`Slot`), whose number is the place of its words in the page.

Everything is enqueued under the link's lock, so that values and requests are in the same order. What a call uses is
kept by its `Call` until the reply. Replies are read when there is no more room, at every few calls, and by the watcher
when the caller has gone quiet.

The watcher is a thread that lives as long as the link and sleeps while nothing is under way. When the daemon has gone
it stores the far end into every done word, until the streams have got past their waits: also while the caller sits in
torch.cuda.synchronize().
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ._cuda import Driver, allocations
from ._errors import Capturing, KopsError, NoCuda, QuotaExceeded
from ._session import Call

if TYPE_CHECKING:
    from ._link import SocketLink

FAR_END = 2**63 - 1
AFTERMATH = 2.0  # seconds
DEFAULT_STREAMS = (0, 1)
QUIET = 0.02  # seconds between the watcher's looks while calls are under way
DRAIN_EVERY = 8
WAIT_VALUE_64, WRITE_VALUE_64 = 4, 5  # CUstreamBatchMemOpType
NOT_READY, NOT_REGISTERED = 600, 713
CAPTURE_ERRORS = range(900, 910)
PORTABLE, DEVICEMAP = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


_STEP = re.compile(r"ops\[(\d+)\]")


def named(error: KopsError, names: tuple[str, ...], number: int) -> KopsError:
    """An error as it is reported later: with the op that it is of. `number` is that of the first of these ops."""
    step = error.detail.get("op_index")
    if step is None and (found := _STEP.match(str(error.detail.get("key", "")))):
        step = int(found[1])
    if not isinstance(step, int) or not 0 <= step < len(names):
        step = 0
    message = f"call {number + step} ({names[step]}) on a CUDA stream: {error.message}"
    return type(error)(message, {**error.detail, "op": names[step], "call": number + step}, error.code)


class Slot:
    """One of the caller's streams. `number` is the daemon's stream for it."""

    __slots__ = ("number", "handle", "context", "value", "last", "operations")

    def __init__(self, number: int, handle: int, context: int, page: int, streams: int) -> None:
        self.number = number
        self.handle = handle
        self.context = context
        self.value = 0
        self.last: Call | None = None
        # Two CUstreamBatchMemOpParams of six words each: the write of ready, the wait for done.
        self.operations = (ctypes.c_uint64 * 12)()
        self.operations[0] = WRITE_VALUE_64
        self.operations[1] = page + 8 * number
        self.operations[6] = WAIT_VALUE_64
        self.operations[7] = page + 8 * (streams + number)


class Timelines:
    """The page, as this process's devices see it, and the driver's part of an ordered call."""

    def __init__(self, fd: int, size: int, streams: int) -> None:
        self.size = size
        self.streams = streams
        self._driver: Driver = allocations.driver
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address = int(address)
        self.words = (ctypes.c_int64 * (2 * streams)).from_address(self.address)
        self._pages: dict[int, int] = {}  # the page's device address by device
        self._contexts: dict[int, int] = {}
        self._registered: int | None = None
        library = self._driver.library
        self._batch = getattr(library, "cuStreamBatchMemOp_v2", None)
        self._write = getattr(library, "cuStreamWriteValue64_v2", None)
        self._wait = getattr(library, "cuStreamWaitValue64_v2", None)
        self._current = library.cuCtxGetCurrent
        self._capturing = library.cuStreamIsCapturing
        self._query = library.cuStreamQuery
        self._context = ctypes.c_uint64()
        self._context_ref = ctypes.byref(self._context)
        self._status = ctypes.c_int()
        self._status_ref = ctypes.byref(self._status)

    def context(self, index: int) -> int:
        found = self._contexts.get(index)
        if found is None:
            found = self._contexts[index] = self._driver.primary_context(index)
        return found

    def page(self, index: int) -> int:
        """The page's address on a device."""
        found = self._pages.get(index)
        if found is None:
            with self._driver.using(self.context(index)):
                if self._registered is None:
                    self._driver.call(
                        "cuMemHostRegister_v2",
                        ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), ctypes.c_uint(PORTABLE | DEVICEMAP),
                    )  # fmt: skip
                    self._registered = index
                there = ctypes.c_uint64()
                self._driver.call(
                    "cuMemHostGetDevicePointer_v2", ctypes.byref(there), ctypes.c_void_p(self.address), ctypes.c_uint(0)
                )
            found = self._pages[index] = there.value
        return found

    def put(self, slot: Slot, value: int, begin: bool, end: bool) -> None:
        """On the stream: writes ready, waits for done. Raises Capturing or NoCuda; nothing is on the stream then."""
        self._current(self._context_ref)
        if self._context.value == slot.context:
            self._put(slot, value, begin, end)
        else:
            with self._driver.using(slot.context):
                self._put(slot, value, begin, end)

    def _put(self, slot: Slot, value: int, begin: bool, end: bool) -> None:
        handle = ctypes.c_void_p(slot.handle)
        status = self._capturing(handle, self._status_ref)
        if self._status.value or status in CAPTURE_ERRORS:
            raise Capturing(
                "the current CUDA stream is being captured, and an ordered call cannot be part of a graph: make it "
                "outside the capture, or record a program with k.program()"
            )
        if status:
            raise self._error("cuStreamIsCapturing", status)
        operations = slot.operations
        operations[2] = operations[8] = value
        if self._batch is not None:
            first = 0 if begin else 48
            status = self._batch(handle, ctypes.c_uint(begin + end), ctypes.byref(operations, first), ctypes.c_uint(0))
            if status:
                raise self._error("cuStreamBatchMemOp", status)
            return
        for name, function, wanted, at in (("Write", self._write, begin, 1), ("Wait", self._wait, end, 7)):
            if wanted:
                assert function is not None
                status = function(handle, ctypes.c_uint64(operations[at]), ctypes.c_uint64(value), ctypes.c_uint(0))
                if status:
                    raise self._error(f"cuStream{name}Value64", status)

    def _error(self, function: str, status: int) -> NoCuda:
        name = self._driver.error_name(status)
        return NoCuda(f"{function}: {name}", {"driver": name})

    def drained(self, slot: Slot) -> bool:
        """Whether the stream has nothing left to do."""
        with self._driver.using(slot.context):
            return int(self._query(ctypes.c_void_p(slot.handle))) != NOT_READY

    def close(self) -> None:
        """Once nothing on any stream refers to the page. One that the driver could not let go of keeps its addresses:
        another there could not be registered."""
        if self._registered is not None:
            with self._driver.using(self.context(self._registered)):
                status = self._driver.library.cuMemHostUnregister(ctypes.c_void_p(self.address))
            if status not in (0, NOT_REGISTERED):
                return
        _libc.munmap(self.address, self.size)


class Ordered:
    """The ordered calls of one link."""

    def __init__(self, link: SocketLink, timelines: Timelines) -> None:
        self.timelines = timelines
        self._link = link
        self._slots: dict[tuple[int, int], Slot] = {}
        self._calls: deque[Call] = deque()  # under way, and perhaps some that have ended
        self._count = 0  # ops
        self._calls_made = 0
        self._error: KopsError | None = None
        self._busy = threading.Event()  # calls are under way, or the link has ended
        self._quiet = False  # closed when nothing was under way
        self._pid = os.getpid()
        threading.Thread(target=self._watch, name="kops-watcher", daemon=True).start()

    # Calling

    def enqueue(
        self, method: str, params: dict[str, Any], names: tuple[str, ...], keep: Any, index: int, handle: int, timeout: float | None,
        begin: bool = True, end: bool = True,
    ) -> None:  # fmt: skip
        """Puts a request on the caller's stream. With `begin` it starts after what is there, with `end` what comes
        later on the stream waits for it. Raises the error of an earlier call, once."""
        link = self._link
        session = link.session
        self._room(timeout)
        self._count += len(names)
        self._calls_made += 1
        if self._calls_made % DRAIN_EVERY == 0 and not link.reading:
            link.poll()
        self.collect()
        self.check()
        call = Call(method, params, (), keep)
        call.label = (names, self._count - len(names) + 1)
        with link.lock:
            if link.garbage:
                link.release()
            slot = self._slot(index, handle)
            value = slot.value + 1
            params["stream"] = slot.number
            if begin:
                params["ready"] = value
            if end:
                params["done"] = value
            session.enqueue(call)
            try:
                slot.value = value  # also when what follows fails: a value is used once
                if begin or end:
                    self.timelines.put(slot, value, begin, end)
            except BaseException:
                session.abandon(call)
                raise
            slot.last = call
            self._calls.append(call)
            flushed = link.flush()
            if not self._busy.is_set():
                self._busy.set()
        if not flushed:
            link.push(None)

    def _room(self, timeout: float | None) -> None:
        session = self._link.session
        while len(session.pending) >= session.inflight:
            oldest = next(iter(list(session.pending.values())), None)
            if oldest is not None:
                self._link.wait(oldest, timeout)

    def _slot(self, index: int, handle: int) -> Slot:
        slot = self._slots.get((index, handle))
        if slot is None:
            timelines = self.timelines
            if len(self._slots) < timelines.streams:
                # From the top: the small numbers are what callers of the blocking form name.
                number, value = timelines.streams - 1 - len(self._slots), 0
            else:
                key, idle = next(
                    ((k, s) for k, s in self._slots.items() if s.last is None or s.last.done), (None, None)
                )
                if key is None or idle is None:
                    raise QuotaExceeded(f"{timelines.streams} CUDA streams have calls under way: synchronize() first")
                del self._slots[key]
                number, value = idle.number, idle.value
            slot = Slot(number, handle, timelines.context(index), timelines.page(index), timelines.streams)
            slot.value = value
            self._slots[index, handle] = slot
        return slot

    # Errors

    def collect(self) -> None:
        """Forgets the calls that have ended, and notes the first error."""
        calls = self._calls
        while calls and calls[0].done:
            try:
                call = calls.popleft()
            except IndexError:  # another thread was faster
                return
            if call.error is not None and self._error is None:
                self._error = named(call.take_error(), *call.label)

    def check(self) -> None:
        """Raises the error of an earlier call, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def synchronize(self, timeout: float | None) -> None:
        """Waits until every call made so far has ended; raises the first error since the last report."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for call in list(self._calls):
            if not call.done:
                self._link.wait(call, None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.collect()
        self.check()

    @property
    def pending(self) -> bool:
        self.collect()
        return bool(self._calls)

    def closing(self) -> None:
        """The link will be closed now."""
        self._quiet = self._link.session.failure is None and not self.pending
        self._busy.set()

    # The watcher

    def _watch(self) -> None:
        link = self._link
        while True:
            self._busy.wait()
            if os.getpid() != self._pid:
                return
            if link.session.failure is not None or self._quiet:
                break
            try:
                poll = select.poll()
                poll.register(link.transport.fileno(), select.POLLRDHUP)
                gone = poll.poll(QUIET * 1000)
            except (OSError, ValueError):
                break
            # A thread that holds the lock may be stuck in the driver, behind the very waits that are to be released.
            while not link.lock.acquire(timeout=QUIET):
                if gone:
                    self._far_ends()
            try:
                if link.session.outbox:
                    link.flush()
                reading = link.reading
                if not reading:
                    link.drain()
                self.collect()
                if not self._calls and link.session.failure is None:
                    self._busy.clear()
            finally:
                link.lock.release()
            link.tell_followers()
            if gone and reading:
                self._far_ends()
                time.sleep(0.001)  # the reader hears the same and tells the session
        self._release()

    def _far_ends(self) -> None:
        timelines = self.timelines
        for slot in list(self._slots.values()):
            timelines.words[timelines.streams + slot.number] = FAR_END

    def _release(self) -> None:
        """Lets every stream past its waits. What the daemon's device had begun to write may still arrive for a moment,
        so once is not enough. The page goes when its last reader has; a stream that is not the context's own may have
        been destroyed by now and cannot be asked, so then the page stays for good. It is never used again."""
        timelines = self.timelines
        if not self._quiet:
            end = time.monotonic() + AFTERMATH
            while time.monotonic() < end:
                self._far_ends()
                time.sleep(0.002)
        self._far_ends()
        slots = list(self._slots.values())
        if all(slot.handle in DEFAULT_STREAMS for slot in slots):
            while not all(timelines.drained(slot) for slot in slots):
                time.sleep(QUIET)
            timelines.close()
