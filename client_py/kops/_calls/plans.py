"""Plans: a client method as a generator that yields requests and is sent their results. No waiting, no I/O.

The synchronous client drives a plan by blocking, the asyncio client by awaiting, `submit` by stopping at the last
request. An error reply is thrown into the plan.

Memory is made known to the daemon where a request first names it: this process's is registered, that of GPUs is made by the daemon.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from .._base.declarations import OPS
from .._base.errors import (
    BadArgument,
    BadReply,
    BufferLost,
    DeviceMismatch,
    InvalidFd,
    InvalidHandle,
    OutOfMemory,
    QuotaExceeded,
    ShapeMismatch,
    StaleBuffer,
    UnknownDevice,
    UnknownOp,
    Unsupported,
    WrongType,
)
from .._base.records import Device
from .._base.results import Timing, Timings
from .._base.stats import Stats
from .._memory import device_pool
from .._memory.device_pool import DeviceSegment
from .._memory.exports import allocations
from .._memory.pool import Source, Unknown, pool
from .._session.link import Call, Link
from .._tensors.adapters import adapter_of, inputs
from .._tensors.device_array import Array, NumberSource, dtype_name, find_device, new_guarded
from .._tensors.operands import Operand, Operands, as_dtype, check_devices, check_dtypes, extent, overlap, renew, widened
from . import rules

Plan: TypeAlias = Generator[Call, Any, Any]

REFUSALS = (InvalidFd, InvalidHandle, UnknownDevice, DeviceMismatch, Unsupported)


def make_known(connection: Link, unknown: Any) -> Plan:
    """Memory is registered or made, programs and kernels define themselves."""
    if isinstance(unknown, NumberSource):
        yield from _write_number(connection, unknown)
    elif isinstance(unknown, Source):
        yield from register(connection, unknown)
    else:
        yield from unknown.define(connection)


def make_array(connection: Link, array: Array) -> Plan:
    """Has the memory of a new array be there."""
    source = None if array._block is None else array._block.segment
    while isinstance(source, DeviceSegment) and source.fd < 0:
        yield from register(connection, source)


def make_guarded(connection: Link, device: Any, shape: Any, dtype: Any, at_end: bool, client: Any) -> Plan:
    """An array in memory of its own that ends, or begins, where the memory does."""
    found, name = find_device(client.devices, device), dtype_name(dtype)
    connection.need("guards")
    made = new_guarded(client, found, shape, name)
    yield from make_array(connection, made)
    if at_end and made._block is not None:
        made._start = made._block.segment.size - made.nbytes
    return made


def register(connection: Link, source: Source) -> Plan:
    """Makes memory known to the daemon. Raises BufferLost where an earlier connection had it and this daemon refuses it."""
    try:
        if isinstance(source, DeviceSegment) and source.fd < 0:
            yield from _alloc(connection, source)
        else:
            yield from _register(connection, source)
    except REFUSALS as error:
        if not connection.earlier.intersection(source.ids):
            raise
        raise BufferLost(
            f"memory that the daemon had before it was replaced is refused by the one that serves now: {error.message}. Its "
            "contents are still in this process: copy it to where this daemon can use it (k.devices says what it has)",
            {**error.detail, "refusal": error.code},
        ) from error


def _register(connection: Link, source: Source) -> Plan:
    if source.feature is not None:
        connection.need(source.feature)
    buffer = 0
    with contextlib.closing(source.registrations()) as messages:
        for params, fds in messages:
            if not buffer:
                reply = yield Call("register", params, fds, source, "buffer")
                buffer = reply["buffer"]
                continue
            try:
                yield Call("register", {**params, "extend": buffer}, fds, source)
            except BaseException:
                connection.garbage.append(("buffer", buffer))
                raise
    source.know(connection, buffer)
    connection.remember(source)


def _alloc(connection: Link, segment: DeviceSegment) -> Plan:
    """Has the daemon make a segment's memory. Where there is none left, what this process keeps for reuse is given back first."""
    params = {"size": segment.size, "device": segment.device}
    try:
        reply = yield Call("alloc", params, (), segment, "buffer")
    except (OutOfMemory, QuotaExceeded):
        if not segment.pool.trim():
            raise
        yield Call("trim", {})  # the reply means that the daemon has let go of it, too
        reply = yield Call("alloc", params, (), segment, "buffer")
    if reply["kind"] != "cuda_vmm" or reply["size"] < segment.size:
        connection.garbage.append(("buffer", reply["buffer"]))
        raise BadReply(f"the daemon gave {reply['size']} bytes of {reply['kind']} for {segment.size} on the GPU {segment.device}")
    if segment.adopt(reply["fds"]):
        segment.made(reply["size"])
        segment.know(connection, reply["buffer"])
    else:
        connection.garbage.append(("buffer", reply["buffer"]))  # another thread was faster


def _write_number(connection: Link, number: NumberSource) -> Plan:
    """Writes a number to its place on the GPU, once."""
    segment, stage = number.block.segment, number.stage
    while connection.key not in segment.ids:
        yield from register(connection, segment)
    if stage is not None:
        while connection.key not in stage.segment.ids:
            yield from register(connection, stage.segment)
        tensor = {"shape": (), "dtype": number.dtype}
        given = {**tensor, "buffer": stage.segment.ids[connection.key], "offset": stage.offset}
        made = {**tensor, "buffer": segment.ids[connection.key], "offset": number.block.offset}
        yield Call("run", {"op": "copy", "in": [given], "out": [made], "timing": False}, (), (stage, number.block))
        number.stage = None
    number.ids[connection.key] = segment.ids[connection.key]


def device_ref(device: Any) -> str | int:
    """A device as the wire names it: a UUID, or an index of `hello`."""
    if isinstance(device, Device):
        return device.uuid
    if isinstance(device, (str, int)) and not isinstance(device, bool):
        return device
    raise WrongType(f"device must be a UUID, an index of k.devices or one of k.devices, not {device!r}")


class Prepared(Protocol):
    """A request that works on tensors, before it has their buffer ids."""

    method: str
    operands: Operands

    @property
    def names(self) -> tuple[str, ...]: ...  # the ops, for messages

    def params(self, key: int) -> dict[str, Any]:
        """The params of `method` on the connection of that key. Raises Unknown for memory, a program or a kernel that it does not know."""

    def renew(self, key: int) -> None:
        """Looks its memory up again, after a daemon called a reference stale."""

    @property
    def hazard(self) -> str | None: ...  # reason why the work must not run twice; None: it may

    @property
    def result(self) -> Any: ...


BETWEEN_DEVICES = ("copy",)  # ops whose operands may be partly on the host and partly on a GPU


class Request:
    """One `run`, prepared: an op, its tensors, and the result that is made from its reply."""

    method = "run"

    def __init__(
        self,
        op: str,
        values: Sequence[Any],
        out: Any,
        attrs: Mapping[str, Any],
        options: dict[str, Any],
        operands: Operands | None = None,
    ) -> None:
        self.op = op
        self.names = (op,)
        self.attrs, self.out_dtype = rules.without_out_dtype(op, attrs, out)
        self.options = options
        declared: dict[str, Any] = OPS.get(op, {})
        self.declared = declared
        self.rule = rules.RULES.get(declared["rule"], rules.UNKNOWN) if declared else rules.UNKNOWN
        rules.check_count(op, len(values))
        self.operands = operands if operands is not None else Operands()
        one = [rules.own_dtype(op, i) for i in range(len(values))]
        if not self.rule.broadcasts and any(adapter_of(value).number and dtype is None for value, dtype in zip(values, one, strict=True)):
            raise WrongType(f"{op} takes arrays, and no numbers beside them")
        self.inputs = inputs(values, self.operands, one)
        if declared:
            taken = rules.own_dtypes(op)
            check_dtypes(op, [o for o, own in zip(self.inputs, taken, strict=True) if not own] if taken else self.inputs)
        self.row, self.column = self._vectors()
        self.outputs = self._outputs(out)
        self.given = out is not None
        if op not in BETWEEN_DEVICES:
            check_devices(self.inputs, self.outputs)
        if declared and self.given and op not in rules.OTHER_DTYPES:
            check_dtypes(op, self.outputs)

    def _vectors(self) -> tuple[bool, bool]:
        """Makes a vector on the left a row, one on the right a column: which of both there were."""
        if not self.rule.vectors:
            return False, False
        shapes = [operand.shape for operand in self.inputs]
        found = rules.vectors_among(self.op, self.declared["inputs"], shapes, self.attrs)
        for i, is_vector in enumerate(found):
            if is_vector:
                self.inputs[i] = widened(self.inputs[i], row=i == 0, column=i == 1)
        return found

    def _result_shape(self) -> tuple[int, ...]:
        """The shape of the result: without the dimensions that vectors were given."""
        shape = self.rule.out_shape([operand.shape for operand in self.inputs], self.attrs)
        return rules.of_vectors(shape, self.row, self.column)

    def _matrices(self, outputs: list[Operand]) -> list[Operand]:
        """The outputs as the matrices that the op writes."""
        if not (self.row or self.column):
            return outputs
        for operand in outputs:
            if tuple(operand.shape) != self._result_shape():
                raise ShapeMismatch(f"{self.op} of these has shape {self._result_shape()}, but out= {tuple(operand.shape)}")
        return [widened(operand, self.row, self.column) for operand in outputs]

    def _outputs(self, out: Any) -> list[Operand]:
        operands, attrs = self.operands, self.attrs
        names = self.declared.get("outputs", ("out",))
        if out is not None:
            given = out if isinstance(out, (tuple, list)) and len(names) != 1 else (out,)
            reads = self.rule.reads_out(attrs)
            return self._matrices([adapter_of(value).operand(value, operands, output=True, reads=reads) for value in given])
        if not self.declared:
            known = ", ".join(OPS)
            raise UnknownOp(
                f"no op {self.op!r} is known here; there are {known}. One that only the daemon knows needs out=", {"op": self.op}
            )
        self.rule.check_no_out(self.op, attrs)
        if not self.inputs:
            raise BadArgument(f"{self.op} without inputs needs out=")
        like = next((operand for operand in self.inputs if not operand.adapter.plain), self.inputs[0])
        if not rules.own_dtypes(self.op):
            dtype = rules.result_dtype([operand.dtype for operand in (like, *self.inputs)])
        else:
            dtype = rules.check_inputs(self.op, [operand.dtype for operand in self.inputs])
        like = as_dtype(like, rules.out_dtype_of(self.op, dtype, self.out_dtype))
        shape = self._result_shape()
        return self._matrices([like.adapter.allocate(like, shape, operands) for _ in names])

    def params(self, key: int) -> dict[str, Any]:
        """The params of `run` on the connection of that key. Raises Unknown."""
        params: dict[str, Any] = {
            "op": self.op, "in": [one.wire(key) for one in self.inputs], "out": [one.wire(key) for one in self.outputs],
        }  # fmt: skip
        if self.attrs:
            params["attrs"] = self.attrs
        if self.options:
            params.update(self.options)
        return params

    def step(self, place: Callable[[Operand], int]) -> dict[str, Any]:
        """As one of a sequence; `place` gives an operand its number there."""
        step: dict[str, Any] = {
            "op": self.op,
            "in": [place(operand) for operand in self.inputs],
            "out": [place(operand) for operand in self.outputs],
        }
        if self.attrs:
            step["attrs"] = self.attrs
        return step

    def renew(self, key: int) -> None:
        for operand in self.inputs + self.outputs:
            renew(operand)

    @property
    def hazard(self) -> str | None:
        if self.rule is rules.UNKNOWN:
            return f"this client does not know what {self.op} does"
        if self.rule.reads_out(self.attrs):
            return f"{self.op} with these attributes reads its output"
        if any(overlap(extent(output), extent(given)) for output in self.outputs for given in self.inputs):
            return f"{self.op} writes to memory that it reads"
        return None

    @property
    def result(self) -> Any:
        outputs = self.outputs
        if len(outputs) == 1:
            return outputs[0].value if self.given else outputs[0].adapter.result(outputs[0].value)
        return tuple(o.value if self.given else o.adapter.result(o.value) for o in outputs)


def known(connection: Link, make: Callable[[int], Any]) -> Plan:
    """What `make` makes for the connection's key, once the daemon knows all that it names there."""
    while True:
        try:
            return make(connection.key)
        except Unknown as unknown:
            thing = unknown.thing
        yield from make_known(connection, thing)


def execute(connection: Link, request: Prepared, retry: bool = True) -> Plan:
    """Registers new memory and runs; returns the reply. Once more when the daemon finds a reference stale, which it
    does before anything runs."""
    while True:
        try:
            params = request.params(connection.key)
        except Unknown:
            params = yield from known(connection, request.params)
        if request.operands.waits:
            request.operands.synchronize()
        try:
            reply = yield Call(request.method, params, (), request.operands.keep)
        except StaleBuffer:
            if not retry:
                raise
            retry = False
            request.renew(connection.key)
        else:
            break
    if request.operands.copies:
        request.operands.finish()
    return reply


def run(connection: Link, request: Prepared, timing: Timing, retry: bool = True) -> Plan:
    """Runs an op: the result, with its Timings when they are asked for."""
    sent = time.monotonic_ns()
    reply = yield from execute(connection, request, retry)
    if timing:
        return request.result, Timings.of(reply, sent)
    return request.result


def ping(data: Mapping[str, Any]) -> Plan:
    return (yield Call("ping", data))


def stats(op: str | None, dtype: str | None, device: Any, reset: bool) -> Plan:
    params: dict[str, Any] = {}
    if op is not None:
        params["op"] = op
    if dtype is not None:
        params["dtype"] = dtype
    if device is not None:
        params["device"] = device_ref(device)
    if reset:
        params["reset"] = True
    return Stats((yield Call("stats", params)))


def trim(connection: Link) -> Plan:
    """Gives back idle memory here, then asks the daemon to close its idle mappings."""
    allocations.sweep()
    freed = pool.trim() + device_pool.trim()
    reply = yield Call("trim", {})
    return {**reply, "freed": freed}


ORDERED = {"timing": False}  # the options of an ordered op that asks for nothing else
PRIORITIES = ("low", "normal", "high")


def truest(connection: Link) -> Timing:
    """How profiles are timed."""
    return "exact" if connection.info is not None and "exact" in connection.info.features else True


def options_of(
    connection: Link,
    device: Any = None,
    stream: int = 0,
    timing: Timing = False,
    deadline_ms: int | None = None,
    priority: str | None = None,
    warmup: int = 0,
    repeat: int = 1,
    exclusive: bool = False,
) -> dict[str, Any]:
    """The optional keys of `run`, `sequence` and `run_program`; defaults are left out."""
    options: dict[str, Any] = {}
    if not timing:
        options["timing"] = False
    elif timing == "exact":
        connection.need("exact")
        options["exact"] = True
    elif timing is not True:
        raise BadArgument(f'timing must be False, True or "exact", not {timing!r}', {"key": "timing"})
    if device is not None:
        options["device"] = device_ref(device)
    if stream:
        options["stream"] = stream
    if deadline_ms is not None:
        options["deadline_ms"] = deadline_ms
    if priority is not None:
        if priority not in PRIORITIES:
            raise BadArgument(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}", {"key": "priority"})
        if priority != "normal":
            connection.need("priority")
            options["priority"] = priority
    if warmup:
        options["warmup"] = warmup
    if repeat != 1:
        options["repeat"] = repeat
    if exclusive:
        if connection.info is None or "exclusive" not in connection.info.features:
            raise Unsupported(
                "exclusive=True needs a daemon with executors on a GPU, whose work it can hold back: this one has no GPU, or is older",
                {"key": "exclusive"},
            )
        options["exclusive"] = True
    return options


def blocking_of(exclusive: bool, blocking: bool | None) -> bool | None:
    """Exclusive work is waited for: a stream that waits for it would wait for other users' work."""
    if exclusive and blocking is False:
        raise BadArgument("exclusive work is not ordered on a CUDA stream: leave blocking=False out; submit() does not wait either")
    return True if exclusive else blocking
