"""Several ops in one request: recorders, and sequences, which are sent each time. Programs are in `programs`.

A recorder has every op as a method. Calling one runs nothing: it allocates the output and notes the step, so that
later steps can take it as an input. An array in ordinary memory is copied into shared memory when its step is noted,
and an output back when the sequence has run; a program, which runs again and again, refuses such arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .._base.errors import BadArgument, WrongType
from .._base.results import Timing, Timings
from .._session.link import Link
from .._session.recovery import KERNEL_HAZARD
from .._source.geometry import NAMES
from .._tensors.operands import Operand, Operands, extent, overlap, renew
from . import plans
from .contexts import checked_place
from .launch import Launch
from .launchable import Launchable, Recordable
from .ops import OpMethods, check_attrs


def layout(operand: Operand) -> tuple[Any, ...]:
    strides = operand.strides
    return tuple(operand.shape), None if strides is None else tuple(strides), operand.dtype


def identity(operand: Operand) -> tuple[Any, ...]:
    return (id(operand.source) if operand.source is not None else None, operand.offset, *layout(operand))


class Recorder(OpMethods):
    """Steps and the tensors that they name."""

    method = "sequence"
    name = "sequence"

    def __init__(self) -> None:
        self.operands = Operands()
        self.results: list[Any] = []
        self._tensors: list[Operand] = []
        self._index: dict[Any, int] = {}
        self._steps: list[dict[str, Any]] = []
        self._ops: list[str] = []  # for messages
        self._reads: list[str] = []  # ops that read their output
        self._kernels = False  # some steps launch a kernel
        self._closed = False
        self._guarded = True
        self._promise: Any = None  # of the arrays that recorded calls return, see _recorded
        self._has_run = False

    def __len__(self) -> int:
        """How many ops were recorded."""
        return len(self._steps)

    def run_op(self, op: str, *values: Any, out: Any = None, variant: str | None = None, **attrs: Any) -> Any:
        """Records an op by name, as its method does."""
        attrs = check_attrs(op, attrs, variant)
        return self._record(op, values, out, attrs)

    def _op(
        self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any], device: Any, stream: int, timing: Timing,
        deadline_ms: int | None, priority: str | None, blocking: bool | None, timeout: Any, where: str | None = None,
    ) -> Any:  # fmt: skip
        """An op method was called."""
        if where is not None and checked_place(where) == "here":
            raise BadArgument(f"{op} is being recorded for the daemon, and a launch here is not part of that: leave out where=")
        if timing or stream or device is not None or deadline_ms is not None or priority is not None or blocking is not None:
            raise BadArgument(f"{op} is being recorded: timing, device and the like belong to the whole {self.name}")
        return self._record(op, values, out, attrs)

    def _record(self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any]) -> Any:
        self._open()
        self.note(plans.Request(op, values, out, attrs, {}, self.operands))
        if out is None and self._guarded and "numpy" in sys.modules:
            self._guard()
        return self.results[-1]

    def _guard(self) -> None:
        """Makes reading the last step's output an error until the steps have run."""
        from .recorded import Promise, promised

        if self._promise is None:
            self._promise = Promise(self.name)
        self.results[-1] = promised(self.results[-1], self._promise)

    def _ran(self) -> None:
        """The outputs of recorded calls can be read."""
        self._has_run = True
        if self._promise is not None:
            self._promise.kept = True

    def launch(
        self, kernel: Any, *arguments: Any, grid: Any = None, block: Any = None, shared: Any = None, cluster: Any = None, **named: Any
    ) -> Any:  # fmt: skip
        """Records a launch of a kernel, with the arguments of a call. Returns its `out` arguments."""
        self._open()
        if isinstance(kernel, Recordable):
            return kernel._record(self, arguments, named)
        arguments = kernel._positional(arguments, named)
        geometry = kernel._geometry.of_call(arguments, {"grid": grid, "block": block, "shared": shared, "cluster": cluster})
        self.note(Launch(kernel, arguments, geometry, {}, self.operands))
        return self.results[-1]

    def guarded(self, made: Any) -> Any:
        """New arrays that a recorded launch writes."""
        self.results[-1] = made
        if self._guarded and "numpy" in sys.modules:
            self._guard()
        return self.results[-1]

    def refuse(self, name: str, options: Mapping[str, Any]) -> None:
        """Raises where a recorded call has options that belong to the whole."""
        given = [key for key, value in options.items() if value not in (None, False, 0) and key not in NAMES]
        if given:
            raise BadArgument(f"{name} is being recorded: {', '.join(given)} and the like belong to the whole {self.name}")

    def _open(self) -> None:
        if self._closed:
            raise BadArgument(f"this {self.name} is complete: record another one")

    def note(self, request: plans.Request | Launch) -> None:
        """Notes a step whose operands were made with those of this recorder, or are taken over from it."""
        self._steps.append(request.step(self._of))
        self._ops.append(request.op)
        if isinstance(request, Launch):
            self._kernels = True
        elif request.rule.reads_out(request.attrs):
            self._reads.append(request.op)
        self.results.append(request.result)

    def _of(self, operand: Operand) -> int:
        """The operand's place among the tensors; the same memory seen in the same way is one tensor."""
        key = identity(operand)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self._tensors)
            self._tensors.append(operand)
        return found

    def body(self, key: int) -> tuple[dict[str, Any], Any]:
        """`tensors` and `ops` on the connection of that key, or the memory or kernel to make known first."""
        if not self._steps:
            raise BadArgument(f"this {self.name} has no op")
        tensors = []
        for operand in self._tensors:
            buffer = None
            if operand.source is not None:
                buffer = operand.source.ids.get(key)
                if buffer is None:
                    return {}, operand.source
            tensors.append(operand.wire(buffer))
        if not self._kernels:
            return {"tensors": tensors, "ops": self._steps}, None
        steps = []
        for step in self._steps:
            kernel = step.get("kernel")
            if kernel is not None:
                known = kernel.ids.get(key)
                if known is None:
                    return {}, kernel
                step = {**step, "kernel": known}
            steps.append(step)
        return {"tensors": tensors, "ops": steps}, None

    def params(self, key: int) -> tuple[dict[str, Any], Any]:
        return self.body(key)

    def renew(self, key: int) -> None:
        for operand in self._tensors:
            renew(operand)
        self._index = {identity(operand): i for i, operand in enumerate(self._tensors)}

    @property
    def hazard(self) -> str | None:
        return self.hazard_of(self._tensors)

    def hazard_of(self, tensors: list[Operand]) -> str | None:
        """Why these steps must not run twice on these tensors: a second run must find the inputs of the
        first. An input that an earlier step has written does not count: it is written again before."""
        if self._kernels:
            return KERNEL_HAZARD
        if self._reads:
            return f"{self._reads[0]} in it reads its output"
        extents = [extent(operand) for operand in tensors]
        made: set[int] = set()
        found: list[int] = []
        for step in self._steps:
            found += (i for i in step["in"] if i not in made)
            made.update(step["out"])
        if any(overlap(extents[i], extents[o]) for i in found for o in made):
            return "it writes to memory that it has read before"
        return None

    @property
    def result(self) -> Any:
        return self.results

    @property
    def names(self) -> tuple[str, ...]:
        """The ops, for messages."""
        return tuple(self._ops)


def record(recorder: Recorder, steps: Iterable[Any]) -> None:
    """Notes steps of the form `(op, *inputs)` or `(op, *inputs, {keyword: value})`; a kernel may be in the op's place."""
    recorder._guarded = False  # the caller gets the results when they are written
    for step in steps:
        if not isinstance(step, (tuple, list)) or not step or not isinstance(step[0], (str, Launchable, Recordable)):
            raise WrongType(f"a step is (op, *inputs) or (op, *inputs, {{keyword: value}}), not {step!r:.80}")
        keywords = step[-1] if isinstance(step[-1], Mapping) else None
        note = recorder.run_op if isinstance(step[0], str) else recorder.launch
        note(*(step[:-1] if keywords is not None else step), **(keywords or {}))


class BaseSequence(Recorder):
    """Ops that go to the daemon together. `results` has one entry an op, `timings` those of the whole when they were
    asked for."""

    def __init__(self, client: Any, device: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.timings: Timings | None = None
        self._client = client
        self._device = device
        self._run_options = options
        self._wire: dict[str, Any] = {}

    def prepared(self, connection: Link) -> BaseSequence:
        """Ready to be sent on this connection."""
        connection.need("sequence")
        self._closed = True
        options = self._run_options
        names = ("stream", "timing", "deadline_ms", "priority", "warmup", "repeat", "exclusive")
        self._wire = plans.options_of(connection, self._device, **{name: options[name] for name in names})
        return self

    def params(self, key: int) -> tuple[dict[str, Any], Any]:
        body, unknown = self.body(key)
        return {**body, **self._wire}, unknown

    def took(self, answer: Any) -> Any:
        """The caller's result, from the plan's."""
        self._ran()
        if self._run_options["timing"]:
            self.timings = answer[1]
        return answer


    def __repr__(self) -> str:
        state = "has run" if self._has_run else "sent" if self._closed else "recording"
        return f"<kops.{type(self).__name__} {', '.join(self._ops) or 'of no op'}: {state}>"


class Sequence(BaseSequence):
    """See `Client.sequence`."""

    def __enter__(self) -> Sequence:
        self._client._scope_begin(self)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client._scope_end(self)
        if kind is None and len(self):
            self._client._run_sequence(self)


class AsyncSequence(BaseSequence):
    """See `AsyncClient.sequence`."""

    async def __aenter__(self) -> AsyncSequence:
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        if kind is None and len(self):
            await self._client._run_sequence(self)
