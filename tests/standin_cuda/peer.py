"""Other processes with drivers of their own, for the tests of the stand-in."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from .device import CudaError, Driver


class Peer:
    """Another process with a driver of its own; every method of Driver is called there by its name."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, env or {}), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid
        return self.process.pid

    def start(self, method: str, *arguments: Any) -> None:
        self._pipe.send((method, arguments))

    def finish(self) -> Any:
        ok, value = self._pipe.recv()
        if not ok:
            raise CudaError(*value)
        return value

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.start(method, *arguments)
            return self.finish()

        return call

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _read_vmm_of(driver: Driver, pid: int, fd: int, size: int) -> bytes:
    """What a client does with a descriptor that it got by SCM_RIGHTS; here it is opened through /proc."""
    granule = 2 << 20
    received = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    handle = driver.vmm_import(received)
    os.close(received)
    where = driver.vmm_reserve(granule)
    driver.vmm_map(where, granule, handle)
    driver.vmm_release(handle)
    try:
        return driver.read(where, size)
    finally:
        driver.vmm_unmap(where, granule)
        driver.vmm_address_free(where, granule)


def _pool_import_of(driver: Driver, pid: int, fd: int) -> int:
    received = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    try:
        return driver.pool_import(received)
    finally:
        os.close(received)


def _read_chunks_of(driver: Driver, pid: int, fds: list[int], size: int) -> list[bytes]:
    """One address range over several foreign allocations, as a daemon maps an expandable segment."""
    granule = 2 << 20
    where = driver.vmm_reserve(granule * len(fds))
    for i, fd in enumerate(fds):
        received = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        handle = driver.vmm_import(received)
        os.close(received)
        driver.vmm_map(where + i * granule, granule, handle, access=False)
        driver.vmm_release(handle)
    driver.vmm_access(where, granule * len(fds))
    try:
        return [driver.read(where + i * granule, size) for i in range(len(fds))]
    finally:
        driver.vmm_unmap(where, granule * len(fds))
        driver.vmm_address_free(where, granule * len(fds))


_HERE = {"read_vmm_of": _read_vmm_of, "read_chunks_of": _read_chunks_of, "pool_import_of": _pool_import_of}


def _serve(pipe: Connection, env: dict[str, str]) -> None:
    os.environ.update(env)
    driver = Driver()
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            function = partial(_HERE[method], driver) if method in _HERE else getattr(driver, method)
            pipe.send((True, function(*arguments)))
        except CudaError as error:
            pipe.send((False, (error.function, error.code, error.name)))
