"""Launches of kernels in a CUDA context of this process. The daemon compiles; its binary is loaded here once, and every launch
is checked by the daemon's own rules, which the compiled part of the package has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._base.compiled import native, pack
from .._base.errors import WrongType
from .._base.views import plain_view
from .._calls.contexts import described, need, on_device, settled, stream_of
from .._calls.launch import scalar
from .._calls.plans import Plan
from .._memory.pool import code_file, garbage
from .._session.link import Call, Link
from .._tensors.adapters import adapter_of

FEATURE = "code"


def define(connection: Link, kernel: Any) -> Plan:
    """Has the kernel's code handed out, where this process has it not yet: a native.Here."""
    need(connection, kernel.name, FEATURE)
    module = yield from kernel.code.define(connection)
    compiled, entry = kernel.code.compiled, kernel.code.entry(kernel.name)
    declaration = pack(kernel.declaration(module))
    described = (entry.name, entry.lowered, entry.offsets, entry.params, declaration)
    if native.kept(compiled.key):
        return native.Here(compiled.key, -1, 0, *described)
    with code_file(compiled.image_bytes) as fd:
        reply = yield Call("code", {"module": module, "fd": 0, "nfds": 1}, (fd,))
        return native.Here(compiled.key, fd, reply["bytes"], *described)


def image(connection: Link, code: Any) -> Plan:
    """The binary of a module, as its device loads it. The daemon refuses where it hands none out."""
    module = yield from code.define(connection)
    with code_file(code.compiled.image_bytes) as fd:
        reply = yield Call("code", {"module": module, "fd": 0, "nfds": 1}, (fd,))
        return os.pread(fd, reply["bytes"], 0)


def _array(kernel: str, index: int, param: Any, value: Any) -> Any:
    """A device array as the extension takes it."""
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
    if adapter.plain or not on_device(value):
        raise WrongType(
            f"{kernel}: argument {index + 1} ({param.name}) is not in device memory, where a launch here finds it: pass a CUDA tensor, "
            'or launch with where="daemon", which copies arrays',
            {"key": f"args[{index}]"},
        )
    return described(value, adapter.layout(value, staged=False))


def launch(here: Any, kernel: Any, arguments: tuple[Any, ...], geometry: Mapping[str, Any] | None, timed: bool) -> Any:
    """Puts it on the caller's stream. None; with `timed` microseconds, when it has ended."""
    made = here.launch(arguments, geometry, None, timed)
    if made is not NotImplemented:
        return made
    stream = stream_of(arguments)
    # Kept until the launch.
    arguments = tuple(
        settled(f"{kernel.name}: {param.name}", plain_view(value, param, param.name), param.kind != "in") if param.is_tensor else value
        for param, value in zip(kernel.params, arguments)
    )
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
    for key, module in kernel.code.ids.copy().items():
        connection = garbage.get(key)
        if connection is not None and (params := kernel._here.tell(module)) is not None:
            connection.garbage.append(("launched", params))
