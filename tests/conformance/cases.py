"""Cases of the op declarations, laid out in memory.

An operand's layout says how its elements lie in the one buffer that a case uses:

    contiguous  row-major
    transposed  the last two dimensions are swapped in memory
    slice       a window inside a bigger tensor, in every dimension
    offset      row-major, three elements into its place: not aligned to 16 bytes
    strided     every second element of a bigger tensor, in every dimension
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dtypes
import numpy as np

OPS = Path(__file__).resolve().parents[2] / "proto" / "ops"
LAYOUTS = ("contiguous", "transposed", "slice", "offset", "strided")
GUARD = 256  # bytes around every operand that must stay as they are
POISON = 0xFF  # bytes that make a NaN of every dtype


@dataclass(frozen=True)
class Operand:
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    offset: int  # bytes into the buffer

    def view(self, memory: np.ndarray, dtype: str) -> np.ndarray:
        """This operand's elements in `memory`, an array of bytes."""
        width = dtypes.size(dtype)
        strides = tuple(s * width for s in self.strides)
        if 0 in self.shape:
            return np.empty(self.shape, dtypes.STORAGE[dtype])
        base = memory[self.offset :].view(np.uint8)
        room = base[: base.size - base.size % width].view(dtypes.STORAGE[dtype])
        return np.lib.stride_tricks.as_strided(room, self.shape, strides)


@dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs
    out_shape: tuple[int, ...]
    layouts: tuple[str, ...]  # inputs, then out
    attrs: dict[str, Any] = field(default_factory=dict)
    in_place: int | None = None
    values: tuple[tuple[float, ...], ...] | None = None
    out_dtype: str = ""  # "": the inputs'
    in_dtypes: tuple[str, ...] = ()  # (): all inputs have `dtype`

    def __str__(self) -> str:
        shapes = "_".join("x".join(map(str, s)) or "scalar" for s in self.shapes)
        given = "_".join(dict.fromkeys(self.dtypes_of_inputs))
        parts = [self.op, given + (f"_{self.out_dtype}" if self.out_dtype else ""), shapes]
        if set(self.layouts) != {"contiguous"}:
            parts.append("+".join(layout[:4] for layout in self.layouts))
        if self.in_place is not None:
            parts.append(f"in_place{self.in_place}")
        parts += [f"{k}={v}" for k, v in self.attrs.items()]
        return "-".join(parts)

    @property
    def dtypes_of_inputs(self) -> tuple[str, ...]:
        return self.in_dtypes or (self.dtype,) * len(self.shapes)

    @property
    def dtype_of_out(self) -> str:
        return self.out_dtype or self.dtype

    def place(self) -> tuple[list[Operand], int]:
        """Where the operands lie (inputs, then out), and how many bytes that takes."""
        operands, at = [], GUARD
        for shape, layout in zip((*self.shapes, self.out_shape), self.layouts, strict=True):
            if len(operands) == len(self.shapes) and self.in_place is not None:
                operands.append(operands[self.in_place])
                break
            dtype = (*self.dtypes_of_inputs, self.dtype_of_out)[len(operands)]
            operand, end = lay_out(shape, layout, at, dtypes.size(dtype))
            operands.append(operand)
            at = -(-(end + GUARD) // 64) * 64
        return operands, at


def lay_out(shape: tuple[int, ...], layout: str, at: int, width: int) -> tuple[Operand, int]:
    """An operand from byte `at` on, and the end of the tensor that it lies in."""
    parent, first, step = list(shape), 0, 1
    order = list(range(len(shape)))
    if layout == "transposed" and len(shape) >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    elif layout == "slice":
        parent, first = [n + 3 for n in shape], 1
    elif layout == "offset":
        at += 3 * width
    elif layout == "strided":
        parent, step = [2 * n for n in shape], 2
    strides, n = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = n
        n *= parent[d]
    offset = at + width * sum(first * s for s in strides)
    return Operand(tuple(shape), tuple(s * step for s in strides), offset), at + n * width


def out_shape(op: dict[str, Any], shapes: list[tuple[int, ...]], attrs: dict[str, Any]) -> tuple[int, ...]:
    if op["rule"] == "elementwise":
        return np.broadcast_shapes(*shapes)
    a, b = shapes[:2]
    m = a[-1] if attrs.get("trans_a") else a[-2]
    n = b[-2] if attrs.get("trans_b") else b[-1]
    return (*np.broadcast_shapes(a[:-2], b[:-2]), m, n)


def in_dtypes(op: dict[str, Any], dtype: str, given: dict[str, str]) -> tuple[str, ...]:
    """Those of the inputs: given, the first one's where they may have it, or the one that they have; (): all have the first one's."""
    own = op.get("in_dtypes", {})
    found = [given.get(name) or (dtype if dtype in own.get(name, (dtype,)) else own[name][0]) for name in op["inputs"]]
    return () if set(found) == {dtype} else tuple(found)


def load_ops() -> dict[str, dict[str, Any]]:
    ops = (json.loads(p.read_text(encoding="utf-8")) for p in sorted(OPS.glob("*.json")))
    return {op["name"]: op for op in ops}


def declared_cases() -> list[Case]:
    """Every case of every declaration, in every dtype."""
    out = []
    for op in load_ops().values():
        for case in op["cases"]:
            shapes = [tuple(s) for s in case["shapes"]]
            attrs = case.get("attrs", {})
            layouts = case.get("layout", [])
            layouts = tuple([*layouts, *["contiguous"] * (len(shapes) + 1 - len(layouts))])
            values = tuple(tuple(v) for v in case["values"]) if "values" in case else None
            wanted = case.get("out_dtype", "")
            for dtype in op["dtypes"]:
                outs = op.get("out_dtypes", {}).get(dtype, (dtype,))
                if wanted and (wanted == dtype or wanted not in outs):
                    continue
                out_dtype = wanted or ("" if dtype in outs else outs[0])
                mixed = in_dtypes(op, dtype, case.get("in_dtypes", {}))
                shape = out_shape(op, shapes, attrs)
                out.append(Case(op["name"], dtype, tuple(shapes), shape, layouts, attrs, case.get("in_place"), values, out_dtype, mixed))
    return out


def random_shape(rng: np.random.Generator, rank: int, largest: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, largest + 1, rank))


def random_broadcast(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    kept = shape[int(rng.integers(0, len(shape) + 1)) :]
    return tuple(1 if rng.random() < 0.3 else n for n in kept)


def random_cases(rng: np.random.Generator, count: int) -> list[Case]:
    """Shapes, layouts and attributes that nobody chose."""
    ops, out = load_ops(), []
    for i in range(count):
        op = list(ops.values())[i % len(ops)]
        dtype = str(rng.choice(op["dtypes"]))
        outs = [name for name in op.get("out_dtypes", {}).get(dtype, ()) if name != dtype]
        must = dtype not in op.get("out_dtypes", {}).get(dtype, (dtype,))
        out_dtype = str(rng.choice(outs)) if outs and (must or rng.random() < 0.4) else ""
        given = {name: str(rng.choice(taken)) for name, taken in op.get("in_dtypes", {}).items()}
        attrs: dict[str, Any] = {}
        if op["rule"] in ("gemm", "linear", "scaled_gemm"):
            m, n, k = (int(x) for x in rng.integers(1, 80, 3))
            batch = random_shape(rng, int(rng.integers(0, 3)), 4)
            attrs = {"trans_a": bool(rng.integers(2)), "trans_b": bool(rng.integers(2))}
            if op["rule"] != "scaled_gemm":
                attrs["alpha"] = float(np.float32(rng.normal()))
            if op["rule"] == "gemm" and rng.random() < 0.5:
                attrs["beta"] = float(np.float32(rng.normal()))
            shapes = [
                (*random_broadcast(rng, batch), *((k, m) if attrs["trans_a"] else (m, k))),
                (*random_broadcast(rng, batch), *((n, k) if attrs["trans_b"] else (k, n))),
            ]
            if op["rule"] == "linear":
                attrs["activation"] = str(rng.choice(["none", "relu", "gelu", "gelu_tanh"]))
                whole = out_shape(op, shapes, attrs)
                shapes.append((n,) if rng.random() < 0.4 else random_broadcast(rng, whole))
            if op["rule"] == "scaled_gemm":
                attrs["precision"] = "highest"
                whole = out_shape(op, shapes, attrs)
                shapes += [random_broadcast(rng, (*whole[:-1], 1)), random_broadcast(rng, (*whole[:-2], 1, n))]
        else:
            whole = random_shape(rng, int(rng.integers(1, 6)), 12)
            shapes = [whole] + [random_broadcast(rng, whole) for _ in op["inputs"][1:]]
            rng.shuffle(shapes)
            shapes = [tuple(s) for s in shapes]
        layouts = tuple(str(x) for x in rng.choice(LAYOUTS, len(shapes) + 1))
        shape = out_shape(op, shapes, attrs)
        mixed = in_dtypes(op, dtype, given)
        out.append(Case(op["name"], dtype, tuple(shapes), shape, layouts, attrs, out_dtype=out_dtype, in_dtypes=mixed))
    return out
