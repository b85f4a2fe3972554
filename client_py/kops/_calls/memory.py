"""Plans that make memory known to the daemon: this process's is registered, that of GPUs is made by the daemon at its first use."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, TypeAlias

from .._base.errors import (
    BadReply,
    BufferLost,
    DeviceMismatch,
    InvalidFd,
    InvalidHandle,
    OutOfMemory,
    QuotaExceeded,
    UnknownDevice,
    Unsupported,
)
from .._base.results import Device
from .._memory.device_pool import DeviceSegment
from .._memory.pool import Source, prune
from .._session.link import Call, Link
from .._tensors.array_numbers import NumberSource
from .._tensors.device_array import Array, new_guarded

Plan: TypeAlias = Generator[Call, Any, Any]

REFUSALS = (InvalidFd, InvalidHandle, UnknownDevice, DeviceMismatch, Unsupported)


def _undo_register(reply: Any) -> tuple[str, dict[str, Any]]:
    return "release", {"buffer": reply["buffer"]}


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


def make_guarded(connection: Link, device: Device, shape: Any, dtype: str, at_end: bool, client: Any) -> Plan:
    """An array in memory of its own that ends, or begins, where the memory does."""
    connection.need("guards")
    made = new_guarded(client, device, shape, dtype)
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
                reply = yield Call("register", params, fds, source, _undo_register)
                buffer = reply["buffer"]
                continue
            try:
                yield Call("register", {**params, "extend": buffer}, fds, source)
            except BaseException:
                connection.garbage.append(buffer)
                raise
    _know(connection, source, buffer)


def _know(connection: Link, source: Source, buffer: int) -> None:
    known = source.ids.setdefault(connection.key, buffer)
    prune(source.ids)
    if known != buffer:
        connection.garbage.append(buffer)  # another thread was faster
    connection.remember(source)


def _alloc(connection: Link, segment: DeviceSegment) -> Plan:
    """Has the daemon make a segment's memory. Where there is none left, what this process keeps for reuse is given back first."""
    params = {"size": segment.size, "device": segment.device}
    try:
        reply = yield Call("alloc", params, (), segment, _undo_register)
    except (OutOfMemory, QuotaExceeded):
        if not segment.pool.trim():
            raise
        yield Call("trim", {})  # answered when the daemon has let go of it, too
        reply = yield Call("alloc", params, (), segment, _undo_register)
    if reply["kind"] != "cuda_vmm" or reply["size"] < segment.size:
        connection.garbage.append(reply["buffer"])
        raise BadReply(f"the daemon gave {reply['size']} bytes of {reply['kind']} for {segment.size} on the GPU {segment.device}")
    if segment.adopt(reply["fds"]):
        segment.made(reply["size"])
        _know(connection, segment, reply["buffer"])
    else:
        connection.garbage.append(reply["buffer"])  # another thread was faster


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
