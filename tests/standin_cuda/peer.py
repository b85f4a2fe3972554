"""Other processes with drivers of their own, for the tests of the stand-in."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
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


def _serve(pipe: Connection, env: dict[str, str]) -> None:
    os.environ.update(env)
    driver = Driver()
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(driver, method)(*arguments)))
        except CudaError as error:
            pipe.send((False, (error.function, error.code, error.name)))
