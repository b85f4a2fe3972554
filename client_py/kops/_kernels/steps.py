"""Calls of formulas that are several kernels: one request of the daemon, or launches here, one after the other on the caller's stream."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from .._base.errors import BadArgument, Capturing
from .._calls import contexts
from .._memory.allocations import allocations
from . import here

ANYWHERE = ("timeout", "blocking")  # options with which a launch on a captured stream may be here


def launch(client: Any, name: str, steps: Sequence[tuple[Any, ...]], where: str | None, options: dict[str, Any]) -> Any:
    """Launches the kernels, each with its arguments, where one kernel would be launched. The Timings, with `timing`."""
    arguments = tuple(value for _, *given in steps for value in given)
    if where is None and client.where != "daemon" and not _daemons(options, ("timeout", "timing")) and options.get("timing") != "exact":
        where = client._usual_place(arguments)
    if where == "auto":
        where = steps[0][0]._chosen(arguments)
    if where is None and _captured(client, arguments, options):
        where = "here"
    if where is not None and contexts.checked_place(where) == "here":
        return _launch_here(name, steps, arguments, options)
    contexts.refuse_capture(arguments)
    answer = client.sequence(steps, **options)
    return answer[1] if options.get("timing") else None


def _daemons(options: dict[str, Any], anywhere: tuple[str, ...]) -> bool:
    """Whether there are options that the daemon alone has."""
    return any(value is not None and value is not False and value != 0 for key, value in options.items() if key not in anywhere)


def _captured(client: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the launches become nodes of a graph. Raises Capturing where they cannot."""
    try:
        contexts.refuse_capture(arguments)
    except Capturing:
        if _daemons(options, ANYWHERE) or not contexts.offered(client._live(), here.FEATURE):
            raise
        return True
    return False


def _launch_here(name: str, steps: Sequence[tuple[Any, ...]], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Launches here. What one kernel leaves for the next one lies in an array of the caller's framework. torch reuses its memory in the
    order of the stream; of other frameworks that is not known, so the stream is waited for while the array is there."""
    stream = contexts.stream_of(arguments)
    if any(contexts.stream_of(given) != stream for _, *given in steps):
        raise BadArgument(f"{name}: the arrays are of frameworks with different current streams: give arrays of one, or leave out where=")
    torch = sys.modules.get("torch")
    other = next((one for one in arguments if contexts.on_device(one) and (torch is None or not isinstance(one, torch.Tensor))), None)
    if other is not None and allocations.driver.capturing(stream):
        raise Capturing(f"{name} is {len(steps)} kernels for these shapes: a graph can have it with tensors of torch's alone")
    try:
        timings = [kernel(*given, where="here", **options) for kernel, *given in steps]
    finally:
        if other is not None:
            allocations.driver.synchronize(int(other.__cuda_array_interface__["data"][0]), stream)
    if not options.get("timing"):
        return None
    return dataclasses.replace(timings[-1], gpu_us=sum(one.gpu_us for one in timings), sent_ns=timings[0].sent_ns)
