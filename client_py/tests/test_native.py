"""The extension's short way for ops on torch CUDA tensors: what it sends, and when it leaves a call to Python."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._base import compiled as _compiled
from kops._calls import plans as _plans
from kops._kernels import kernels as _kernels
from kops._tensors.torch import current_stream
from test_kernels import ADD2
from test_ordered import driver, gpu, say_yes, stream, tensor
from test_recovery import hang_up, lose_device, once
from which import wait_for

from standin_cuda import dlpack  # isort: skip

__all__ = ["driver", "gpu", "stream"]

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
    """The ops and kernels that went the long way."""
    seen: list[str] = []

    def noting(made: Any) -> Any:
        class Seen(made):  # type: ignore[misc, valid-type]
            def __init__(self, what: Any, *rest: Any) -> None:
                seen.append(what if isinstance(what, str) else what.name)
                super().__init__(what, *rest)

        return Seen

    monkeypatch.setattr(_plans, "Request", noting(_plans.Request))
    monkeypatch.setattr(_kernels, "Launch", noting(_kernels.Launch))
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


SIGNATURE = "out float* c, const float* a, const float* b, int n"


@pytest.fixture(autouse=True)
def yes(daemon: FakeDaemon, gpu: Any) -> None:
    daemon.script["launch"] = say_yes


def of_dtype(kind: Any, *shape: int) -> Any:
    return torch.empty(shape, dtype=kind, device=torch.device("cuda", 0))


def add2(k: kops.Client, **more: Any) -> kops.Kernel:
    return k.kernel(ADD2, "add2_kernel", SIGNATURE, **{"grid": "ceil_div(n, 256)", "block": 256, **more})


@pytest.mark.parametrize("blocking", [False, True])
def test_it_sends_of_kernels_what_python_sends(k: kops.Client, daemon: FakeDaemon, stream: Any, slow: list[str], blocking: bool) -> None:
    c, a, b = tensor(6, 8), tensor(6, 8), tensor(6, 8)
    kern = add2(k)
    mixed = k.kernel(
        "#include <cuda_fp16.h>\nextern \"C\" __global__ void mixed(float* c, const __half* a, const long long* b, double x, "
        "unsigned char y, bool z, unsigned long long w) {}", "mixed",
        [kops.Param("c", "out", "f32", strided=True), kops.Param("a", "in", "f16", rank=2), kops.Param("b", "in", "i64"),
         kops.Param("x", "scalar", "f64"), kops.Param("y", "scalar", "u8"), kops.Param("z", "scalar", "bool"),
         kops.Param("w", "scalar", "u64")],
        block=32, shared="4 * y",
    )  # fmt: skip
    half, long = of_dtype(torch.float16, 2, 3), of_dtype(torch.int64, 5)
    calls = [
        lambda: kern(c, a, b, 48, blocking=blocking),
        lambda: kern(c[2:4], a[1:2], None, -1, blocking=blocking),
        lambda: kern(n=3, c=c, a=a, b=c, blocking=blocking),
        lambda: kern[(2, 1), 64, 128](c, a, b, 5, blocking=blocking),
        lambda: kern(c, a, b, 5, grid=lambda c, a, b, n: n, cluster=1, blocking=blocking),
        lambda: mixed(c.t(), half, long, 1.5, 255, True, 7, grid=3, blocking=blocking),
        lambda: mixed(None, half, long, 2, 0, False, 2**63 - 1, grid=3, blocking=blocking),
        lambda: mixed(c[1:3, ::2], half, long, -1e300, 1, True, 0, grid=3, blocking=blocking),
    ]
    for call in calls:  # makes the memory and the kernels known
        call()
    k.synchronize()
    slow.clear()
    before = len(daemon.sent("launch"))
    for call in calls:
        call()
    assert not slow
    k.synchronize()
    fast = daemon.sent("launch")[before:]
    link = k._live()
    link.launch = lambda *_: NotImplemented
    for call in calls:
        call()
    k.synchronize()
    plain = daemon.sent("launch")[before + len(calls) :]
    assert len(slow) == len(calls) == len(plain)

    def meaning(launch: dict[str, Any]) -> Any:
        args = [
            {"offset": 0, "strides": None, **arg, "shape": list(arg["shape"])} if isinstance(arg, dict) else (type(arg), arg)
            for arg in launch["args"]
        ]
        rest = {key: value for key, value in launch.items() if key not in ("args", "ready", "done", "stream")}
        return args, rest, "ready" in launch

    assert [meaning(launch) for launch in fast] == [meaning(launch) for launch in plain]


def test_what_is_something_else_of_a_kernel_goes_the_long_way(k: kops.Client, daemon: FakeDaemon, stream: Any, slow: list[str]) -> None:
    c, a = tensor(4), tensor(4)
    kern = add2(k)
    kern(c, a, a, 4)
    slow.clear()
    kern(c, a, a, 4)
    kern(c, a, a, True)
    assert not slow
    kern(c, a, a, numpy.int32(4))
    kern(tensor(0), tensor(0), tensor(0), 0)
    assert len(slow) == 2
    for arguments, kind in (
        ((c, of_dtype(torch.int64, 4), a, 4), kops.DtypeMismatch),
        ((c, tensor(4, 4).t(), a, 4), kops.BadArgument),
        ((c, numpy.ones(4, "float32"), a, 4), kops.DeviceMismatch),
        ((c, a, a, 2**31), kops.OutOfRange),
        ((c, a, a, 2**64), kops.OutOfRange),
        ((c, a, a, 1.0), kops.WrongType),
        ((c, 1.0, a, 4), kops.WrongType),
        ((c, a, a), kops.BadArgument),
    ):
        with pytest.raises(kind):
            kern(*arguments)
    k.synchronize()
    assert len(daemon.sent("launch")) == 5


def test_in_a_batch(k: kops.Client, daemon: FakeDaemon, stream: Any) -> None:
    c, a = tensor(4), tensor(4)
    kern = add2(k)
    kern(c, a, a, 4)
    k.square(a, out=a)
    k.synchronize()
    before = len(daemon.requests)
    with k.batch():
        kern(c, a, a, 4)
        k.square(c, out=c)
        kern[2, 32](c, c, a, 3)
    k.synchronize()
    methods = [method for method, _ in daemon.requests[before:]]
    assert methods == ["sequence"]
    params = daemon.requests[-1][1]
    first, second, third = params["ops"]
    assert second["op"] == "square" and first["kernel"] == third["kernel"]
    assert [first["args"][3], third["args"][3]] == [4, 3] and third["grid"] == [2] and third["block"] == [32]
    places = [params["tensors"][i] for i in (*first["args"][:3], *third["args"][:3])]
    assert places[1] == places[2] and places[0] == places[3] == places[4] and places[5] == places[1]


def test_arguments_live_until_the_launch_has_ended(k: kops.Client, daemon: FakeDaemon, stream: Any) -> None:
    c, a = tensor(4), tensor(4)
    kern = add2(k)
    kern(c, a, a, 4)
    k.synchronize()
    daemon.gate.clear()
    temporary = tensor(4)
    kern(c, temporary, a, 4)
    kern(c, temporary, a, 4)
    gone = weakref.ref(temporary)
    del temporary
    gc.collect()
    assert gone() is not None
    daemon.gate.set()
    k.synchronize()
    kern(c, a, a, 4)
    k.synchronize()
    wait_for(lambda: (gc.collect(), gone() is None)[1])  # perhaps the tidier's turn
