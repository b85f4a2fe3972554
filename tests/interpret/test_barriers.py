"""Barriers that are objects, cuda::barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import launch

Fails = Callable[..., Any]
BARRIER = """
#include <cuda/barrier>
#include <cooperative_groups.h>
__global__ void k(int *c, int n)
{{
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int s[64];
    auto block = cooperative_groups::this_thread_block();
    {init}
    s[threadIdx.x] = threadIdx.x;
    {meet}
    c[threadIdx.x] = s[63 - threadIdx.x];
}}"""
INIT = "if (block.thread_rank() == 0) init(&bar, block.size()); block.sync();"


@pytest.mark.parametrize(
    "meet",
    [
        "bar.arrive_and_wait();",
        "auto token = bar.arrive(); bar.wait(std::move(token));",
        "for (int i = 0; i < 5; i++) bar.arrive_and_wait();",
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_barriers_of_a_block(meet: str, check: bool) -> None:
    c = np.zeros(64, "i4")
    launch(BARRIER.format(init=INIT, meet=meet), "k", "int* c, int n", c, 64, block=64, check=check)
    assert c.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(
    "init, meet, kind",
    [
        (INIT, "(void)bar.arrive();", "race"),
        ("block.sync();", "bar.arrive_and_wait();", "uninitialised"),
        ("if (block.thread_rank() == 0) init(&bar, block.size());", "bar.arrive_and_wait();", "race"),
        (INIT, "if (threadIdx.x == n) return; bar.arrive_and_wait();", "divergent_barrier"),
        (INIT, "if (threadIdx.x == n) __syncthreads(); bar.arrive_and_wait();", "divergent_barrier"),
        (INIT.replace("block.size()", "32"), "(void)bar.arrive(33);", "divergent_barrier"),
    ],
)
def test_misused_barriers(fails: Fails, init: str, meet: str, kind: str) -> None:
    error = fails(kind, BARRIER.format(init=init, meet=meet), "k", "int* c, int n", np.zeros(64, "i4"), 5, block=64)
    if "== n" in meet:
        assert "arrive_and_wait waits for 1 more to arrive" in str(error) and error.line == 11


def test_producers_and_consumers() -> None:
    """A part of the block arrives without waiting; copies are complete behind the barrier."""
    source = """
#include <cuda/barrier>
__global__ void k(int *c, const int *a)
{
    typedef cuda::barrier<cuda::thread_scope::thread_scope_block> barrier;
    __shared__ int s[32];
    __shared__ barrier full, empty;
    if (threadIdx.x == 0) { init(&full, 64); init(&empty, 64); }
    __syncthreads();
    for (int round = 0; round < 3; round++) {
        if (threadIdx.x < 32) {
            if (round) empty.arrive_and_wait();
            cuda::memcpy_async(&s[threadIdx.x], &a[round * 32 + threadIdx.x], cuda::aligned_size_t<4>(sizeof(int)), full);
            (void)full.arrive();
        } else {
            full.arrive_and_wait();
            c[round * 32 + threadIdx.x - 32] = s[63 - threadIdx.x];
            if (round < 2) (void)empty.arrive();
        }
    }
}"""
    a, c = np.arange(96, dtype="i4"), np.zeros(96, "i4")
    launch(source, "k", "int* c, const int* a", c, a, block=64)
    assert c.reshape(3, 32).tolist() == a.reshape(3, 32)[:, ::-1].tolist()
