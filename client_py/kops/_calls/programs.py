"""Programs: sequences that the daemon keeps, defined once and run by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from .._base.errors import BadArgument, DtypeMismatch, ShapeMismatch
from .._base.results import Timing, Timings
from .._base.timeouts import DEFAULT_TIMEOUT
from .._memory.pool import garbage, prune
from .._session.link import Call, Link
from .._session.recovery import LOSSES
from .._tensors.adapters import adapter_of, inputs
from .._tensors.operands import Operand, Operands, renew, widened
from . import plans
from .recording import Recorder, identity, layout


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
        wanted = self.program._tensors[index]
        (shape, strides, dtype), (wanted_shape, wanted_strides, wanted_dtype) = layout(operand), layout(wanted)
        if dtype != wanted_dtype:
            raise DtypeMismatch(f"bind: the program has {wanted_dtype} here, not {dtype}")
        if shape != wanted_shape or strides != wanted_strides:
            raise ShapeMismatch(
                f"bind: the program has shape {wanted_shape} and strides {wanted_strides or 'row-major'} here, not "
                f"{shape} and {strides or 'row-major'}"
            )
        if operand.source is not None:
            self.bound.append((index, operand))

    def params(self, key: int) -> tuple[dict[str, Any], Any]:
        program = self.program.ids.get(key)
        if program is None:
            return {}, self.program
        params: dict[str, Any] = {"program": program}
        if self.bound:
            bind = []
            for index, operand in self.bound:
                assert operand.source is not None
                buffer = operand.source.ids.get(key)
                if buffer is None:
                    return {}, operand.source
                bind.append({"index": index, "buffer": buffer, "offset": operand.offset})
            params["bind"] = bind
        return {**params, **self.options}, None

    @property
    def hazard(self) -> str | None:
        bound = dict(self.bound)
        return self.program.hazard_of([bound.get(i, operand) for i, operand in enumerate(self.program._tensors)])

    def renew(self, key: int) -> None:
        self.program.renew(key)
        for _, operand in self.bound:
            renew(operand)


class BaseProgram(Recorder):
    """Ops that the daemon keeps, and runs when `run` says so. Their outputs are in the arrays that recording made.

    The program keeps its arrays alive. After a lost connection it is defined anew at its next run. `release()`, or
    the last reference's end, lets the daemon forget it.
    """

    name = "program"

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
        from .._tensors import arrays

        scratch = Operands()
        typed = [v for v, adapter in zip(values, adapters, strict=True) if not adapter.plain]
        dtype = inputs(typed[:1], scratch)[0].dtype if typed else None
        return [arrays.array(v, dtype) if is_list else v for v, is_list in zip(values, lists, strict=True)]

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
        while True:
            body, unknown = self.body(connection.key)
            if unknown is None:
                break
            yield from plans.make_known(connection, unknown)
        if self._device is not None:
            body["device"] = plans.device_ref(self._device)
        reply = yield Call("program", body, (), self.operands.keep, _undo_program)
        known = self.ids.setdefault(connection.key, reply["program"])
        prune(self.ids)
        if known != reply["program"]:
            connection.garbage.append(("program", reply["program"]))
        return known

    def renew(self, key: int) -> None:
        super().renew(key)
        self._forget(key)

    def release(self) -> None:
        """The daemon forgets the program. Runs that were sent still finish. Idempotent; a later run defines it anew."""
        for key in list(self.ids):
            self._forget(key)

    def _forget(self, key: int) -> None:
        program = self.ids.pop(key, None)
        connection = garbage.get(key)
        if program is not None and connection is not None:
            connection.garbage.append(("program", program))

    def __del__(self) -> None:
        if self.__dict__.get("ids"):
            self.release()

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


def _undo_program(reply: Any) -> tuple[str, dict[str, Any]]:
    return "release", {"program": reply["program"]}


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
