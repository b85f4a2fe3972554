"""Numbers beside arrays: k.add(a, 2.0)."""

from __future__ import annotations

import asyncio
import gc
from fractions import Fraction
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._tensors import operands as _numbers
from which import compiled_only


def normal(*shape: int, dtype: str = "float32") -> Any:
    return numpy.random.default_rng().standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("number", [2, True, 0.1, float("inf"), Fraction(1, 3), numpy.float64(0.3), numpy.int8(-3), numpy.bool_(1)])
def test_a_number_takes_the_dtype_of_the_array(k: kops.Client, dtype: str, number: Any) -> None:
    a = normal(7, 5, dtype=dtype)
    want = a + numpy.asarray(float(number), dtype)
    for result in (k.add(a, number), k.add(number, a), k.add(k.array(a), number), k.run("add", number, a)):
        assert result.dtype == dtype and numpy.array_equal(result, want)
    out = k.empty((7, 5), dtype)
    assert k.add(number, a, out=out) is out and numpy.array_equal(out, want)
    assert k.add(normal(0, 3, dtype=dtype), number).shape == (0, 3)
    assert k.add(numpy.ones((), dtype), number).shape == ()


def test_what_a_number_must_be(k: kops.Client, daemon: FakeDaemon) -> None:
    half, whole = numpy.ones(3, "float16"), numpy.ones(3, "int32")
    for a, number, kind, text in (
        (half, 1e6, kops.OutOfRange, "beside an array of float16 is too large for f16: 1000000"),
        (whole, 2.5, kops.WrongType, "beside an array of int32 must be a whole number .i32., not 2.5"),
        (whole, 2**40, kops.OutOfRange, "does not fit i32"),
        (numpy.ones(3, "bool"), True, kops.UnknownDtype, "add of bool is not supported"),
        (half, numpy.complex64(1), kops.WrongType, "must be real"),
        (half, 1j, kops.WrongType, "no tensor"),
    ):
        for operands in ((a, number), (number, a)):
            with pytest.raises(kind, match=text):
                k.add(*operands)
    with pytest.raises(kops.WrongType, match="gemm takes arrays, and no numbers"):
        k.gemm(numpy.ones((3, 3), "float32"), 2.0)
    assert not daemon.runs()


def test_numbers_alone_are_no_operands(k: kops.Client, daemon: FakeDaemon) -> None:
    for call in (lambda: k.add(2, 3.0), lambda: k.square(2.0), lambda: k.submit("add", 2, 3), lambda: k.sequence([("add", 2, 3)])):
        with pytest.raises(kops.WrongType, match="nothing beside it is an array.*k.array"):
            call()
    assert not daemon.runs()
    assert k.square(numpy.float64(1.5)) == 2.25 and k.add(numpy.float32(1.5), 2) == 3.5, "NumPy's numbers have a dtype"
    assert k.add([1, 2], 0.5).tolist() == [1.5, 2.5]


@compiled_only
def test_in_sequences_programs_and_pending_calls(k: kops.Client, daemon: FakeDaemon) -> None:
    a = k.array(normal(64))
    with k.sequence() as s:
        b = k.add(a, 0.25)
        c = s.add(-3, b)
    assert numpy.array_equal(c, numpy.float32(-3) + (a + numpy.float32(0.25)))
    assert numpy.array_equal(k.sequence([("add", a, 4)])[0], a + 4)
    with k.program() as p:
        d = k.add(a, 1.5)
        e = k.add([7] * 64, k.add(2, d))
    gc.collect()
    k.add(a, 99)  # would take the memory of a constant that nobody kept
    p.run()
    assert numpy.array_equal(e, a + numpy.float32(1.5) + 2 + 7)
    assert numpy.array_equal(k.submit("add", a, 5).result(), a + 5)
    assert k.profile("add", a, 2.0, repeat=8).shapes == ((64,), (), (64,))

    async def main() -> Any:
        async with kops.connect_async(daemon.path) as other:
            return await asyncio.gather(other.add(a, 3), other.add(4, a))

    three, four = asyncio.run(main())
    assert numpy.array_equal(three, a + 3) and numpy.array_equal(four, a + 4)


def test_the_result_is_of_the_arrays_framework(k: kops.Client, with_torch: None) -> None:
    a = torch.tensor(normal(4))
    for number in (2, numpy.float64(2)):
        c = k.add(number, a)
        assert type(c) is torch.Tensor and numpy.array_equal(c.array, a.array + 2)
    assert type(k.add([1, 2, 3, 4], a)) is torch.Tensor


def test_bfloat16(k: kops.Client, daemon: FakeDaemon, with_torch: None) -> None:
    seen: list[bytes] = []

    def run(peer: Any, params: Any, fds: Any) -> Any:
        (number,) = [t for t in params["in"] if t["shape"] == []]
        assert number["dtype"] == "bf16"
        seen.append(bytes(peer.buffers[number["buffer"]].data[number["offset"] : number["offset"] + 2]))
        return {"timings": {}, "device": "host", "variant": "none"}

    daemon.script["run"] = run
    a = torch.Tensor(numpy.zeros(4, "uint16"), torch.bfloat16, torch.device("cpu"))
    k.add(a, 1.00390625)
    k.add(1.01171875, a)
    assert seen == [b"\x80\x3f", b"\x82\x3f"], "ties to even"


def on_gpu(dtype: Any) -> Any:
    return torch.empty((4,), dtype=dtype, device=torch.device("cuda", 0))


def test_a_number_is_made_once(k: kops.Client, daemon: FakeDaemon, torch_gpu: Any) -> None:
    def number() -> dict[str, Any]:
        (found,) = [t for t in daemon.runs()[-1]["in"] if t["shape"] == []]
        return found

    a = on_gpu(torch.float32)
    value = float(numpy.random.default_rng().standard_normal())
    c = k.add(a, value)
    assert c.device is a.device and c.shape == (4,)
    first = number()
    assert torch.cuda.fills == [numpy.float64(value)] and torch.cuda.awaited == 1
    for _ in range(3):
        assert k.add(value, a).shape == (4,)
        assert number() == first
    assert len(torch.cuda.fills) == torch.cuda.awaited == 1, "neither made nor waited for again"
    k.add(a, value + 1)
    assert len(torch.cuda.fills) == 2 and number() != first
    k.add(on_gpu(torch.float16), value)
    assert len(torch.cuda.fills) == 3 and number()["dtype"] == "f16"


def test_the_cache_is_bounded(k: kops.Client, torch_gpu: Any) -> None:
    a = on_gpu(torch.float64)
    with k.program() as p:
        k.add(a, -1.0)
    for i in range(_numbers.CACHED + 1):
        k.add(a, i)
    made = len(torch.cuda.fills)
    k.add(a, _numbers.CACHED)
    assert len(torch.cuda.fills) == made
    k.add(a, -1.0)
    assert len(torch.cuda.fills) == made + 1, "the oldest was dropped"
    kept = [value for value in p.operands.keep if getattr(value, "shape", None) == ()]
    assert kept and kept[0].array.numpy() == -1.0, "by the cache, and not by the program"


def test_arrays_of_other_frameworks(k: kops.Client, torch_gpu: Any) -> None:
    a = torch_gpu.array(numpy.zeros(4, "float16"))
    with k.program() as p:
        c = k.add(2.5, a)
    assert type(c) is type(a) and c.shape == (4,)
    (number,) = [operand for operand in p._tensors if operand.shape == ()]
    assert number.dtype == "f16" and number.value.numpy() == 2.5
