"""What a daemon's client can do for a judge, and does where it can: memory between ranges that are not mapped, launches without
others' work beside them, and the daemon's own clock."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .._base.results import Device, Timings
from .._clients.client import Client
from .._tensors.device_array import Array, row_major
from ._values import bits_dtype

__all__ = ["alone", "buffer", "gpu_of", "guards", "typed", "wall_us"]


def gpu_of(client: Client, device: Any) -> Device | None:
    """The GPU that is meant: an index or UUID of `client.devices`, or None for the first GPU. None: it has none."""
    if device is None:
        return next((one for one in client.devices if one.backend != "host"), None)
    from .._tensors.device_array import find_device

    found = find_device(client.devices, device)
    return found if found.backend != "host" else None


def guards(client: Client) -> bool:
    """Memory ends, or begins, where nothing is mapped."""
    return hasattr(client, "guarded")


def buffer(client: Client, shape: tuple[int, ...], dtype: str, device: Device, side: str) -> Array:
    """Memory of its own for a tensor, as the bits of its elements: to be copied to and from. `typed` is what kernels get."""
    bits = {"uint8": "u8", "uint16": "u16"}.get(bits_dtype(dtype).name, dtype) if dtype != "bool" else "u8"
    made: Any
    if guards(client):
        made = client.guarded(shape, bits, device=device, side=side)  # type: ignore[attr-defined]
    else:
        made = client.empty(shape, bits, device=device)
    return made  # type: ignore[no-any-return]


def typed(array: Array, dtype: str) -> Array:
    """The same memory as elements of a dtype of the same size."""
    return Array(array._client, array.device, array._block, array._start, array.shape, row_major(array.shape), dtype)


def alone(client: Client, call: Any) -> Mapping[str, Any]:
    """The keywords of a launch, or of a sequence, that keep all others off the GPU meanwhile."""
    if "exclusive" not in inspect.signature(call).parameters:
        return {}
    return {"exclusive": True} if "exclusive" in client.info.features else {}


def wall_us(timings: Timings) -> float | None:
    """The daemon's own clock from giving the work away to seeing its end. None: it does not tell."""
    found = getattr(timings, "wall_us", None)
    return None if found is None else float(found)
