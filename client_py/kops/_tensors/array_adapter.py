"""Arrays of the daemon's devices as operands: by reference, also their views. Results lie on the same device."""

from __future__ import annotations

from typing import Any

from .array_numbers import number_on
from .device_array import Array, new
from .operands import Adapter, Operand, Operands


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
