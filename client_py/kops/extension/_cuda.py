"""Functions of the CUDA runtime that host code calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from . import _memory

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 801
# What cudaDeviceGetAttribute answers where there is no torch to ask, by cudaDeviceAttr: the numbers of an H200.
_ATTRIBUTES = {
    1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 2**31 - 1, 6: 65535, 7: 65535, 8: 48 << 10, 10: 32, 12: 65536, 16: 132, 38: 60 << 20, 39: 2048,
    75: 9, 76: 0, 81: 228 << 10, 95: 1, 97: 227 << 10, 106: 32,
}  # fmt: skip


class CudaError:
    """The error of the last launch, as cudaGetLastError tells it."""

    def __init__(self) -> None:
        self.number = SUCCESS

    def set(self, number: int) -> None:
        self.number = number or self.number

    def take(self) -> int:
        number, self.number = self.number, SUCCESS
        return number


def _malloc(call: Any, out: Any, size: int, *_: Any) -> int:
    out[0] = _memory.allocate(call.framework.new_bytes(max(size, 1)), call.framework)
    return SUCCESS


def _free(call: Any, out: Any, address: int, *_: Any) -> int:
    return SUCCESS if not address or _memory.free(address) else INVALID_VALUE


def _on_device(address: int, size: int) -> Any:
    """Bytes of a tensor or of cudaMalloc; None for an address of the host's own."""
    place = _memory.find(address, inside=True)
    if place is None or place.offset + size > place.held.size:
        return None
    return place.held.framework.bytes_of(place.held.value, place.offset, size)


def _of_host(address: int, size: int, like: Any) -> Any:
    memory = (ctypes.c_uint8 * size).from_address(address)
    return like.of_buffer(memory)


def _memcpy(call: Any, out: Any, to: int, source: int, size: int, *_: Any) -> int:
    if size:
        target, origin = _on_device(to, size), _on_device(source, size)
        target = _of_host(to, size, call.framework) if target is None else target
        target[:] = _of_host(source, size, call.framework) if origin is None else origin
    return SUCCESS


def _memset(call: Any, out: Any, to: int, value: int, size: int, *_: Any) -> int:
    target = _on_device(to, size) if size else None
    if size and target is None:
        return INVALID_VALUE
    if target is not None:
        target[:] = value & 0xFF
    return SUCCESS


def _synchronize(call: Any, out: Any, *_: Any) -> int:
    call.framework.synchronize()
    return SUCCESS


def _attribute(call: Any, out: Any, *given: Any) -> int:
    found = next((_ATTRIBUTES[number] for number in given if number in _ATTRIBUTES), None)
    if found is None or not out:
        return INVALID_VALUE
    out[0] = found
    return SUCCESS


def _stream(call: Any, out: Any, *_: Any) -> int:
    if out:
        out[0] = call.framework.stream()
    return SUCCESS


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "cudaMalloc": _malloc, "cudaMallocAsync": _malloc, "cudaMallocManaged": _malloc, "cudaFree": _free, "cudaFreeAsync": _free,
    "cudaMemcpy": _memcpy, "cudaMemcpyAsync": _memcpy, "cudaMemset": _memset, "cudaMemsetAsync": _memset,
    "cudaDeviceSynchronize": _synchronize, "cudaStreamSynchronize": _synchronize, "cudaEventSynchronize": _synchronize,
    "cudaGetLastError": lambda call, out, *_: call.cuda.take(), "cudaPeekAtLastError": lambda call, out, *_: call.cuda.number,
    "cudaDeviceGetAttribute": _attribute, "getCurrentCUDAStream": _stream,
}  # fmt: skip
# Functions that change nothing here.
_NOTHING = frozenset(("cudaFuncSetAttribute", "cudaFuncSetCacheConfig", "cudaEventCreate", "cudaEventRecord", "cudaEventDestroy", "cudaSetDevice"))


def cuda(call: Any, name: str, arguments: Sequence[Any], out: Any) -> int:
    """Runs one. Returns a number of cudaError_t; what it answers goes to out[0]."""
    function = _FUNCTIONS.get(name)
    if function is not None:
        return function(call, out, *arguments)
    if name in _NOTHING:
        return SUCCESS
    call.cuda.set(NOT_SUPPORTED)
    return NOT_SUPPORTED
