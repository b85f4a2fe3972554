"""The control page of the stand-in CUDA driver: watch and drive the processes that use it, as README.md shows. The layout is
that of control.h, whose lists of gates and counters are read from there."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .folder import VARIABLE, folder

_HEADER = (Path(__file__).parent / "control.h").read_text()


def _names(macro: str) -> list[str]:
    body = _HEADER.split(f"#define {macro}(X)", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"\bX\((\w+)\)", body)


def _constant(name: str) -> int:
    match = re.search(rf"\b{name} = (\d+)", _HEADER)
    assert match, name
    return int(match.group(1))


GATES = _names("STANDIN_GATES")
COUNTERS = _names("STANDIN_COUNTERS")
_NAME = _constant("STANDIN_NAME")


class _Gate(ctypes.Structure):
    _fields_ = [("closed", ctypes.c_uint32), ("tickets", ctypes.c_uint32), ("pid", ctypes.c_int32)]


class _Fault(ctypes.Structure):
    _fields_ = [
        ("armed", ctypes.c_uint32),
        ("countdown", ctypes.c_uint32),
        ("times", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("sticky", ctypes.c_uint32),
        ("pid", ctypes.c_int32),
        ("function", ctypes.c_char * _NAME),
    ]


class _Calls(ctypes.Structure):
    _fields_ = [("function", ctypes.c_char * _NAME), ("count", ctypes.c_uint64)]


class _Row(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_int32),
        ("order", ctypes.c_uint32),
        ("command", ctypes.c_char * 32),
        ("counters", ctypes.c_int64 * len(COUNTERS)),
        ("gate_waiting", ctypes.c_uint64 * len(GATES)),
        ("gate_passed", ctypes.c_uint64 * len(GATES)),
        ("calls", _Calls * _constant("STANDIN_CALLS")),
        ("last_misuse", ctypes.c_char * _constant("STANDIN_TEXT")),
    ]


class _Page(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("row_order", ctypes.c_uint32),
        ("memory_limit", ctypes.c_uint64),
        ("channels", ctypes.c_uint32),
        ("channel_entries", ctypes.c_uint32),
        ("gates", _Gate * len(GATES)),
        ("faults", _Fault * _constant("STANDIN_FAULTS")),
        ("rows", _Row * _constant("STANDIN_ROWS")),
    ]


PAGE_SIZE = ctypes.sizeof(_Page)


def has_ended(pid: int) -> bool:
    """Also a process that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] in b"ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Row:
    """One process's counters, as attributes named in control.h: `row.live_ipc_mappings`."""

    def __init__(self, row: _Row) -> None:
        self._row = row

    def __getattr__(self, name: str) -> int:
        if name not in COUNTERS:
            raise AttributeError(name)
        return int(self._row.counters[COUNTERS.index(name)])

    @property
    def pid(self) -> int:
        return int(self._row.pid)

    @property
    def order(self) -> int:
        """Later processes have greater ones."""
        return int(self._row.order)

    @property
    def command(self) -> str:
        return self._row.command.decode()

    @property
    def last_misuse(self) -> str:
        return self._row.last_misuse.decode(errors="replace")

    def calls(self, function: str) -> int:
        """How often the process called the function ("cuMemAlloc", no _v2)."""
        for entry in self._row.calls:
            if entry.function.decode() == function:
                return int(entry.count)
        return 0

    def waiting(self, gate: str) -> int:
        """How many wait there now: none of a process that has ended."""
        return 0 if has_ended(self.pid) else int(self._row.gate_waiting[GATES.index(gate)])

    def passed(self, gate: str) -> int:
        return int(self._row.gate_passed[GATES.index(gate)])

    def live(self) -> dict[str, int]:
        """Everything that is alive in the process, by name: equal dicts before and after mean that nothing leaked."""
        return {name: getattr(self, name) for name in COUNTERS if name.startswith("live_")}


class Gate:
    """Closed while the `with` block runs, or between close() and open()."""

    def __init__(self, gate: _Gate, pid: int = 0) -> None:
        self._gate = gate
        self._pid = pid

    def close(self) -> Gate:
        self._gate.tickets = 0
        self._gate.pid = self._pid
        self._gate.closed = 1
        return self

    def open(self) -> None:
        self._gate.closed = 0

    def let(self, n: int = 1) -> None:
        """Lets n more pass while the gate is closed. Not atomic: call it when earlier tickets have been used."""
        self._gate.tickets += n

    @property
    def tickets(self) -> int:
        return int(self._gate.tickets)

    def __enter__(self) -> Gate:
        return self.close()

    def __exit__(self, *_: object) -> None:
        self.open()


class Fault:
    """A switch that makes calls fail; see Control.fail()."""

    def __init__(self, fault: _Fault) -> None:
        self._fault = fault

    @property
    def fired(self) -> bool:
        """All of its times."""
        return not self._fault.armed

    def disarm(self) -> None:
        self._fault.armed = 0


class Control:
    """A new page, or that at `path`. Give `env` to every process that shall use it."""

    def __init__(self, path: str | None = None) -> None:
        if path is None:
            fd, path = tempfile.mkstemp(prefix="control-", dir=folder())
            os.fchmod(fd, 0o666)  # also for executors, which are another user
            os.ftruncate(fd, PAGE_SIZE)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.path = path
        try:
            self._map = mmap.mmap(fd, PAGE_SIZE)
        finally:
            os.close(fd)
        self._page = _Page.from_buffer(self._map)

    @property
    def env(self) -> dict[str, str]:
        return {"KOPS_STANDIN_CONTROL": self.path, VARIABLE: str(folder())}

    def rows(self) -> Iterator[Row]:
        """Every process that called cuInit, also those that have ended."""
        return (Row(row) for row in self._page.rows if row.pid)

    def row(self, pid: int) -> Row:
        """The process's own: another program that it ran before, or an earlier process of that number, had others."""
        rows = [row for row in self.rows() if row.pid == pid]
        if not rows:
            raise KeyError(f"process {pid} has not called cuInit")
        return max(rows, key=lambda row: row.order)

    def total(self, counter: str) -> int:
        return sum(getattr(row, counter) for row in self.rows())

    def calls(self, function: str) -> int:
        return sum(row.calls(function) for row in self.rows())

    def waiting(self, gate: str) -> int:
        return sum(row.waiting(gate) for row in self.rows())

    def passed(self, gate: str) -> int:
        return sum(row.passed(gate) for row in self.rows())

    def misuses(self) -> list[str]:
        """The last misuse of each process that had one; a test ends with `assert not control.misuses()`."""
        return [f"{row.command}[{row.pid}] ×{row.misuse}: {row.last_misuse}" for row in self.rows() if row.misuse]

    def gate(self, name: str, pid: int = 0) -> Gate:
        """Closed for one process, or for all."""
        return Gate(self._page.gates[GATES.index(name)], pid)

    def fail(self, function: str, error: int, *, nth: int = 1, times: int = 1, sticky: bool = False, pid: int = 0) -> Fault:
        """Makes the nth next call of `function` (and the times - 1 after it) return `error`, a CUresult.

        "kernel" and "copy" stand for work on streams: fail("kernel", 700) makes the next kernel an illegal access,
        after which every call returns 700, as on a real device.
        """
        for fault in self._page.faults:
            if not fault.armed or (fault.pid and has_ended(fault.pid)):
                fault.function = function.encode()
                fault.countdown, fault.times, fault.error = nth, times, error
                fault.sticky, fault.pid = int(sticky), pid
                fault.armed = 1
                return Fault(fault)
        raise RuntimeError("every fault slot is armed")

    def set_channels(self, on: bool, entries: int = 0) -> None:
        """On: streams of a process share channels, as many as its CUDA_DEVICE_MAX_CONNECTIONS says (8).

        A wait that is not over holds what was queued behind it in its channel, also on other streams, and a call
        that queues work blocks while the channel has `entries` operations (0: 1024).
        """
        self._page.channel_entries = entries
        self._page.channels = int(on)

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Polls until the condition holds; the timeout only ends a test that has failed."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the stand-in driver did not get there")
            time.sleep(0.002)
