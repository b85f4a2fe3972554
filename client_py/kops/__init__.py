"""kops: the Python client of kopsd, the kernel server.

    import kops

    with kops.connect() as k:
        c = k.add(a, b)

`a` and `b` are NumPy arrays, torch tensors on the CPU or on CUDA, or anything with `__cuda_array_interface__` or
DLPack; the daemon works on them where they are (ordinary arrays in private memory are copied) and the result is of the
same framework and on the same device. `kops.connect_async` is the same for asyncio. Every error is a `kops.KopsError`.
"""

from typing import Any as _Any

from ._admin import ClientInfo, Clients, DeviceLoad, Drained, Latency, Quantiles, UserInfo
from ._aio import AsyncClient, connect_async
from ._batch import Batch
from ._client import Client, connect
from ._code import Entry
from ._connection import VERSION as __version__
from ._errors import *  # noqa: F403
from ._errors import __all__ as _errors
from ._inline import cuda_kernel, default_client, kernel, load, load_inline
from ._kernels import AsyncKernel, Kernel
from ._modules import AsyncModule, Module
from ._pending import Pending
from ._programs import AsyncProgram, Program
from ._recording import AsyncSequence, Sequence
from ._results import Attr, Device, Info, Op, Profile, Timings
from ._signature import Param
from ._stats import MappingStats, OpStats, Spread, Stats

__all__ = [
    "AsyncClient",
    "AsyncKernel",
    "AsyncModule",
    "AsyncProgram",
    "AsyncSequence",
    "Attr",
    "Batch",
    "Client",
    "ClientInfo",
    "Clients",
    "Device",
    "DeviceLoad",
    "Drained",
    "Entry",
    "Info",
    "Kernel",
    "Latency",
    "MappingStats",
    "Module",
    "Op",
    "OpStats",
    "Param",
    "Pending",
    "Profile",
    "Program",
    "Quantiles",
    "Sequence",
    "Spread",
    "Stats",
    "Timings",
    "UserInfo",
    "__version__",
    "connect",
    "connect_async",
    "cuda_kernel",
    "default_client",
    "kernel",
    "load",
    "load_inline",
]
__all__ += _errors


def __getattr__(name: str) -> _Any:
    """`kops.interpret` is imported when it is first used."""
    if name != "interpret":
        raise AttributeError(f"module 'kops' has no attribute {name!r}")
    import importlib

    return importlib.import_module("kops.interpret")


def __dir__() -> list[str]:
    return sorted([*__all__, "interpret", *(name for name in globals() if name.startswith("__"))])
