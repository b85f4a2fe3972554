"""Several ops in one request: recorders; sequences, sent each time; and programs, which the daemon keeps, defined once and run by id.

A recorder has every op as a method. Calling one runs nothing: it allocates the output and notes the step, so that
later steps can take it as an input. An array in ordinary memory is copied into shared memory when its step is noted,
and an output back when the sequence has run; a program, which runs again and again, refuses such arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack

from .._base.errors import BadArgument, DtypeMismatch, ShapeMismatch, WrongType
from .._base.results import Timing, Timings
from .._base.twins import DEFAULT_TIMEOUT
from .._memory.pool import Remote, release
from .._session.link import Call, Link
from .._session.recovery import KERNEL_HAZARD, LOSSES
from .._source.geometry import NAMES
from .._tensors.adapters import adapter_of, array, inputs
from .._tensors.operands import Operand, Operands, extent, overlap, renew, widened
from . import plans
from .contexts import checked_place
from .launch import Launch, Launchable, Recordable
from .ops import OpMethods, check_attrs


def identity(operand: Operand) -> tuple[Any, ...]:
    """Its memory, which may get another address, and how that is seen."""
    source, strides = operand.source, operand.strides
    seen = operand.dtype, tuple(operand.shape), None if strides is None else tuple(strides)
    return (None if source is None else id(source), operand.offset, *seen)


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
        self._promise: Any = None  # promise of the arrays that recorded calls return, see _recorded
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
        from .._tensors.numpy import Promise, promised

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

    def params(self, key: int) -> dict[str, Any]:
        """`tensors` and `ops` on the connection of that key. Raises Unknown."""
        if not self._steps:
            raise BadArgument(f"this {self.name} has no op")
        tensors = [operand.wire(key) for operand in self._tensors]
        if not self._kernels:
            return {"tensors": tensors, "ops": self._steps}
        return {"tensors": tensors, "ops": [{**s, "kernel": s["kernel"].at(key)} if "kernel" in s else s for s in self._steps]}

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

    def params(self, key: int) -> dict[str, Any]:
        return {**super().params(key), **self._wire}

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


class _NothingStaged(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise BadArgument(
            "a program works on memory that the daemon sees: make this array with k.array(), k.empty() or k.zeros()"
        )


class ProgramRun:
    """One run of a program, with other memory for some of its tensors."""

    method = "run_program"
    result = None

    def __init__(self, program: BaseProgram, bind: Any, options: dict[str, Any]) -> None:
        self.program = program
        self.names = program.names
        self.options = options
        self.operands = Operands()
        self.operands.keep.append(program)
        self.operands.waits.update(program.operands.waits)
        self.bound: list[tuple[int, Operand]] = []
        for recorded, value in bind.items() if isinstance(bind, Mapping) else bind or ():
            self._bind(recorded, value)

    def _bind(self, recorded: Any, value: Any) -> None:
        self.operands.staged = _NothingStaged()
        operand = adapter_of(value).operand(value, self.operands, output=False)
        for index, (row, column) in self.program.places_of(recorded):
            self._bind_at(index, widened(operand, row, column))

    def _bind_at(self, index: int, operand: Operand) -> None:
        wanted_dtype, wanted_shape, wanted_strides = identity(self.program._tensors[index])[2:]
        dtype, shape, strides = identity(operand)[2:]
        if dtype != wanted_dtype:
            raise DtypeMismatch(f"bind: the program has {wanted_dtype} here, not {dtype}")
        if shape != wanted_shape or strides != wanted_strides:
            raise ShapeMismatch(
                f"bind: the program has shape {wanted_shape} and strides {wanted_strides or 'row-major'} here, not "
                f"{shape} and {strides or 'row-major'}"
            )
        if operand.source is not None:
            self.bound.append((index, operand))

    def params(self, key: int) -> dict[str, Any]:
        params: dict[str, Any] = {"program": self.program.at(key)}
        if self.bound:
            params["bind"] = [
                {"index": index, "buffer": operand.source.at(key), "offset": operand.offset}
                for index, operand in self.bound if operand.source is not None
            ]  # fmt: skip
        return {**params, **self.options}

    @property
    def hazard(self) -> str | None:
        bound = dict(self.bound)
        return self.program.hazard_of([bound.get(i, operand) for i, operand in enumerate(self.program._tensors)])

    def renew(self, key: int) -> None:
        self.program.renew(key)
        for _, operand in self.bound:
            renew(operand)


class BaseProgram(Recorder, Remote):
    """Ops that the daemon keeps, and runs when `run` says so. Their outputs are in the arrays that recording made.

    The program keeps its arrays alive. After a lost connection it is defined anew at its next run. `release()`, or
    the last reference's end, lets the daemon forget it.
    """

    name = what = "program"

    def __init__(self, client: Any, device: Any) -> None:
        super().__init__()
        self.operands.staged = _NothingStaged()
        self.ids: dict[int, int] = {}  # by the connection's key
        self._packed: tuple[int, bytes] | None = None  # the last id, and a request to run it
        self._keeps = [self.operands.keep]  # references that a run keeps until its reply
        self._client = client
        self._device = device

    def _record(self, op: str, values: tuple[Any, ...], out: Any, attrs: dict[str, Any]) -> Any:
        return super()._record(op, tuple(self._constants(values)), out, attrs)

    def _constants(self, values: tuple[Any, ...]) -> list[Any]:
        """Lists as arrays in shared memory."""
        adapters = [adapter_of(value) for value in values]
        lists = [adapter.plain and not adapter.number for adapter in adapters]
        if not any(lists):
            return list(values)
        scratch = Operands()
        typed = [v for v, adapter in zip(values, adapters, strict=True) if not adapter.plain]
        dtype = inputs(typed[:1], scratch)[0].dtype if typed else None
        return [array(v, dtype) if is_list else v for v, is_list in zip(values, lists, strict=True)]

    def places_of(self, recorded: Any) -> list[tuple[int, tuple[bool, bool]]]:
        """The tensors that an array stands for in this program: itself, and what it is as a row, a column or both. Raises
        BadArgument when it is none of the program's."""
        scratch = Operands()
        operand = adapter_of(recorded).operand(recorded, scratch)
        forms = [(False, False), (True, True)] if not operand.shape else [(False, False), (True, False), (False, True)]
        found = [(self._index.get(identity(widened(operand, *form))), form) for form in forms]
        places = [(index, form) for index, form in found if index is not None]
        if not places:
            raise BadArgument("bind: this array is no operand of the program")
        return places

    def define(self, connection: Link) -> plans.Plan:
        """Makes the program known to the daemon."""
        connection.need("program")
        self._closed = True
        body = yield from plans.known(connection, self.params)
        if self._device is not None:
            body["device"] = plans.device_ref(self._device)
        reply = yield Call("program", body, (), self.operands.keep, "program")
        return self.know(connection, reply["program"])

    def renew(self, key: int) -> None:
        super().renew(key)
        release(self)

    def release(self) -> None:
        """The daemon forgets the program. Runs that were sent still finish. Idempotent; a later run defines it anew."""
        release(self)

    def __del__(self) -> None:
        release(self)

    def __repr__(self) -> str:
        state = "has run" if self._has_run else "defined" if self.ids else "complete" if self._closed else "recording"
        return f"<kops.{type(self).__name__} {', '.join(self._ops) or 'of no op'}: {state}>"

    def _prepared(
        self, connection: Link, bind: Any, stream: int, timing: Timing, deadline_ms: int | None, priority: str | None,
        warmup: int, repeat: int, exclusive: bool,
    ) -> ProgramRun:  # fmt: skip
        connection.need("program")
        self._closed = True
        options = plans.options_of(connection, None, stream, timing, deadline_ms, priority, warmup, repeat, exclusive)
        return ProgramRun(self, bind, options)


class Program(BaseProgram):
    """See `Client.program`."""

    def __enter__(self) -> Program:
        self._client._scope_begin(self)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client._scope_end(self)
        if kind is None:
            self._client._define(self)

    def run(
        self,
        bind: Any = None,
        *,
        stream: int = 0,
        timing: Timing = False,
        warmup: int = 0,
        repeat: int = 1,
        deadline_ms: int | None = None,
        priority: str | None = None,
        blocking: bool | None = None,
        exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Timings | None:
        """Runs the program on the arrays that it was recorded with; the outputs are then in those that recording
        returned. `bind` names other arrays for this run: a mapping, or pairs, of a recorded array and another one of
        the same shape, strides and dtype. `repeat` with `timing` measures. The other options are those of an op; on
        torch CUDA tensors a run is ordered as an op is. `exclusive`: as in a kernel's call. Returns the Timings with `timing=True`."""
        client = self._client
        link = client._live()
        plain = not (bind or stream or timing or warmup or repeat != 1 or deadline_ms or priority or exclusive)
        failed = None
        try:
            if plain and (client.blocking if blocking is None else blocking) and self._run_again(link, timeout):
                self._ran()
                return None
        except LOSSES as error:
            failed = error
        run = self._prepared(link, bind, stream, timing, deadline_ms, priority, warmup, repeat, exclusive)
        answer = client._carry(link, run, timing, stream, plans.blocking_of(exclusive, blocking), timeout, failed)
        self._ran()
        return answer[1] if timing else None

    def _run_again(self, link: Any, timeout: Any) -> bool:
        """The short way of a blocking run without options: the request is packed once, and a usual reply not unpacked.
        False: nothing ran, and run() goes the long way."""
        program = self.ids.get(link.key)
        repeat = getattr(link, "repeat", None)
        client = self._client
        if program is None or repeat is None or self.operands.copies or client._batches:
            return False
        if self._packed is None or self._packed[0] != program:
            self._packed = program, msgpack.packb({"program": program, "timing": False})
        for wait in self.operands.waits.values():
            wait()
        seconds = client._timeout_of(timeout)
        return bool(repeat("run_program", self._packed[1], seconds, self._keeps))


class AsyncProgram(BaseProgram):
    """See `AsyncClient.program`."""

    async def __aenter__(self) -> AsyncProgram:
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            await self._client._define(self)

    async def run(
        self,
        bind: Any = None,
        *,
        stream: int = 0,
        timing: Timing = False,
        warmup: int = 0,
        repeat: int = 1,
        deadline_ms: int | None = None,
        priority: str | None = None,
        exclusive: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Timings | None:
        """As `Program.run`; returns when the outputs are ready."""
        client = self._client
        connection = await client._live()
        run = self._prepared(connection, bind, stream, timing, deadline_ms, priority, warmup, repeat, exclusive)
        answer = await client._drive(connection, lambda link: plans.run(link, run, timing), timeout, lambda: run.hazard)
        self._ran()
        return answer[1] if timing else None
