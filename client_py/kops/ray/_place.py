"""Where a worker is: the node's own environment, and which of the daemon's devices Ray gave to the worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._base.errors import KopsError, NoCuda, UnknownDevice
from .._base.results import Device
from .._memory.exports import allocations

VISIBLE = "CUDA_VISIBLE_DEVICES"


def _of_the_raylet() -> str | None:
    """The GPUs that Ray's own process on this node sees; None: all of them."""
    parent = Path("/proc", str(os.getppid()))
    with contextlib.suppress(OSError):
        if (parent / "comm").read_text(encoding="ascii").strip() == "raylet":
            for entry in (parent / "environ").read_bytes().split(b"\0"):
                if entry.startswith(VISIBLE.encode() + b"="):
                    return os.fsdecode(entry).partition("=")[2]
    return None


@contextlib.contextmanager
def node_environment() -> Iterator[None]:
    """Meanwhile this process's environment shows all the node's GPUs: Ray hides from a worker those that are not its own, and a daemon
    that the worker starts serves the other workers of the node, too."""
    before = os.environ.pop(VISIBLE, None)
    whole = _of_the_raylet()
    if whole is not None:
        os.environ[VISIBLE] = whole
    try:
        yield
    finally:
        os.environ.pop(VISIBLE, None)
        if before is not None:
            os.environ[VISIBLE] = before


def own_uuid(given: str, gpus: Sequence[Device]) -> str:
    """The UUID of a GPU that Ray gave to this worker, as the driver says it: Ray's number is one of CUDA's, whose order of GPUs need not
    be the daemon's. Without a driver in this process the daemon's order is believed. Raises NoCuda where nothing tells."""
    if given.startswith(("GPU-", "MIG-")):
        return next((gpu.uuid for gpu in gpus if gpu.uuid.startswith(given)), given)
    visible = [one.strip() for one in os.environ.get(VISIBLE, "").split(",") if one.strip()]
    ordinal = visible.index(given) if given in visible else int(given)
    try:
        return allocations.driver.uuid(ordinal)
    except NoCuda as error:
        if int(given) < len(gpus):
            return gpus[int(given)].uuid
        raise NoCuda(f"Ray gave GPU {given} to this worker, whose UUID nothing tells: {error.message}") from None


def device_of(ids: Sequence[str], devices: Sequence[Device], where: str) -> Device | None:
    """The daemon's device for a worker with these GPUs of Ray's: its first, or the host where it has none. None: the daemon's default, as
    it has no other. `where` names the daemon in the error."""
    gpus = [device for device in devices if device.backend != "host"]
    if not ids:
        return next((device for device in devices if device.backend == "host"), None) if gpus else None
    if not gpus:
        raise UnknownDevice(
            f"Ray gave GPU {ids[0]} to this worker, and {where} has no GPU: start it where it finds the CUDA driver, or map with gpus=0"
        )
    try:
        wanted = own_uuid(ids[0], gpus)
    except ValueError:
        raise KopsError(f"Ray calls this worker's GPU {ids[0]!r}, which is neither a number nor a UUID") from None
    found = next((gpu for gpu in gpus if gpu.uuid == wanted), None)
    if found is None:
        raise UnknownDevice(
            f"{where} does not see {wanted}, which Ray gave to this worker; it sees {', '.join(gpu.uuid for gpu in gpus)}. Start it "
            f"without {VISIBLE}"
        )
    return found
