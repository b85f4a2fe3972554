"""Device memory of the stand-in driver for a Python test process, as CuPy or Numba would offer it.

    driver = Driver()                 # KOPS_CUDA_DRIVER, makes device 0's primary context current on this thread
    a = driver.array(numpy_array)     # DeviceArray with __cuda_array_interface__
    a.numpy()                         # a copy in host memory

The library works as ctypes' CDLL of a real driver does, so all of this also runs on a real one.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy

from . import dlpack
from .structs import AccessDescription, AllocationProperties, CUdeviceptr, IpcHandle, Location, PoolPointer, PoolProperties

BUFFER_ID = 7
POSIX_FD = 1


class Bfloat16:
    """The dtype that NumPy lacks. On the host such an array is float32, on the device 2 bytes an element."""

    itemsize = 2
    str = "<V2"

    def __str__(self) -> str:
        return "bfloat16"

    @staticmethod
    def pack(values: numpy.ndarray) -> numpy.ndarray:
        """float32 → the upper 16 bits, rounded to nearest even."""
        bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16)

    @staticmethod
    def unpack(bits: numpy.ndarray) -> numpy.ndarray:
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


BFLOAT16 = Bfloat16()


def _dtype(dtype: Any) -> Any:
    return BFLOAT16 if str(dtype) == "bfloat16" else numpy.dtype(dtype)


class CudaError(Exception):
    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})")
        self.function, self.code, self.name = function, code, name


class Driver:
    """The driver library, with device `ordinal`'s primary context current on the thread that made it."""

    latest: Driver | None = None

    def __init__(self, ordinal: int = 0, path: str | None = None) -> None:
        self.lib = ctypes.CDLL(path or os.environ.get("KOPS_CUDA_DRIVER", "libcuda.so.1"))
        self.call("cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.ordinal = device.value
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.make_current()
        Driver.latest = self

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a driver function with ctypes values; an error raises CudaError."""
        code = getattr(self.lib, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(name))
            raise CudaError(function, code, (name.value or b"?").decode())

    def make_current(self) -> None:
        """Needed once on every other thread."""
        self.call("cuCtxSetCurrent", self.context)

    def uuid(self) -> str:
        raw = (ctypes.c_uint8 * 16)()
        self.call("cuDeviceGetUuid_v2", raw, ctypes.c_int(self.ordinal))
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def alloc(self, size: int) -> int:
        address = CUdeviceptr()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def alloc_async(self, size: int) -> int:
        """Memory of cudaMallocAsync's kind: it has no legacy IPC handle."""
        address = CUdeviceptr()
        self.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(None))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", CUdeviceptr(address))

    def write(self, address: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", CUdeviceptr(address), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, CUdeviceptr(address), ctypes.c_size_t(size))
        return data.raw

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def address_range(self, address: int) -> tuple[int, int]:
        base, size = CUdeviceptr(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), CUdeviceptr(address))
        return base.value, size.value

    def buffer_id(self, address: int) -> int:
        value = ctypes.c_uint64()
        self.call("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(BUFFER_ID), CUdeviceptr(address))
        return value.value

    def ipc_handle(self, address: int) -> bytes:
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), CUdeviceptr(address))
        return bytes(handle.reserved)

    def ipc_open(self, handle: bytes) -> int:
        address = CUdeviceptr()
        by_value = IpcHandle.from_buffer_copy(handle)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), by_value, ctypes.c_uint(1))
        return address.value

    def ipc_close(self, address: int) -> None:
        self.call("cuIpcCloseMemHandle", CUdeviceptr(address))

    # ---- code ----

    def module_load(self, path: str) -> int:
        module = ctypes.c_void_p()
        with open(path, "rb") as file:
            self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(file.read()))
        return module.value or 0

    def launch(self, module: int, name: str, parameters: bytes, stream: int = 0) -> None:
        """One thread of the module's kernel, with its parameters as they lie in memory; returns at once."""
        function, size = ctypes.c_void_p(), ctypes.c_size_t(len(parameters))
        self.call("cuModuleGetFunction", ctypes.byref(function), ctypes.c_void_p(module), name.encode())
        buffer = ctypes.create_string_buffer(parameters, len(parameters))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        one = [ctypes.c_uint(1)] * 6
        self.call("cuLaunchKernel", function, *one, ctypes.c_uint(0), ctypes.c_void_p(stream), None, extra)

    # ---- streams ----

    def stream_create(self, priority: int = 0, blocking: bool = False) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(0 if blocking else 1), ctypes.c_int(priority))
        return stream.value or 0

    def stream_synchronize(self, stream: int = 0) -> None:
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    # ---- VMM: what torch's expandable segments are made of, and what a daemon's `alloc` returns ----

    def vmm_create(self, size: int) -> int:
        properties = AllocationProperties(type=1, requested_handle_types=POSIX_FD, location=Location(1, self.ordinal))
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_ulonglong(0))
        return handle.value

    def vmm_export(self, handle: int) -> int:
        fd = ctypes.c_int(-1)
        self.call("cuMemExportToShareableHandle", ctypes.byref(fd), ctypes.c_uint64(handle), ctypes.c_int(POSIX_FD), ctypes.c_ulonglong(0))
        return fd.value

    def vmm_import(self, fd: int) -> int:
        handle = ctypes.c_uint64()
        self.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), ctypes.c_int(POSIX_FD))
        return handle.value

    def vmm_release(self, handle: int) -> None:
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    def vmm_reserve(self, size: int) -> int:
        address = CUdeviceptr()
        self.call(
            "cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), CUdeviceptr(0), ctypes.c_ulonglong(0)
        )
        return address.value

    def vmm_map(self, address: int, size: int, handle: int, *, access: bool = True) -> None:
        self.call(
            "cuMemMap", CUdeviceptr(address), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(handle), ctypes.c_ulonglong(0)
        )
        if access:
            self.vmm_access(address, size)

    def vmm_access(self, address: int, size: int, flags: int = 3, ordinal: int | None = None) -> None:
        """For this device, or for another that shall reach the memory as well."""
        access = AccessDescription(location=Location(1, self.ordinal if ordinal is None else ordinal), flags=flags)
        self.call("cuMemSetAccess", CUdeviceptr(address), ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))

    def vmm_unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", CUdeviceptr(address), ctypes.c_size_t(size))

    def vmm_address_free(self, address: int, size: int) -> None:
        self.call("cuMemAddressFree", CUdeviceptr(address), ctypes.c_size_t(size))

    # ---- pools: what cudaMallocAsync allocates from ----

    def pool_create(self, exportable: bool = True) -> int:
        properties = PoolProperties(type=1, handle_types=POSIX_FD if exportable else 0, location=Location(1, self.ordinal))
        pool = ctypes.c_void_p()
        self.call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
        return pool.value or 0

    def pool_alloc(self, pool: int, size: int) -> int:
        address = CUdeviceptr()
        self.call("cuMemAllocFromPoolAsync", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(pool), ctypes.c_void_p(None))
        return address.value

    def pool_export(self, pool: int) -> int:
        fd = ctypes.c_int(-1)
        self.call(
            "cuMemPoolExportToShareableHandle", ctypes.byref(fd), ctypes.c_void_p(pool), ctypes.c_int(POSIX_FD), ctypes.c_ulonglong(0)
        )
        return fd.value

    def pool_export_pointer(self, address: int) -> bytes:
        data = PoolPointer()
        self.call("cuMemPoolExportPointer", ctypes.byref(data), CUdeviceptr(address))
        return bytes(data.reserved)

    # ---- arrays ----

    def array(self, data: Any, dtype: Any = None) -> DeviceArray:
        """A C-contiguous copy of `data` in memory of its own."""
        brief = str(dtype) == "bfloat16"
        host = numpy.ascontiguousarray(data, dtype=numpy.float32 if brief else dtype).reshape(numpy.shape(data))
        result = self.empty(host.shape, BFLOAT16 if brief else host.dtype)
        if host.size:
            self.write(result.address, (Bfloat16.pack(host) if brief else host).tobytes())
        return result

    def empty(self, shape: tuple[int, ...] | int, dtype: Any = numpy.float32) -> DeviceArray:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = _dtype(dtype)
        size = max(1, int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize)
        return DeviceArray(self, self.alloc(size), shape, dtype, owner=True)


def empty(shape: tuple[int, ...] | int, dtype: Any = numpy.float32) -> DeviceArray:
    """As CuPy's: on the device of the Driver that was made last. A client makes its results with it."""
    assert Driver.latest is not None, "make a Driver first"
    return Driver.latest.empty(shape, dtype)


class DeviceArray:
    """Device memory with a shape: what `__cuda_array_interface__` and DLPack need and no more."""

    def __init__(
        self,
        driver: Driver,
        address: int,
        shape: tuple[int, ...],
        dtype: Any,
        strides: tuple[int, ...] | None = None,
        owner: bool = False,
        keep: Any = None,
    ) -> None:
        self.driver, self.address, self.shape, self.dtype = driver, address, shape, _dtype(dtype)
        self.strides = strides  # in bytes; None: C-contiguous
        self._owner = owner
        self._keep = keep  # whom a view keeps alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": self.strides,
            "version": 3,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.driver.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        return dlpack.capsule(self)

    @property
    def nbytes(self) -> int:
        return int(numpy.prod(self.shape, dtype=numpy.int64)) * self.dtype.itemsize

    def _byte_strides(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        result, step = [], self.dtype.itemsize
        for n in reversed(self.shape):
            result.append(step)
            step *= n
        return tuple(reversed(result))

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self.driver, self.address, self.shape[::-1], self.dtype, self._byte_strides()[::-1], keep=self)

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view, by slices with any step and by integers, as in NumPy."""
        index = index if isinstance(index, tuple) else (index,)
        address, shape, strides = self.address, [], []
        for i, (n, step) in enumerate(zip(self.shape, self._byte_strides(), strict=True)):
            at = index[i] if i < len(index) else slice(None)
            if isinstance(at, int):
                address += (at + n if at < 0 else at) * step
                continue
            start, _, stride = at.indices(n)
            address += start * step
            shape.append(len(range(*at.indices(n))))
            strides.append(step * stride)
        return DeviceArray(self.driver, address, tuple(shape), self.dtype, tuple(strides), keep=self)

    def numpy(self) -> numpy.ndarray:
        """A copy in host memory; of bfloat16 as float32."""
        brief = self.dtype is BFLOAT16
        dtype = numpy.dtype(numpy.uint16) if brief else self.dtype
        if 0 in self.shape:
            return numpy.empty(self.shape, numpy.float32 if brief else dtype)
        base, size = self.driver.address_range(self.address)
        raw = numpy.frombuffer(self.driver.read(base, size), numpy.uint8)
        host = numpy.ndarray(self.shape, dtype, buffer=raw, offset=self.address - base, strides=self._byte_strides())
        return Bfloat16.unpack(host) if brief else host.copy()

    def free(self) -> None:
        """What garbage collection does as well."""
        if self._owner:
            self._owner = False
            self.driver.free(self.address)

    def __del__(self) -> None:
        try:
            self.free()
        except Exception:  # the interpreter is ending, another thread has no context, or the context is broken
            pass
