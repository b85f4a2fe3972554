"""The control page and the other processes of a test."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from standin_cuda import Control, CudaError, Driver


class Peer:
    """Another process with a driver of its own; every method of Driver is called there by its name."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
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


def _serve(pipe: Connection) -> None:
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


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    if not os.environ.get("KOPS_CUDA_DRIVER"):
        pytest.skip("KOPS_CUDA_DRIVER names no stand-in driver")
    page = Control()
    monkeypatch.setenv("KOPS_STANDIN_CONTROL", page.path)
    return page


@pytest.fixture
def peers(control: Control) -> Iterator[Callable[[], Peer]]:
    made: list[Peer] = []

    def new() -> Peer:
        made.append(Peer())
        return made[-1]

    yield new
    for peer in made:
        peer.kill()
