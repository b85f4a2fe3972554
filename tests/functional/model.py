"""What a daemon should do, in Python and NumPy: the memory, ids and quotas of connections, and what ops make of bytes.

`test_model` drives a daemon and this side by side. A connection's memory is a number of memfds, each with a `mirror`,
the bytes that should be there. Requests are made so that they are good, or bad for one reason that is known.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support import memfd, raw

DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}  # the others: tests/conformance
TOLERANCE = {"f32": 2e-5, "f64": 4e-14}  # of products, whose sums may be in any order
SLOTS = 4  # of a buffer; a tensor lies in one
ELEMENTWISE = ("add", "square")
OPS = ("add", "add", "square", "gemm")
NEW_WORK = ("register", "alloc", "run", "sequence", "program", "run_program", "compile", "kernel", "launch", "timelines")


class Memory:
    """A registered memfd, or one that the daemon made."""

    def __init__(self, buffer: int, data: np.ndarray, access: str, keep: Any, allocated: int = 0) -> None:
        self.buffer = buffer
        self.data = data
        self.mirror = data.copy()
        self.access = access
        self.allocated = allocated
        self.keep = keep

    def __repr__(self) -> str:
        return f"buffer {self.buffer} ({self.access}, {len(self.data)} bytes)"

    def check(self) -> None:
        assert np.array_equal(self.data, self.mirror), f"buffer {self.buffer} has changed where nothing was to be written"


@dataclass
class View:
    """A tensor."""

    memory: Memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str

    def wire(self) -> dict[str, Any]:
        more = {} if self.strides is None else {"strides": list(self.strides)}
        buffer = self.memory.buffer if self.count else None
        return raw.tensor(buffer, self.shape, self.dtype, **({"offset": self.offset} if self.count else {}), **more)

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def of(self, data: np.ndarray) -> np.ndarray:
        """Its elements among those bytes."""
        kind = DTYPES[self.dtype]
        if not self.count:
            return np.empty(self.shape, kind)
        strides = None if self.strides is None else [s * kind.itemsize for s in self.strides]
        return np.ndarray(self.shape, kind, data.data, self.offset, strides)

    @property
    def numbers(self) -> np.ndarray:
        """The elements that should be there."""
        return self.of(self.memory.mirror)

    def fill(self, rng: random.Random) -> None:
        """Small whole numbers, there and in the mirror."""
        if self.count:
            self.numbers[...] = np.array([rng.randint(-4, 4) for _ in range(self.count)]).reshape(self.shape)
            self.of(self.memory.data)[...] = self.numbers

    def settle(self, scale: np.ndarray | None = None) -> None:
        """What the daemon wrote is right; of a sum of parts that are so large together, the last bits are believed."""
        if not self.count:
            return
        got, want = self.of(self.memory.data), self.numbers
        right = (got == want) | (np.isnan(got) & np.isnan(want))
        if scale is not None:
            right |= ~np.isfinite(scale) | (np.abs(got - want) <= TOLERANCE[self.dtype] * scale)
        assert right.all(), f"{got} where {want} was to be written"
        want[...] = got


@dataclass
class Step:
    """One op."""

    op: str
    inputs: list[View]
    out: View
    attrs: dict[str, Any] = field(default_factory=dict)

    def wire(self, place: Any = View.wire) -> dict[str, Any]:
        made = {"op": self.op, "in": [place(view) for view in self.inputs], "out": [place(self.out)]}
        return {**made, "attrs": self.attrs} if self.attrs else made

    def apply(self) -> np.ndarray | None:
        """To the mirrors. For sums of products how large their parts are."""
        values = [view.numbers for view in self.inputs]
        if self.op in ELEMENTWISE:
            self.out.numbers[...] = values[0] + values[1] if self.op == "add" else values[0] * values[0]
            return None
        a, b = (v.swapaxes(-1, -2) if self.attrs.get(t) else v for v, t in zip(values, ("trans_a", "trans_b"), strict=True))
        alpha, beta = self.attrs.get("alpha", 1.0), self.attrs.get("beta", 0.0)
        before = self.out.numbers.copy() if beta else np.zeros(self.out.shape)
        self.out.numbers[...] = alpha * (a @ b) + beta * before
        return abs(alpha) * (np.abs(a) @ np.abs(b)) + np.abs(beta * before)

    @property
    def views(self) -> list[View]:
        return [*self.inputs, self.out]

    @property
    def reads_what_it_writes(self) -> bool:
        return bool(self.attrs.get("beta")) or any(view is self.out for view in self.inputs)


@dataclass
class Program:
    id: int
    tensors: list[View]
    steps: list[Step]


def tensors_of(steps: list[Step]) -> list[View]:
    found: list[View] = []
    for view in (view for step in steps for view in step.views):
        if not any(view is one for one in found):
            found.append(view)
    return found


def body(steps: list[Step]) -> dict[str, Any]:
    """Of a sequence or program."""
    tensors = tensors_of(steps)

    def place(view: View) -> int:
        return next(i for i, one in enumerate(tensors) if one is view)

    return {"tensors": [view.wire() for view in tensors], "ops": [step.wire(place) for step in steps]}


def carry_out(steps: list[Step]) -> None:
    """The daemon did these, one after the other: everything is as it should be. Nothing reads a product."""
    try:
        with np.errstate(all="ignore"):
            written = [(step.out, step.apply()) for step in steps]
            for view, scale in reversed(written):
                view.settle(scale if view is steps[-1].out else None)
        for memory in {id(view.memory): view.memory for step in steps for view in step.views}.values():
            memory.check()
    except AssertionError as error:
        raise AssertionError(f"{error}\nafter " + "\n".join(map(str, steps))) from None


class Client:
    """One connection, and what it has."""

    def __init__(self, name: str, connection: raw.Connection) -> None:
        self.name = name
        self.connection = connection
        self.buffers: dict[int, Memory] = {}
        self.opaque: dict[int, int] = {}  # device memory that the daemon made: its size by id
        self.programs: dict[int, Program] = {}
        self.own: dict[str, int] = {}  # kernels by name
        self.gone = [0, 2**40]  # ids of nothing
        self.hello = connection.call("hello", {"client": name})

    @property
    def held(self) -> int:
        return len(self.buffers) + len(self.opaque)

    @property
    def allocated(self) -> int:
        return sum(m.allocated for m in self.buffers.values()) + sum(self.opaque.values())

    @property
    def mapped(self) -> int:
        return sum(len(m.data) for m in self.buffers.values() if not m.allocated)

    # Memory

    def register_params(self, rng: random.Random) -> tuple[dict[str, Any], memfd.Shared]:
        shared = memfd.Shared(rng.choice([4096, 8192, 16384]))
        return {"kind": "memfd", "size": shared.size, "fd": 0, "access": rng.choice(["rw", "rw", "rw", "r"])}, shared

    def registered(self, params: dict[str, Any], shared: memfd.Shared, reply: Any) -> None:
        assert reply["size"] == params["size"]
        shared.close_fd()
        self.take(reply["buffer"], Memory(reply["buffer"], shared.bytes, params["access"], shared))

    def allocated_memory(self, reply: Any, fds: list[int]) -> None:
        (fd,) = fds
        try:
            if reply["kind"] == "memfd":
                view = mmap.mmap(fd, reply["size"])
                data = np.frombuffer(view, np.uint8)
                assert not data.any(), "memory of the daemon's is zeroed"
                self.take(reply["buffer"], Memory(reply["buffer"], data, "rw", view, reply["size"]))
            else:
                self.take(reply["buffer"], None)
                self.opaque[reply["buffer"]] = reply["size"]
        finally:
            os.close(fd)
            fds.clear()

    def take(self, buffer: int, memory: Memory | None) -> None:
        assert buffer not in self.buffers and buffer not in self.opaque and buffer not in self.gone, "ids are not given out again"
        if memory is not None:
            self.buffers[buffer] = memory

    def released(self, buffer: int) -> None:
        self.buffers.pop(buffer, None)
        self.opaque.pop(buffer, None)
        self.gone.append(buffer)

    # Work

    def missing(self, program: Program) -> bool:
        """Memory of it was released."""
        return any(view.count and view.memory.buffer not in self.buffers for view in program.tensors)

    def roomy(self) -> list[Memory]:
        """Where tensors of any of the sizes below have room."""
        return [memory for memory in self.buffers.values() if len(memory.data) >= 4096]

    def view(self, rng: random.Random, memory: Memory, slot: int, shape: tuple[int, ...], dtype: str, out: bool = False) -> View:
        size, room = DTYPES[dtype].itemsize, len(memory.data) // SLOTS // 64 * 64
        strides, steps = None, 1
        if len(shape) and rng.random() < 0.4:
            made = []
            for dim in reversed(shape):
                if not out and rng.random() < 0.2:
                    made.append(0)
                    continue
                made.append(steps)
                steps *= max(dim, 1) + (1 if rng.random() < 0.3 else 0)
            strides = tuple(reversed(made))
            if not out and rng.random() < 0.3 and len(set(shape)) == 1:
                strides = strides[::-1]
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if strides else int(np.prod(shape))
        spare = room // size - max(extent, 0)
        assert spare >= 0, "slots hold what is made for them"
        return View(memory, slot * room + size * rng.randint(0, min(spare, 5)), shape, strides, dtype)

    def step(self, rng: random.Random, dtype: str = "", fresh: bool = True, ops: tuple[str, ...] = OPS) -> Step | None:
        """A good op on this client's memory. `fresh`: its inputs get numbers."""
        dtype = dtype or rng.choice(list(DTYPES))
        places = [(memory, slot) for memory in self.roomy() for slot in range(SLOTS)]
        outs = [place for place in places if place[0].access == "rw"]
        if not outs:
            return None
        out_place = rng.choice(outs)
        others = [place for place in places if place != out_place]
        op = rng.choice(ops)
        attrs: dict[str, Any] = {}
        if op == "gemm":
            m, n, k = (rng.choice([0, 1, 2, 3, 4]) for _ in range(3))
            shapes, shape = [(m, k), (k, n)], (m, n)
            for i, name in enumerate(("trans_a", "trans_b")):
                if rng.random() < 0.3:
                    attrs[name], shapes[i] = True, shapes[i][::-1]
            if rng.random() < 0.3:
                attrs["alpha"] = rng.choice([2.0, -1.0, 0.5])
            if rng.random() < 0.3:
                attrs["beta"] = rng.choice([1.0, -2.0, 0.5])
        else:
            shape = tuple(rng.choice([0, 1, 2, 3, 4, 4]) for _ in range(rng.randint(0, 3)))
            shapes = [shape] * (2 if op == "add" else 1)
            if op == "add" and shape and rng.random() < 0.3:
                shapes[1] = tuple(1 if rng.random() < 0.5 else n for n in shape)[rng.randint(0, len(shape)) :]
        out = self.view(rng, *out_place, shape, dtype, out=True)
        inputs = [self.view(rng, *rng.choice(others), each, dtype) for each in shapes]
        if op in ELEMENTWISE and rng.random() < 0.2:
            inputs[0] = out
        step = Step(op, inputs, out, attrs)
        if fresh:
            for view in step.views:
                view.fill(rng)
        return step

    def steps(self, rng: random.Random, count: int) -> list[Step]:
        """Good ops of one dtype, one after the other, each on what is there then. Only the last may be a product."""
        dtype = rng.choice(list(DTYPES))
        made = [self.step(rng, dtype, fresh=False, ops=ELEMENTWISE) for _ in range(count - 1)] + [self.step(rng, dtype, fresh=False)]
        steps = [step for step in made if step is not None]
        refill(steps, rng)
        return steps

    def close(self) -> None:
        self.connection.close()
        self.buffers.clear()


def refill(steps: list[Step], rng: random.Random) -> None:
    for view in tensors_of(steps):
        view.fill(rng)


@contextlib.contextmanager
def bound(program: Program, index: int, memory: Memory, offset: int) -> Iterator[dict[str, Any]]:
    """One of a program's tensors is elsewhere for a while."""
    view = program.tensors[index]
    before = view.memory, view.offset
    view.memory, view.offset = memory, offset
    try:
        yield {"index": index, "buffer": memory.buffer, "offset": offset}
    finally:
        view.memory, view.offset = before
