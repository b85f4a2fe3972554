"""The torch adapter, with a small module in torch's place (the GPU suite runs it with the real one)."""

from __future__ import annotations

import gc
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._memory.pool import pool
from which import compiled_only, unanswered

pytestmark = pytest.mark.usefixtures("with_torch")


def normal(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.tensor(numpy.random.default_rng(1).standard_normal(shape).astype(dtype))


def test_cpu_tensors_give_cpu_tensors(k: kops.Client) -> None:
    a, b = normal(20, 30), normal(20, 30)
    c = k.add(a, b)
    assert type(c) is torch.Tensor and c.dtype is torch.float32
    assert numpy.array_equal(c.array, a.array + b.array)
    assert numpy.array_equal(k.square(a[::2, 3:].t()).array, (a.array * a.array)[::2, 3:].T)
    assert k.square(normal(0, 3)).shape == (0, 3)
    a.negated = True
    assert numpy.array_equal(k.add(a, b).array, b.array - a.array)
    result = k.gemm(a, normal(30))
    assert type(result) is torch.Tensor and result.shape == (20,)


def test_results_live_in_shared_memory(k: kops.Client, daemon: FakeDaemon) -> None:
    c = k.square(normal(50, 60))
    usage = pool.usage()
    out = k.zeros((60, 50), torch.float32)
    grown = pool.usage()["bytes"] - usage["bytes"]
    k.square(c.t(), out=out)
    assert numpy.array_equal(out.array, (c.array * c.array).T)
    assert pool.usage()["bytes"] - usage["bytes"] == grown
    assert daemon.runs()[-1]["in"][0]["strides"] == [1, 60]


def test_memory_of_a_result_is_kept_by_its_views(k: kops.Client) -> None:
    view = k.square(normal(5000))[10:20]
    expected = view.array.copy()
    gc.collect()
    for i in range(20):
        k.add(normal(5000), float(i))
    assert numpy.array_equal(view.array, expected)


def test_out_and_in_place(k: kops.Client, daemon: FakeDaemon) -> None:
    a, b = normal(20, 30), normal(20, 30)
    ground = torch.tensor(numpy.full((20, 60), -7, "float32"))
    out = ground[:, ::2]
    assert k.add(a, b, out=out) is out
    assert numpy.array_equal(out.array, a.array + b.array) and (ground.array[:, 1::2] == -7).all()
    expected = a.array * a.array
    assert k.square(a, out=a) is a and numpy.array_equal(a.array, expected)
    assert daemon.runs()[-1]["in"] == daemon.runs()[-1]["out"]


def test_small_tensors_are_copied_by_one_thread(k: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones are torch's to copy, and those that it would not let be changed, or that have no memory."""

    def copied(side: int, *, inference: bool = False) -> list[int]:
        """The tensors that torch copied."""
        torch.copied.clear()
        a, out = normal(side, side), normal(side, side)
        out.inference = inference
        k.add(a, a, out=out)
        assert numpy.array_equal(out.array, a.array + a.array) and out._version and not a._version, "what autograd knows"
        return [size // a.array.nbytes for size in torch.copied]

    assert copied(512) == [] and copied(30, inference=True) == [1] and copied(1024) == [1, 1]
    monkeypatch.delattr(torch.autograd.graph, "increment_version")
    assert copied(30) == [1], "autograd could not be told what has changed"
    torch.copied.clear()
    a = normal(30)
    monkeypatch.setattr(a, "data_ptr", lambda: 0)
    assert numpy.array_equal(k.square(a).array, a.array * a.array) and torch.copied == [a.array.nbytes]


def test_expanded_inputs_are_copied_once(k: kops.Client, daemon: FakeDaemon) -> None:
    row = torch.Tensor(numpy.broadcast_to(numpy.arange(8, dtype="float32"), (5, 8)), torch.float32, torch.device("cpu"))
    assert numpy.array_equal(k.square(row).array, row.array * row.array)
    assert daemon.runs()[-1]["in"][0]["strides"] == [0, 1]
    with pytest.raises(kops.Overlap):
        k.square(row, out=row)


def test_bfloat16(k: kops.Client, daemon: FakeDaemon) -> None:
    daemon.script["run"] = lambda peer, params, fds: {"timings": {}, "device": "host", "variant": "none"}
    a = torch.Tensor(numpy.arange(4, dtype="uint16"), torch.bfloat16, torch.device("cpu"))
    assert k.square(a).dtype is torch.bfloat16 and daemon.runs()[-1]["in"][0]["dtype"] == "bf16"
    assert k.array(a).array.tolist() == [0, 1, 2, 3]


def test_refused(k: kops.Client) -> None:
    a = normal(4)
    a.layout = torch.sparse_coo
    for wrong, error, why in (
        (torch.tensor(numpy.ones(4, "bool")), kops.UnknownDtype, "bool"), (a, kops.BadArgument, "sparse"),
        (torch.Tensor(numpy.ones(4), torch.float64, torch.device("mps")), kops.Unsupported, "mps"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            k.square(wrong)


def test_cuda_tensors(k: kops.Client, torch_gpu: Any, daemon: FakeDaemon) -> None:
    where = torch.device("cuda", 0)
    a = torch.empty((100, 60), dtype=torch.float16, device=where)
    c = k.square(a.t())
    assert c.device is where and c.dtype is torch.float16 and c.shape == (60, 100)
    assert torch.cuda.synchronized == [0], "the current stream is waited for once"
    registered = daemon.count("register")
    k.square(a[20:40, 1::2], out=c[:20, :30])
    assert daemon.count("register") == registered
    (tensor,) = daemon.runs()[-1]["in"]
    base, _ = torch_gpu.address_range(a.data_ptr())
    assert tensor["offset"] == a.data_ptr() - base + 2 * (20 * 60 + 1) and tensor["strides"] == [60, 2]
    assert k.square(torch.empty((0, 4), dtype=torch.float32, device=where)).shape == (0, 4)


@compiled_only
def test_what_the_daemon_works_on_is_kept(k: kops.Client, torch_gpu: Any) -> None:
    where = torch.device("cuda", 0)
    pending = k.submit("square", torch.empty((1000,), dtype=torch.float32, device=where))
    (call,) = unanswered(k._connection).values()
    assert len(call.keep) == 2
    assert pending.result().shape == (1000,) and call.keep is None
