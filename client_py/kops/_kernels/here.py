"""Launches of kernels in a CUDA context of this process. The daemon compiles; its binary is loaded here once, and every launch
is checked by the daemon's own rules, which the compiled part of the package has."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .._base.compiled import NUMBERS, native, pack, why_not
from .._base.errors import BadArgument, Capturing, Unsupported, WrongType, from_os
from .._base.results import Timing, Timings
from .._calls.launch import scalar
from .._calls.plans import Plan
from .._memory.allocations import allocations
from .._memory.pool import garbage
from .._session.connection import Peer
from .._session.session import Call
from .._tensors.adapters import adapter_of

PLACES = ("daemon", "here", "auto")
LEGACY_STREAM = 0


def checked_place(where: str) -> str:
    if where not in PLACES:
        raise BadArgument(f"where must be one of {', '.join(PLACES)}, not {where!r}", {"key": "where"})
    return where


def check_options(name: str, **options: Any) -> None:
    """Raises BadArgument for options of a launch that only the daemon knows."""
    given = next((key for key, value in options.items() if value), None)
    if given is not None:
        raise BadArgument(
            f"{name}: {given} is for launches in the daemon: one here is put on the caller's CUDA stream, as torch's are", {"key": given}
        )


@contextlib.contextmanager
def _file(size: int) -> Iterator[int]:
    """A memfd whose pages are this process's own, for the daemon to write to and seal."""
    try:
        fd = os.memfd_create("kops-code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise from_os("memfd_create", error) from error
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield fd
    except OSError as error:
        raise from_os("memory for a kernel's code", error) from error
    finally:
        os.close(fd)


def offered(connection: Peer) -> bool:
    """Whether kernels can be launched in this process."""
    return native is not None and connection.info is not None and "code" in connection.info.features


def need_here(connection: Peer, name: str) -> None:
    """Raises Unsupported where a kernel cannot be launched in this process."""
    if native is None:
        raise Unsupported(f"{name} cannot be launched here without the compiled part of the package: {why_not}")
    info = connection.info
    if info is not None and "code" not in info.features:
        raise Unsupported(
            f"{name} cannot be launched here: this daemon hands out no code to this user (kernels.hand_out in its settings), or is "
            "older than that. Leave out where=, and the daemon launches it",
            {"feature": "code"},
        )


def define(connection: Peer, kernel: Any) -> Plan:
    """Has the kernel's code handed out, where this process has it not yet: a native.Here."""
    need_here(connection, kernel.name)
    module = yield from kernel.code.define(connection)
    compiled, entry = kernel.code.compiled, kernel.code.entry(kernel.name)
    declaration = pack(kernel.declaration(module))
    described = (entry.name, entry.lowered, entry.offsets, entry.params, declaration)
    if native.kept(compiled.key):
        return native.Here(compiled.key, -1, 0, *described)
    with _file(compiled.image_bytes) as fd:
        reply = yield Call("code", {"module": module, "fd": 0, "nfds": 1}, (fd,))
        return native.Here(compiled.key, fd, reply["bytes"], *described)


def _array(kernel: str, index: int, param: Any, value: Any) -> Any:
    """A device array as the extension takes it: address, dtype, shape, strides."""
    if not param.is_tensor:
        return scalar(kernel, index, param, value)
    if value is None:
        return None
    if isinstance(value, (int, float, complex, str, bytes)):
        raise WrongType(
            f"{kernel}: argument {index + 1} ({param.name}) is a pointer to {param.dtype}: pass a tensor, or None for a null pointer",
            {"key": f"args[{index}]"},
        )
    adapter = adapter_of(value)
    if adapter.plain or not _on_device(value):
        raise WrongType(
            f"{kernel}: argument {index + 1} ({param.name}) is not in device memory, where a launch here finds it: pass a CUDA tensor, "
            'or launch with where="daemon", which copies arrays',
            {"key": f"args[{index}]"},
        )
    layout = adapter.layout(value, staged=False)
    return (layout.address or 0, NUMBERS[layout.dtype], tuple(layout.shape), None if layout.strides is None else tuple(layout.strides))


def _on_device(value: Any) -> bool:
    device = getattr(value, "device", None)
    kind = getattr(device, "type", None)
    if kind is not None and "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return bool(kind == "cuda")
    return hasattr(value, "__cuda_array_interface__")


def _stream_of(arguments: tuple[Any, ...]) -> Any:
    """The stream that the arrays' framework works on: None for torch's, which the extension asks for itself."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    for value in arguments:
        if torch is not None and isinstance(value, torch.Tensor):
            from .._tensors.torch import current_stream

            return current_stream(value.get_device())
        if cupy is not None and isinstance(value, cupy.ndarray):
            return int(cupy.cuda.get_current_stream().ptr)
    return LEGACY_STREAM


def launch(here: Any, kernel: Any, arguments: tuple[Any, ...], geometry: Mapping[str, Any] | None, timed: bool) -> Any:
    """Puts it on the caller's stream. None; with `timed` microseconds, when it has ended."""
    made = here.launch(arguments, geometry, None, timed)
    if made is not NotImplemented:
        return made
    stream = _stream_of(arguments)
    given = tuple(_array(kernel.name, i, param, value) for i, (param, value) in enumerate(zip(kernel.params, arguments)))
    return here.launch(given, geometry, stream, timed)


def tell(connection: Any, kernel: Any) -> None:
    """Tells the daemon of the kernel's launches here since the last time, for its statistics: without waiting, and as far as
    the connection knows the module."""
    module = None if connection is None else kernel.code.ids.get(connection.key)
    if module is None or kernel._here is None or not connection.alive:
        return
    params = kernel._here.tell(module)
    if params is not None:
        connection.tell("launched", params)


def leave_word(kernel: Any) -> None:
    """The same for a kernel that is dropped, with the connection's next request."""
    for key, module in kernel.code.ids.items():
        connection = garbage.get(key)
        if connection is not None and (params := kernel._here.tell(module)) is not None:
            connection.garbage.append(("launched", params))


def timings(arguments: tuple[Any, ...], us: float, sent: int | None) -> Timings:
    """What is known of a launch here: the time between two events around it."""
    device = next((value.get_device() for value in arguments if hasattr(value, "get_device")), None)
    uuid = "" if device is None else allocations.driver.uuid(device)
    return Timings(gpu_us=us, device=uuid, variant="user", timer="events", sent_ns=sent)


def refuse_capture(arguments: tuple[Any, ...]) -> None:
    """Raises Capturing where torch's current stream is under capture, before anything is asked that would spoil the graph."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for value in arguments:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            from .._tensors.torch import current_stream

            if allocations.driver.capturing(current_stream(value.get_device())):
                raise Capturing("the current CUDA stream is being captured, and the daemon's work cannot be part of a graph")
            return


def exact_is_not_here(timing: Timing) -> None:
    if timing == "exact":
        raise BadArgument('timing="exact" is for launches in the daemon: here events tell, timing=True', {"key": "timing"})
