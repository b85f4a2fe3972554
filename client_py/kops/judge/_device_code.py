"""The judge's own kernels: they fill the memory of launches, and look at it afterwards, where it is."""

from __future__ import annotations

from typing import Any

from ._poison import NANS

__all__ = ["BLOCK", "LOOKS", "SOURCE", "entries", "masks", "signature"]

BLOCK = 256  # threads, which the sums in shared memory are for
LOOKS = {
    "f16": "look_f16", "bf16": "look_bf16", "f32": "look_f32", "f64": "look_f64", "f8_e4m3": "look_e4m3", "f8_e5m2": "look_e5m2",
}  # fmt: skip

_EVERYTHING = (1 << 64) - 1


def masks(dtype: str, nan: bool) -> tuple[int, int]:
    """Bits that are drawn and bits that are set, of a word of rubbish for elements of a dtype: NaNs, or anything but a bool."""
    if dtype == "bool":
        return _EVERYTHING, _repeated(2, 1)
    if not nan or dtype not in NANS:
        return _EVERYTHING, 0
    kept, drawn, unsigned = NANS[dtype]
    return _repeated(drawn, int(unsigned[1:])), _repeated(kept, int(unsigned[1:]))


def _repeated(bits: int, size: int) -> int:
    return int.from_bytes(bits.to_bytes(size, "little") * (8 // size), "little")


_RUBBISH = "unsigned long long seed, unsigned long long drawn, unsigned long long set"
_FOUND = "inout double* found[rows][2], int rows, int row"
_UNLESS = "const double* found, int rows"  # or a null pointer
_ROOM = "const unsigned long long* room[words], unsigned long long words, unsigned long long before, unsigned long long bytes"
_SIGNATURES = {
    "put_rubbish": f"out unsigned long long* room[words], unsigned long long words, {_RUBBISH}, {_UNLESS}",
    "put_tensor": "out unsigned long long* room[words], const unsigned long long* tensor[held], unsigned long long words,"
    f" unsigned long long held, unsigned long long before, unsigned long long bytes, {_RUBBISH}, {_UNLESS}",
    "look_same": f"{_ROOM}, const unsigned long long* tensor[held], unsigned long long held, {_RUBBISH}, {_FOUND}",
    "look_around": f"{_ROOM}, {_RUBBISH}, {_FOUND}",
    **dict.fromkeys(
        LOOKS.values(), f"{_ROOM}, const double* want[count], unsigned long long count, double rtol, double atol, {_FOUND}"
    ),
}


def entries() -> tuple[str, ...]:
    return tuple(_SIGNATURES)


def signature(entry: str) -> Any:
    return _SIGNATURES[entry]


_LOOK = r"""
extern "C" __global__ void NAME(const u64 *room, u64 words, u64 before, u64 bytes, const double *want, u64 count, double rtol,
                                double atol, double *found, int rows, int row)
{
    const TYPE *got = (const TYPE *)((const char *)room + before);
    double right = 0, squares = 0;
    bool wrong = false;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        int one = is_right(LOAD(got[i]), want[i], rtol, atol, &squares);
        right += one;
        wrong |= !one;
    }
    add_up(right, squares, wrong, found, rows, row);
}
"""

_LOADS = {
    "look_f16": ("unsigned short", "of_f16"),
    "look_bf16": ("unsigned short", "of_bf16"),
    "look_f32": ("float", "(double)"),
    "look_f64": ("double", ""),
    "look_e4m3": ("unsigned char", "of_e4m3"),
    "look_e5m2": ("unsigned char", "of_e5m2"),
}

# A room is a tensor's memory with what lies before and behind the tensor, all of it words of 8 bytes, in the order of their addresses.
# `found` has a row for each look. Its last row begins with 1 once a look has found something wrong. The kernels that fill memory do
# nothing then, since that memory is evidence.
SOURCE = r"""
typedef unsigned long long u64;

/* The finalizer of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014). */
static __device__ u64 mixed(u64 x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static __device__ u64 rubbish(u64 i, u64 seed, u64 drawn, u64 set)
{
    return (mixed(seed + (i + 1) * 0x9e3779b97f4a7c15ull) & drawn) | set;
}

/* Word i of a room that holds a tensor between rubbish. */
static __device__ u64 held_at(u64 i, const u64 *tensor, u64 before, u64 bytes, u64 seed, u64 drawn, u64 set)
{
    u64 at = 8 * i - before, other = rubbish(i, seed, drawn, set), own;
    if (8 * i < before || at >= bytes)
        return other;
    if (bytes - at >= 8)
        return tensor[at / 8];
    own = ((u64)1 << (8 * (bytes - at))) - 1;
    return (tensor[at / 8] & own) | (other & ~own);
}

/* Adds what the threads of a block have to a row of `found`, and notes in its last row that something is wrong. */
static __device__ void add_up(double right, double squares, bool wrong, double *found, int rows, int row)
{
    __shared__ double sums[2][256];
    sums[0][threadIdx.x] = right;
    sums[1][threadIdx.x] = squares;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half) {
            sums[0][threadIdx.x] += sums[0][threadIdx.x + half];
            sums[1][threadIdx.x] += sums[1][threadIdx.x + half];
        }
        __syncthreads();
    }
    if (!threadIdx.x) {
        atomicAdd(found + 2 * row, sums[0][0]);
        atomicAdd(found + 2 * row + 1, sums[1][0]);
    }
    if (wrong)
        *(volatile double *)(found + 2 * (rows - 1)) = 1;
}

/* Whether an earlier kernel found something wrong; without `found` nothing was looked at. */
static __device__ bool is_kept(const double *found, int rows)
{
    return found && *(const volatile double *)(found + 2 * (rows - 1)) != 0;
}

static __device__ bool is_finite(double x)
{
    return x - x == 0;
}

/* The rule of _compare.py. */
static __device__ int is_right(double got, double want, double rtol, double atol, double *squares)
{
    double far = fabs(got - want), size = fabs(want), allowed = __dadd_rn(__dmul_rn(size, rtol), atol);
    if (is_finite(got) && is_finite(want)) {
        *squares += far * far;
        return far <= allowed;
    }
    return got == want || (got != got && want != want);
}

static __device__ double of_f16(unsigned short bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024.0 + fraction, exponent - 25) : ldexp((double)fraction, -24);
    if (exponent == 31)
        size = fraction ? nan("") : INFINITY;
    return bits & 0x8000 ? -size : size;
}

static __device__ double of_bf16(unsigned short bits)
{
    return __uint_as_float((unsigned)bits << 16);
}

static __device__ double of_e5m2(unsigned char bits)
{
    return of_f16((unsigned short)(bits << 8));
}

static __device__ double of_e4m3(unsigned char bits)
{
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    double size = exponent ? ldexp(8.0 + fraction, exponent - 10) : ldexp((double)fraction, -9);
    if ((bits & 127) == 127)
        return nan("");
    return bits & 128 ? -size : size;
}

extern "C" __global__ void put_rubbish(u64 *room, u64 words, u64 seed, u64 drawn, u64 set, const double *found, int rows)
{
    if (is_kept(found, rows))
        return;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        room[i] = rubbish(i, seed, drawn, set);
}

extern "C" __global__ void put_tensor(u64 *room, const u64 *tensor, u64 words, u64 held, u64 before, u64 bytes, u64 seed, u64 drawn,
                                      u64 set, const double *found, int rows)
{
    if (is_kept(found, rows))
        return;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        room[i] = held_at(i, tensor, before, bytes, seed, drawn, set);
}

/* How many words are what put_tensor() wrote. */
extern "C" __global__ void look_same(const u64 *room, u64 words, u64 before, u64 bytes, const u64 *tensor, u64 held, u64 seed, u64 drawn,
                                     u64 set, double *found, int rows, int row)
{
    double right = 0;
    bool wrong = false;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        bool one = room[i] == held_at(i, tensor, before, bytes, seed, drawn, set);
        right += one;
        wrong |= !one;
    }
    add_up(right, 0, wrong, found, rows, row);
}

/* How many words have, beside the tensor, what put_rubbish() wrote: of those of the tensor alone nothing is asked. */
extern "C" __global__ void look_around(const u64 *room, u64 words, u64 before, u64 bytes, u64 seed, u64 drawn, u64 set, double *found,
                                       int rows, int row)
{
    double right = 0;
    bool wrong = false;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        u64 at = 8 * i - before, other = ~(u64)0;
        bool one;
        if (8 * i >= before && at < bytes)
            other = bytes - at >= 8 ? 0 : ~(((u64)1 << (8 * (bytes - at))) - 1);
        one = !other || !((room[i] ^ rubbish(i, seed, drawn, set)) & other);
        right += one;
        wrong |= !one;
    }
    add_up(right, 0, wrong, found, rows, row);
}
""" + "".join(
    _LOOK.replace("NAME", name).replace("TYPE", kind).replace("LOAD", load) for name, (kind, load) in _LOADS.items()
)
