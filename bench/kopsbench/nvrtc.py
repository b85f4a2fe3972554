"""NVRTC and the driver in this process, called as directly as Python can: what compiling costs without a daemon."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .context import Skipped

TOOLKITS = ("/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/lib/x86_64-linux-gnu")


def libraries() -> Iterator[str]:
    """Where NVRTC may be, the best first: named by KOPS_NVRTC, of the toolkit, of torch's wheels."""
    if os.environ.get("KOPS_NVRTC"):
        yield os.environ["KOPS_NVRTC"]
    found = importlib.util.find_spec("nvidia")
    wheels = found.submodule_search_locations or () if found else ()
    for folder in (*TOOLKITS, *(folder for place in wheels for folder in sorted(glob.glob(f"{place}/*/lib")))):
        yield from sorted(glob.glob(f"{folder}/libnvrtc.so.[0-9]*"))


class Nvrtc:
    def __init__(self) -> None:
        path = next((path for path in libraries() if Path(path).exists()), None)
        if path is None:
            raise Skipped("no libnvrtc.so is found; KOPS_NVRTC names one")
        self.lib = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.name = f"NVRTC {major.value}.{minor.value}, {path}"

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self.lib, function)(*arguments)
        if code:
            raise RuntimeError(f"{function}: error {code}")

    def compile(self, source: str, arch: str) -> bytes:
        """The binary."""
        program = ctypes.c_void_p()
        options = (ctypes.c_char_p * 1)(f"-arch={arch}".encode())
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            self.call("nvrtcCompileProgram", program, 1, options)
            size = ctypes.c_size_t()
            self.call("nvrtcGetCUBINSize", program, ctypes.byref(size))
            image = ctypes.create_string_buffer(size.value)
            self.call("nvrtcGetCUBIN", program, image)
        finally:
            self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return image.raw


class Module:
    """A binary loaded in this process. `driver` is the tests' `Driver`."""

    def __init__(self, driver: Any, image: bytes, entry: str) -> None:
        self.driver = driver
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(self.module), image)
        driver.call("cuModuleGetFunction", ctypes.byref(self.function), self.module, entry.encode())

    def launch(self, grid: int, block: int, arguments: Sequence[Any]) -> None:
        """On the default stream; arguments are ctypes values."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments))
        sizes = [ctypes.c_uint(size) for size in (grid, 1, 1, block, 1, 1, 0)]
        self.driver.call("cuLaunchKernel", self.function, *sizes, None, pointers, None)

    def unload(self) -> None:
        self.driver.call("cuModuleUnload", self.module)
