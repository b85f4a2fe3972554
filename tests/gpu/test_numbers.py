"""Numbers beside torch CUDA tensors."""

from __future__ import annotations

import random
from typing import Any

import kops
import pytest
from check import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_is_what_it_is_in_torch(torch: Any, k: Any, dtype: str) -> None:
    for shape in ((), (7,), (100_003,), (33, 65), (0, 3)):
        a = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))
        for number in (2, True, random.uniform(-3, 3), float("inf")):
            want = a + torch.tensor(number, dtype=torch.float64, device="cuda").to(a.dtype)
            for result in (k.add(a, number), k.add(number, a)):
                assert result.dtype is a.dtype and torch.equal(result, want)


def test_streams_batches_and_programs_may_share_one(torch: Any, k: Any) -> None:
    number = random.uniform(-3, 3)
    a = torch.randn(100_003, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(k.add(a, number))
    with k.batch():
        results += [k.add(number, a) for _ in range(50)]
    with k.program() as p:
        results.append(k.add(a, number))
    for i in range(300):  # the cache forgets the program's number
        k.add(a, i)
    p.run()
    torch.cuda.synchronize()
    assert all(torch.equal(result, a + number) for result in results)


def test_only_the_first_call_with_a_number_waits(torch: Any, k: Any) -> None:
    a = torch.randn(16, device="cuda")
    number = random.uniform(-3, 3)
    k.add(a, number)
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    torch.cuda._sleep(500_000_000)
    k.add(a, number)
    k.add(a, number + 1)  # made on a stream of its own, which does not wait for this one
    assert not stream.query(), "the stream was waited for"


def test_a_capture_that_is_refused_goes_on(torch: Any, k: Any) -> None:
    a = torch.zeros(16, device="cuda")
    k.add(a, 1.0, out=a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a += 1
        with pytest.raises(kops.Capturing):
            k.add(a, random.uniform(-3, 3), where="daemon")
        with pytest.raises(kops.Capturing):
            k.add(a, 1.0, blocking=True)
    graph.replay()
    assert a.tolist() == [2.0] * 16


def test_a_number_in_a_graph(torch: Any, k: Any) -> None:
    a, graph = torch.zeros(16, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        k.add(a, 1.5, out=a)
        made = k.add(k.add(a, 0.25), 100)
    for i in range(1, 4):
        graph.replay()
        assert a.tolist() == [1.5 * i] * 16 and made.tolist() == [1.5 * i + 100.25] * 16
