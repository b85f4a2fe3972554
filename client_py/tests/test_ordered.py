"""Ordered calls, over the stand-in CUDA driver, a small module in torch's place and a daemon that obeys the test."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import fake_torch as torch
import kops
import pytest
from fake_daemon import FakeDaemon, Peer, refuser
from standin_driver import ROOT, driver
from which import compiled_only, wait_for

__all__ = ["driver"]
pytestmark = compiled_only
NOT_READY = 600


def say_yes(peer: Peer, params: dict[str, Any], fds: list[int]) -> Any:
    return {"timings": {"gpu_us": 1.0}, "device": "GPU-x", "variant": "v"}


@pytest.fixture(autouse=True)
def gpu(driver: Any, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch tensors in the stand-in's memory; the daemon offers ordered calls and says yes to all of them."""
    driver.make_current()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(torch.cuda, "driver", driver)
    monkeypatch.setattr(torch.cuda, "handle", 0)
    monkeypatch.setattr(torch.cuda, "synchronized", [])
    daemon.hello["features"] = [*daemon.hello["features"], "ordered"]
    for method in ("run", "sequence", "run_program"):
        daemon.script[method] = say_yes
    yield driver
    gc.collect()


@pytest.fixture
def stream(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.c_void_p]:
    """torch's current stream."""
    made = ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(1))
    monkeypatch.setattr(torch.cuda, "handle", made.value)
    yield made
    driver.call("cuStreamSynchronize", made)
    driver.call("cuStreamDestroy_v2", made)


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=torch.device("cuda", 0))


def drained(driver: Any, stream: ctypes.c_void_p) -> bool:
    return int(driver.lib.cuStreamQuery(stream)) != NOT_READY


def test_a_call_returns_before_its_op_has_run(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a, b = tensor(4, 5), tensor(4, 5)
    daemon.gate.clear()
    c = k.add(a, b)
    assert type(c) is torch.Tensor and c.shape == (4, 5) and c.device.type == "cuda"
    assert not torch.cuda.synchronized and not drained(gpu, stream), "what comes later waits for the op"
    daemon.gate.set()
    k.synchronize()
    gpu.call("cuStreamSynchronize", stream)
    (run,) = daemon.runs()
    assert run["ready"] == run["done"] == 1 and run["timing"] is False


class Held:
    """A stream whose next work waits until `go`."""

    def __init__(self, gpu: Any, stream: Any) -> None:
        self._gpu = gpu
        self._flag = (ctypes.c_uint64 * 512)()
        there = ctypes.c_uint64()
        gpu.call("cuMemHostRegister_v2", self._flag, ctypes.c_size_t(4096), ctypes.c_uint(2))
        gpu.call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), self._flag, ctypes.c_uint(0))
        gpu.call("cuStreamWaitValue64_v2", stream, there, ctypes.c_uint64(1), ctypes.c_uint(0))

    def go(self) -> None:
        self._flag[0] = 1

    def close(self) -> None:
        self._gpu.call("cuMemHostUnregister", self._flag)


def test_an_op_waits_for_what_is_on_the_stream(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    k.square(a, out=a)
    k.synchronize()
    held = Held(gpu, stream)
    k.square(a, out=a)
    k.square(a, out=a)
    wait_for(lambda: len(daemon.runs()) == 3)
    with pytest.raises(kops.Timeout):
        k.synchronize(timeout=0.05)
    held.go()
    k.synchronize()
    assert [(run["ready"], run["done"], run["stream"]) for run in daemon.runs()] == [(i, i, 255) for i in (1, 2, 3)]
    gpu.call("cuStreamSynchronize", stream)
    held.close()


def test_the_blocking_forms(k: kops.Client, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    k.square(a, out=a, blocking=True)
    _, timings = k.square(a, out=a, timing=True)
    assert timings.gpu_us == 1
    k.square(a, out=a, stream=3)
    with kops.connect(daemon.path, blocking=True) as blocking:
        blocking.square(a, out=a)
        blocking.square(a, out=a, blocking=False)
    assert torch.cuda.synchronized == [0] * 3, "by torch; the timed call waits in the extension"
    assert ["done" in run for run in daemon.runs()] == [False] * 4 + [True]


def test_other_arrays_and_other_daemons_block(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = gpu.empty((4,))
    k.square(a, out=a)
    daemon.hello["features"] = ["memfd"]
    with kops.connect(daemon.path) as other:
        other.square(tensor(4))
        with other.batch():
            other.square(tensor(4))
    assert not any("done" in run for run in daemon.runs())


def test_an_error_comes_later_and_names_its_op(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    with pytest.raises(kops.ShapeMismatch):
        k.add(a, tensor(3))
    with pytest.raises(kops.BadArgument):
        k.square(a, deadline_ms=object())
    k.square(a, out=a)
    k.synchronize()
    refuse = refuser("device_error", "the driver says no", driver="CUDA_ERROR_X", op_index=1)
    daemon.script["run"] = lambda peer, params, fds: (refuse if params["op"] == "add" else say_yes)(peer, params, fds)
    daemon.script["sequence"] = refuse
    k.add(a, a, out=a)
    k.square(a, out=a)
    with pytest.raises(kops.DeviceError, match=r"call 2 \(add\).*: the driver says no") as caught:
        k.synchronize()
    assert caught.value.detail["driver"] == "CUDA_ERROR_X" and caught.value.detail["call"] == 2
    k.synchronize()
    with k.batch():
        k.square(a, out=a)
        k.add(a, a, out=a)
    with pytest.raises(kops.DeviceError, match=r"^call 5 \(add\)"):
        k.synchronize()
    with pytest.raises(ZeroDivisionError), k.batch():
        k.square(a, out=a)
        raise ZeroDivisionError
    with pytest.raises(kops.BadArgument, match="open already"), k.batch(), k.batch():
        pass
    gpu.call("cuStreamSynchronize", stream)


def test_tensors_are_kept_until_the_reply_and_no_longer(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    daemon.gate.clear()
    gone = weakref.ref(k.square(a))
    del a
    gc.collect()
    wait_for(lambda: len(daemon.runs()) == 1)
    assert gone() is not None
    daemon.gate.set()
    wait_for(lambda: gone() is None)  # though nobody calls the client any more


def test_closing_waits_for_the_calls(daemon: FakeDaemon, gpu: Any, stream: Any) -> None:
    with kops.connect(daemon.path) as k:
        for _ in range(5):
            k.square(tensor(4))
    assert len(daemon.runs()) == 5
    gpu.call("cuStreamSynchronize", stream)
    k = kops.connect(daemon.path)
    k.square(tensor(4))
    del k
    gc.collect()
    gpu.call("cuStreamSynchronize", stream)
    wait_for(lambda: all(peer.ended.is_set() for peer in daemon.peers))


def test_a_batch_travels_together(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a, b, c = tensor(4), tensor(4), tensor(4)
    with k.batch():
        for _ in range(35):
            k.add(a, b, out=c)
            k.square(c, out=b)
    k.synchronize()
    gpu.call("cuStreamSynchronize", stream)
    parts = daemon.sent("sequence")
    assert [op["op"] for part in parts for op in part["ops"]] == ["add", "square"] * 35
    assert len(parts) <= 5 and not daemon.runs()
    assert ["ready" in part for part in parts] == [True] + [False] * (len(parts) - 1) and "done" in parts[-1]


def test_what_blocks_in_a_batch_comes_after_its_ops(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    with k.batch():
        k.square(a, out=a)
        k.add(a, a, out=a, blocking=True)
        k.square(a, out=a)
        k.synchronize()
        assert sum(len(part["ops"]) for part in daemon.sent("sequence")) == 2
        k.square(a, out=a, priority="high")
    k.synchronize()
    assert [name for name, params in daemon.requests if name in ("run", "sequence")] == ["sequence", "run", "sequence", "run"]
    assert daemon.runs()[-1]["priority"] == "high"


def test_sequences_and_programs_are_ordered_too(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a, x = tensor(4), tensor(4)
    daemon.gate.clear()
    with k.sequence():
        b = k.square(a)
    with k.program() as p:
        k.add(a, b)
    p.run()
    p.run([(a, x)])
    assert not drained(gpu, stream)
    daemon.gate.set()
    p.run(timing=True)
    assert [r.get("done") for r in daemon.sent("sequence", "run_program")] == [1, 2, 3, None]
    gpu.call("cuStreamSynchronize", stream)


LEAVE = """
import sys
import fake_torch as torch, kops, standin_cuda
sys.modules["torch"] = torch
torch.cuda.driver = standin_cuda.Driver()
tensor = torch.empty((4,), dtype=torch.float32, device=torch.device("cuda", 0))
k = kops.connect(sys.argv[1])
kept = k.square(tensor)
print("called", flush=True)
"""


def test_the_interpreters_end_waits_for_nothing(daemon: FakeDaemon) -> None:
    daemon.gate.clear()
    path = os.pathsep.join(str(ROOT / name) for name in ("client_py", "client_py/tests", "tests"))
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", LEAVE, daemon.path], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "called\n", "")
