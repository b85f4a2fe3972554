"""kops: the Python client of kopsd, the kernel server.

    import kops

    with kops.connect() as k:
        c = k.add(a, b)

`a` and `b` are NumPy arrays, torch tensors on the CPU or on CUDA, or anything with `__cuda_array_interface__` or
DLPack; the daemon works on them where they are (ordinary arrays in private memory are copied) and the result is of the
same framework and on the same device. `kops.connect_async` is the same for asyncio. Every error is a `kops.KopsError`.
"""

from typing import Any as _Any

from ._base.compiled import native as _native_module
from ._base.compiled import why_not as why_not_compiled
from ._base.errors import *  # noqa: F403
from ._base.errors import __all__ as _errors
from ._base.records import (
    Attr,
    Candidate,
    Choice,
    ClientInfo,
    Device,
    Drained,
    Entry,
    ExecutorStats,
    Latency,
    MappingStats,
    OpStats,
    Quantiles,
    Spread,
    UserInfo,
)  # fmt: skip
from ._base.results import Comparison, Conditions, Counters, Info, Op, Profile, Reading, Timings, Tuned
from ._base.stats import Stats
from ._base.texts import TurnsWarning
from ._calls.calls import Batch
from ._calls.contexts import Place
from ._calls.pending import Pending
from ._calls.recording import AsyncProgram, AsyncSequence, Program, Sequence
from ._clients.aio import AsyncClient, connect_async
from ._clients.base import Clients, DeviceLoad
from ._clients.client import Client, connect
from ._clients.inline import (
    ElementwiseKernel,
    RawKernel,
    RawModule,
    ReductionKernel,
    cuda_kernel,
    default_client,
    elementwise,
    kernel,
    load,
    load_inline,
    reduce,
)
from ._kernels.formulas import AsyncElementwise, AsyncReduction, Elementwise, Reduction
from ._kernels.kernels import AsyncKernel, Kernel
from ._kernels.modules import AsyncModule, Module
from ._source.maps import TensorMap
from ._source.signature import Param
from ._tensors.device_array import Array
from ._version import VERSION as __version__

__all__ = [
    "Array",
    "AsyncClient",
    "AsyncElementwise",
    "AsyncKernel",
    "AsyncModule",
    "AsyncProgram",
    "AsyncReduction",
    "AsyncSequence",
    "Attr",
    "Batch",
    "Candidate",
    "Choice",
    "Client",
    "ClientInfo",
    "Clients",
    "Comparison",
    "Conditions",
    "Device",
    "DeviceLoad",
    "Drained",
    "Elementwise",
    "ElementwiseKernel",
    "Entry",
    "ExecutorStats",
    "Info",
    "Kernel",
    "Latency",
    "MappingStats",
    "Module",
    "Op",
    "OpStats",
    "Param",
    "Pending",
    "Place",
    "Counters",
    "Profile",
    "Program",
    "Quantiles",
    "RawKernel",
    "RawModule",
    "Reading",
    "Reduction",
    "ReductionKernel",
    "Sequence",
    "Spread",
    "Stats",
    "TensorMap",
    "Timings",
    "Tuned",
    "TurnsWarning",
    "UserInfo",
    "__version__",
    "compiled",
    "connect",
    "connect_async",
    "cuda_kernel",
    "default_client",
    "elementwise",
    "kernel",
    "load",
    "load_inline",
    "reduce",
    "report",
    "why_not_compiled",
]
__all__ += _errors

# Whether libkops, compiled, carries this package's calls. Without it each call waits for its result and none is repeated, there is no
# asyncio client, and `why_not_compiled` says in one line why it is not there.
compiled: bool = _native_module is not None


def report(client: Client, path: _Any, **options: _Any) -> _Any:
    """Writes a page with the roofline and the tables of what the daemon ran: `kops.profiler.report`, which lists the options."""
    from .profiler import report as write

    return write(client, path, **options)


_OF_COMPANIONS = {
    **dict.fromkeys(("BuildExtension", "CUDAExtension", "CUDA_HOME", "CppExtension"), "kops.extension.building"),
}  # fmt: skip
_LATE = ("extension", "interpret", "judge", "profiler", "ray", "torch")


def __getattr__(name: str) -> _Any:
    """`kops.extension`, `kops.interpret` and the others of these are imported when they are first used."""
    if name not in _LATE and name not in _OF_COMPANIONS:
        raise AttributeError(f"module 'kops' has no attribute {name!r}")
    import importlib

    if name in _OF_COMPANIONS:
        return getattr(importlib.import_module(_OF_COMPANIONS[name]), name)
    return importlib.import_module(f"kops.{name}")


def __dir__() -> list[str]:
    from importlib.util import find_spec

    late = [name for name in _LATE if name not in ("ray", "torch") or find_spec(name) is not None]
    return sorted([*__all__, *late, *_OF_COMPANIONS, *(name for name in globals() if name.startswith("__"))])
