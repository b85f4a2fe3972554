"""The private names of the package that its companions may use. `kops.interpret`, `kops.extension`, `kops.judge`, `kops.profiler` and
`kops.ray` import public names, `from .. import Client`, and names listed here, `from .._companions import texts`. The lint refuses all
others.

Names that need NumPy are imported when they are first asked for: a profile, say, does without NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Tables, texts, numbers, messages
from ._base import intervals, texts
from ._base import stats as stats_table
from ._base.caches import directory as cache_directory
from ._base.caches import is_mine, surplus
from ._base.compiled import compiled_part, native
from ._base.declarations import DTYPES, KERNEL_STANDARDS, OPS
from ._base.dtypes import NAMES
from ._base.errors import BY_CODE
from ._base.intervals import Stopwatch
from ._base.texts import OURS, closest_first, counted, log, warn
from ._base.twins import DEFAULT_TIMEOUT

# Clients and their calls, which `kops.profiler` wraps while it records
from ._calls.calls import Calls
from ._calls.contexts import on_device
from ._calls.launch import image, plain_view, tell_launched
from ._calls.ops import OpMethods
from ._calls.plans import truest
from ._clients import inline
from ._clients.client import Client
from ._kernels.formulas import Formula
from ._kernels.kernels import BaseKernel, Bound, Code, checked_fallback
from ._kernels.untyped import Form, on_stream
from ._memory.exports import allocations
from ._session.link import Call
from ._session.plain import PlainLink

# Source of kernels, and their signatures
from ._source.agreement import Found, disagreement
from ._source.geometry import Geometry
from ._source.hostcode import blank
from ._source.options import macros, standard
from ._source.scalars import convert, structure, to_bytes
from ._source.signature import fault, parse
from ._source.source import closing, gather, parameter_names, scan, template_of
from ._source.source import names as kernel_names
from ._source.tokens import DIRECTIVE, NAME, NUMBER, STRING, Token, tokens
from ._source.types import type_of

# Arrays on devices
from ._tensors.adapters import meet_torch
from ._tensors.device_array import Array, find_device, row_major
from ._version import VERSION

if TYPE_CHECKING:
    from ._tensors.numpy import BITS, bits_of, empty, numbers_of, numpy
else:
    _WITH_NUMPY = ("BITS", "bits_of", "empty", "numbers_of", "numpy")

    def __getattr__(name: str) -> Any:
        if name not in _WITH_NUMPY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("._tensors.numpy", __package__), name)


# Private members of clients and arrays


def drive(client: Client, plan: Callable[[Any], Any], timeout: float = DEFAULT_TIMEOUT) -> Any:
    """The result of a plan, which is called with the client's connection (`_calls/plans.py`)."""
    return client._drive(client._live(), plan, timeout)


def usual_place(client: Client) -> str | None:
    """The `where` of a launch that does not say: "auto"; None where whoever connected has said, or KOPS_WHERE has."""
    return None if client._place_chosen else "auto"


def launched_here(kernel: BaseKernel) -> tuple[Any, ...] | None:
    """What the compiled part needs to launch a kernel in this process without Python, once it was launched here: the kernel, its code, the
    devices on which "auto" launches here (None: all), what is recorded and waits, and what tells the daemon of launches. None: it was not
    launched here, or the daemon's user wants it elsewhere."""
    client = kernel._client
    if kernel._here is None or (client._place_chosen and client.where == "daemon"):
        return None
    devices = None if client.where == "here" else client._here_devices
    return kernel, kernel._here, devices, client._scopes, client._batches, lambda: tell_launched(client._connection, kernel)


def truest_timing(client: Client) -> Any:
    """The `timing=` with which the client's daemon tells the truest times."""
    return truest(client._live())


def view_of(array: Array, dtype: str, shape: tuple[int, ...], at: int = 0) -> Array:
    """An array without gaps in the memory of another one, from that one's byte `at` on. It stays in the allocation: nothing checks that."""
    return Array(array._client, array.device, array._block, array._start + at, shape, row_major(shape), dtype)


def reach_of(array: Array) -> tuple[int, int]:
    """Bytes that a kernel reaches from an array of bytes: how many lie before the array, and how many there are. For an allocation of its
    own these are the whole allocation, else the array."""
    segment = array._block.segment
    return (array._start, int(segment.size)) if getattr(segment, "alone", False) else (0, array.size)


def wire_dtype(array: Array) -> str:
    """The wire's name of an array's dtype."""
    return array._type


__all__ = [
    "BITS", "BY_CODE", "DIRECTIVE", "DTYPES", "KERNEL_STANDARDS", "NAME", "NAMES", "NUMBER", "OPS", "OURS", "STRING", "VERSION",
    "BaseKernel", "Bound", "Call", "Calls", "Code", "Form", "Formula", "Found", "Geometry", "OpMethods", "PlainLink", "Stopwatch",
    "Token", "allocations", "bits_of", "blank", "cache_directory", "checked_fallback", "closest_first", "closing", "compiled_part",
    "convert", "counted", "disagreement", "drive", "empty", "fault", "find_device", "gather", "image", "inline", "intervals", "is_mine",
    "kernel_names", "launched_here", "log", "macros", "meet_torch", "native",
    "numbers_of", "numpy", "on_device", "on_stream", "parameter_names", "parse",
    "plain_view", "reach_of", "scan", "standard", "stats_table", "structure", "surplus", "template_of", "texts", "to_bytes", "tokens",
    "truest_timing", "type_of", "usual_place", "view_of", "warn", "wire_dtype",
]  # fmt: skip
