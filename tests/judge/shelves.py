"""Judges with draws in the GPU's memory: the judge's own kernels run in the interpreter, on memory of the stand-in's, which does not know
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import LIMITS
from kops import judge
from kops._base.errors import BY_CODE
from kops._tensors.device_array import Array
from kops.judge import _gpu, _machine, _shelf, _timed
from test_device_code import launched

from support.daemon import Daemon  # isort: skip


class Interpreted:
    """In place of the connection whose process runs the judge's own kernels."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()  # rooms by entry

    def compile(self, source: str, entries: Any, **_: Any) -> Interpreted:
        return self

    def kernel(self, entry: str, signature: str, **_: Any) -> str:
        return entry

    def sequence(self, steps: Any, **_: Any) -> None:
        """As the daemon bounds it."""
        tensors = {(id(one._block), one._start, one.shape, one._type) for step in steps for one in step if isinstance(one, Array)}
        if len(steps) > 512 or len(tensors) > 2048:
            raise BY_CODE["limit_exceeded"](f"{len(steps)} ops with {len(tensors)} tensors")
        for entry, *arguments, geometry in steps:
            on_host = [one.get().copy() if isinstance(one, Array) else one for one in arguments]
            blocks, rooms = geometry["grid"]
            self.runs[entry] += rooms
            launched(entry, on_host, grid=(min(blocks, 2), rooms))
            for there, here in zip(arguments, on_host):
                if isinstance(there, Array):
                    there.set(here)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    """Judges have a shelf."""
    made = Interpreted()

    def shelf(self: Any) -> Any:
        if self.shelf is None:
            self.shelf = _shelf.Shelf(self._carrier(), made, self.device)
        return self.shelf

    monkeypatch.setattr(_machine.Machine, "_shelf", shelf)
    return made


def believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever times the stand-in has."""
    for name in ("adds_up", "warm_is_no_longer"):
        monkeypatch.setattr(_timed, name, lambda *_: True)


def after_launches(monkeypatch: pytest.MonkeyPatch, call: Callable[[_shelf.Held], None]) -> None:
    """Called for each launch of a check, before it is looked at."""
    in_turn = _gpu.GpuRunner._launched_in_turn

    def spy(self: Any, several: Any) -> Any:
        made = in_turn(self, several)
        for held in several:
            call(held)
        return made

    monkeypatch.setattr(_gpu.GpuRunner, "_launched_in_turn", spy)


Make = Callable[..., judge.Judge]
SMALL = {"cases": [{"n": 100}, {"n": 300}]}


@pytest.fixture
def judge_of(daemon: Daemon) -> Iterator[Make]:
    made: list[judge.Judge] = []

    def begin(**more: Any) -> judge.Judge:
        limits = LIMITS._replace(until=1e9)
        how = {"deadline": 5.0, "interpreted_deadline": 2.0, "limits": limits, "peak_gb_s": 1.0, "counters": False, "seed": 1}
        made.append(judge.Judge(daemon.socket_path, **{**how, **more}))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def byte_of(memory: Any, name: str, at: int) -> Array:
    whole = memory[name].room.whole
    return Array(whole._client, whole.device, whole._block, whole._start + memory[name].before + at, (1,), (1,), "u8")
