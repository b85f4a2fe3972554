"""Ways to ask a daemon for the same run: by raw messages, through libkops, through the Python client.

Each owns one block of shared memory that the daemon knows, as `memory` (an array of bytes), and runs an op on operands
in it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import dtypes
import libkops
import numpy as np
import pytest
from cases import GUARD, Operand
from standin_cuda import Driver
from support import backends, memfd, raw
from support import daemon as daemons


class Refused(Exception):
    def __init__(self, code: str, message: str, key: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.key = key  # what the error names: "args[2]"


@dataclass(frozen=True)
class Param:
    name: str
    kind: str  # in, out, inout, scalar
    dtype: str
    elements: str | None = None  # expressions have no blanks
    rank: int = 0  # 0: any


@dataclass(frozen=True)
class Kernel:
    """A source with what a client declares about one entry of it."""

    source: str
    entry: str
    params: tuple[Param, ...]
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    arch: str | None = None  # None: the device's


@dataclass(frozen=True)
class Tensor:
    """An argument: an operand in the runner's memory, of a dtype."""

    operand: Operand
    dtype: str


Argument = Tensor | int | float | bool | None
Sizes = tuple[int, ...]  # of a launch, in place of the kernel's; (): the kernel's


class Runner(Protocol):
    memory: np.ndarray

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """`dtype`: of all inputs, or one each, with commas between them. Returns {"device", "variant", "timings"}; raises Refused."""
        ...

    def define(self, kernel: Kernel) -> str:
        """Makes it the kernel that launch() launches; returns the code's key; raises Refused."""
        ...

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        """As run()."""
        ...

    def close(self) -> None: ...


def each(dtype: str, inputs: list[Operand]) -> list[str]:
    """The dtypes of a run's inputs."""
    return dtype.split(",") if "," in dtype else [dtype] * len(inputs)


@contextmanager
def refusals() -> Iterator[None]:
    """Errors of raw messages as Refused."""
    try:
        yield
    except raw.RpcError as error:
        raise Refused(error.code, str(error), error.detail.get("key")) from error


class RawRunner:
    """MessagePack by hand."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        self.shared = memfd.Shared(size)
        self.memory = self.shared.bytes
        self.connection = daemon.connect()
        self.buffer = self.connection.register(self.shared)

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        def tensor(o: Operand, dtype: str) -> dict[str, Any]:
            return raw.tensor(self.buffer, o.shape, dtype, offset=o.offset, strides=list(o.strides))

        with refusals():
            given = [tensor(o, of) for o, of in zip(inputs, each(dtype, inputs), strict=True)]
            return self.connection.run(op, given, [tensor(out, out_dtype or dtype)], attrs=attrs, device=device)

    def define(self, kernel: Kernel) -> str:
        params = [
            {
                "name": p.name,
                "kind": p.kind,
                "dtype": p.dtype,
                **({"elements": p.elements} if p.elements else {}),
                **({"rank": p.rank} if p.rank else {}),
            }
            for p in kernel.params
        ]
        sizes = {"grid": list(kernel.grid), "block": list(kernel.block)}
        with refusals():
            source = {"source": kernel.source, "entries": [kernel.entry], **({"arch": kernel.arch} if kernel.arch else {})}
            module = self.connection.call("compile", source)
            declared = {"module": module["module"], "entry": kernel.entry, "params": params}
            declared |= {name: given for name, given in sizes.items() if given}
            self.kernel = self.connection.call("kernel", declared)["kernel"]
        return module["key"]

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        def argument(a: Argument) -> Any:
            if not isinstance(a, Tensor):
                return a
            o = a.operand
            return raw.tensor(self.buffer, o.shape, a.dtype, offset=o.offset, strides=list(o.strides))

        request = {"kernel": self.kernel, "args": [argument(a) for a in args]}
        request |= {name: list(given) for name, given in (("grid", grid), ("block", block)) if given}
        with refusals():
            return self.connection.call("launch", request)

    def close(self) -> None:
        self.connection.close()


class CRunner:
    """libkops."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        path = daemons.build_folder() / "client_c" / "libkops.so"
        if daemons.sanitized() or not path.exists():
            pytest.skip("Python loads no libkops of this build")
        self.kops = libkops.Library(path)
        self.shared = memfd.Shared(size)
        self.memory = self.shared.bytes
        self.client, self.buffer, self.kernel = (ctypes.c_void_p() for _ in range(3))
        options = (ctypes.c_char_p * 64)(daemon.socket_path.encode())  # kops_connect_options; its other members are zero
        self.kops.call("connect", options, ctypes.byref(self.client))
        of = (self.client, self.shared.fd, ctypes.c_size_t(size), 0)
        self.kops.call("buffer_register_memfd", *of, ctypes.byref(self.buffer))

    def tensor(self, o: Operand, dtype: str) -> Any:
        numbers = ctypes.c_int64 * 8
        kind = libkops.DTYPES.index(dtype) + 1
        return libkops.Tensor(self.buffer.value, o.offset, kind, len(o.shape), numbers(*o.shape), True, numbers(*o.strides))

    def options(self, device: str | None = None, variant: str | None = None) -> Any:
        return libkops.Options(device=device and device.encode(), variant=variant and variant.encode())

    def ask(self, name: str, *arguments: Any) -> dict[str, Any]:
        result = libkops.Result()
        with self.refusals():
            self.kops.call(name, *arguments, ctypes.byref(result))
        times = {name: getattr(result, name) for name in ("total_us", "host_us", "gpu_us")}
        told = {name: time for name, time in times.items() if time == time}
        return {"device": result.device.decode(), "variant": result.variant.decode(), "timings": told}

    @staticmethod
    @contextmanager
    def refusals() -> Iterator[None]:
        try:
            yield
        except libkops.Failed as error:
            raise Refused(error.code, str(error), error.key) from error

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        given = libkops.array(libkops.Tensor, [self.tensor(o, of) for o, of in zip(inputs, each(dtype, inputs), strict=True)])
        target = libkops.array(libkops.Tensor, [self.tensor(out, out_dtype or dtype)])
        attrs = dict(attrs)
        options = self.options(device, attrs.pop("variant", None))
        made = []
        for name, value in attrs.items():
            kind, member = libkops.value_of(value)
            made.append(libkops.Attr(name.encode(), kind, libkops.Value(**member)))
        own = libkops.array(libkops.Attr, made)
        request = libkops.Request(op.encode(), given, len(inputs), target, 1, own, len(made), options)
        return self.ask("run", self.client, ctypes.byref(request))

    def define(self, kernel: Kernel) -> str:
        params = [
            libkops.Param(
                name=p.name.encode(), kind=libkops.KINDS.index(p.kind), dtype=libkops.DTYPES.index(p.dtype) + 1, rank=p.rank,
                elements=p.elements and p.elements.encode(),
            )
            for p in kernel.params
        ]  # fmt: skip
        geometry = libkops.Geometry(*((ctypes.c_char_p * 3)(*map(str.encode, sizes)) for sizes in (kernel.grid, kernel.block)))
        source = libkops.Source(text=kernel.source.encode(), arch=kernel.arch and kernel.arch.encode())
        signature = libkops.Signature(kernel.entry.encode(), libkops.array(libkops.Param, params), len(params), geometry)
        self.kernel = ctypes.c_void_p(self.kops.get("kernel_free", self.kernel))
        arguments = (self.client, ctypes.byref(source), ctypes.byref(signature), ctypes.byref(self.kernel), None)
        with self.refusals():
            self.kops.call("kernel_compile", *arguments)
        module = ctypes.c_void_p(self.kops.get("kernel_module", self.kernel))
        return libkops.ModuleInfo.from_address(self.kops.get("module_info", module)).key.decode()

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        made = []
        for a in args:
            kind, member = (0, {}) if a is None or isinstance(a, Tensor) else libkops.value_of(a)
            if isinstance(a, Tensor):
                member = {"tensor": ctypes.pointer(self.tensor(a.operand, a.dtype))}
            number = {"tensor": 1, "integer": 2, "real": 4, "boolean": 5}[next(iter(member))] if member else kind
            made.append(libkops.Argument(number, 0, libkops.Value(**member)))
        how = libkops.LaunchOptions(options=self.options())
        for sizes, own in ((grid, how.geometry.grid), (block, how.geometry.block)):
            own.n, own.size[:] = len(sizes), [*sizes, 0, 0, 0][:3]
        given = libkops.array(libkops.Argument, made)
        return self.ask("kernel_launch", self.kernel, given, ctypes.c_size_t(len(made)), ctypes.byref(how))

    def close(self) -> None:
        self.kops.get("kernel_free", self.kernel)
        self.kops.get("buffer_release", self.buffer)
        self.kops.get("close", self.client)


class HereRunner(CRunner):
    """libkops, with ops and kernels in this process's CUDA context, on a copy of the memory."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        if daemon.backend == backends.STANDIN:
            os.environ["KOPS_CUDA_DRIVER"] = str(backends.standin_driver())
        self.driver = Driver()
        super().__init__(daemon, size)
        self.host, self.buffer = self.buffer, ctypes.c_void_p()
        self.kops.call("buffer_alloc", self.client, ctypes.c_size_t(size), None, ctypes.byref(self.buffer))

    def options(self, device: str | None = None, variant: str | None = None) -> Any:
        made = super().options(None, variant)
        made.where = libkops.HERE
        return made

    def tensor(self, o: Operand, dtype: str) -> Any:
        end = o.offset + sum(n * step for n, step in zip(o.shape, o.strides, strict=True)) * dtypes.size(dtype)
        self.reached = max(self.reached, end)
        return super().tensor(o, dtype)

    reached = 0  # bytes: where the last of the request's tensors ends

    def ask(self, name: str, *arguments: Any) -> dict[str, Any]:
        size = ctypes.c_size_t(min(self.reached + GUARD, self.memory.nbytes))
        self.reached = 0
        copied = (self.buffer, ctypes.c_uint64(0), ctypes.c_void_p(self.memory.ctypes.data), size)
        self.kops.call("buffer_write", *copied)
        try:
            return super().ask(name, *arguments)
        finally:  # also when the op was refused
            self.kops.call("buffer_read", *copied)

    def close(self) -> None:
        self.kops.get("buffer_release", self.host)
        super().close()


OF_ML_DTYPES = {"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}


class PythonRunner:
    """The Python client, on views of an array in its shared memory."""

    def __init__(self, daemon: daemons.Daemon, size: int) -> None:
        sys.path.insert(0, str(daemons.ROOT / "client_py"))
        import kops

        self.kops = kops
        self.client = kops.connect(daemon.socket_path)
        self.arena = self.client.zeros(size // 4, "f32")
        self.memory = self.arena.view(np.uint8)

    def run(
        self, op: str, dtype: str, inputs: list[Operand], out: Operand, attrs: dict[str, Any], device: str,
        out_dtype: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        def array(o: Operand, dtype: str) -> np.ndarray:
            view = o.view(self.memory, dtype)
            if dtype not in OF_ML_DTYPES:
                return view
            ml_dtypes = pytest.importorskip("ml_dtypes", reason=f"NumPy has no {dtype} without ml_dtypes")
            return view.view(getattr(ml_dtypes, OF_ML_DTYPES[dtype]))

        arrays = [array(o, of) for o, of in zip(inputs, each(dtype, inputs), strict=True)]
        target = array(out, out_dtype or dtype)
        for i, operand in enumerate(inputs):
            if operand == out:
                target = arrays[i]
        try:
            result, timings = self.client.run(op, *arrays, out=target, device=device, timing=True, **attrs)
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error)) from error
        assert result is target
        return self.outcome(timings)

    @staticmethod
    def outcome(timings: Any) -> dict[str, Any]:
        return {"device": timings.device, "variant": timings.variant, "timings": {"total_us": timings.total_us}}

    def define(self, kernel: Kernel) -> str:
        params = [self.kops.Param(p.name, p.kind, p.dtype, elements=p.elements, rank=p.rank or None) for p in kernel.params]
        try:
            sizes = {"grid": kernel.grid or None, "block": kernel.block or None}
            self.kernel = self.client.kernel(kernel.source, kernel.entry, params, arch=kernel.arch, **sizes)
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error), error.detail.get("key")) from error
        return self.client.compile(kernel.source, kernel.entry).key

    def launch(self, args: Sequence[Argument], grid: Sizes = (), block: Sizes = ()) -> dict[str, Any]:
        arguments = [a.operand.view(self.memory, a.dtype) if isinstance(a, Tensor) else a for a in args]
        try:
            return self.outcome(self.kernel(*arguments, grid=grid or None, block=block or None, timing=True))
        except self.kops.KopsError as error:
            raise Refused(error.code, str(error), error.detail.get("key")) from error

    def close(self) -> None:
        self.client.close()
