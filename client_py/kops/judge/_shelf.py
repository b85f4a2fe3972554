"""Draws in the GPU's memory: kernels fill the memory of launches from there, and compare afterwards what a launch has left. So little is
copied to the GPU and back, and the processors have little to do.

The kernels run in a process of their own. The processes of solutions do not map the memory of draws. The kernels find out whether a
launch is right; where an element is not, the results are copied to the host, and `wrong_in` finds out what is wrong."""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .. import Array, Client, Device
from .._companions import BY_CODE, empty, numpy, view_of
from ._carrier import APART, Block, Carrier, Memory, Staged
from ._draws import Draw, Expected, imprecise, new_seed
from ._solution import Area, Plan
from ._task import Task
from ._values import FLOATS, NANS, Errors
from ._verdict import Gone, HeldBack, Worst, gone

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


PART_OF_DEVICE, MOST_BYTES = 8, 12 << 30  # most memory for draws: this fraction of the GPU's, and this many bytes
FEWEST = 32  # draws of a kind that always have room
PLACE = 256  # bytes; places of tensors are multiples
WORD = 8
IMAGES_MOST, IMAGES_BYTES = 8, 256 << 20  # images made ahead: for a solution's draws; bytes for all
SLAB, SLAB_BYTES = 16, 256 << 20  # draws in one allocation, and its size, at most
STEPS = 2048 // (2 * WIDE + 1)  # steps of one request, whose tensors the daemon limits
WORDS, GRID = 8, 2048  # least words for a thread in a large room; most blocks of a room
_ALWAYS = None, 0  # fill memory whatever was found
_SPENT = tuple(BY_CODE[code] for code in ("out_of_memory", "no_memory", "quota_exceeded"))


class Image:
    """A draw's tensors in shared memory, one behind the other: where each begins, and its size in bytes."""

    def __init__(self, draw: Draw) -> None:
        tensors = [*((name, one.data) for name, one in draw.tensors.items()), *((one.name, one.values) for one in draw.expected)]
        self.places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, data in tensors:
            self.places[name] = end, data.nbytes
            end += -(-max(data.nbytes, 1) // PLACE) * PLACE
        # An allocation of its own on the GPU, so that a solution reaches none of it.
        self.data = empty((max(end, APART),), numpy.dtype("u1"))
        for name, data in tensors:
            at, nbytes = self.places[name]
            self.data[at : at + nbytes] = data.reshape(-1).view(numpy.uint8)
            self.data[at + nbytes : at + nbytes + PLACE] = 0  # the last word is partly inside


class Images:
    """Images of draws that were made before the draws are needed. Thread-safe. At most IMAGES_BYTES: the oldest go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[weakref.ref[Draw], Image] = OrderedDict()

    def __len__(self) -> int:
        return len(self._made)

    def has(self, draw: Draw) -> bool:
        with self._lock:
            return weakref.ref(draw) in self._made

    def make(self, draw: Draw) -> None:
        image = Image(draw)
        with self._lock:
            self._made[weakref.ref(draw)] = image
            for key in [key for key in self._made if key() is None]:
                del self._made[key]
            nbytes = sum(one.data.nbytes for one in self._made.values())
            while nbytes > IMAGES_BYTES and len(self._made) > 1:
                nbytes -= self._made.popitem(last=False)[1].data.nbytes

    def take(self, draw: Draw) -> Image | None:
        with self._lock:
            return self._made.pop(weakref.ref(draw), None)


class _Kept:
    """A draw's tensors, one behind the other."""

    def __init__(self, whole: Array, places: Mapping[str, tuple[int, int]]) -> None:
        self.whole, self.places = whole, places
        self._views: dict[tuple[str, str], Array] = {}

    def view(self, name: str, dtype: str) -> Array:
        """A tensor as words, "u64", or as doubles, "f64"."""
        found = self._views.get((name, dtype))
        if found is None:
            at, size = self.places[name]
            found = self._views[name, dtype] = view_of(self.whole, dtype, (-(-size // WORD),), at)
        return found


class _Rack:
    """Memory for draws of one size."""

    def __init__(self) -> None:
        self.slabs: list[Array] = []
        self.free: list[Array] = []


class Held(NamedTuple):
    """A launch's memory, the draw that it is filled from, and the rubbish: a seed by area, and whether it is NaNs."""

    plan: Plan
    draw: Draw
    memory: Memory
    kept: _Kept
    seeds: Mapping[str, int]
    nan: bool


class Looked(NamedTuple):
    """The result of a look. `right`: by launch True, or the error, or False where the host has to look for it. `filled`: whether other
    memory was filled."""

    right: list[bool | Worst]
    filled: bool


def _geometry(words: int, rooms: int) -> dict[str, Any]:
    return {"grid": (max(1, min(GRID, -(-words // (BLOCK * WORDS)))), rooms), "block": BLOCK}


_T = TypeVar("_T")


def _alike(several: Iterable[tuple[tuple[Any, ...], _T]]) -> Iterator[tuple[tuple[Any, ...], list[_T]]]:
    """Groups of one key, each as large as one launch has room for."""
    groups: dict[tuple[Any, ...], list[_T]] = {}
    for key, one in several:
        groups.setdefault(key, []).append(one)
    for key, some in groups.items():
        for at in range(0, len(some), WIDE):
            yield key, some[at : at + WIDE]


class _Look(NamedTuple):
    """A look at a launch's area: the number of the launch, the kernel's own arguments, how much has to be right, and the output that it
    is."""

    launch: int
    own: tuple[Any, ...]
    right: int
    expected: Expected | None


class Shelf:
    """`client`: whose process runs the kernels. One thread at a time. Raises KopsError where that cannot be."""

    def __init__(self, carrier: Carrier, client: Client, device: Device) -> None:
        self.carrier, self.client, self.device = carrier, client, device
        module = client.compile(SOURCE, list(entries()), name="judge.cu", device=device)
        self._kernels = {entry: module.kernel(entry, signature(entry), grid=1, block=BLOCK) for entry in entries()}
        self._most = min(MOST_BYTES, device.memory_bytes // PART_OF_DEVICE)
        self.images = Images()
        self._draws: OrderedDict[weakref.ref[Draw], _Kept] = OrderedDict()  # weak, so that draws do not live longer on the host
        self._used: set[weakref.ref[Draw]] = set()  # draws that launches used: these stay
        self._racks: OrderedDict[int, _Rack] = OrderedDict()  # by the size of a draw
        self._bytes = 0
        self._found: Array | None = None
        self._prove()
        carrier.relieve, carrier.wipe = self.relieve, self._wipe

    # Draws

    def begin(self) -> None:
        """Lets go of all held draws."""
        self._used.clear()

    def has(self, draw: Draw) -> bool:
        return weakref.ref(draw) in self._draws

    def make_images(self, draws: Iterable[Draw]) -> None:
        """Makes images of a few of these draws that are not on the shelf, for later solutions, whose turn takes less time then. Any
        thread's."""
        made = 0
        for one in draws:
            if made < IMAGES_MOST and self.takes(one) and not self.expects(one):
                self.images.make(one)
                made += 1

    def expects(self, draw: Draw) -> bool:
        """Whether the draw is on the shelf, or its image is made. Any thread's."""
        return self.has(draw) or self.images.has(draw)

    def hold(self, plan: Plan, draw: Draw, memory: Memory, image: Image | None = None) -> Held:
        """Holds a draw that the shelf takes until `look` or `begin`. `image`: where it has not been here before, and one is made
        already. Raises Gone."""
        areas = plan.areas.values()
        self._used.add(weakref.ref(draw))
        return Held(plan, draw, memory, self._kept(draw, image), {area.name: new_seed() for area in areas}, bool(new_seed() & 1))

    def takes(self, draw: Draw) -> bool:
        """Whether a draw is small enough for several of its kind."""
        return max(draw.nbytes, APART) <= self._most // FEWEST

    def _kept(self, draw: Draw, image: Image | None) -> _Kept:
        key = weakref.ref(draw)
        found = self._draws.get(key)
        if found is not None:
            self._draws.move_to_end(key)
            return found
        image = image or self.images.take(draw) or Image(draw)
        whole = self._slot(image.data.size)
        with gone():
            whole.set(image.data)
        made = self._draws[key] = _Kept(whole, image.places)
        return made

    # Memory. Making it and mapping it into the process that runs the kernels takes longer than filling it, so it is
    # used again.

    def _slot(self, size: int) -> Array:
        for key in [key for key in self._draws if key() is None]:  # draws that the host has dropped
            self._drop(key)
        rack = self._racks.setdefault(size, _Rack())
        self._racks.move_to_end(size)
        slab = min(SLAB, max(1, SLAB_BYTES // size)) * size
        if not rack.free and self._bytes + slab > self._most:
            self._make_room(slab, size)
        if not rack.free:  # all are in use: take more than the limit
            whole = self._new((slab,), "u8")
            rack = self._racks.setdefault(size, _Rack())  # the rack before may have been given up for memory
            rack.slabs.append(whole)
            rack.free += [view_of(whole, "u8", (size,), at) for at in range(0, slab, size)]
            self._bytes += slab
        return rack.free.pop()

    def _make_room(self, slab: int, size: int) -> None:
        """For a slab; or of a draw of that size that was not used for the longest time."""
        used = self._sizes_in_use()
        for other in [other for other in self._racks if other not in used and other != size]:
            if self._bytes + slab > self._most:
                self._give_up(other)
        if self._bytes + slab > self._most:
            oldest = (key for key, kept in self._draws.items() if kept.whole.size == size and key not in self._used)
            if (key := next(oldest, None)) is not None:
                self._drop(key)

    def _drop(self, key: weakref.ref[Draw]) -> None:
        whole = self._draws.pop(key).whole
        self._racks[whole.size].free.append(whole)

    def _give_up(self, size: int) -> None:
        """All draws of a size. Others may have the memory then, so it is overwritten."""
        rack = self._racks.pop(size)
        for key in [key for key, kept in self._draws.items() if kept.whole.size == size]:
            del self._draws[key]
        self._bytes -= sum(slab.size for slab in rack.slabs)
        with gone():
            self.carrier.overwrite([view_of(slab, "u64", (slab.size // WORD,)) for slab in rack.slabs])

    def clear(self) -> None:
        """Gives up all draws. Raises Gone."""
        self.begin()
        self.relieve()

    def relieve(self) -> None:
        """Gives up all draws, but for those of a size of which some are in use. Raises Gone."""
        used = self._sizes_in_use()
        for size in [size for size in self._racks if size not in used]:
            self._give_up(size)

    def _sizes_in_use(self) -> set[int]:
        return {self._draws[key].whole.size for key in self._used if key in self._draws}

    def _new(self, shape: tuple[int, ...], dtype: str) -> Array:
        with gone():
            try:
                made: Array = self.carrier.client.empty(shape, dtype, device=self.device)
            except _SPENT:
                self.relieve()
                self.carrier.client.trim()
                made = self.carrier.client.empty(shape, dtype, device=self.device)
        return made

    # Launches

    def fill(self, several: Sequence[Held]) -> None:
        """Inputs, and rubbish in all else. Raises Gone."""
        self._run(self._filling(several, _ALWAYS))

    def _step(self, entry: str, several: Sequence[tuple[Any, ...]], words: int, *rest: Any) -> tuple[Any, ...]:
        return (self._kernels[entry], *arguments(entry, several, *rest), _geometry(words, len(several)))

    def _filling(self, several: Sequence[Held], unless: tuple[Array | None, int]) -> list[Any]:
        """The steps that fill the memory of launches, unless an earlier look has found something wrong."""
        asked: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
        for held in several:
            for area, block, room in _rooms(held):
                seed, *bits = self._rubbish(held, area)
                if area.role == "input":
                    tensor = held.kept.view(area.name, "u64")
                    asked.append((("put_tensor", room.size, tensor.size, block.before, area.nbytes, *bits), (room, tensor, seed)))
                else:
                    asked.append((("put_rubbish", room.size, *bits), (room, seed)))
        return [self._step(entry, some, words, words, *rest, *unless) for (entry, words, *rest), some in _alike(asked)]

    def look(self, task: Task, several: Sequence[Held], then: Sequence[Held] = ()) -> Looked:
        """Whether each launch has left its inputs as they were, nothing outside of its tensors, and what is right. In the same go, memory
        is filled for the launches `then`, which may be the same memory, unless an element or a word is wrong. Raises Gone."""
        steps: list[Any] = []
        asked: list[list[tuple[int, float, Expected | None]]] = [[] for _ in several]  # for each launch: rows, and the expected contents
        rows = 1 + sum(2 * len(held.plan.areas) for held in several)
        found = self._rows(rows)
        row = 0
        for (entry, words, *rest), some in _alike(self._looking(task, several)):
            steps.append(self._step(entry, [look.own for look in some], max(words, some[0].right), words, *rest, found, rows, row))
            for at, look in enumerate(some, row):
                asked[look.launch].append((at, look.right, look.expected))
            row += len(some)
        self._run([self._zeros([view_of(found, "u64", (SUMS * rows,))]), *steps, *self._filling(then, (found, rows))])
        self._used -= {weakref.ref(held.draw) for held in several} - {weakref.ref(held.draw) for held in then}
        with gone():
            values = found.get()
        counted = [all(values[at][0] == count for at, count, _ in one) for one in asked]
        if all(counted) != (values[rows - 1][0] == 0):
            raise Gone("the judge's own kernels do not say what they have found")
        told = [right and (_imprecise(task, held.draw, values, one) or True) for held, right, one in zip(several, counted, asked)]
        return Looked(told, all(counted))

    def _looking(self, task: Task, several: Sequence[Held]) -> Iterator[tuple[tuple[Any, ...], _Look]]:
        """For each look a key, equal for looks that may be one launch: the kernel, the number of words, and further numbers."""
        for launch, held in enumerate(several):
            right = {one.name: one for one in held.draw.expected}
            for area, block, room in _rooms(held):
                seed, *bits = self._rubbish(held, area)
                place = block.before, area.nbytes
                expected = right.get(area.name) if area.role == "output" else None
                if area.role == "input" or (expected is not None and area.dtype not in FLOATS):
                    tensor = held.kept.view(area.name, "u64")
                    own = room, tensor, seed
                    yield ("look_same", room.size, tensor.size, *place, *bits), _Look(launch, own, room.size, None)
                    continue
                yield ("look_around", room.size, *place, *bits), _Look(launch, (room, seed), room.size, None)
                if expected is not None:
                    want = held.kept.view(area.name, "f64")
                    rule = task.tolerance_of(expected.dtype)
                    rtol, atol = map(float, rule.bounds(expected.dtype, expected.scale))
                    key = LOOKS[area.dtype], room.size, want.size, *place, rtol, *rule.counted(expected.dtype)
                    yield key, _Look(launch, (room, want, atol), want.size, expected)

    @staticmethod
    def _rubbish(held: Held, area: Area) -> tuple[int, int, int]:
        return (held.seeds[area.name], *masks(area.dtype, held.nan and area.role != "input"))

    def _zeros(self, several: Sequence[Array]) -> tuple[Any, ...]:
        """A step, for arrays of words of one size."""
        words = several[0].size
        return self._step("put_rubbish", [(one, 0) for one in several], words, words, 0, 0, *_ALWAYS)

    def _wipe(self, several: Sequence[Array]) -> None:
        """Overwrites arrays of words with zeros, by few requests where copies take one each. Any thread's."""
        self._sequence([self._zeros(some) for _, some in _alike(((one.size,), one) for one in several)])

    def _rows(self, rows: int) -> Array:
        if self._found is None or self._found.shape[0] < rows:
            self._found = self._new((max(rows, 256), SUMS), "f64")
        return view_of(self._found, "f64", (rows, SUMS))

    def _sequence(self, steps: Sequence[Any]) -> None:
        for at in range(0, len(steps), STEPS):
            self.client.sequence(steps[at : at + STEPS], blocking=True)

    def _run(self, steps: Sequence[Any]) -> None:
        with gone():
            try:
                self._sequence(steps)
            except BY_CODE["quota_exceeded"] as error:
                raise HeldBack(error.message, float(error.detail.get("retry_after_ms", 60_000)) / 1e3) from None

    # A launch that is not right, copied to the host

    def staged(self, held: Held) -> tuple[Staged, Mapping[str, Any]]:
        """As the carrier has it: what was in the memory before the launch, and what is there now. The memory is filled anew."""
        copies = self.carrier.down(held.memory)
        with gone():
            copies.wait()
        self.fill([held])
        before = self.carrier.down(held.memory)
        with gone():
            before.wait()
        return self.carrier.staged(held.plan, held.draw, before.images), copies.images

    def _prove(self) -> None:
        """A result that no kernel has computed must not pass for right: the kernels find a difference, and none where there is none."""
        room, found = (self.carrier.client.zeros((32,), dtype, device=self.device) for dtype in ("u64", "f64"))
        bits = masks("f32", False)
        rows = view_of(found, "f64", (3, SUMS))

        def put(seed: int, *unless: Any) -> Any:
            return self._step("put_rubbish", [(room, seed)], 32, 32, *bits, *unless)

        def look(row: int, *seeds: int) -> Any:
            return self._step("look_around", [(room, seed) for seed in seeds], 32, 32, 0, 128, *bits, rows, 3, row)

        steps = [put(7, *_ALWAYS), look(0, 7), put(9, rows, 3), look(0, 7, 9)]  # a wrong word is found
        steps += [put(7, rows, 3), look(1, 9)]  # the second put must do nothing
        self.client.sequence(steps, blocking=True)
        if rows.get().tolist() != [[48.0, 0.0, 0.0], [64.0, 0.0, 0.0], [1.0, 0.0, 0.0]]:
            raise BY_CODE["device_error"]("the judge's own kernels do not compute what they should")


def _rooms(held: Held) -> list[tuple[Area, Block, Array]]:
    """The areas that have memory, and that memory as words."""
    made = []
    for area in held.plan.areas.values():
        block = held.memory[area.name]
        if block.room is not None:
            made.append((area, block, block.room.words))
    return made


def _imprecise(task: Task, draw: Draw, found: Any, asked: Sequence[tuple[int, float, Expected | None]]) -> Worst | None:
    """The error of outputs each of whose elements is within its tolerance."""
    for row, _, expected in asked:
        errors = Errors(0, float(found[row][1]), int(found[row][2]))
        worst = None if expected is None else imprecise(task, expected, errors, draw.case, draw.number)
        if worst is not None:
            return worst
    return None
