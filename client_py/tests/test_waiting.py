"""Calls on torch CUDA tensors without the compiled part: each waits, for the stream first and then for its result."""

from __future__ import annotations

import ctypes
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import fake_torch as torch
import kops
import pytest
from fake_daemon import FakeDaemon, Peer
from kops._base import compiled as _compiled
from kops._clients import client as _client
from test_ordered import Held, driver, gpu, say_yes, stream, tensor
from which import wait_for

__all__ = ["driver", "gpu", "stream"]

pytestmark = pytest.mark.skipif(_compiled.native is not None, reason="the compiled part orders such calls")


@pytest.fixture(autouse=True)
def waiting(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's streams are really waited for."""

    def current_stream(index: int) -> Any:
        handle = ctypes.c_void_p(torch.cuda.handle)
        return SimpleNamespace(synchronize=lambda: gpu.call("cuStreamSynchronize", handle), cuda_stream=torch.cuda.handle)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)


def test_a_call_waits_for_the_stream_and_for_its_result(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    held = Held(gpu, stream)
    answered, ended = threading.Event(), threading.Event()

    def answer(peer: Peer, params: dict[str, Any], fds: list[int]) -> Any:
        answered.wait()
        return say_yes(peer, params, fds)

    daemon.script["run"] = answer

    def call() -> None:
        gpu.make_current()
        k.square(a, out=a)
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert not ended.wait(0.05) and not daemon.runs(), "the stream has not come to the call"
        held.go()
        wait_for(lambda: len(daemon.runs()) == 1)
        assert not ended.is_set(), "there is no reply"
    finally:
        held.go()
        answered.set()
        thread.join()
        held.close()
    (run,) = daemon.runs()
    assert ended.is_set() and not {"ready", "done"} & run.keys()
    k.synchronize()


def test_batches_sequences_and_programs(k: kops.Client, daemon: FakeDaemon, stream: Any) -> None:
    a, x = tensor(4), tensor(4)
    with k.batch():
        b = k.square(a)
        k.synchronize()
        k.add(a, b, out=b)
    with k.sequence():
        c = k.square(a)
    with k.program() as p:
        k.add(a, c)
    p.run()
    p.run([(a, x)])
    made = [(name, params) for name, params in daemon.requests if name in ("run", "sequence", "run_program")]
    assert [name for name, _ in made] == ["run", "run", "sequence", "run_program", "run_program"]
    assert not any({"ready", "done"} & params.keys() for _, params in made)


def test_a_capturing_stream_is_refused(k: kops.Client, gpu: Any, daemon: FakeDaemon, stream: Any) -> None:
    a = tensor(4)
    gpu.call("cuStreamBeginCapture_v2", stream, ctypes.c_int(2))
    graph = ctypes.c_void_p()
    try:
        with pytest.raises(kops.Capturing, match="program"):
            k.square(a, out=a)
    finally:
        gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert graph.value, "the capture went on"
    gpu.call("cuGraphDestroy", graph)
    k.square(a, out=a)
    assert len(daemon.runs()) == 1


def test_the_caller_is_told_once(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kops.connect(daemon.path).close()  # KOPS_NATIVE=0 asked for it
    monkeypatch.setattr(_client, "why_not", "no C compiler")
    monkeypatch.setattr(_client, "_told_of_plain", False)
    with pytest.warns(RuntimeWarning, match="each call waits for its result.*pip install.*: no C compiler") as told:
        for _ in range(2):
            kops.connect(daemon.path).close()
    assert len(told) == 1 and told[0].filename == __file__
