"""The judge's own kernels, in the interpreter: what they fill, and what they find."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from kops import interpret
from kops._source.signature import parse
from kops.interpret import _compiler, _runtime
from kops.judge import _shelf, _values
from shelves import compute
from test_compare import FLOATS, SPECIAL, bits_of

ROOM, BEFORE = 1024, 256  # bytes
SEED = 0x123456789ABCDEF


@functools.cache
def kernels() -> Any:
    """All of them, compiled once, each access watched."""
    return _compiler.compile_kernel(_shelf.SOURCE, "judge.cu", _shelf.entries(), {}, (), True)


def run(entry: str, several: tuple[Any, ...] | list[tuple[Any, ...]], *rest: Any) -> None:
    """For one room, or several: the kernel, beside what NumPy computes in its place for other tests."""
    rooms = several if isinstance(several, list) else [several]
    arguments = _shelf.arguments(entry, rooms, *rest)
    beside = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    compute(entry, beside, len(rooms))
    number = _shelf.entries().index(entry)
    params = parse(_shelf.signature(entry))
    grid, block = (3, len(rooms)), _shelf.BLOCK
    interpret.launch(lambda _: _runtime.load(kernels(), number), entry, params, arguments, grid=grid, block=block)
    for one, other in zip(arguments, beside):
        if isinstance(one, np.ndarray) and one.dtype == "f8":
            np.testing.assert_allclose(one, other, rtol=1e-12)
        elif isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)


def found() -> Any:
    return np.zeros((4, _shelf.SUMS))  # three looks, and whether anything is wrong


def filled(dtype: str, bits: Any, nan: bool = False, before: int = BEFORE) -> Any:
    room, tensor = np.zeros(ROOM // 8, "u8"), np.zeros(-(-bits.nbytes // 8), "u8")
    tensor.view("u1")[: bits.nbytes] = bits.reshape(-1).view("u1")
    how = (room.size, tensor.size, before, bits.nbytes, *_shelf.masks(dtype, nan))
    run("put_tensor", (room, tensor, SEED), *how, None, 0)
    return room, tensor


@pytest.mark.parametrize("size", [1, 8, 15, 256])
@pytest.mark.parametrize("before", [0, BEFORE])
def test_a_tensor_between_rubbish(size: int, before: int) -> None:
    bits = np.random.default_rng(size).integers(0, 256, size, "u1")
    room, tensor = filled("u8", bits, before=before)
    assert np.array_equal(room.view("u1")[before : before + size], bits)
    assert len(set(room.tolist())) > ROOM // 8 - 34, "what is beside it differs from word to word"
    how = (before, size, *_shelf.masks("u8", False))
    for at in (0, before - 1 if before else 0, before, before + size - 1, before + size, before + size + 9, ROOM - 1):
        one = room.copy()
        one.view("u1")[at] ^= 4
        same, around = found(), found()
        run("look_same", (one, tensor, SEED), room.size, tensor.size, *how, same, 4, 1)
        run("look_around", (one, SEED), room.size, *how, around, 4, 2)
        beside = not before <= at < before + size
        assert same[1, 0] == room.size - 1 and not same[[0, 2]].any() and same[3].tolist() == [1, 0, 0]
        assert around[2, 0] == room.size - beside and around[3].tolist() == [beside, 0, 0]
    whole = found()
    run("look_same", (room, tensor, SEED), room.size, tensor.size, *how, whole, 4, 0)
    assert whole[0].tolist() == [room.size, 0, 0] and not whole[3].any()


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_wrong_is_not_overwritten(wrong: bool) -> None:
    rows = found()
    rows[3, 0] = wrong
    tensor = np.arange(16, dtype="u8")
    for put in ("put_rubbish", "put_tensor"):
        room = np.full(ROOM // 8, 7, "u8")
        place = (room.size, tensor.size, BEFORE, tensor.nbytes) if put == "put_tensor" else (room.size,)
        run(put, (room, tensor, SEED) if put == "put_tensor" else (room, SEED), *place, *_shelf.masks("u8", False), rows, 4)
        assert bool((room == 7).all()) == wrong and (wrong or len(set(room.tolist())) == room.size)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "f8_e5m2", "i32", "bool"])
@pytest.mark.parametrize("nan", [False, True])
def test_rubbish(dtype: str, nan: bool) -> None:
    room = np.zeros(ROOM // 8, "u8")
    run("put_rubbish", (room, SEED), room.size, *_shelf.masks(dtype, nan), None, 0)
    tensor = _values.Tensor(dtype, room.view(_values.bits_dtype(dtype)))
    assert len(set(room.tolist())) == room.size
    if nan and dtype in ("f16", "bf16", "f32", "f64"):
        assert np.isnan(_values.floats_of(tensor)).all()
    if dtype == "bool":
        assert (room.view("u1") >= 2).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_as_on_the_host(dtype: str) -> None:
    """Numbers near the bound of the tolerance on both sides, and all that are none beside each other."""
    rng = np.random.default_rng(5)
    want = np.concatenate([rng.standard_normal(90), [two for one in SPECIAL for two in SPECIAL]])
    with np.errstate(all="ignore"):
        near = want * (1 + 1e-2 * rng.standard_normal(want.size))
        near[90:] = [one for one in SPECIAL for _ in SPECIAL]
        got = bits_of(dtype, near)
        if dtype.startswith("f8"):
            got = _values.Tensor(dtype, np.arange(want.size).astype("u1"))
    for rtol, atol, least in ((1e-2, 0.0, 0.0), (0.0, 1e-2, math.inf), (1e-2, 1e-2, 0.5), (0.0, 0.0, 0.0)):
        room = np.zeros(-(-(BEFORE + got.nbytes) // 8), "u8")
        room.view("u1")[BEFORE : BEFORE + got.nbytes] = got.data.view("u1")
        sums = found()
        with np.errstate(all="ignore"):
            run(_shelf.LOOKS[dtype], (room, want, atol), room.size, want.size, BEFORE, got.nbytes, rtol, least, 1e-3, sums, 4, 1)
        errors = _values.float_errors(got, want, rtol, atol, max(least, 1e-3 * atol))
        assert sums[1, 0] == want.size - errors.wrong and sums[1, 1] == pytest.approx(errors.squares, rel=1e-12)
        assert sums[1, 2] == errors.by_atol and sums[3].tolist() == [bool(errors.wrong), 0, 0]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8_e4m3", "f8_e5m2"])
def test_all_numbers_of_small_dtypes(dtype: str) -> None:
    bits = _values.bits_dtype(dtype)
    some = np.arange(0, 1 << 8 * bits.itemsize, 1 if bits.itemsize == 1 else 7).astype(f"u{bits.itemsize}").view(bits)
    want = _values.floats_of(_values.Tensor(dtype, some))
    room = np.zeros(-(-some.nbytes // 8), "u8")
    room.view("u1")[: some.nbytes] = some.view("u1")
    sums = found()
    run(_shelf.LOOKS[dtype], (room, want, 0.0), room.size, want.size, 0, some.nbytes, 0.0, math.inf, 0.0, sums, 4, 0)
    assert sums[0].tolist() == [want.size, 0, 0]


@pytest.mark.parametrize("count", [1, 3, _shelf.WIDE])
def test_several_rooms_at_once(count: int) -> None:
    """Each has its own tensor, rubbish and row; what a launch has no room for is not touched."""
    rng = np.random.default_rng(count)
    rooms = [np.zeros(ROOM // 8, "u8") for _ in range(count)]
    tensors = [rng.standard_normal(30) for _ in range(count)]
    how = (ROOM // 8, 30, BEFORE, 240)
    bits = _shelf.masks("f64", False)
    run("put_tensor", [(room, one.view("u8"), i) for i, (room, one) in enumerate(zip(rooms, tensors))], *how, *bits, None, 0)
    alone = filled("f64", tensors[0])[0]
    assert np.array_equal(rooms[0].view("f8")[32:62], alone.view("f8")[32:62]) and len({room.tobytes() for room in rooms}) == count
    rooms[-1].view("f8")[40] += 0.5
    same, near = np.zeros((count + 3, _shelf.SUMS)), np.zeros((count + 3, _shelf.SUMS))
    run("look_same", [(room, one.view("u8"), i) for i, (room, one) in enumerate(zip(rooms, tensors))], *how, *bits, same, count + 3, 1)
    tolerances = [1.0] * (count - 1) + [0.25]
    several = list(zip(rooms, tensors, tolerances))
    run("look_f64", several, *how, 0.0, math.inf, 0.0, near, count + 3, 1)
    assert same[:, 0].tolist() == [0, *[128] * (count - 1), 127, 0, 1]
    assert near[:, 0].tolist() == [0, *[30] * (count - 1), 29, 0, 1] and near[count, 1] == pytest.approx(0.25)
    wide = np.zeros((count + 3, _shelf.SUMS))
    run("look_f64", [(room, one, 0.75) for room, one, _ in several], *how, 0.0, math.inf, 0.0, wide, count + 3, 1)
    assert wide[:, 0].tolist() == [0, *[30] * count, 0, 0]
