"""Numbers as operands beside an array, in its dtype and where it is: they do not promote it, as with torch and NumPy.

On the host a number takes the place of one element in shared memory. Beside torch CUDA tensors it is a tensor of one element, made
once: the cache keeps those of the last values.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .._base.errors import WrongType
from .operands import Adapter, Operand, Operands, number_bytes

CACHED = 256  # numbers on devices that are kept for the next calls


class NumberAdapter(Adapter):
    """Python's and NumPy's numbers. As inputs only."""

    plain = number = True

    def beside(self, value: Any, like: Operand | None, operands: Operands) -> Operand:
        """The number as an operand beside an array."""
        if like is not None:
            made = like.adapter.number_operand(value, like, operands)
            return Operand(made.value, made.source, made.offset, made.shape, None, made.dtype, self)
        raise WrongType(
            f"{value!r} is a number, and nothing beside it is an array: a number alone has no dtype and no device. Pass an array, "
            "such as k.array([2.0])"
        )

    def convert(self, value: Any, dtype: str | None, operands: Operands) -> Operand:
        from .numpy import PlainAdapter

        return PlainAdapter().convert(value, dtype, operands)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        from .numpy import broadcast

        return broadcast(value, shape, dtype)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        from .numpy import numpy_adapter

        return numpy_adapter.allocate(like, shape, operands)


number_adapter = NumberAdapter()


class NumbersOnDevices:
    """Tensors of one element, by device, dtype and bytes. `make` fills a new one and waits for that, so that any stream, batch or
    program may read it. Whoever reads a tensor keeps it, so the cache may drop it at any time."""

    def __init__(self, make: Callable[[Any, str, Any], Any]) -> None:
        self._make = make
        self._made: OrderedDict[tuple[int, str, bytes], Any] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, device: Any, dtype: str, value: Any) -> Any:
        number, data = number_bytes(value, dtype)
        key = (device.index, dtype, data)
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
                return found
        made = self._make(device, dtype, number)
        with self._lock:
            self._made[key] = made
            while len(self._made) > CACHED:
                self._made.popitem(last=False)
        return made
