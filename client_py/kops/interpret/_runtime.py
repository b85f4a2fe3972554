"""Calling the runtime: its structures, and the kernels that are loaded."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ._compiler import compile_runtime
from ._elf import guards, shared_variables

CHECK_RACE, CHECK_UNINITIALISED = 1, 2

_Progress = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_Three = ctypes.c_uint32 * 3


class Region(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("low", ctypes.c_uint64), ("high", ctypes.c_uint64),
        ("writable", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    ]  # fmt: skip


class Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p), ("args", ctypes.c_void_p), ("grid", _Three), ("block", _Three), ("shared", ctypes.c_uint64),
        ("timeout", ctypes.c_double), ("checks", ctypes.c_uint32), ("n_regions", ctypes.c_uint32), ("only_first", ctypes.c_uint32),
        ("exited_pass", ctypes.c_uint32), ("keeps", ctypes.c_uint32), ("regions", ctypes.c_void_p), ("guards", ctypes.c_void_p),
        ("n_guards", ctypes.c_uint64), ("dynamic", ctypes.c_void_p), ("progress", _Progress),
    ]  # fmt: skip


class Report(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("block", _Three), ("thread", _Three), ("other", _Three), ("has_thread", ctypes.c_int32),
        ("has_other", ctypes.c_int32), ("access", ctypes.c_int32), ("other_access", ctypes.c_int32), ("where", ctypes.c_int32),
        ("region", ctypes.c_int32), ("address", ctypes.c_uint64), ("size", ctypes.c_uint64), ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64), ("image", ctypes.c_uint64), ("line", ctypes.c_uint32), ("other_line", ctypes.c_uint32),
        ("file", ctypes.c_char * 256), ("other_file", ctypes.c_char * 256), ("text", ctypes.c_char * 512),
        ("overflow", ctypes.c_char * 160), ("wrapped", ctypes.c_int64),
    ]  # fmt: skip


class _ParameterInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_uint32), ("is_pointer", ctypes.c_uint32)]


class Kernel:
    """A kernel's object in this process, of an object of several the kernel of that number. It stays loaded."""

    def __init__(self, path: Path, number: int = 0) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        suffix = f"_{number}" if number else ""
        self.entry: int = ctypes.c_void_p.in_dll(self.library, f"kops_host_call{suffix}").value or 0
        self.dynamic: int = ctypes.addressof(ctypes.c_char.in_dll(self.library, "kops_host_dynamic"))
        count = ctypes.c_uint32.in_dll(self.library, f"kops_host_count{suffix}").value
        table = ctypes.c_void_p.in_dll(self.library, f"kops_host_parameters{suffix}").value or 0
        self.parameters: list[Any] = list((_ParameterInfo * count).from_address(table)) if count else []
        self.max_threads: int = ctypes.c_uint32.in_dll(self.library, f"kops_host_threads{suffix}").value  # 0: no launch bounds
        data = path.read_bytes()
        self.shared = shared_variables(data)
        offsets = guards(data)
        self.guards = (ctypes.c_uint64 * len(offsets))(*offsets)
        runtime = _runtime()
        self.static_bytes: int = runtime.kops_host_static_bytes(self.entry)


_lock = threading.Lock()


@lru_cache(maxsize=1)
def _runtime() -> Any:
    library = ctypes.CDLL(str(compile_runtime()))
    library.kops_host_run.argtypes = [ctypes.POINTER(Launch), ctypes.POINTER(Report)]
    library.kops_host_static_bytes.argtypes = [ctypes.c_void_p]
    library.kops_host_static_bytes.restype = ctypes.c_size_t
    return library


@lru_cache(maxsize=256)
def load(path: Path, number: int = 0) -> Kernel:
    return Kernel(path, number)


def _printer(failures: list[BaseException]) -> Callable[[int, int], int]:
    """Writes what the kernel printed, and lets Python handle signals now and then."""

    def progress(text: int, size: int) -> int:
        try:
            if size:
                sys.stdout.write(ctypes.string_at(text, size).decode(errors="replace"))
                sys.stdout.flush()
        except BaseException as error:
            failures.append(error)
        return 1 if failures else 0

    return progress


def run(launch: Launch, report: Report, quiet: bool = False) -> None:
    """Runs a launch; one at a time. With `quiet` what it prints is dropped.

    Raises what happened to the program meanwhile, such as KeyboardInterrupt."""
    failures: list[BaseException] = []
    progress = _Progress((lambda text, size: 0) if quiet else _printer(failures))
    launch.progress = progress
    with _lock:
        _runtime().kops_host_run(ctypes.byref(launch), ctypes.byref(report))
    if failures:
        raise failures[0]
