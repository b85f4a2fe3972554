"""kops.profiler: grid and block of kernels' launches in its traces, by torch's names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kops
import pytest
from kops.profiler import Event, profile
from kops.profiler._chrome import Trace
from kops.profiler._recorder import Launched, Span
from test_daemon_cuda import driver, k, real, tensor
from test_kernels import ADD2

from support import backends  # isort: skip
from support.daemon import Daemon  # isort: skip
from which import compiled_only

__all__ = ["driver", "k", "real"]

SIZES = ("grid", "block", "registers per thread", "shared memory")
EVENT = Event(
    what="launch", op="mine", ops=1, device="GPU-1", variant="user", dtype="f32", shapes=((2, 3), (5,)), pid=7, uid=0, client="", comm="",
    connection=1, call=1, stream=0, received=20, ready=30, started=40, ended=90, busy_us=0.01, executions=1, failed=False,
)  # fmt: skip
GPU = kops.Device(0, "a GPU", "GPU-1", "cuda", memory_bytes=1 << 30, compute_units=132, arch="sm_90a")


def launch(grid: Any, block: Any = 32, **values: int | None) -> Launched:
    """Of a kernel whose parameters are `out float* y, const float* x, int n`: an event has the shape of x first."""
    return Launched("mine", {"grid": grid, "block": block}, ("x", "y"), values)


ONE = launch("multiprocessors", "x.numel")


@pytest.mark.parametrize(
    ("of", "event", "multiprocessors", "want"),
    [
        (launch([4, 2], [16]), EVENT, 132, {"grid": [4, 2, 1], "block": [16, 1, 1]}),
        (launch(["ceil_div(n, 256)", "x.shape[1]"], ["y.numel"], n=1000), EVENT, 132, {"grid": [4, 3, 1], "block": [5, 1, 1]}),
        (launch("multiprocessors * 2"), EVENT, 132, {"grid": [264, 1, 1], "block": [32, 1, 1]}),
        (launch("multiprocessors", multiprocessors=3), EVENT, 132, {"grid": [3, 1, 1], "block": [32, 1, 1]}),
        (launch("y.numel", y=None), EVENT, 132, {"block": [32, 1, 1]}),
        (launch("m"), EVENT, 132, {"block": [32, 1, 1]}),
        (Launched("mine", {"block": 32}), EVENT, 132, {"block": [32, 1, 1]}),
        (ONE, EVENT, 0, {"block": [6, 1, 1]}),  # an unknown device
        (ONE, replace(EVENT, shapes=()), 132, {"grid": [132, 1, 1]}),  # a kind of work that the daemon did not tell
        (ONE, replace(EVENT, op="another"), 132, {}),
        (ONE, replace(EVENT, ops=2), 132, {}),
        (ONE, replace(EVENT, what="compile"), 132, {}),
    ],
)
@compiled_only
def test_sizes_that_are_not_known_are_left_out(of: Launched, event: Event, multiprocessors: int, want: dict[str, Any]) -> None:
    assert of.arguments(event, multiprocessors) == want


def test_devices_by_torchs_names() -> None:
    """A kernel's `device` is the place of its properties."""
    host = kops.Device(1, "a CPU", "host", "host", memory_bytes=5, compute_units=2, arch="avx512")
    blackwell = replace(GPU, uuid="GPU-2", name="another", arch="sm_100")
    known = {device.uuid: device for device in (GPU, blackwell, host)}
    trace = Trace({uuid: device.name for uuid, device in known.items()}, lambda ns: ns / 1e3, known)
    call = Span("call", "mine", 7, 10, 100, call=1, connection=1, launch=launch(2))
    events = [EVENT, replace(EVENT, device="GPU-3", call=2)]
    trace.add_spans([call], 7, events)
    trace.add_ways(events, [call], 7)
    trace.add_events(events, [call], 7)
    assert trace.properties() == [
        {"id": 0, "name": "a GPU", "totalGlobalMem": 1 << 30, "computeMajor": 9, "computeMinor": 0, "numSms": 132},
        {"id": 1, "name": "another", "totalGlobalMem": 1 << 30, "computeMajor": 10, "computeMinor": 0, "numSms": 132},
        {"id": 2, "name": "a CPU", "totalGlobalMem": 5},
        {"id": 3, "name": "GPU-3"},
    ]
    kernels = [event["args"] for event in trace.done() if event.get("cat") == "kernel"]
    assert [(args["device"], args.get("grid")) for args in kernels] == [(0, [2, 1, 1]), (3, None)]


@pytest.mark.skipif(backends.nvrtc() is None, reason="there is no NVRTC here")
@compiled_only
def test_kernels_of_ones_own(k: kops.Client, driver: Any, real: Daemon) -> None:
    asked: list[int] = []

    def grid(_c: Any, _a: Any, _b: Any, n: int) -> int:
        asked.append(n)
        return n

    c, a, b = (tensor(driver, *values) for values in ((0, 0, 0, 0), (1, 2, 3, 4), (10, 20, 30, 40)))
    kern = k.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n", grid="ceil_div(n, 3)", block=256)
    other = k.kernel(ADD2, "add2_kernel", "out float* c, const float* a, const float* b, int n", grid=grid, block="a.numel * 8", shared=64)
    kern(c, a, b, 4)
    other(c, a, b, 4)
    k.synchronize()
    asked.clear()
    with profile(socket=real.socket_path) as p:
        kern(c, a, b, 4)
        kern(n=1, b=b, a=a, c=c)
        kern[(2, 3), 128](c, a, b, 4)
        kern(c, a, b, 4, block=64, timing=True)
        other(c, a, b, 4)
        k.add(a, b)
        with pytest.raises(kops.KopsError):
            kern(c, a, b)
        k.synchronize()
    registers = kern.attributes.registers
    kernels = [event["args"] for event in p.chrome_trace()["traceEvents"] if event.get("cat") == "kernel"]
    kernels.sort(key=lambda args: args["External id"])  # as they were called
    assert [[args.get(name) for name in SIZES] for args in kernels] == [
        [[2, 1, 1], [256, 1, 1], registers, 0],
        [[1, 1, 1], [256, 1, 1], registers, 0],
        [[2, 3, 1], [128, 1, 1], registers, 0],
        [[2, 1, 1], [64, 1, 1], registers, 0],
        [[4, 1, 1], [32, 1, 1], registers, 64],
        [None, None, None, None],
    ]
    assert registers > 0 and asked == [4], "the function is called once a launch"
