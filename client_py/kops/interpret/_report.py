"""From what the runtime reports to an error that says who did what where."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence

from .._companions import DTYPES
from ._arguments import Arguments
from ._compiler import INCLUDE, SOURCE_ROOT
from ._elf import plain_name
from ._errors import KINDS, InterpretError
from ._runtime import Kernel, Region, Report

TENSOR, SHARED_STATIC, SHARED_DYNAMIC, LOCAL_ARRAY, OTHER_STACK, CODE = range(1, 7)
COPY = 4
_ACCESS = {-1: "access", 0: "read", 1: "write", 2: "atomic access", 3: "atomic access", COPY: "asynchronous copy"}


def addresses(path: str, offset: int) -> str:
    """A tool's answer for an offset in an object: a line for each function that was inlined there. Empty without such a tool."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if not tool:
        return ""
    try:
        return subprocess.run([tool, "-i", "-e", path, hex(offset)], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


teller: Callable[[str, int], str] = addresses  # another one where this process can start no program


def _source_line(kernel: Kernel, offset: int) -> tuple[str, int] | None:
    """File and line of the kernel's source for what is at `offset` in its object; None if no tool here tells."""
    for line in teller(str(kernel.path), offset).splitlines() if offset >= 0 else ():
        file, _, number = line.partition(" (")[0].rpartition(":")
        if file.startswith(SOURCE_ROOT) and number.isdigit() and int(number):
            return file[len(SOURCE_ROOT) :], int(number)
    return None


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


def _text(triple: tuple[int, int, int]) -> str:
    return f"({triple[0]},{triple[1]},{triple[2]})"


def _at(place: tuple[str, int] | None) -> str:
    return f", {place[0]}:{place[1]}" if place else ""


_TOO_LARGE = "index that 32 bits could not hold: compute it in long long"


class _Story:
    """Collects the parts of one error."""

    def __init__(self, report: Report, kernel: Kernel, arguments: Arguments, regions: Sequence[Region]) -> None:
        self.report, self.kernel, self.arguments, self.regions = report, kernel, arguments, regions
        self.kind = KINDS[report.kind]
        self.place = self._place(report.file, report.line, report.pc)
        self.other_place = self._place(report.other_file, report.other_line, report.other_pc)
        self.tensor: str | None = None
        self.index: int | None = None

    def _place(self, file: bytes, line: int, counter: int) -> tuple[str, int] | None:
        name = file.decode(errors="replace")
        if not line or name.startswith(str(INCLUDE)):
            return _source_line(self.kernel, counter - 1 - self.report.image)  # counters are behind the instruction
        name = name[len(SOURCE_ROOT) :] if name.startswith(SOURCE_ROOT) else name
        return name.removeprefix("files/"), line

    def in_tensor(self) -> str:
        report = self.report
        region = self.regions[report.region]
        named = [t for t in self.arguments.tensors if t.start == region.start]
        tensor = next((t for t in named if t.parameter.kind == "in"), named[0]) if self.kind == "read_only" else named[0]
        self.tensor = tensor.parameter.name
        size = tensor.itemsize
        self.index = (report.address - tensor.pointer) // size
        count = tensor.size // size
        text = f"{_ACCESS[report.access]} of {self.tensor}[{self.index}]"
        if report.size > size:
            text += f" to [{self.index + report.size // size - 1}]"
        if self.kind == "read_only":
            return f"{text}, which is declared as in"
        return f"{text}, {self.tensor} has {count} element{'s' if count != 1 else ''}{self.overflowed(self.index, count)}"

    def overflowed(self, index: int, count: int) -> str:
        """Where an index comes of an integer that did not fit, or looks like that: what happened."""
        near = max(count, 1 << 16)
        if self.report.overflow and abs(index - self.report.wrapped) <= near:
            return f"; the index comes of {self.report.overflow.decode(errors='replace')}: compute it in long long"
        if self.report.overflow or not (index < -(1 << 30) or index >= 1 << 29):
            return ""
        return f"; an index so far off is often an {_TOO_LARGE}"

    def in_shared(self) -> str:
        report = self.report
        offset = report.address
        if report.where == SHARED_DYNAMIC:
            self.tensor, self.index = "dynamic shared memory", offset
            return f"{_ACCESS[report.access]} of byte {offset} of dynamic shared memory"
        for start, size, mangled in self.kernel.shared:
            if start <= offset < start + size:
                name = plain_name(mangled)
                self.tensor, self.index = name, offset - start
                return f"{_ACCESS[report.access]} of {name} (shared, byte {offset - start} of {size})"
        return f"{_ACCESS[report.access]} of byte {offset} of static shared memory"

    def elsewhere(self) -> str:
        report = self.report
        access = _ACCESS[report.access]
        if report.where == OTHER_STACK:
            return f"{access} of a local variable of thread {_text(_triple(report.other))}"
        if report.address < 1 << 32 and self.arguments.missing:
            parameter = self.arguments.missing[0]
            self.tensor, self.index = parameter.name, report.address // DTYPES[parameter.dtype]
            return f"{access} through the null pointer {parameter.name}"
        if report.address < 4096:
            return f"{access} through a null pointer"
        for tensor in self.arguments.tensors if report.overflow else ():
            index, count = (report.address - tensor.pointer) // tensor.itemsize, tensor.size // tensor.itemsize
            if said := self.overflowed(index, count):
                self.kind, self.tensor, self.index = "out_of_bounds", tensor.parameter.name, index
                return f"{access} of {self.tensor}[{index}], {self.tensor} has {count} element{'s' if count != 1 else ''}{said}"
        far = any(abs(report.address - tensor.pointer) >> 32 < 2 * tensor.itemsize for tensor in self.arguments.tensors)
        hint = f"; an address so far off is often that of an {_TOO_LARGE}" if far else ""
        return f"{access} of {report.size or 'some'} bytes at 0x{report.address:x}, which is no memory of the kernel{hint}"

    def what(self, launch_shared: int) -> str:
        report = self.report
        text: str = report.text.decode(errors="replace")
        if text:
            if report.where == LOCAL_ARRAY:
                self.index = ctypes.c_int64(report.address).value
            return text
        if self.kind in ("timeout", "division_by_zero", "trap", "stack_overflow"):
            return {
                "timeout": "the kernel ran longer than the time limit",
                "division_by_zero": "an integer is divided by zero",
                "trap": "the kernel stopped itself",
                "stack_overflow": "the thread's local variables exceed its stack",
            }[self.kind]
        if self.kind == "misaligned":
            return f"{_ACCESS[report.access]} of {report.size} bytes at an address that is no multiple of {report.size}"
        if report.where == TENSOR:
            return self.in_tensor()
        if report.where in (SHARED_STATIC, SHARED_DYNAMIC):
            what = self.in_shared()
            if self.kind == "out_of_bounds":
                return f"{what}, the launch has {launch_shared if report.where == SHARED_DYNAMIC else self.kernel.static_bytes}"
            if self.kind == "uninitialised":
                return f"{what}, which no thread of the block has written"
            return what
        return self.elsewhere()

    def error(self, launch_shared: int) -> InterpretError:
        report = self.report
        what = self.what(launch_shared)
        block = _triple(report.block)
        thread = _triple(report.thread) if report.has_thread else None
        other = _triple(report.other) if report.has_other else None
        who = f"block {_text(block)}" + (f" thread {_text(thread)}" if thread else "")
        if self.kind == "assertion":
            what = f"assertion failed: {what}"
        message = f"{who}: {what}{_at(self.place)}"
        if self.kind == "race" and other:
            seconds = f"{_ACCESS[report.other_access]} by thread {_text(other)}{_at(self.other_place)}"
            order = "but nothing has waited for" if report.other_access == COPY else "not ordered after"
            message = f"{who}: race: {what}{_at(self.place)}, {order} the {seconds}"
        elif self.other_place and other:
            message += f" (thread {_text(other)}{_at(self.other_place)})"
        file, line = self.place or (None, None)
        return InterpretError(
            message, self.kind, block=block, thread=thread, other=other, tensor=self.tensor, index=self.index, file=file, line=line,
            other_line=self.other_place[1] if self.other_place else None,
        )  # fmt: skip


def error_of(report: Report, kernel: Kernel, arguments: Arguments, regions: Sequence[Region], shared: int) -> InterpretError:
    """The error for what the runtime reports."""
    return _Story(report, kernel, arguments, regions).error(shared)
