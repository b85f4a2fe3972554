"""The heap of a device, copies that run beside the thread, and shared memory that nothing writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Part, Together, launch

Fails = Callable[..., Any]
together = Together("""#include <cuda_pipeline.h>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
namespace cg = cooperative_groups;
struct Node { int v; Node *next; __device__ Node(int a, Node *b) : v(a), next(b) {} };
""")
FIRST = 2  # the line that a body begins on
X = np.arange(64, dtype="i4")


def kernel(body: str) -> Part:
    return together(f"__global__ void k(int *y, const int *x) {{ int t = threadIdx.x;\n{body}\n}}")


def result(part: Part, **more: Any) -> Any:
    y = np.zeros(64, "i4")
    launch(part, "k", "int* y, const int* x", y, X, block=64, **more)
    return y


def failure(fails: Fails, kind: str, part: Part, **more: Any) -> Any:
    return fails(kind, part, "k", "int* y, const int* x", np.zeros(64, "i4"), X, block=64, **more)


HEAP = [
    ("int *p = (int *)malloc(40); for (int i = 0; i < 10; i++) p[i] = i * t; y[t] = p[9]; free(p);", 9 * X),
    ("int *p = new int[t + 1]; p[t] = t; y[t] = p[t]; delete[] p; delete (int *)nullptr;", X),
    (
        "Node *l = nullptr; for (int i = 0; i < 7; i++) l = new Node(i, l);\n"
        "while (l) { y[t] += l->v; Node *gone = l; l = l->next; delete gone; }",
        np.full(64, 21),
    ),
    ("char *p = (char *)malloc(t ? 8 : 100 << 20); y[t] = p != 0; free(p);", X > 0),
    ("for (int i = 0; i < 3000; i++) { int *p = new int[100]; p[99] = i; y[t] = p[99]; delete[] p; }", np.full(64, 2999)),
    ("__shared__ int *p; if (!t) p = (int *)calloc(64, 4);\n__syncthreads(); p[t] += t; memcpy(y + t, p + t, 4);", X),
    ("struct alignas(64) Wide { int v[16]; }; Wide *w = new Wide; y[t] = size_t(w) % 64; delete w;", 0 * X),
]
HEAPS = [(kernel(body), wanted) for body, wanted in HEAP]


@pytest.mark.parametrize("at", range(len(HEAP)))
@pytest.mark.parametrize("check", [True, False])
def test_heap(at: int, check: bool) -> None:
    part, wanted = HEAPS[at]
    assert result(part, check=check).tolist() == wanted.astype("i4").tolist()


MISUSED = [
    (
        "out_of_bounds", kernel("int *p = (int *)malloc(40);\ny[t] = p[10];"),
        "read of 4 bytes at byte 40 of a heap block of 40 bytes",
    ),
    ("wild_access", kernel("int *p = new int[7]; p[0] = 1; delete[] p;\ny[t] = p[t % 2];"), "of 28 bytes, which is freed"),
    ("wild_access", kernel("int *p = new int(1); delete p;\ndelete p;"), "freed a second time"),
    ("wild_access", kernel("int *p = new int(1);\nfree(p + 1);"), "that malloc or new has not given"),
]  # fmt: skip


@pytest.mark.parametrize("kind, part, said", MISUSED, ids=[said for *_, said in MISUSED])
def test_misused_heap(fails: Fails, kind: str, part: Part, said: str) -> None:
    error = failure(fails, kind, part)
    assert said in str(error) and error.line == FIRST + 1 and error.thread == (0, 0, 0)


MOST = kernel("char *p = t ? nullptr : (char *)malloc(5 << 20); y[t] = p != nullptr;")


def test_heap_is_new_for_each_run() -> None:
    for _ in range(3):  # more than there is, if they were kept
        assert result(MOST).tolist() == [1] + [0] * 63


SMALL = "__shared__ __align__(16) int s[64]; if (t < 16) __pipeline_memcpy_async(&s[4 * t], &x[4 * t], 16); __pipeline_commit();\n"
GROUP = "__shared__ int s[64]; auto b = cg::this_thread_block(); cg::memcpy_async(b, s, x, 256);\n"
OBJECT = """__shared__ int s[64]; __shared__ cuda::barrier<cuda::thread_scope_block> full; auto b = cg::this_thread_block();
if (t == 0) init(&full, 64);
b.sync(); cuda::memcpy_async(b, s, x, 256, full);
"""


COPIES = [
    (SMALL, "__pipeline_wait_prior(0); __syncthreads();", "__syncthreads();"),
    (SMALL, "__pipeline_commit(); __pipeline_wait_prior(1); __syncthreads();", "__pipeline_wait_prior(1); __syncthreads();"),
    (GROUP, "cg::wait(b);", "b.sync();"),
    (GROUP, "cg::memcpy_async(b, s, x, 0); cg::wait_prior<1>(b);", "cg::wait_prior<1>(b);"),
    (OBJECT, "full.arrive_and_wait();", "b.sync();"),
]
READ = "\ny[t] = s[63 - t];"
WAITS = [(start.count("\n"), kernel(start + waits + READ), kernel(start + forgets + READ)) for start, waits, forgets in COPIES]


@pytest.mark.parametrize("at", range(len(COPIES)))
def test_waiting_for_a_copy(fails: Fails, at: int) -> None:
    lines, waits, forgets = WAITS[at]
    for check in (True, False):
        assert result(waits, check=check).tolist() == X[::-1].tolist()
    error = failure(fails, "race", forgets)
    assert "nothing has waited for the asynchronous copy by thread" in str(error) and error.tensor == "s"
    assert error.line == FIRST + lines + 1 and error.other_line == FIRST + lines - 1


UNTOLD = kernel(f"{SMALL}__pipeline_wait_prior(0); y[t] = s[63 - t];")
SIZES = {
    "misaligned": kernel("__shared__ int s[64]; __pipeline_memcpy_async(s, x + 1, 16);"),
    "unsupported": kernel("__shared__ int s[64]; __pipeline_memcpy_async(s, x, 2);"),
    "out_of_bounds": kernel("__shared__ int s[64]; __pipeline_memcpy_async(s, x + 64, 4);"),
}
ZEROS = kernel("""__shared__ int s[64]; __pipeline_memcpy_async(s + t, x + t, 4, t % 2 ? 4 : 0);
__pipeline_commit(); __pipeline_wait_prior(0); y[t] = s[t];""")


def test_copy_that_others_are_not_told_of(fails: Fails) -> None:
    assert "not ordered" in str(failure(fails, "race", UNTOLD))


def test_copies_of_sizes_that_a_device_refuses(fails: Fails) -> None:
    said = {kind: str(failure(fails, kind, part)) for kind, part in SIZES.items()}
    assert "4, 8 or 16" in said["unsupported"]


def test_end_of_a_copy_with_zeros() -> None:
    assert result(ZEROS).tolist() == [v * (v % 2 == 0) for v in range(64)]


NOT_WRITTEN = [
    kernel("__shared__ int s[64];\ny[t] = s[t];"),
    kernel("static __shared__ float s[64];\nif (s[t] == 0) y[t] = 1;"),
    kernel("__shared__ struct { char a; int b; } s[64]; s[t].a = 1;\ny[t] = s[t].b;"),
    kernel("__shared__ unsigned char s[64]; if (t % 2) s[t] = 1; __syncthreads();\ny[t] = s[t];"),
    kernel("extern __shared__ int s[];\ny[t] = s[t];"),
]
IN_PARTS = [
    kernel("__shared__ struct { char a; int b; } s[64], q[64]; s[t].a = 1; s[t].b = t; q[t] = s[t]; y[t] = q[t].b;"),
    kernel("__shared__ struct { short a; char b; double c; } s[64]; s[t].c = t; auto q = s[t]; y[t] = q.c;"),
    kernel("extern __shared__ char bytes[]; bytes[4 * t] = t; for (int i = 1; i < 4; i++) bytes[4 * t + i] = 0; y[t] = ((int *)bytes)[t];"),
    kernel("__shared__ int s[64]; atomicExch(&s[t], t); y[t] = s[t];"),
]


@pytest.mark.parametrize("at", range(len(NOT_WRITTEN)))
def test_shared_memory_that_nothing_writes(fails: Fails, at: int) -> None:
    error = failure(fails, "uninitialised", NOT_WRITTEN[at], shared=256)
    assert error.thread == (0, 0, 0) and error.line == FIRST + 1 and "no thread of the block has written" in str(error)


@pytest.mark.parametrize("at", range(len(IN_PARTS)))
def test_shared_memory_that_is_written_in_parts(at: int) -> None:
    assert result(IN_PARTS[at], shared=256).tolist() == X.tolist()
