"""Running a solution in the interpreter, in a process of its own: one for each solution, so that its module state is new."""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from .. import KopsError
from .._companions import compiled_part, numpy
from ..interpret._compiler import compiler
from ._draws import Draw
from ._runner import Ran, Runner, Step
from ._solution import Plan, Solution
from ._values import Tensor, poison
from ._verdict import Fault, Stop, Worst
from ._worker import missing, receive, send

COMPILE_SECONDS = 700.0  # the compiler's own limit is 300 for each of two objects
SLACK = 10.0  # seconds that the interpreter may take before and after a launch, beyond the launch's deadline
TEXT_MAX, LOG_MAX = 8 << 10, 1 << 20  # most characters kept of a stranger's process's output
ENDING = 1.0  # seconds for a process to end after it has closed its pipe
# Variables of the environment that a stranger may see.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CXX", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE",
        "PYTHONPYCACHEPREFIX")
PACKAGE = Path(__file__).resolve().parents[2]


class HostRunner(Runner):
    """`deadline`: seconds for one launch."""

    how = "interpreter"
    device = "the interpreter"

    def __init__(self, solution: Solution, deadline: float, check: bool = True) -> None:
        super().__init__(solution)
        self.deadline = deadline
        try:
            compiler()
            native = compiled_part("it")
        except KopsError as error:
            raise Stop("no_verdict", f"the interpreter cannot work here: {error}") from None
        down, up = os.pipe(), os.pipe()
        path = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from kops.judge._worker import main; main()", str(down[0]), str(up[1])], pass_fds=(down[0], up[1]),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                env={**{name: os.environ[name] for name in KEPT if name in os.environ}, "PYTHONPATH": path, "KOPS_NATIVE": native.__file__},
            )  # fmt: skip
        finally:
            os.close(down[0])
            os.close(up[1])
        self._to: BinaryIO = os.fdopen(down[1], "wb")
        self._from: BinaryIO = os.fdopen(up[0], "rb", buffering=0)
        why_not = missing()
        if why_not:
            self.warnings = (f"the interpreter ran the solution without a sandbox, as this user's own program: {why_not}",)
        spec = {"source": solution.source, "options": list(solution.options), "entries": list(solution.entries), "check": check}
        self._begun = False
        try:
            self._send({**spec, "sandbox": not why_not}, {})
        except BaseException:
            self.close()
            raise

    def _send(self, header: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Sends a message. A process that does not read is ended."""
        watch = threading.Timer(self.deadline + SLACK, self._kill)
        watch.daemon = True
        watch.start()
        try:
            send(self._to, header, arrays)
        except OSError:
            raise self._ended() from None
        finally:
            watch.cancel()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)

    def _ended(self) -> Stop:
        """Its process is gone: that is the solution's doing, since nothing else runs there."""
        try:
            status = self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._kill()
            status = self._process.wait()
        why = f"signal {-status}" if status < 0 else f"status {status}"
        fault = Fault("", "the process ended", driver=why)
        return Stop("faulted", f"the solution ended the process that interprets it, by {why}", fault=fault)

    def run(self, plan: Plan, step: Step, seed: int) -> Ran:
        draw = step.draw
        poisons = _poisons(plan, seed)
        arrays = {name: tensor.data.copy() for name, tensor in draw.tensors.items()} | {name: one.copy() for name, one in poisons.items()}
        wanted = [area.name for area in plan.areas.values() if area.role != "scratch"]
        for one in plan.launches:
            if one.launch.cooperative and math.prod(one.grid) > 1:
                text = f"{one.launch.entry}: the interpreter runs cooperative kernels of one block only, a GPU could run it"
                raise Stop("no_verdict", text)
            mapped = [param.name for param in one.launch.params if param.map is not None]
            if mapped:  # checked before it is compiled, which may fail for the same reason
                text = f"{one.launch.entry}: {mapped[0]} is a tensor map, which the interpreter has not: a GPU could run it"
                raise Stop("no_verdict", text)
        launches = [
            {
                "entry": one.launch.entry, "params": [param.wire() for param in one.params],
                "arguments": [["area", a] if isinstance(a, str) else ["number", a] for a in one.arguments], "grid": one.grid,
                "block": one.block, "shared": one.shared, "cluster": one.cluster, "cooperative": one.launch.cooperative,
                "timeout": self.deadline,
            }
            for one in plan.launches
        ]  # fmt: skip
        bools = [area.name for area in plan.areas.values() if area.dtype == "bool"]
        if not self._begun:
            self._begin(draw)
        begun = time.monotonic()
        self._send({"launches": launches, "wanted": wanted, "bools": bools}, arrays)
        header, got = self._answer(begun + (self.deadline + SLACK) * len(launches), sum(plan.areas[n].nbytes for n in wanted))
        self._check(header, draw)
        for name in wanted:
            area = plan.areas[name]
            if name not in got or tuple(got[name].shape) != area.shape or got[name].dtype != arrays[name].dtype:
                raise _broken()
        outputs = {area.name: Tensor(area.dtype, got[area.name]) for area in plan.of("output")}
        return Ran(outputs, {name: got[name] for name in draw.tensors}, poisons)

    def _begin(self, draw: Draw) -> None:
        """Waits for the compiler, then for what the code does when it is loaded."""
        for seconds in (COMPILE_SECONDS, self.deadline + SLACK):
            header, _ = self._answer(time.monotonic() + seconds, 0)
            self._check(header, draw)
        self._begun = True

    def _check(self, header: Any, draw: Draw) -> None:
        """Raises what an answer says went wrong. The answer may be a stranger's: anything."""
        if not isinstance(header, dict):
            raise _broken()
        if "error" not in header:
            return
        try:
            stop = self._stopped(header["error"], draw)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            stop = _broken()
        raise stop

    def _answer(self, end: float, most: int) -> tuple[dict[str, Any], dict[str, Any]]:
        if not _readable(self._from, end):
            raise Stop("hangs", "the solution did not end in time in the interpreter")
        try:
            return receive(_Whole(self._from, end), most)  # type: ignore[arg-type]
        except EOFError:
            raise self._ended() from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, SyntaxError, OverflowError, MemoryError):
            raise _broken() from None

    def _stopped(self, error: dict[str, Any], draw: Draw) -> Stop:
        """The interpreter's error as the end of the judgement."""
        kind, text, kernel = (_said(error, name) for name in ("kind", "message", "kernel"))
        if kind == "compile":
            return Stop("not_compiled", text, log=_said(error, "log", LOG_MAX) or text)
        if kind in ("signature", "launch"):
            return Stop("refused", f"{kernel}: {text}")
        if kind == "unsupported":
            return Stop("no_verdict", f"the interpreter cannot run it, a GPU could: {text}")
        block, thread = _three(error.get("block")), _three(error.get("thread"))
        line = error.get("line")
        fault = Fault(kernel, text, kind, block, thread, line if _counts(line) else None)
        if kind == "timeout":
            return Stop("hangs", f"{kernel} did not end within {self.deadline:g} s in the interpreter", fault=fault)
        tensor = _said(error, "tensor")
        if kind == "read_only" and tensor in draw.tensors:
            at = error.get("index")
            shape = draw.tensors[tensor].shape
            inside = _counts(at) and at < draw.tensors[tensor].data.size
            index = tuple(int(i) for i in numpy.unravel_index(at, shape)) if inside and shape else ()
            worst = Worst("input_changed", tensor, index, case=str(draw.case), draw=draw.number)
            return Stop("wrong", f"{kernel} writes to the input {tensor}: {text}", worst=worst, fault=fault)
        return Stop("faulted", text, fault=fault)

    def close(self, lost: bool = False) -> None:
        for file in (self._to, self._from):
            with contextlib.suppress(OSError):
                file.close()
        self._kill()
        self._process.wait()


def _poisons(plan: Plan, seed: int) -> dict[str, Any]:
    rng = numpy.random.default_rng(seed)
    nan = bool(seed & 1)
    return {area.name: poison(area.dtype, area.shape, rng, nan) for area in plan.areas.values() if area.role != "input"}


def _readable(file: BinaryIO, end: float) -> bool:
    """Whether there is something to read, or the end, before a time."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(end - time.monotonic(), 0) * 1e3))


def _said(error: dict[str, Any], name: str, most: int = TEXT_MAX) -> str:
    """A text of a stranger's, if it is one, and no longer than that."""
    value = error.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(name)
    return (value or "")[:most]


def _counts(value: Any) -> bool:
    """Whether a value is a number that an index or a line can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _three(value: Any) -> tuple[int, int, int] | None:
    """A place in a grid or a block."""
    if not value:
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(map(_counts, value)):
        raise TypeError("no place")
    return value[0], value[1], value[2]


def _broken() -> Stop:
    return Stop("faulted", "the solution broke the process that interprets it", fault=Fault("", "the process answered nonsense"))


class _Whole:
    """Reads as many bytes as are asked for, until a time."""

    def __init__(self, file: BinaryIO, end: float) -> None:
        self._file, self._end = file, end

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not _readable(self._file, self._end):
                break
            part = self._file.read(min(count - len(data), 1 << 20))
            if not part:
                break
            data += part
        return bytes(data)
