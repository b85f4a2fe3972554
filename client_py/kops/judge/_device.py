"""What a daemon's client can do for a judge, and does where it can: memory between ranges that are not mapped, launches without
others' work beside them, and the daemon's own clock."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from .._base.declarations import DTYPES
from .._base.needs_numpy import numpy
from .._base.results import Device, Timings
from .._clients.client import Client
from .._tensors.device_array import Array, find_device, row_major
from ._values import bits_dtype

__all__ = ["Block", "alone", "gpu_of", "guards", "wall_us", "was_alone"]

ALIGNMENT = 256  # of the first element, as every allocator of GPU memory gives it
MARGIN = 4096  # bytes on both sides of a tensor that are looked at afterwards, where no unmapped range bounds it


def gpu_of(client: Client, device: Any) -> Device | None:
    """The GPU that is meant: an index or UUID of `client.devices`, or None for the first GPU. None: it has none."""
    if device is None:
        return next((one for one in client.devices if one.backend != "host"), None)
    found = find_device(client.devices, device)
    return found if found.backend != "host" else None


def guards(client: Client) -> bool:
    """Memory ends, or begins, where nothing is mapped."""
    return hasattr(client, "guarded") and "guards" in client.info.features


class Block:
    """The memory of one tensor. With guards it touches unmapped memory at its end or its start, but for what the alignment of the
    first element takes; else it lies between margins. Bytes that are not the tensor's are watched: `set` draws them, `get` looks."""

    def __init__(self, client: Client, shape: tuple[int, ...], dtype: str, device: Device, side: str) -> None:
        self.shape, self.dtype = shape, dtype
        self.size = math.prod(shape) * DTYPES[dtype]
        room = -(-self.size // ALIGNMENT) * ALIGNMENT
        guarded = guards(client)
        self.before = 0 if guarded else MARGIN
        total = room if guarded else room + 2 * MARGIN
        self._whole: Any = None
        self._margins: Any = None
        if self.size and guarded:
            self._whole = client.guarded((total,), "u8", device=device, side=side)
        elif self.size:
            self._whole = client.empty((total,), "u8", device=device)
        self._empty: Any = client.empty(shape, dtype, device=device) if not self.size else None

    @property
    def tensor(self) -> Array:
        """What kernels get."""
        if self._whole is None:
            made: Array = self._empty
            return made
        part = self._whole[self.before : self.before + self.size]
        return Array(part._client, part.device, part._block, part._start, self.shape, row_major(self.shape), self.dtype)

    def bytes_as(self, dtype: str) -> Array:
        """All whole elements of another dtype that its bytes hold, for ops that only read them."""
        return Array(
            self._whole._client, self._whole.device, self._whole._block, self._whole._start + self.before, (self.size // DTYPES[dtype],),
            (1,), dtype,
        )  # fmt: skip

    def set(self, data: Any, rng: Any) -> None:
        if self._whole is None:
            return
        whole = numpy.empty(self._whole.size, numpy.uint8)
        whole[self.before : self.before + self.size] = data.reshape(-1).view(numpy.uint8)
        self._margins = rng.integers(0, 256, whole.size - self.size, numpy.uint8)
        whole[: self.before], whole[self.before + self.size :] = self._margins[: self.before], self._margins[self.before :]
        self._whole.set(whole)

    def get(self) -> tuple[Any, int | None]:
        """The elements, and the number of the first byte outside them that has changed, counted from the first element."""
        if self._whole is None:
            return numpy.empty(self.shape, bits_dtype(self.dtype)), None
        whole = self._whole.get()
        data = whole[self.before : self.before + self.size].view(bits_dtype(self.dtype)).reshape(self.shape)
        margins = numpy.concatenate([whole[: self.before], whole[self.before + self.size :]])
        bad = numpy.flatnonzero(margins != self._margins)
        if not bad.size:
            return data, None
        at = int(bad[0])
        return data, at - self.before + (self.size if at >= self.before else 0)


def alone(client: Client, call: Any) -> Mapping[str, Any]:
    """The keywords of a launch, or of a sequence, that keep all others off the GPU meanwhile."""
    if "exclusive" not in inspect.signature(call).parameters or "exclusive" not in client.info.features:
        return {}
    return {"exclusive": True}


def was_alone(timings: Timings) -> bool | None:
    """Whether no other work of the daemon's was on the GPU meanwhile. None: it does not tell."""
    found = getattr(timings, "exclusive", None)
    return None if found is None else bool(found)


def wall_us(timings: Timings) -> float | None:
    """The daemon's own clock from giving the work away to seeing its end. None: it does not tell."""
    found = getattr(timings, "wall_us", None)
    return None if found is None else float(found)
