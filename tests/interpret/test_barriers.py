"""Barriers that are objects, cuda::barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Together, launch

Fails = Callable[..., Any]
together = Together("#include <cuda/barrier>\n#include <cooperative_groups.h>\n")
INIT = "if (block.thread_rank() == 0) init(&bar, block.size()); block.sync();"


def kernel(init: str, meet: str) -> Any:
    return together(f"""__global__ void k(int *c, int n)
{{
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int s[64];
    auto block = cooperative_groups::this_thread_block();
    {init}
    s[threadIdx.x] = threadIdx.x;
    {meet}
    c[threadIdx.x] = s[63 - threadIdx.x];
}}""")


MEET = {
    "at once": kernel(INIT, "bar.arrive_and_wait();"),
    "with a token": kernel(INIT, "auto token = bar.arrive(); bar.wait(std::move(token));"),
    "again": kernel(INIT, "for (int i = 0; i < 5; i++) bar.arrive_and_wait();"),
}
MISUSED = {
    "nobody waits": (kernel(INIT, "(void)bar.arrive();"), "race"),
    "no init": (kernel("block.sync();", "bar.arrive_and_wait();"), "uninitialised"),
    "init beside": (kernel("if (block.thread_rank() == 0) init(&bar, block.size());", "bar.arrive_and_wait();"), "race"),
    "one returns": (kernel(INIT, "if (threadIdx.x == n) return; bar.arrive_and_wait();"), "divergent_barrier"),
    "one is elsewhere": (kernel(INIT, "if (threadIdx.x == n) __syncthreads(); bar.arrive_and_wait();"), "divergent_barrier"),
    "too many": (kernel(INIT.replace("block.size()", "32"), "(void)bar.arrive(33);"), "divergent_barrier"),
}
# A part of the block arrives without waiting; copies are complete behind the barrier.
ROLES = together("""__global__ void k(int *c, const int *a)
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
}""")


@pytest.mark.parametrize("how", MEET)
@pytest.mark.parametrize("check", [True, False])
def test_barriers_of_a_block(how: str, check: bool) -> None:
    c = np.zeros(64, "i4")
    launch(MEET[how], "k", "int* c, int n", c, 64, block=64, check=check)
    assert c.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("how", MISUSED)
def test_misused_barriers(fails: Fails, how: str) -> None:
    source, kind = MISUSED[how]
    error = fails(kind, source, "k", "int* c, int n", np.zeros(64, "i4"), 5, block=64)
    if how.startswith("one"):
        assert "arrive_and_wait waits for 1 more to arrive" in str(error) and error.line == 8


def test_producers_and_consumers() -> None:
    a, c = np.arange(96, dtype="i4"), np.zeros(96, "i4")
    launch(ROLES, "k", "int* c, const int* a", c, a, block=64)
    assert c.reshape(3, 32).tolist() == a.reshape(3, 32)[:, ::-1].tolist()
