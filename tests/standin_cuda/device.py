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

BUFFER_ID = 7
POSIX_FD = 1

# ---- structures of cuda.h ----


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class AccessDescription(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_uint8 * 54),
    ]


class Bytes(ctypes.Structure):
    """A handle, by value."""

    _fields_ = [("reserved", ctypes.c_uint8 * 64)]


# ---- dtypes ----


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
        self.call("cuInit", 0)
        self.ordinal = self.get("cuDeviceGet", ordinal)
        self.context = self.get("cuDevicePrimaryCtxRetain", self.ordinal)
        self.make_current()
        Driver.latest = self

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a driver function with integers and ctypes values; an error raises CudaError."""
        code = getattr(self.lib, function)(*(ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments))
        if code:
            name = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(name))
            raise CudaError(function, code, (name.value or b"?").decode())

    def get(self, function: str, *arguments: Any) -> int:
        """What the function writes to where its first argument points."""
        value = ctypes.c_uint64()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def make_current(self) -> None:
        """Needed once on every other thread."""
        self.call("cuCtxSetCurrent", self.context)

    def uuid(self) -> str:
        raw = (ctypes.c_uint8 * 16)()
        self.call("cuDeviceGetUuid_v2", raw, self.ordinal)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def alloc(self, size: int) -> int:
        return self.get("cuMemAlloc_v2", size)

    def alloc_async(self, size: int) -> int:
        """Memory of cudaMallocAsync's kind: it has no legacy IPC handle."""
        return self.get("cuMemAllocAsync", size, 0)

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", address)

    def write(self, address: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), len(data))

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, address, size)
        return data.raw

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def address_range(self, address: int) -> tuple[int, int]:
        size = ctypes.c_size_t()
        return self.get("cuMemGetAddressRange_v2", ctypes.byref(size), address), size.value

    def buffer_id(self, address: int) -> int:
        return self.get("cuPointerGetAttribute", BUFFER_ID, address)

    def ipc_handle(self, address: int) -> bytes:
        handle = Bytes()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle.reserved)

    def ipc_open(self, handle: bytes) -> int:
        return self.get("cuIpcOpenMemHandle_v2", Bytes.from_buffer_copy(handle), 1)

    def ipc_close(self, address: int) -> None:
        self.call("cuIpcCloseMemHandle", address)

    # ---- code ----

    def module_load(self, path: str) -> int:
        with open(path, "rb") as file:
            return self.get("cuModuleLoadData", ctypes.c_char_p(file.read()))

    def launch(self, module: int, name: str, parameters: bytes, stream: int = 0) -> None:
        """One thread of the module's kernel, with its parameters as they lie in memory; returns at once."""
        function, size = self.get("cuModuleGetFunction", module, name.encode()), ctypes.c_size_t(len(parameters))
        buffer = ctypes.create_string_buffer(parameters, len(parameters))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        self.call("cuLaunchKernel", function, *[1] * 6, 0, stream, None, extra)

    # ---- streams ----

    def stream_create(self, priority: int = 0, blocking: bool = False) -> int:
        return self.get("cuStreamCreateWithPriority", int(not blocking), priority)

    def stream_synchronize(self, stream: int = 0) -> None:
        self.call("cuStreamSynchronize", stream)

    # ---- VMM: what torch's expandable segments are made of, and what a daemon's `alloc` returns ----

    def vmm_create(self, size: int) -> int:
        properties = AllocationProperties(type=1, requested_handle_types=POSIX_FD, location=Location(1, self.ordinal))
        return self.get("cuMemCreate", size, ctypes.byref(properties), 0)

    def vmm_export(self, handle: int) -> int:
        return self.get("cuMemExportToShareableHandle", handle, POSIX_FD, 0)

    def vmm_import(self, fd: int) -> int:
        return self.get("cuMemImportFromShareableHandle", fd, POSIX_FD)

    def vmm_release(self, handle: int) -> None:
        self.call("cuMemRelease", handle)

    def vmm_reserve(self, size: int) -> int:
        return self.get("cuMemAddressReserve", size, 0, 0, 0)

    def vmm_map(self, address: int, size: int, handle: int) -> None:
        """And makes it accessible to this device."""
        self.call("cuMemMap", address, size, 0, handle, 0)
        access = AccessDescription(location=Location(1, self.ordinal), flags=3)
        self.call("cuMemSetAccess", address, size, ctypes.byref(access), 1)

    def vmm_unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", address, size)

    def vmm_address_free(self, address: int, size: int) -> None:
        self.call("cuMemAddressFree", address, size)

    # ---- pools: what cudaMallocAsync allocates from ----

    def pool_create(self, exportable: bool = True) -> int:
        properties = PoolProperties(type=1, handle_types=POSIX_FD if exportable else 0, location=Location(1, self.ordinal))
        return self.get("cuMemPoolCreate", ctypes.byref(properties))

    def pool_alloc(self, pool: int, size: int) -> int:
        return self.get("cuMemAllocFromPoolAsync", size, pool, 0)

    def pool_export(self, pool: int) -> int:
        return self.get("cuMemPoolExportToShareableHandle", pool, POSIX_FD, 0)

    def pool_export_pointer(self, address: int) -> bytes:
        data = Bytes()
        self.call("cuMemPoolExportPointer", ctypes.byref(data), address)
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
