"""The extension's short way for kernels on torch CUDA tensors, and what both links do with kernels on CUDA streams."""

from __future__ import annotations

from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._kernels import kernels as _kernels
from test_kernels import ADD2
from test_ordered import control, driver, gpu, say_yes, stream, tensor
from which import compiled_only

__all__ = ["control", "driver", "gpu", "stream"]

SIGNATURE = "out float* c, const float* a, const float* b, int n"


@pytest.fixture(autouse=True)
def yes(daemon: FakeDaemon, gpu: Any) -> None:
    daemon.script["launch"] = say_yes


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches that went the long way."""
    seen: list[str] = []
    made = _kernels.Launch

    class Seen(made):  # type: ignore[misc, valid-type]
        def __init__(self, kernel: Any, *rest: Any) -> None:
            seen.append(kernel.name)
            super().__init__(kernel, *rest)

    monkeypatch.setattr(_kernels, "Launch", Seen)
    return seen


def of_dtype(kind: Any, *shape: int) -> Any:
    return torch.empty(shape, dtype=kind, device=torch.device("cuda", 0))


def add2(k: kops.Client, **more: Any) -> kops.Kernel:
    return k.kernel(ADD2, "add2_kernel", SIGNATURE, **{"grid": "ceil_div(n, 256)", "block": 256, **more})


@compiled_only
@pytest.mark.parametrize("blocking", [pytest.param(False, marks=compiled_only), True])
def test_it_sends_what_python_sends(k: kops.Client, daemon: FakeDaemon, stream: Any, slow: list[str], blocking: bool) -> None:
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


@compiled_only
def test_what_is_something_else_goes_the_long_way(k: kops.Client, daemon: FakeDaemon, stream: Any, slow: list[str]) -> None:
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


@compiled_only
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
