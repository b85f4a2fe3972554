"""The judge's own kernels: they fill the memory of launches, and look at it afterwards, where it is."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._values import NANS

BLOCK = 256  # threads of a block, which the sums in shared memory are for
WIDE = 7  # rooms of one launch, one for each `y` of its blocks: asking for a launch takes longer than filling most rooms
SUMS = 3  # sums of a look: right elements, squared errors, elements that only `atol` may allow
# For each dtype: the kernel that looks at it, its type in C++, and the conversion to double.
_LOOKS = {
    "f16": ("look_f16", "unsigned short", "of_f16"), "bf16": ("look_bf16", "unsigned short", "of_bf16"),
    "f32": ("look_f32", "float", "(double)"), "f64": ("look_f64", "double", ""),
    "f8_e4m3": ("look_e4m3", "unsigned char", "of_e4m3"), "f8_e5m2": ("look_e5m2", "unsigned char", "of_e5m2"),
}  # fmt: skip
LOOKS = {dtype: name for dtype, (name, _, _) in _LOOKS.items()}

_EVERYTHING = (1 << 64) - 1


@functools.cache
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


_SIZES = r"\[\w+\]"


class _Form(NamedTuple):
    """The parameters of a kernel. `own` are those of each room, whose number stands for #; `rest` are all rooms'. Only the first room's
    have sizes: the others may be null pointers."""

    own: tuple[str, ...]
    rest: tuple[str, ...]

    def every(self) -> list[str]:
        own = [one.replace("#", str(i)) for one in self.own for i in range(WIDE)]
        return [one if "0[" in one else re.sub(_SIZES, "", one) for one in own] + list(self.rest)


_U64 = "unsigned long long"
_ROOM, _FILLED = f"const {_U64}* room#[words]", f"out {_U64}* room#[words]"
_TENSOR, _SEED = f"const {_U64}* tensor#[held]", f"{_U64} seed#"
_WORDS, _HELD, _PLACE, _BITS = f"{_U64} words", f"{_U64} held", (f"{_U64} before", f"{_U64} bytes"), (f"{_U64} drawn", f"{_U64} set")
_UNLESS = "const double* found", "int rows"  # `found` may be a null pointer
_FOUND = f"inout double* found[rows][{SUMS}]", "int rows", "int row"
_FORMS = {
    "put_rubbish": _Form((_FILLED, _SEED), (_WORDS, *_BITS, *_UNLESS)),
    "put_tensor": _Form((_FILLED, _TENSOR, _SEED), (_WORDS, _HELD, *_PLACE, *_BITS, *_UNLESS)),
    "look_same": _Form((_ROOM, _TENSOR, _SEED), (_WORDS, _HELD, *_PLACE, *_BITS, *_FOUND)),
    "look_around": _Form((_ROOM, _SEED), (_WORDS, *_PLACE, *_BITS, *_FOUND)),
    **dict.fromkeys(
        LOOKS.values(),
        _Form(
            (_ROOM, "const double* want#[count]", "double atol#"),
            (_WORDS, f"{_U64} count", *_PLACE, "double rtol", "double least", "double part", *_FOUND),
        ),
    ),
}


def entries() -> tuple[str, ...]:
    return tuple(_FORMS)


def signature(entry: str) -> Any:
    return ", ".join(_FORMS[entry].every())


def arguments(entry: str, several: Sequence[tuple[Any, ...]], *rest: Any) -> list[Any]:
    """The arguments of a launch for at most `WIDE` rooms, each with its own. The grid is as many blocks high as there are rooms; `row` is
    the first one's, and the others' follow."""
    made: list[Any] = []
    for text, column in zip(_FORMS[entry].own, zip(*several, strict=True), strict=True):
        made += column
        made += [None if "*" in text else 0] * (WIDE - len(column))
    return [*made, *rest]


def _declared(text: str) -> str:
    """A parameter in C++, of one in a signature."""
    return re.sub(_SIZES, "", re.sub(r"^(out|inout) ", "", text))


def _kernel(entry: str, body: str) -> str:
    """A kernel of the body of a function, in which a block's own arguments have no number."""
    form = _FORMS[entry]
    chosen = []
    for text in form.own:
        kind, name = _declared(text).replace("#", "").rsplit(" ", 1)
        # No array of pointers: each thread would first copy it to its local memory.
        others = " : ".join(f"blockIdx.y == {i} ? {name}{i}" for i in range(1, WIDE))
        chosen.append(f"    {kind} {name} = {others} : {name}0;")
    head = ",\n    ".join(map(_declared, form.every()))
    return f'extern "C" __global__ void {entry}(\n    {head})\n{{\n' + "\n".join(chosen) + f"\n{body.strip(chr(10))}\n}}\n\n"


_PUT_RUBBISH = r"""
    if (is_kept(found, rows))
        return;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        room[i] = rubbish(i, seed, drawn, set);
"""

_PUT_TENSOR = r"""
    if (is_kept(found, rows))
        return;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        room[i] = held_at(i, tensor, before, bytes, seed, drawn, set);
"""

# Counts the words that put_tensor() wrote.
_LOOK_SAME = r"""
    double right = 0;
    bool wrong = false;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x) {
        bool one = room[i] == held_at(i, tensor, before, bytes, seed, drawn, set);
        right += one;
        wrong |= !one;
    }
    add_up(right, 0, 0, wrong, found, rows, row + blockIdx.y);
"""

# Counts the words around the tensor that put_rubbish() wrote; the tensor's own words are not checked.
_LOOK_AROUND = r"""
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
    add_up(right, 0, 0, wrong, found, rows, row + blockIdx.y);
"""

_LOOK = r"""
    const TYPE *got = (const TYPE *)((const char *)room + before);
    double right = 0, squares = 0, by_atol = 0;
    least = fmax(least, __dmul_rn(part, atol));
    bool wrong = false;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        int one = is_right(LOAD(got[i]), want[i], rtol, atol, least, &squares, &by_atol);
        right += one;
        wrong |= !one;
    }
    add_up(right, squares, by_atol, wrong, found, rows, row + blockIdx.y);
"""

# A room is a tensor's memory with the bytes before and after the tensor, all of it words of 8 bytes, by address.
# `found` has a row for each look. Its last row begins with 1 once a look has found something wrong. Kernels that fill
# memory then do nothing, since that memory is evidence.
SOURCE = f"#define SUMS {SUMS}\n" + r"""
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
static __device__ void add_up(double right, double squares, double by_atol, bool wrong, double *found, int rows, int row)
{
    __shared__ double sums[SUMS][256];
    sums[0][threadIdx.x] = right;
    sums[1][threadIdx.x] = squares;
    sums[2][threadIdx.x] = by_atol;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half)
            for (int i = 0; i < SUMS; i++)
                sums[i][threadIdx.x] += sums[i][threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x < SUMS)
        atomicAdd(found + SUMS * row + threadIdx.x, sums[threadIdx.x][0]);
    if (wrong)
        *(volatile double *)(found + SUMS * (rows - 1)) = 1;
}

/* Whether an earlier kernel found something wrong; without `found` nothing was looked at. */
static __device__ bool is_kept(const double *found, int rows)
{
    return found && *(const volatile double *)(found + SUMS * (rows - 1)) != 0;
}

static __device__ bool is_finite(double x)
{
    return x - x == 0;
}

/* The rule of float_errors() in _values.py. */
static __device__ int is_right(
    double got, double want, double rtol, double atol, double least, double *squares, double *by_atol)
{
    double far = fabs(got - want), size = fabs(want), allowed = __dmul_rn(size, rtol);
    if (is_finite(got) && is_finite(want)) {
        *squares += far * far;
        *by_atol += size >= least && far > allowed;
        return far <= __dadd_rn(allowed, atol);
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

""" + "".join(
    [
        _kernel("put_rubbish", _PUT_RUBBISH), _kernel("put_tensor", _PUT_TENSOR), _kernel("look_same", _LOOK_SAME),
        _kernel("look_around", _LOOK_AROUND),
        *(_kernel(name, _LOOK.replace("TYPE", kind).replace("LOAD", load)) for name, kind, load in _LOOKS.values()),
    ]
)  # fmt: skip
