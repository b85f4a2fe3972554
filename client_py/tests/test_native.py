"""The extension's short way for ops on torch CUDA tensors: what it sends, and when it leaves a call to Python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._base import compiled as _compiled
from kops._calls import plans as _plans
from kops._tensors.torch import current_stream
from test_ordered import control, driver, gpu, say_yes, stream, tensor
from test_recovery import hang_up, lose_device, once

from standin_cuda import dlpack  # isort: skip

__all__ = ["control", "driver", "gpu", "stream"]

if _compiled.native is None:
    pytest.skip("the extension is not built, or switched off", allow_module_level=True)


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h."""

    READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("unused", ctypes.c_void_p * 3),
        ("read", READ), ("stream", STREAM),
    ]  # fmt: skip


kept: list[Any] = []


@Exchange.READ
def read(value: Any, into: int) -> int:
    if value.dtype.name not in dlpack._CODES:
        return -1
    out = dlpack._Tensor.from_address(into)
    n = len(value.shape)
    shape, strides = (ctypes.c_int64 * n)(*value.shape), (ctypes.c_int64 * n)(*value.stride())
    kept.append((shape, strides))
    out.data, out.device_type, out.device_id, out.ndim = value.data_ptr(), 2, 0, n
    (out.code, out.bits), out.lanes = dlpack._CODES[value.dtype.name], 1
    out.shape, out.strides, out.byte_offset = shape, strides, 0
    return 0


@Exchange.STREAM
def current(kind: int, device: int, into: Any) -> int:
    into[0] = torch.cuda.handle or None
    return 0


API = Exchange(1, 2, None, (ctypes.c_void_p * 3)(), read, current)
_new = ctypes.PyDLL(None).PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@pytest.fixture(params=["methods", "exchange"])
def torch_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, gpu: Any) -> Iterator[None]:
    """Both ways in which tensors can be read."""
    if request.param == "exchange":
        capsule = _new(ctypes.addressof(API), b"dlpack_exchange_api", None)
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", capsule, raising=False)
    _compiled._configured = None
    _compiled.configure(torch, current_stream)
    yield
    monkeypatch.undo()
    _compiled._configured = None
    _compiled.configure(torch, current_stream)
    kept.clear()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops that went the long way."""
    seen: list[str] = []
    made = _plans.Request

    class Seen(made):  # type: ignore[misc, valid-type]
        def __init__(self, op: str, *rest: Any) -> None:
            seen.append(op)
            super().__init__(op, *rest)

    monkeypatch.setattr(_plans, "Request", Seen)
    return seen


@pytest.mark.parametrize("blocking", [False, True])
def test_it_sends_what_python_sends(
    k: kops.Client, daemon: FakeDaemon, stream: Any, torch_of: None, slow: list[str], blocking: bool
) -> None:
    a, b, out = tensor(6, 8), tensor(6, 8), tensor(6, 8)
    square, vector = tensor(6, 6), tensor(20)
    where = torch.device("cuda", 0)
    half = torch.empty((3, 3), dtype=torch.float16, device=where)
    calls = [
        lambda: k.add(a, b, out=out, blocking=blocking),
        lambda: k.add(a[1:3, ::2], b[:2, 4:], out=out[:2, :4], blocking=blocking),
        lambda: k.add(square, square.t(), out=square, blocking=blocking),
        lambda: k.gemm(a, b.t(), out=square, alpha=0.5, trans_a=False, blocking=blocking),
        lambda: k.square(vector[3:7], out=vector[10:14], blocking=blocking),
        lambda: k.square(half, out=half, blocking=blocking),
    ]
    for call in calls:  # makes the memory known
        call()
    before = len(daemon.runs())
    for call in calls:
        call()
    k.synchronize()
    fast, went_slow = daemon.runs()[before:], len(slow)
    link = k._live()
    link.run = lambda *_: NotImplemented
    for call in calls:
        call()
    k.synchronize()
    assert went_slow <= len(calls) and len(slow) == went_slow + len(calls)
    plain = daemon.runs()[before + len(calls) :]

    def meaning(run: dict[str, Any]) -> Any:
        tensors = [{"offset": 0, "strides": None, **t, "shape": list(t["shape"])} for t in [*run["in"], *run["out"]]]
        return run["op"], tensors, run.get("attrs", {}), run["timing"], "ready" in run

    assert [meaning(run) for run in fast] == [meaning(run) for run in plain]


def test_the_output_is_made(k: kops.Client, daemon: FakeDaemon, stream: Any, torch_of: None) -> None:
    a, b = tensor(3, 4), tensor(4, 5)
    for _ in range(3):
        c = k.add(a, a)
        assert type(c) is torch.Tensor and c.shape == (3, 4) and c.is_contiguous() and c.data_ptr() != a.data_ptr()
        assert k.gemm(a, b).shape == (3, 5)
        assert k.add(a.t(), a.t()).is_contiguous()
        assert k.add(tensor(1, 4), tensor(3, 1)).shape == (3, 4)
    k.synchronize()


def test_what_is_something_else_goes_the_long_way(k: kops.Client, daemon: FakeDaemon, stream: Any, torch_of: None, slow: list[str]) -> None:
    a = tensor(3)
    k.square(a, out=a)
    slow.clear()
    k.square(a, out=a)
    assert not slow
    assert k.square(tensor(0)).shape == (0,)
    with pytest.raises(kops.UnknownDtype):
        k.square(torch.empty((3,), dtype=torch.bool, device=torch.device("cuda", 0)))
    with pytest.raises(kops.ShapeMismatch):
        k.add(a, tensor(4))
    with pytest.raises(kops.DeviceMismatch):
        k.add(a, numpy.ones(3, "float32"))
    negated = torch.Tensor(a.array, a.dtype, a.device)
    negated.negated = True
    with pytest.raises(kops.BadArgument):
        k.square(a, out=negated)
    assert slow == ["square", "square", "add", "add", "square"]
    k.synchronize()


def test_freed_memory_is_not_believed(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any, torch_of: None) -> None:
    a, out = tensor(1000), tensor(1000)
    for _ in range(2):
        k.square(a, out=out)
    k.synchronize()
    address = a.data_ptr()
    a.array.free()
    again = tensor(1000)
    assert again.data_ptr() == address, "this test is about a reused address"
    k.square(again, out=out)
    k.synchronize()
    first, *_, last = daemon.runs()
    assert first["in"][0]["buffer"] != last["in"][0]["buffer"]


@pytest.mark.parametrize("how", [hang_up, lose_device])
def test_the_short_way_is_repeated_as_the_long_one(
    how: Any, k: kops.Client, daemon: FakeDaemon, stream: Any, torch_of: None, slow: list[str]
) -> None:
    a, b = tensor(4), tensor(4)
    k.square(a, out=b, blocking=True)
    k.square(a, out=b, blocking=True)
    assert slow == ["square"]
    asked = once(daemon, "run", how, then=say_yes)
    k.square(a, out=b, blocking=True)
    assert asked == [2]
    for _ in range(2):  # so that the connection knows the memory
        k.square(a, out=b, blocking=True)
    asked = once(daemon, "run", how, then=say_yes)
    with pytest.raises((kops.ConnectionLost, kops.DeviceLost), match="memory that it reads"):
        k.square(a, out=a, blocking=True)
    assert asked == [1]


def test_a_timeout_of_the_short_way(k: kops.Client, daemon: FakeDaemon, stream: Any, torch_of: None) -> None:
    a = tensor(4)
    k.square(a, out=a, blocking=True)
    del daemon.script["run"]
    daemon.gate.clear()
    with pytest.raises(kops.Timeout):
        k.square(a, out=a, blocking=True, timeout=0.05)
    daemon.gate.set()
    assert k.ping({"x": 1}) == {"x": 1}
    assert daemon.count("cancel") == 1  # which was read before the ping
