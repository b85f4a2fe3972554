"""What sources use of the language and of CUDA's headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import launch
from kops._source.hostcode import blank

Fails = Callable[..., Any]
OUT = "int* out, int n"


def kernel(text: str, parameters: str = "int *out, int n", before: str = "") -> str:
    return f"{before}\n__global__ void k({parameters})\n{{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n{text}\n}}\n"


def ints(text: str, n: int = 32, count: int = 32, before: str = "", **more: Any) -> list[int]:
    """Runs statements that set out[i] for each thread i of one block."""
    out = np.zeros(count, "i4")
    launch(kernel(text, before=before), "k", OUT, out, n, **{"block": count, **more})
    return out.tolist()


def test_indices_in_three_dimensions() -> None:
    source = """
__global__ void k(int *out)
{
    dim3 size = blockDim;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * size.y + threadIdx.y) * size.x + threadIdx.x;
    out[block * (size.x * size.y * size.z) + thread] = block * 1000 + thread;
}"""
    out = np.zeros(2 * 3 * 4 * 5 * 6 * 7, "i4")
    launch(source, "k", "int* out", out, grid=(2, 3, 4), block=(5, 6, 7))
    assert out.tolist() == [b * 1000 + t for b in range(24) for t in range(210)]


def test_atomics() -> None:
    source = """
__global__ void k(int *s, unsigned *u, long long *l, float *f, double *d)
{
    int i = threadIdx.x;
    atomicAdd(&s[0], i); atomicSub(&s[1], i); atomicMin(&s[2], -i); atomicMax(&s[3], i); atomicExch(&s[4], 7);
    atomicAnd(&u[0], ~(1u << i)); atomicOr(&u[1], 1u << i); atomicXor(&u[2], 1u << i);
    atomicInc(&u[3], 9); atomicDec(&u[4], 9);
    atomicAdd((unsigned long long *)l, 1ull << i); atomicMax(l + 1, (long long)i << 33);
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
    int seen = s[5], old;
    do {
        old = seen;
        seen = atomicCAS(&s[5], old, old + 2);
    } while (seen != old);
}"""
    s, u, wide = np.zeros(6, "i4"), np.array([0xFFFFFFFF, 0, 0, 0, 0], "u4"), np.zeros(2, "i8")
    f, d = np.zeros(1, "f4"), np.zeros(1, "f8")
    launch(source, "k", "int* s, unsigned* u, long long* l, float* f, double* d", s, u, wide, f, d)
    assert s.tolist() == [496, -496, -31, 31, 7, 64]
    assert u.tolist() == [0, 0xFFFFFFFF, 0xFFFFFFFF, 2, 8]
    assert wide.tolist() == [0xFFFFFFFF, 31 << 33] and f[0] == 16 and d[0] == 8


def test_votes() -> None:
    assert ints("out[i] = __ballot_sync(~0u, i & 1);")[0] == -0x55555556
    assert ints("out[i] = __any_sync(~0u, i == n) * 2 + __all_sync(~0u, i < n);", n=31) == [2] * 32
    assert ints("out[i] = __popc(__match_any_sync(~0u, i / n));", n=5) == [5] * 30 + [2] * 2
    assert ints("int all; __match_all_sync(~0u, i / n, &all); out[i] = all;", n=32) == [1] * 32
    assert ints("int all; __match_all_sync(~0u, i / n, &all); out[i] = all;", n=31) == [0] * 32
    assert ints("out[i] = __reduce_max_sync(~0u, i - n) + __reduce_min_sync(~0u, i - n);", n=40) == [-49] * 32


def test_shuffles() -> None:
    assert ints("out[i] = __shfl_sync(~0u, i, n);", n=3) == [3] * 32
    assert ints("out[i] = __shfl_sync(~0u, i, n, 8);", n=11) == [i // 8 * 8 + 3 for i in range(32)]
    assert ints("out[i] = __shfl_up_sync(~0u, i, n, 8);", n=2) == [i - 2 if i % 8 >= 2 else i for i in range(32)]
    assert ints("out[i] = __shfl_down_sync(~0u, i, n);", n=5) == [min(i + 5, i if i >= 27 else 99) for i in range(32)]
    assert ints("out[i] = __shfl_xor_sync(~0u, i, n);", n=6) == [i ^ 6 for i in range(32)]
    assert ints("out[i] = int(__shfl_xor_sync(~0u, double(i) + 0.5, 1) * 2);") == [(i ^ 1) * 2 + 1 for i in range(32)]


def test_active_lanes() -> None:
    text = "unsigned m = 0; if (i % 3 == n) m = __activemask(); else if (i > 20) m = 1; out[i] = __popc(m);"
    assert ints(text, n=1) == [11 if i % 3 == 1 else int(i > 20) for i in range(32)]


def test_barriers_with_votes() -> None:
    text = "out[i] = __syncthreads_count(i < n) * 100 + __syncthreads_or(i == 3) * 10 + __syncthreads_and(i < n);"
    assert ints(text, n=40, count=64) == [4010] * 64


def test_cooperative_groups() -> None:
    before = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
"""
    text = """
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    __shared__ int sums[8];
    int sum = cg::reduce(tile, i, cg::plus<int>());
    if (tile.thread_rank() == 0) sums[tile.meta_group_rank()] = sum;
    block.sync();
    out[i] = sums[i / 8] * 1000 + cg::exclusive_scan(tile, 1) * 100 + tile.shfl_down(i, 1) % 100;
"""
    expected = [sum(range(i // 8 * 8, i // 8 * 8 + 8)) * 1000 + i % 8 * 100 + (i + 1 if i % 8 < 7 else i) for i in range(64)]
    assert ints(text, count=64, before=before) == expected
    text = "if (i % 4 == 1) { auto g = cg::coalesced_threads(); out[i] = g.size() * 100 + g.thread_rank(); }"
    assert ints(text, before=before) == [800 + i // 4 if i % 4 == 1 else 0 for i in range(32)]


def test_grid_wide_barrier_is_refused(fails: Fails) -> None:
    source = kernel("cooperative_groups::this_grid().sync();", before="#include <cooperative_groups.h>")
    launch(source, "k", OUT, np.zeros(1, "i4"), 0, grid=1)
    assert fails("unsupported", source, "k", OUT, np.zeros(1, "i4"), 0, grid=2).line == 5


def test_bits() -> None:
    text = """
    int results[] = {__popc(0xf0f0u), __clz(1), __clz(0), __ffs(8), __ffs(0), int(__brev(1u) >> 31), __clzll(1ll),
                     __mulhi(1 << 30, 8), int(__umulhi(0x80000000u, 6u)), int(__byte_perm(0x03020100u, 0x07060504u, 0x7531u)),
                     int(__funnelshift_l(0x80000000u, 1u, 1)), __dp4a(0x01020304, 0x01010101, 5), __float_as_int(1.0f),
                     __float2int_rn(2.5f), __float2int_rz(-2.5f), __float2int_ru(2.1f), __float2int_rd(-2.1f)};
    if (i < 17) out[i] = results[i];
"""
    expected = [8, 31, 32, 4, 0, 1, 63, 2, 3, 0x07050301, 3, 15, 0x3F800000, 2, -2, 3, -3]
    assert ints(text)[:17] == expected


@pytest.mark.parametrize(
    ("call", "exact"),
    [
        ("rsqrtf(x)", lambda x: x**-0.5), ("__expf(x)", np.exp), ("__logf(x)", np.log), ("__powf(x, 1.5f)", lambda x: x**1.5),
        ("__fdividef(x, 3.0f)", lambda x: x / 3), ("__fmaf_rn(x, x, 1.0f)", lambda x: x * x + 1), ("exp10f(x)", lambda x: 10**x),
        ("sinpif(x)", lambda x: np.sin(np.pi * x)), ("__saturatef(x - 1)", lambda x: np.clip(x - 1, 0, 1)),
        ("max(x, 2.0f)", lambda x: np.maximum(x, 2)),
        ("fminf(x, 2)", lambda x: np.minimum(x, 2)), ("tanhf(x)", np.tanh), ("norm3df(x, x, x)", lambda x: x * 3**0.5),
        ("normcdff(0.0f) + x", lambda x: x + 0.5), ("__frcp_rn(x)", lambda x: 1 / x), ("cbrtf(x)", np.cbrt),
    ],
)  # fmt: skip
def test_mathematics(rng: Any, call: str, exact: Callable[[Any], Any]) -> None:
    x, y = rng.uniform(0.1, 4, 32).astype("f4"), np.zeros(32, "f4")
    source = f"__global__ void k(float *out, const float *in) {{ float x = in[threadIdx.x]; out[threadIdx.x] = {call}; }}"
    launch(source, "k", "float* out, const float* in", y, x)
    np.testing.assert_allclose(y, exact(x.astype("f8")), rtol=1e-5, atol=1e-6)


def test_every_half_and_back() -> None:
    source = """
#include <cuda_fp16.h>
__global__ void k(float *wide, half *again, const half *in, float *halves)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    wide[i] = __half2float(in[i]);
    again[i] = __float2half(wide[i]);
    halves[i] = float(half(wide[i] * 1.00048828125f));
}"""
    bits = np.arange(65536, dtype="u2").view("f2")
    wide, again, scaled = np.zeros(65536, "f4"), np.zeros(65536, "f2"), np.zeros(65536, "f4")
    launch(source, "k", "float* wide, half* again, const half* in, float* halves", wide, again, bits, scaled, grid=64, block=1024)
    np.testing.assert_array_equal(wide, bits.astype("f4"))
    np.testing.assert_array_equal(again, bits)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(scaled, (bits.astype("f4") * np.float32(1.00048828125)).astype("f2").astype("f4"))


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_half_arithmetic_is_rounded_once(rng: Any, op: str) -> None:
    source = "#include <cuda_fp16.h>\n__global__ void k(half *c, const half *a, const half *b) { "
    source += f"int i = threadIdx.x; c[i] = a[i] {op} b[i]; }}"
    a, b = rng.integers(0, 0x7C00, (2, 1024)).astype("u2").view("f2")
    c = np.zeros(1024, "f2")
    launch(source, "k", "half* c, const half* a, const half* b", c, a, b, block=1024)
    with np.errstate(all="ignore"):
        exact = {"+": a.astype("f8") + b, "-": a.astype("f8") - b, "*": a.astype("f8") * b, "/": a.astype("f8") / b}[op]
        np.testing.assert_array_equal(c, exact.astype("f2"))


def test_printf(capsys: pytest.CaptureFixture[str]) -> None:
    launch(kernel('if (i == n) printf("thread %d of %s: %.2f\\n", i, "block", 1.5);'), "k", OUT, np.zeros(1, "i4"), 5)
    assert capsys.readouterr().out == "thread 5 of block: 1.50\n"


def test_much_text(capsys: pytest.CaptureFixture[str]) -> None:
    launch(kernel('for (int j = 0; j < n; j++) printf("%04d\\n", j);'), "k", OUT, np.zeros(1, "i4"), 2000, block=64)
    assert len(capsys.readouterr().out) == 2000 * 64 * 5


def test_constants_and_variables_of_the_device() -> None:
    before = "__constant__ int table[] = {5, 6, 7};\n__device__ int counter = 100;"
    source = kernel("out[i] = table[i % 3] + atomicAdd(&counter, 1);", before=before)
    for _ in range(2):  # each run begins anew
        out = np.zeros(4, "i4")
        launch(source, "k", OUT, out, 0, block=4)
        assert out.tolist() == [105, 107, 109, 108]


def test_vectors() -> None:
    source = """
__device__ inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__global__ void k(float4 *out, const float4 *in) { out[threadIdx.x] = in[threadIdx.x] + make_float4(1, 2, 3, 4); }"""
    values = np.arange(32, dtype="f4")
    out = np.zeros(32, "f4")
    launch(source, "k", "float* out, const float* in", out, values, block=8)
    assert (out == values + np.tile([1, 2, 3, 4], 8)).all()


@pytest.mark.parametrize(
    "declaration",
    [
        "extern __shared__ int s[];", "extern __shared__ __align__(16) int s[];", "extern __align__(16) __shared__ int s[];",
        "extern __shared__ unsigned char raw[]; int *s = reinterpret_cast<int *>(raw);", "__shared__ extern int s[];",
        "DYNAMIC", "extern volatile __shared__ int s[];", "extern __shared__ alignas(16) int s[];",
    ],
)  # fmt: skip
def test_declarations_of_dynamic_shared_memory(declaration: str) -> None:
    text = f"{declaration}\n s[i] = i; __syncthreads(); out[i] = s[n - 1 - i];"
    before = "#define DYNAMIC extern __shared__ int s[];\n"
    before += "namespace inner { __device__ int unused(int i) { extern __shared__ int t[]; return t[i]; } }"
    assert ints(text, count=64, n=64, shared="n * 4", before=before) == list(range(64))[::-1]


@pytest.mark.parametrize("words", ["__shared__ alignas(16)", "static __shared__", "volatile __shared__"])
def test_declarations_of_shared_memory(words: str) -> None:
    assert ints(f"{words} int s[64];\n s[i] = i; __syncthreads(); out[i] = s[63 - i];", count=64) == list(range(64))[::-1]


def test_files_macros_and_namespaces() -> None:
    source = '#include "lib/scale.cuh"\n'
    source += 'namespace app { template <typename T, int N> __global__ void k(T *out) { out[threadIdx.x] = scale(T(N)); } }'
    files = {"lib/scale.cuh": "#pragma once\ntemplate <typename T> __device__ T scale(T v) { return v * FACTOR; }\n"}
    out = np.zeros(4, "i4")
    launch(source, "app::k<int, 7>", "int* out", out, block=4, files=files, options=["-DFACTOR=3", "--use_fast_math", "-std=c++17"])
    assert out.tolist() == [21] * 4
    out = np.zeros(4, "f4")
    launch(source, "app::k<float, 2>", "float* out", out, block=4, files=files, options=["-D", "FACTOR=1.5f"])
    assert out.tolist() == [3] * 4


def test_tiles_of_several_warps(fails: Fails) -> None:
    before = "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;"
    text = """
    __shared__ cg::block_tile_memory<128> scratch;
    cg::thread_block block = cg::this_thread_block(scratch);
    cg::thread_block_tile<64> tile = cg::tiled_partition<64>(block);
    __shared__ int s[128];
    s[i] = i;
    %s
    out[i] = s[i ^ 32] + 1000 * cg::reduce(tile, 1, cg::plus<int>()) + tile.shfl(i, 3);
"""
    source = kernel(text % "tile.sync();", before=before)
    out = np.zeros(128, "i4")
    launch(source, "k", OUT, out, 0, block=128)
    assert out.tolist() == [(i ^ 32) + 64000 + i // 64 * 64 + 3 for i in range(128)]
    fails("race", kernel(text % "", before=before), "k", OUT, out, 0, block=128)
    fails("divergent_barrier", kernel(text % "if (i != 5) tile.sync(); else __syncthreads();", before=before), "k", OUT, out, 0, block=128)


def test_shared_classes_with_constructors() -> None:
    before = "#include <cuda_fp16.h>\nstruct Pair { int a, b; Pair() = default; __device__ Pair(int x, int y) : a(x), b(y) {} };"
    text = """
    __shared__ Pair pairs[64];
    __shared__ half2 halves[64];
    pairs[i] = Pair(i, n);
    halves[i] = __float2half2_rn(i);
    __syncthreads();
    out[i] = pairs[63 - i].a + pairs[63 - i].b + int(__low2float(halves[63 - i]));
"""
    assert ints(text, n=1000, count=64, before=before) == [1000 + 2 * (63 - i) for i in range(64)]


WHOLE_FILE = """
#include <torch/extension.h>
#include <cstdio>
#include <vector>
#define CHECK(call) do { if (call) exit(1); } while (0)
#define DEVICE_FUNCTION __device__ inline
static std::vector<float> host_values;

DEVICE_FUNCTION float twice(float v) { return 2 * v; }

__global__ void twice_kernel(float *c, const float *a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = twice(a[i]);
}

torch::Tensor run(torch::Tensor a) { twice_kernel<<<1, 32>>>(nullptr, a.data_ptr<float>(), 0); return a; }

int main(int argc, char **argv)
{
    float *d;
    CHECK(cudaMalloc(&d, 4));
    twice_kernel<<<1, 1>>>(d, d, 1); // "quotes' in comments
    printf("%d\\n", argc);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def test_file_with_host_code(fails: Fails) -> None:
    a, c = np.arange(40, dtype="f4"), np.zeros(40, "f4")
    launch(WHOLE_FILE, "twice_kernel", "float* c, const float* a, int n", c, a, 40, grid=2)
    assert (c == 2 * a).all()
    error = fails("out_of_bounds", WHOLE_FILE, "twice_kernel", "float* c, const float* a, int n", c, a[:9].copy(), 40, grid=2)
    assert error.line == 14
    bad = WHOLE_FILE.replace("c[i] = twice", "c[i] = thrice")
    error = fails("compile", bad, "twice_kernel", "float* c, const float* a, int n", c, a, 40)
    assert "kernel.cu:14" in error.log and "thrice" in str(error)


@pytest.mark.parametrize("row", json.loads((Path(__file__).resolve().parents[1] / "vectors/hostcode.json").read_text()))
def test_host_code_goes_as_in_the_daemon(row: dict[str, list[str]]) -> None:
    assert blank(row["texts"]) == row["blanked"]
