"""What a daemon's client can do for a judge, and does where it can: memory between ranges that are not mapped, launches without
others' work beside them, and the daemon's own clock."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .. import Client, Device, KopsError, Timings
from .._companions import DEFAULT_TIMEOUT, find_device, image

MALLOC = b"\0malloc\0"  # in the names of a binary's symbols


def gpu_of(client: Client, device: Any) -> Device | None:
    """The GPU that is meant: an index or UUID of `client.devices`, or None for the first GPU. None: it has none."""
    if device is None:
        return next((one for one in client.devices if one.backend != "host"), None)
    found = find_device(client.devices, device)
    return found if found.backend != "host" else None


def allocates(client: Client, module: Any) -> bool:
    """Whether the kernels of a module may allocate memory, from the heap of their process: the binary names malloc() then. Yes where
    the daemon does not hand binaries out."""
    try:
        binary: bytes = client._drive(client._live(), lambda link: image(link, module._code), DEFAULT_TIMEOUT)
    except KopsError:
        return True
    return MALLOC in binary


def guards(client: Client) -> bool:
    """Memory ends, or begins, where nothing is mapped."""
    return hasattr(client, "guarded") and "guards" in client.info.features


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
