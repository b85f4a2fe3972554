"""What sources use of the language and of CUDA's headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Part, Together, launch
from kops._source.hostcode import blank

Fails = Callable[..., Any]
OUT = "int* out, int n"
together = Together(
    """#include <cuda_fp16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
#define DYNAMIC extern __shared__ int s[];
"""
)


def kernel(text: str, before: str = "") -> Part:
    """Statements for each thread i, on line 3."""
    return together(f"{before}\n__global__ void k(int *out, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x;\n{text}\n}}\n")


def ints(part: Part, n: int = 32, count: int = 32, **more: Any) -> list[int]:
    out = np.zeros(count, "i4")
    launch(part, "k", OUT, out, n, **{"block": count, **more})
    return out.tolist()


def test_indices_in_three_dimensions() -> None:
    source = """
__global__ void k(int *out)
{
    dim3 size = blockDim;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * size.y + threadIdx.y) * size.x + threadIdx.x;
    out[block * (size.x * size.y * size.z) + thread] = block * 1000 + thread + warpSize - 32;
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


ALL = "int all; __match_all_sync(~0u, i / n, &all); out[i] = all;"
ACTIVE = "unsigned m = 0; if (i % 3 == n) m = __activemask(); else if (i > 20) m = 1; out[i] = __popc(m);"
TILES = """auto block = cg::this_thread_block(); auto tile = cg::tiled_partition<8>(block);
__shared__ int sums[8];
int sum = cg::reduce(tile, i, cg::plus<int>());
if (tile.thread_rank() == 0) sums[tile.meta_group_rank()] = sum;
block.sync();
out[i] = sums[i / 8] * 1000 + cg::exclusive_scan(tile, 1) * 100 + tile.shfl_down(i, 1) % 100;"""
COALESCED = "if (i % 4 == 1) { auto g = cg::coalesced_threads(); out[i] = g.size() * 100 + g.thread_rank(); }"
PAIRS = """__shared__ Pair pairs[64]; __shared__ half2 halves[64];
pairs[i] = Pair(i, n); halves[i] = __float2half2_rn(i); __syncthreads();
out[i] = pairs[63 - i].a + pairs[63 - i].b + int(__low2float(halves[63 - i]));"""
BITS = """
    int results[] = {__popc(0xf0f0u), __clz(1), __clz(0), __ffs(8), __ffs(0), int(__brev(1u) >> 31), __clzll(1ll),
                     __mulhi(1 << 30, 8), int(__umulhi(0x80000000u, 6u)), int(__byte_perm(0x03020100u, 0x07060504u, 0x7531u)),
                     int(__funnelshift_l(0x80000000u, 1u, 1)), __dp4a(0x01020304, 0x01010101, 5), __float_as_int(1.0f),
                     __float2int_rn(2.5f), __float2int_rz(-2.5f), __float2int_ru(2.1f), __float2int_rd(-2.1f)};
    if (i < 17) out[i] = results[i];
"""
THREADS = range(32)
STATEMENTS: dict[str, tuple[Part, int, list[int]]] = {
    "ballot": (kernel("out[i] = __ballot_sync(~0u, i & 1);"), 0, [-0x55555556] * 32),
    "any and all": (kernel("out[i] = __any_sync(~0u, i == n) * 2 + __all_sync(~0u, i < n);"), 31, [2] * 32),
    "match any": (kernel("out[i] = __popc(__match_any_sync(~0u, i / n));"), 5, [5] * 30 + [2] * 2),
    "match all": (kernel(ALL), 32, [1] * 32),
    "match not all": (kernel(ALL), 31, [0] * 32),
    "reduce": (kernel("out[i] = __reduce_max_sync(~0u, i - n) + __reduce_min_sync(~0u, i - n);"), 40, [-49] * 32),
    "shfl": (kernel("out[i] = __shfl_sync(~0u, i, n);"), 3, [3] * 32),
    "shfl of parts": (kernel("out[i] = __shfl_sync(~0u, i, n, 8);"), 11, [i // 8 * 8 + 3 for i in THREADS]),
    "shfl up": (kernel("out[i] = __shfl_up_sync(~0u, i, n, 8);"), 2, [i - 2 if i % 8 >= 2 else i for i in THREADS]),
    "shfl down": (kernel("out[i] = __shfl_down_sync(~0u, i, n);"), 5, [i + 5 if i < 27 else i for i in THREADS]),
    "shfl xor": (kernel("out[i] = __shfl_xor_sync(~0u, i, n);"), 6, [i ^ 6 for i in THREADS]),
    "shfl of doubles": (
        kernel("out[i] = int(__shfl_xor_sync(~0u, double(i) + 0.5, 1) * 2);"), 0, [(i ^ 1) * 2 + 1 for i in THREADS]
    ),
    "active lanes": (kernel(ACTIVE), 1, [11 if i % 3 == 1 else int(i > 20) for i in THREADS]),
    "barriers with votes": (
        kernel("out[i] = __syncthreads_count(i < n) * 100 + __syncthreads_or(i == 3) * 10 + __syncthreads_and(i < n);"), 40, [4010] * 64
    ),
    "tiles": (
        kernel(TILES), 0,
        [sum(range(i // 8 * 8, i // 8 * 8 + 8)) * 1000 + i % 8 * 100 + (i + 1 if i % 8 < 7 else i) for i in range(64)],
    ),
    "coalesced threads": (kernel(COALESCED), 0, [800 + i // 4 if i % 4 == 1 else 0 for i in THREADS]),
    "bits": (kernel(BITS), 0, [8, 31, 32, 4, 0, 1, 63, 2, 3, 0x07050301, 3, 15, 0x3F800000, 2, -2, 3, -3, *[0] * 15]),
    "shared classes with constructors": (
        kernel(PAIRS, "struct Pair { int a, b; Pair() = default; __device__ Pair(int x, int y) : a(x), b(y) {} };"), 1000,
        [1000 + 2 * (63 - i) for i in range(64)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements(name: str) -> None:
    part, n, wanted = STATEMENTS[name]
    assert ints(part, n, len(wanted)) == wanted


GRID_SYNC = kernel("cooperative_groups::this_grid().sync();")


def test_grid_wide_barrier_is_refused(fails: Fails) -> None:
    launch(GRID_SYNC, "k", OUT, np.zeros(1, "i4"), 0, grid=1)
    assert fails("unsupported", GRID_SYNC, "k", OUT, np.zeros(1, "i4"), 0, grid=2).line == 3


MATHEMATICS: dict[str, Callable[[Any], Any]] = {
    "rsqrtf(x)": lambda x: x**-0.5, "__expf(x)": np.exp, "__logf(x)": np.log, "__powf(x, 1.5f)": lambda x: x**1.5,
    "__fdividef(x, 3.0f)": lambda x: x / 3, "__fmaf_rn(x, x, 1.0f)": lambda x: x * x + 1, "exp10f(x)": lambda x: 10**x,
    "sinpif(x)": lambda x: np.sin(np.pi * x), "__saturatef(x - 1)": lambda x: np.clip(x - 1, 0, 1),
    "max(x, 2.0f)": lambda x: np.maximum(x, 2), "fminf(x, 2)": lambda x: np.minimum(x, 2), "tanhf(x)": np.tanh,
    "norm3df(x, x, x)": lambda x: x * 3**0.5, "normcdff(0.0f) + x": lambda x: x + 0.5, "__frcp_rn(x)": lambda x: 1 / x,
    "cbrtf(x)": np.cbrt,
}  # fmt: skip


def test_mathematics(rng: Any) -> None:
    x, y = rng.uniform(0.1, 4, 32).astype("f4"), np.zeros((len(MATHEMATICS), 32), "f4")
    source = "__global__ void k(float *out, const float *in) { int i = threadIdx.x; float x = in[i];\n"
    source += "\n".join(f"out[{at} * 32 + i] = {call};" for at, call in enumerate(MATHEMATICS)) + "}"
    launch(source, "k", "float* out, const float* in", y, x)
    for (call, exact), row in zip(MATHEMATICS.items(), y):
        np.testing.assert_allclose(row, exact(x.astype("f8")), rtol=1e-5, atol=1e-6, err_msg=call)


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


def test_half_arithmetic_is_rounded_once(rng: Any) -> None:
    source = "#include <cuda_fp16.h>\n__global__ void k(half *c, const half *a, const half *b, int n) { int i = threadIdx.x;\n"
    source += "".join(f"c[{at} * n + i] = a[i] {op} b[i];\n" for at, op in enumerate("+-*/")) + "}"
    a, b = rng.integers(0, 0x7C00, (2, 1024)).astype("u2").view("f2")
    c = np.zeros((4, 1024), "f2")
    launch(source, "k", "half* c, const half* a, const half* b, int n", c, a, b, 1024, block=1024)
    x, y = a.astype("f8"), b.astype("f8")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(c, np.stack([x + y, x - y, x * y, x / y]).astype("f2"))


PRINTS = kernel('if (i == n) printf("thread %d of %s: %.2f\\n", i, "block", 1.5);')
PRINTS_MUCH = kernel('for (int j = 0; j < n; j++) printf("%04d\\n", j);')


def test_printf(capsys: pytest.CaptureFixture[str]) -> None:
    launch(PRINTS, "k", OUT, np.zeros(1, "i4"), 5)
    assert capsys.readouterr().out == "thread 5 of block: 1.50\n"
    launch(PRINTS_MUCH, "k", OUT, np.zeros(1, "i4"), 500, block=64)
    assert len(capsys.readouterr().out) == 500 * 64 * 5


COUNTED = kernel("out[i] = table[i % 3] + atomicAdd(&counter, 1);", "__constant__ int table[] = {5, 6, 7}; __device__ int counter = 100;")


def test_constants_and_variables_of_the_device() -> None:
    for _ in range(2):  # each run begins anew
        assert ints(COUNTED, count=4) == [105, 107, 109, 108]


def test_vectors() -> None:
    source = """
__device__ inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__global__ void k(float4 *out, const float4 *in) { out[threadIdx.x] = in[threadIdx.x] + make_float4(1, 2, 3, 4); }"""
    values = np.arange(32, dtype="f4")
    out = np.zeros(32, "f4")
    launch(source, "k", "float* out, const float* in", out, values, block=8)
    assert (out == values + np.tile([1, 2, 3, 4], 8)).all()


DYNAMIC = [
    "extern __shared__ int s[];", "extern __shared__ __align__(16) int s[];", "extern __align__(16) __shared__ int s[];",
    "extern __shared__ unsigned char raw[]; int *s = reinterpret_cast<int *>(raw);", "__shared__ extern int s[];",
    "DYNAMIC", "extern volatile __shared__ int s[];", "extern __shared__ alignas(16) int s[];",
]  # fmt: skip
UNUSED = "__device__ int unused(int i) { extern __shared__ int t[]; return t[i]; }"
WORDS = ["__shared__ alignas(16)", "static __shared__", "volatile __shared__"]
DECLARATIONS = {one: kernel(f"{one}\n s[i] = i; __syncthreads(); out[i] = s[n - 1 - i];", UNUSED) for one in DYNAMIC}
DECLARATIONS |= {one: kernel(f"{one} int s[64];\n s[i] = i; __syncthreads(); out[i] = s[n - 1 - i];") for one in WORDS}


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_declarations_of_shared_memory(declaration: str) -> None:
    assert ints(DECLARATIONS[declaration], 64, 64, shared="n * 4") == list(range(64))[::-1]


def test_files_macros_and_namespaces() -> None:
    source = '#include "lib/scale.cuh"\n'
    source += "namespace app { template <typename T, int N> __global__ void k(T *out) { out[threadIdx.x] = scale(T(N)); } }"
    files = {"lib/scale.cuh": "#pragma once\ntemplate <typename T> __device__ T scale(T v) { return v * FACTOR; }\n"}
    out = np.zeros(4, "i4")
    launch(source, "app::k<int, 7>", "int* out", out, block=4, files=files, options=["-DFACTOR=3", "--use_fast_math", "-std=c++17"])
    assert out.tolist() == [21] * 4
    out = np.zeros(4, "f4")
    launch(source, "app::k<float, 2>", "float* out", out, block=4, files=files, options=["-D", "FACTOR=1.5f"])
    assert out.tolist() == [3] * 4


def tiles(meet: str) -> Part:
    return kernel(f"""__shared__ cg::block_tile_memory<128> scratch;
    cg::thread_block block = cg::this_thread_block(scratch);
    cg::thread_block_tile<64> tile = cg::tiled_partition<64>(block);
    __shared__ int s[128];
    s[i] = i;
    {meet}
    out[i] = s[i ^ 32] + 1000 * cg::reduce(tile, 1, cg::plus<int>()) + tile.shfl(i, 3);""")


WIDE_TILES = {meet: tiles(meet) for meet in ("tile.sync();", "", "if (i != 5) tile.sync(); else __syncthreads();")}


def test_tiles_of_several_warps(fails: Fails) -> None:
    right, *wrong = WIDE_TILES.values()
    assert ints(right, 0, 128) == [(i ^ 32) + 64000 + i // 64 * 64 + 3 for i in range(128)]
    for kind, part in zip(("race", "divergent_barrier"), wrong):
        fails(kind, part, "k", OUT, np.zeros(128, "i4"), 0, block=128)


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
def test_host_code_goes(row: dict[str, list[str]]) -> None:
    assert blank(row["texts"]) == row["blanked"]
