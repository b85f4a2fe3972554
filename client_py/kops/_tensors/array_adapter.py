"""Arrays of the daemon's devices as operands: by reference, also their views. Results lie on the same device.

Numbers beside arrays on GPUs take a few bytes there, which are written at the first use and kept for the next.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from .._memory.device_pool import DeviceBlock, pool_of
from .._memory.pool import Source, pool
from .device_array import Array, new
from .numbers import CACHED
from .operands import Adapter, Operand, Operands, number_bytes


class NumberSource(Source):
    """A number's memory: `stage` is where it is copied from, None once it was. Its ids are those of the block's segment."""

    __slots__ = ("block", "dtype", "stage")

    def __init__(self, device: str, dtype: str, data: bytes) -> None:
        super().__init__()
        self.block: DeviceBlock = pool_of(device).take(len(data))
        self.base = self.block.segment.base
        self.dtype = dtype
        self.stage: Any = pool.take(len(data))
        memoryview(self.stage).cast("B")[: len(data)] = data

    def forget(self) -> None:
        self.ids = {}
        self.block.segment.forget()


_made: OrderedDict[tuple[str, str, bytes], NumberSource] = OrderedDict()
_lock = threading.Lock()


def number_on(device: str, dtype: str, value: Any) -> NumberSource:
    """The memory of a number on a GPU, by the GPU's UUID. Raises WrongType or OutOfRange."""
    data = number_bytes(value, dtype)[1]
    key = (device, dtype, data)
    with _lock:
        found = _made.get(key)
        if found is not None:
            _made.move_to_end(key)
            return found
    made = NumberSource(device, dtype, data)
    with _lock:
        made = _made.setdefault(key, made)
        while len(_made) > CACHED:
            _made.popitem(last=False)
    return made


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class ArrayAdapter(Adapter):
    def operand(self, value: Array, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        operands.keep.append(value)
        if value._block is None or not value.size:
            return Operand(value, None, 0, value.shape, None, value._type, self)
        strides = None if value.contiguous else value._strides
        return Operand(value, value._block.segment, value._start, value.shape, strides, value._type, self)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        of: Array = like.value
        return self.operand(new(of._client, of.device, shape, like.dtype), operands)

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        of: Array = like.value
        if of.device.backend == "host":
            return super().number_operand(value, like, operands)
        number = number_on(of.device.uuid, like.dtype, value)
        operands.keep.append(number)
        return Operand(of, number, number.block.offset, (), None, like.dtype, self)

    def on_host(self, value: Array) -> Any:
        value._in_this_process()
        return value


array_adapter = ArrayAdapter()
