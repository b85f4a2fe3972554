"""Judges with draws in the GPU's memory. The stand-in does not know the judge's own kernels, so NumPy computes them here;
test_device_code.py compares that with the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import LIMITS
from kops import Array, judge
from kops._companions import view_of
from kops.judge import _gpu, _machine, _shelf, _timed, _values
from material import spy

from support.daemon import Daemon  # isort: skip

DTYPES = {look: dtype for dtype, look in _shelf.LOOKS.items()}
WIDE = _shelf.WIDE


def rubbish(words: int, seed: int, drawn: int, bits: int) -> Any:
    """SplitMix64 of the words' numbers, with `bits` set."""
    if not drawn:
        return np.full(words, bits, "u8")
    x = np.arange(1, words + 1, dtype="u8") * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> np.uint64(shift)) * np.uint64(factor)
    return (x ^ x >> np.uint64(31)) & np.uint64(drawn) | np.uint64(bits)


def put(entry: str, room: Any, own: list[Any], drawn: int, bits: int, rest: list[Any]) -> None:
    room[:] = rubbish(room.size, own[-1], drawn, bits)
    if entry == "put_tensor":
        _, before, size = rest
        room.view("u1")[before : before + size] = own[0].view("u1")[:size]


def look(entry: str, room: Any, own: list[Any], rest: list[Any]) -> tuple[int, float, int, bool]:
    """The sums, and whether anything is wrong."""
    if entry in DTYPES:
        (want, atol), (count, before, size, rtol, least, part) = own, rest
        got = room.view("u1")[before : before + size].view(_values.bits_dtype(DTYPES[entry]))
        errors = _values.float_errors(_values.Tensor(DTYPES[entry], got), want[:count], rtol, atol, max(least, part * atol))
        return count - errors.wrong, errors.squares, errors.by_atol, bool(errors.wrong)
    *_, before, size, drawn, bits = rest
    was, now = rubbish(room.size, own[-1], drawn, bits), room.copy()
    tensor = own[0] if entry == "look_same" else now
    at = before if entry == "look_around" else 0
    was.view("u1")[before : before + size] = tensor.view("u1")[at : at + size]
    right = np.count_nonzero(was == now)
    return right, 0.0, 0, right < room.size


def compute(entry: str, arguments: list[Any], rooms: int) -> list[int]:
    """A launch of one of the judge's own kernels. Answers which arguments it has written to."""
    columns = len(_shelf._FORMS[entry].own)
    _, *rest = arguments[columns * WIDE :]
    *rest, found, rows = rest if entry.startswith("put") else rest[:-1]
    several = [[arguments[column * WIDE + at] for column in range(columns)] for at in range(rooms)]
    if not entry.startswith("put"):
        for at, (room, *own) in enumerate(several, arguments[-1]):
            *sums, wrong = look(entry, room, own, rest)
            found[at] += sums
            found[rows - 1, 0] = wrong or found[rows - 1, 0]
        return [len(arguments) - 3]
    if found is not None and found[rows - 1, 0]:
        return []
    for room, *own in several:
        put(entry, room, own, rest[-2], rest[-1], rest[:-2])
    return list(range(rooms))


class Numpy:
    """In place of the connection whose process runs the judge's own kernels."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()  # rooms by entry
        self.longest = 0  # request, in steps

    def compile(self, source: str, entries: Any, **_: Any) -> Numpy:
        return self

    def kernel(self, entry: str, signature: str, **_: Any) -> str:
        return entry

    def sequence(self, steps: Any, **_: Any) -> None:
        self.longest = max(self.longest, len(steps))
        for entry, *arguments, geometry in steps:
            rooms = geometry["grid"][1]
            self.runs[entry] += rooms
            unread = rooms if entry.startswith("put") else 0  # of the first ones, which a kernel that puts something writes whole
            on_host = [one.get() if isinstance(one, Array) and at >= unread else one for at, one in enumerate(arguments)]
            on_host[:unread] = [np.empty(one.shape, "u8") for one in arguments[:unread]]
            for at in compute(entry, on_host, rooms):
                arguments[at].set(on_host[at])


@pytest.fixture
def shelved(monkeypatch: pytest.MonkeyPatch) -> Numpy:
    """Judges have a shelf."""
    made = Numpy()

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
    spy(monkeypatch, _gpu.GpuRunner, "_launched_in_turn", lambda made, runner, several: [call(held) for held in several])


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
    return view_of(whole, "u8", (1,), memory[name].before + at)


def flip(memory: Any, name: str, at: int, bit: int = 64) -> None:
    byte = byte_of(memory, name, at)
    byte.set(byte.get() ^ bit)
