"""Functions of the CUDA runtime that host code calls."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import Unsupported
from . import _memory

SUCCESS, INVALID_VALUE, INVALID_CONFIGURATION = 0, 1, 9
_TEXTS = {INVALID_VALUE: "invalid argument", INVALID_CONFIGURATION: "invalid configuration argument"}
VERSION = 12080
STRING_BYTES = 256  # of a device's name
# What cudaDeviceGetAttribute answers, by cudaDeviceAttr: the numbers of an H200, but for those that torch tells.
_ATTRIBUTES = {
    1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 2**31 - 1, 6: 65535, 7: 65535, 8: 48 << 10, 9: 64 << 10, 10: 32, 11: 2**31 - 1, 12: 65536,
    13: 1_980_000, 14: 512, 16: 132, 18: 0, 19: 1, 20: 0, 31: 1, 32: 1, 33: 0, 34: 0, 36: 3_201_000, 37: 6144, 38: 60 << 20, 39: 2048,
    40: 3, 41: 1, 75: 9, 76: 0, 81: 228 << 10, 82: 65536, 83: 1, 88: 0, 89: 1, 95: 1, 97: 227 << 10, 106: 32, 108: 30 << 20, 111: 1 << 10,
    115: 1, 120: 1,
}  # fmt: skip
_TOLD = {16: "multi_processor_count", 38: "L2_cache_size", 39: "max_threads_per_multi_processor", 75: "major", 76: "minor"}
_MEMORY = 141 << 30
_THREADS, _MULTIPROCESSORS, _PER_MULTIPROCESSOR = 39, 16, 106


class Cuda:
    """What a call has told the CUDA runtime: the error that nobody has asked for, and attributes of the next launch."""

    number = SUCCESS
    _what = ""
    _attributes: Mapping[str, Any] = {}

    def set(self, number: int, what: str) -> None:
        """Keeps an error, and what had it."""
        if number:
            self.number, self._what = number, what

    def check(self) -> None:
        """At the end of a call, as torch does at its own next launch: raises the error that C++ has not looked at."""
        if self.number:
            raise RuntimeError(f"CUDA error: {_TEXTS[self.number]}: {self._what}")

    def take(self) -> int:
        number, self.number = self.number, SUCCESS
        return number

    def attribute(self, name: str, *values: int) -> None:
        if name == "cudaLaunchAttributeCooperative":
            self._attributes = {**self._attributes, "cooperative": bool(values[0])}
        elif name == "cudaLaunchAttributeClusterDimension":
            self._attributes = {**self._attributes, "cluster": values}

    def take_attributes(self) -> Mapping[str, Any]:
        made, self._attributes = self._attributes, {}
        return made


# ---- memory


def _malloc(call: Any, size: int, *_: Any) -> int:
    return _memory.allocate(call.framework.new_bytes(max(size, 1)), call.framework)


def _malloc_managed(call: Any, size: int, *_: Any) -> int:
    made = call.framework.new_bytes(max(size, 1))
    if not call.framework.on_cpu(made):
        raise Unsupported("cudaMallocManaged(): there is no memory here that host and device share: use cudaMalloc() and cudaMemcpy()")
    return _memory.allocate(made, call.framework)


def _free(call: Any, address: int, *_: Any) -> None:
    if address and not _memory.free(address):
        raise BadAddress


_host_memory: dict[int, Any] = {}


def _malloc_host(call: Any, size: int, *_: Any) -> int:
    memory = (ctypes.c_uint8 * max(size, 1))()
    _host_memory[ctypes.addressof(memory)] = memory
    return ctypes.addressof(memory)


def _free_host(call: Any, address: int) -> None:
    if address and _host_memory.pop(address, None) is None:
        raise BadAddress


class BadAddress(Exception):
    """An address that the CUDA runtime would refuse."""


def _on_device(address: int, size: int) -> Any:
    """Bytes of a tensor or of cudaMalloc; None for an address of the host's own."""
    place = _memory.find(address, inside=True)
    if place is None:
        return None
    if place.offset + size > place.size:
        raise BadAddress
    return place.framework.bytes_of(place.value, place.offset, size)


def _bytes(call: Any, address: int, size: int) -> Any:
    found = _on_device(address, size)
    return call.framework.of_buffer((ctypes.c_uint8 * size).from_address(address)) if found is None else found


def _memcpy(call: Any, to: int, source: int, size: int, *_: Any) -> None:
    if not size:
        return
    if not to or not source:
        raise BadAddress
    _bytes(call, to, size)[:] = _bytes(call, source, size)


def _memcpy_2d(call: Any, to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, *_: Any) -> None:
    for row in range(height):
        _memcpy(call, to + row * to_pitch, source + row * pitch, width)


def _memset(call: Any, to: int, value: int, size: int, *_: Any) -> None:
    if size:
        target = _on_device(to, size)
        if target is None:
            raise BadAddress
        target[:] = value & 0xFF


def _memset_2d(call: Any, to: int, pitch: int, value: int, width: int, height: int) -> None:
    for row in range(height):
        _memset(call, to + row * pitch, value, width)


# ---- devices


def _properties(call: Any) -> Any:
    return call.framework.properties()


def _attribute(call: Any, number: int, *_: Any) -> int:
    told = getattr(_properties(call), _TOLD.get(number, ""), None)
    if told is None and number not in _ATTRIBUTES:
        raise BadAddress
    return int(_ATTRIBUTES[number] if told is None else told)


def _name(call: Any, address: int, size: int, *_: Any) -> None:
    name = str(getattr(_properties(call), "name", "NVIDIA H200")).encode()[: min(size, STRING_BYTES) - 1]
    ctypes.memmove(address, name + b"\0", len(name) + 1)


def _total(call: Any, *_: Any) -> int:
    return int(getattr(_properties(call), "total_memory", _MEMORY))


def _blocks(call: Any, kernel: Any, threads: int, shared: int) -> int:
    return max(1, min(_attribute(call, _THREADS) // max(threads, 1), _ATTRIBUTES[_PER_MULTIPROCESSOR], (227 << 10) // max(shared, 1)))


def _block_size(call: Any, kernel: Any, shared: int, limit: int, which: int) -> int:
    threads = min(limit or 1024, 1024)
    return threads if which else _attribute(call, _MULTIPROCESSORS) * _blocks(call, kernel, threads, shared)


# ---- streams and events

_events: dict[int, int] = {}  # when the events were recorded, in nanoseconds; 0: not yet


def _event(call: Any, *_: Any) -> int:
    number = max(_events, default=0) + 1
    _events[number] = 0
    return number


def _record(call: Any, event: int, *_: Any) -> None:
    call.framework.synchronize()
    _events[event] = time.perf_counter_ns()


def _elapsed(call: Any, start: int, end: int) -> int:
    return _events[end] - _events[start]


def _library(call: Any, library: str, name: str) -> int:
    """The address of a function of CUDA's libraries, which torch has loaded; 0 without."""
    return int(call.framework.library_function(library, name))


def _nothing(call: Any, *_: Any) -> None:
    pass


def _stream(call: Any, *_: Any) -> int:
    return int(call.framework.stream())


# Each answers what the function writes through its first pointer, or None.
_FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "cudaMalloc": _malloc, "cudaMallocAsync": _malloc, "cudaMallocManaged": _malloc_managed, "cudaFree": _free, "cudaFreeAsync": _free,
    "cudaMallocHost": _malloc_host, "cudaHostAlloc": _malloc_host, "cudaFreeHost": _free_host, "cudaMemcpy": _memcpy,
    "cudaMemcpyAsync": _memcpy, "cudaMemcpy2D": _memcpy_2d, "cudaMemcpy2DAsync": _memcpy_2d, "cudaMemset": _memset,
    "cudaMemsetAsync": _memset, "cudaMemset2D": _memset_2d, "cudaDeviceGetAttribute": _attribute, "cudaDeviceGetName": _name,
    "cudaDeviceTotalMem": _total, "cudaMemGetInfo": _total, "cudaGetDevice": lambda call: call.framework.current_device(),
    "cudaGetDeviceCount": lambda call: call.framework.device_count(), "cudaSetDevice": lambda call, i: call.framework.set_device(i),
    "cudaDriverGetVersion": lambda call: VERSION, "cudaRuntimeGetVersion": lambda call: VERSION,
    "cudaDeviceCanAccessPeer": lambda call, *_: 0, "cudaOccupancyMaxActiveBlocksPerMultiprocessor": _blocks,
    "cudaOccupancyMaxPotentialBlockSize": _block_size, "cudaLaunchAttribute": lambda call, *what: call.cuda.attribute(*what),
    "cudaEventCreate": _event, "cudaEventCreateWithFlags": _event, "cudaEventRecord": _record, "cudaEventElapsedTime": _elapsed,
    "cudaEventDestroy": lambda call, event: _events.pop(event, None) and None, "library": _library,
    "getCurrentCUDABlasHandle": lambda call, *_: call.framework.blas_handle(), "cudaDeviceGetStreamPriorityRange": lambda call, which: 0,
}  # fmt: skip
_FUNCTIONS |= dict.fromkeys(
    ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceReset"),
    lambda call, *_: call.framework.synchronize(),
)
# All work is on the caller's stream, in its order.
_FUNCTIONS |= dict.fromkeys(
    (
        "getCurrentCUDAStream", "getDefaultCUDAStream", "getStreamFromPool", "cudaStreamCreate", "cudaStreamCreateWithFlags",
        "cudaStreamCreateWithPriority",
    ),
    _stream,
)  # fmt: skip
_FUNCTIONS |= dict.fromkeys(
    (
        "cudaFuncSetAttribute", "cudaFuncSetCacheConfig", "cudaFuncSetSharedMemConfig", "cudaDeviceSetCacheConfig",
        "cudaDeviceSetSharedMemConfig", "cudaDeviceSetLimit", "cudaStreamDestroy", "cudaStreamQuery", "cudaStreamWaitEvent",
        "cudaEventQuery", "cudaMemPrefetchAsync", "cudaProfilerStart", "cudaProfilerStop", "setCurrentCUDAStream", "cudaHostRegister",
        "cudaHostUnregister",
    ),
    _nothing,
)  # fmt: skip


def cuda(call: Any, name: str, arguments: Sequence[Any]) -> tuple[int, int | None]:
    """Runs one. Returns a number of cudaError_t and what it answers. Raises Unsupported for another one."""
    if name == "cudaGetLastError":
        return call.cuda.take(), None
    if name == "cudaPeekAtLastError":
        return call.cuda.number, None
    function = _FUNCTIONS.get(name)
    if function is None:
        raise Unsupported(f"{name}() of the CUDA runtime is not known to functions of the host here")
    try:
        return SUCCESS, function(call, *arguments)
    except BadAddress:
        call.cuda.set(INVALID_VALUE, f"{name}()")
        return INVALID_VALUE, None
