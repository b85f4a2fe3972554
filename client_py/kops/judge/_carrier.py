"""The memory that solutions work in, and what is copied to it and from it: by a connection of the judge's own. First, what a daemon's
client can do for a judge, and does where it can.

A solution's process maps the memory of its tensors, and no memory of the host that has inputs, least of all those to come. The memory is
made once and used again by other launches and solutions, since to make and map it takes longer than to fill it. Between two solutions all
of it is overwritten.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

from .. import Array, Client, Device, KopsError, Timings
from .._companions import BY_CODE, DTYPES, drive, empty, find_device, image, numpy, reach_of, truest_timing, view_of
from ._draws import Draw
from ._solution import Area, Plan
from ._values import fill
from ._verdict import LOST

ALIGNMENT = 256  # alignment of the first element, as every allocator of GPU memory gives it
MARGIN = 4096  # bytes on both sides of a tensor that are checked afterwards, where no unmapped range bounds it
WORD = 8  # bytes; all memory here is a multiple
APART = 2 << 20  # bytes: larger pieces are allocations of their own
ZEROS = 16 << 20  # bytes to overwrite at once
KEPT_BYTES = 4 << 30  # most bytes that are allocated before free memory is given back
_SPENT = tuple(BY_CODE[code] for code in ("out_of_memory", "no_memory"))
_bytes = numpy.dtype("u1")


Key: TypeAlias = tuple[int, str]  # size in bytes, and the side ("end" or "start") that touches unmapped memory


class Room:
    """An allocation. `whole` are the bytes of a tensor, with the margins, and `words` the same; `reach` all that a kernel gets to from
    there, as words."""

    def __init__(self, whole: Array, key: Key) -> None:
        self.whole, self.key = whole, key
        before, self.nbytes = reach_of(whole)
        self.words = view_of(whole, "u64", (whole.size // WORD,))
        self.reach = view_of(whole, "u64", (self.nbytes // WORD,), -before)


class Block:
    """The memory of one tensor. With guards it touches unmapped memory at its end or its start, but for what the alignment of the
    first element takes; else it lies between margins. Bytes that are not the tensor's are watched."""

    def __init__(self, shape: tuple[int, ...], dtype: str, room: Room | None, before: int, nothing: Any = None) -> None:
        self.shape, self.dtype, self.room, self.before = shape, dtype, room, before
        self.size = math.prod(shape) * DTYPES[dtype]
        self._nothing = nothing  # in place of memory, where there are no elements

    @property
    def tensor(self) -> Array:
        """The array that kernels get."""
        return self.bytes_as(self.dtype, self.shape)

    def bytes_as(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """The block's bytes from the first on, as another array."""
        if self.room is None:
            made: Array = self._nothing
            return made
        return view_of(self.room.whole, dtype, shape, self.before)


Memory: TypeAlias = dict[str, Block]


class Staged(NamedTuple):
    """The content that a launch's memory is to have before the launch, by the names of areas: inputs, and rubbish in all else. In shared
    memory."""

    plan: Plan
    draw: Draw
    images: Mapping[str, Any]
    edges: Mapping[str, tuple[Any, Any]]  # for each image, the bytes before and after the tensor
    before: int  # bytes of the margin at the begin of each

    def part(self, name: str, image: Any) -> Any:
        """The bytes of an area's tensor in an image of its memory."""
        return image[self.before : self.before + self.plan.areas[name].nbytes]

    def changed_margin(self, name: str, image: Any) -> int | None:
        """The number of the first byte outside of a tensor that is not what it was, counted from the first element."""
        end = self.before + self.plan.areas[name].nbytes
        for begin, now, was in zip((0, end), (image[: self.before], image[end:]), self.edges[name]):
            bad = numpy.flatnonzero(now != was)
            if bad.size:
                return begin + int(bad[0]) - self.before
        return None

    def uploaded(self) -> Staged:
        """Without the images that are not needed any more once they were copied."""
        return self._replace(images={area.name: self.images[area.name] for area in self.plan.of("output") if area.name in self.images})


class Copies(NamedTuple):
    """Copies that were asked for. `images` have what is read, once they have ended."""

    images: Mapping[str, Any]
    asked: Sequence[Any]

    def wait(self) -> None:
        """Waits until all copies have ended. Raises the first error."""
        failed: list[BaseException] = []
        for one in self.asked:
            try:
                one.result()
            except KopsError as error:
                failed.append(error)
        if failed:
            raise failed[0]


class Carrier:
    """`crew` are the threads that prepare what is copied, and look at it afterwards. One thread at a time calls the other methods."""

    def __init__(self, path: Any, timeout: float, device: Device, crew: ThreadPoolExecutor) -> None:
        self.client = Client(path, timeout=timeout, reconnect_timeout=0, autostart=False, where="daemon")
        self.device, self.crew = device, crew
        self._guarded = "guards" in self.client.info.features  # memory ends, or begins, where nothing is mapped
        self._free: OrderedDict[Key, list[Room]] = OrderedDict()
        self._made = 0  # bytes made, including those in use
        self._giving: list[tuple[Sequence[Room], Future[None]]] = []  # memory that is being overwritten
        try:
            self._zeros = self.client.zeros((ZEROS // WORD,), "u64", device=device)
        except BaseException:
            self.client.close()
            raise
        self.alone()

    def alone(self) -> None:
        """Begins, and goes on, without a shelf's help."""
        self.relieve: Callable[[], None] = lambda: None  # gives up other memory of the connection that can be made again
        self.wipe: Callable[[Sequence[Array]], None] = self._copy_zeros  # wipes memory, perhaps in a faster way; any thread

    # Memory

    def _room_of(self, size: int) -> int:
        return -(-size // ALIGNMENT) * ALIGNMENT + (0 if self._guarded else 2 * MARGIN)

    def key_of(self, size: int, side: str) -> Key:
        return self._room_of(size), side if self._guarded else ""

    def block(self, shape: tuple[int, ...], dtype: str, room: Room | None) -> Block:
        """A tensor in a room; None for a tensor without elements."""
        if room is None:
            return Block(shape, dtype, None, 0, self.client.empty(shape, dtype, device=self.device))
        return Block(shape, dtype, room, 0 if self._guarded else MARGIN)

    def take(self, key: Key) -> Room:
        """Memory in which nothing is left of its earlier users."""
        self.settle()
        free = self._free.get(key)
        if free:
            self._free.move_to_end(key)
            return free.pop()
        try:
            return self._new(key)
        except _SPENT:
            self.lose()
            self.relieve()
            self.client.trim()
            return self._new(key)

    def give(self, rooms: Sequence[Room]) -> None:
        """Memory that nothing uses any more: it is overwritten, all that a solution could reach, and others may have it then."""
        self._giving.append((rooms, self.crew.submit(self.overwrite, [room.reach for room in rooms])))

    def overwrite(self, several: Sequence[Array]) -> None:
        """Zeros, in arrays of words without gaps. Any thread's. What raises may write them later."""
        try:
            self.wipe(several)
        except LOST:
            raise
        except KopsError:
            self._copy_zeros(several)

    def _copy_zeros(self, several: Sequence[Array]) -> None:
        pieces = [array[at : at + ZEROS // WORD] for array in several for at in range(0, array.shape[0], ZEROS // WORD)]
        Copies({}, [self.client.submit("copy", self._zeros[: piece.shape[0]], out=piece) for piece in pieces]).wait()

    def settle(self) -> None:
        """Waits until all memory that was given is overwritten. What is not overwritten nobody gets."""
        giving = bool(self._giving)
        while self._giving:
            rooms, overwritten = self._giving.pop(0)
            try:
                overwritten.result()
            except KopsError:
                self._made -= sum(room.nbytes for room in rooms)
                continue
            for room in rooms:
                self._free.setdefault(room.key, []).append(room)
        if giving:
            self._shrink(KEPT_BYTES)

    def lose(self, rooms: Sequence[Room] = ()) -> None:
        """Something may still write to memory: nobody gets it, nor what else there is."""
        self._made -= sum(room.nbytes for room in rooms)
        self.settle()
        self._shrink(-1)

    def _new(self, key: Key) -> Room:
        size, side = key
        self._shrink(max(KEPT_BYTES - size, 0))
        if self._guarded:
            whole = self.client.guarded((size,), "u8", device=self.device, side=side)
        else:
            whole = self.client.zeros((size,), "u8", device=self.device)
        room = Room(whole, key)
        self._made += room.nbytes
        return room

    def _shrink(self, most: int) -> None:
        """Gives up free memory, of the sizes that were not used for the longest time first."""
        for key in list(self._free):
            rooms = self._free[key]
            while rooms and self._made > most:
                self._made -= rooms.pop().nbytes
            if not rooms:
                del self._free[key]

    # Copies

    def stage(self, plan: Plan, draw: Draw, seed: int) -> Staged:
        """The content of a launch's memory, with rubbish from `seed`. Any thread's."""
        rng = numpy.random.default_rng(seed)
        before, nan = 0 if self._guarded else MARGIN, bool(seed & 1)
        images: dict[str, Any] = {}
        for name, area in plan.areas.items():
            if not area.nbytes:
                continue
            image = images[name] = empty((self._room_of(area.nbytes),), _bytes)
            self._fill(image, before, area, draw, rng, nan)
        return self.staged(plan, draw, images)

    def staged(self, plan: Plan, draw: Draw, images: Mapping[str, Any]) -> Staged:
        """The content of a launch's memory before the launch."""
        before = 0 if self._guarded else MARGIN
        edges = {
            name: (image[:before].copy(), image[before + plan.areas[name].nbytes :].copy()) for name, image in images.items()
        }
        return Staged(plan, draw, images, edges, before)

    def _fill(self, image: Any, before: int, area: Area, draw: Draw, rng: Any, nan: bool) -> None:
        end = before + area.nbytes
        if area.role == "input":
            image[before:end] = draw.tensors[area.name].data.reshape(-1).view(_bytes)
        else:
            fill(image[before:end], area.dtype, rng, nan)
        for margin in (image[:before], image[end:]):
            if margin.size:
                margin[:] = rng.integers(0, 256, margin.size, _bytes)

    def up(self, memory: Memory, images: Mapping[str, Any]) -> Copies:
        """Writes images to memory. They must stay as they are until that has ended."""
        pairs = [(block.room.whole, images[name]) for name, block in memory.items() if block.room is not None and name in images]
        return Copies({}, [self.client.submit("copy", image, out=whole) for whole, image in pairs])

    def down(self, memory: Memory) -> Copies:
        """Reads memory, behind the copies that were asked for before."""
        rooms = {name: block.room for name, block in memory.items() if block.room is not None}
        images = {name: empty((room.whole.size,), _bytes) for name, room in rooms.items()}
        return Copies(images, [self.client.submit("copy", room.whole, out=images[name]) for name, room in rooms.items()])

    def close(self) -> None:
        self.settle()
        with contextlib.suppress(KopsError):
            self.client.close()


# Abilities of a daemon's client

MALLOC = b"\0malloc\0"  # in the names of a binary's symbols


def gpu_of(client: Client, device: Any) -> Device | None:
    """The GPU that is meant: an index or UUID of `client.devices`, or None for the first GPU. None: it has none."""
    if device is None:
        return next((one for one in client.devices if one.backend != "host"), None)
    found = find_device(client.devices, device)
    return found if found.backend != "host" else None


def allocates(client: Client, module: Any) -> bool:
    """Whether the kernels of a module may allocate memory, from the heap of their process: the binary names malloc() then. Yes where
    the daemon does not hand binaries out."""
    try:
        binary: bytes = drive(client, lambda link: image(link, module._code))
    except KopsError:
        return True
    return MALLOC in binary


def timed_alone(client: Client) -> dict[str, Any]:
    """The keywords of a launch, or of a sequence, that is timed as truly as can be, and alone on the GPU where the daemon sees to that."""
    return {"timing": truest_timing(client), **({"exclusive": True} if "exclusive" in client.info.features else {})}


def was_alone(timings: Timings) -> bool | None:
    """Whether no other work of the daemon's was on the GPU meanwhile. None: the daemon does not tell."""
    return timings.exclusive


def wall_us(timings: Timings) -> float | None:
    """The daemon's own clock from giving the work away to seeing its end. None: the daemon does not tell."""
    return timings.wall_us
