"""Elementwise kernels as CUDA C++: a formula in a loop over arrays.

Where all arrays are dense and of one shape the loop is flat, and each thread reads and writes 16 bytes of the widest array at once.
Otherwise each thread works on one element, whose place in each array is computed from sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from .._base.declarations import DTYPES
from .formulas import Declared, compute_type, formula, headers, unpacked
from .signature import Param
from .types import C_NAMES

BLOCK = 256
BYTES = 16  # bytes that a thread reads at once


class Argument(NamedTuple):
    """An operand in one form of a kernel: `kind` is that of its parameter, "in", "out", "inout" or "scalar"; "raw" is "in" of an array
    that the formula gets whole."""

    operand: Declared
    kind: str
    dtype: str
    dense: bool = True

    @property
    def array(self) -> bool:
        return self.kind not in ("scalar", "raw")


class Form(NamedTuple):
    """What a kernel is generated for. `same` has, for an input that is also an output, the place of that among `arguments`; `rank`
    is 0 for the flat loop."""

    arguments: tuple[Argument, ...]
    same: tuple[tuple[Declared, int], ...]
    types: tuple[tuple[str, str], ...]
    rank: int
    narrow: bool


class Text(NamedTuple):
    """Of a formula: what surrounds it and its own."""

    name: str
    prelude: str
    operation: str


def entry_of(name: str) -> str:
    return f"{name}_kernel"


def lanes(form: Form) -> int:
    """Elements of a thread."""
    return max(1, BYTES // max(DTYPES[a.dtype] for a in form.arguments if a.array)) if form.rank == 0 else 1


def layout_values(form: Form) -> int:
    """How many sizes and strides the kernel takes: the outermost size is not needed."""
    return form.rank - 1 + form.rank * sum(a.array and not a.dense for a in form.arguments) if form.rank else 0


def params(form: Form) -> tuple[Param, ...]:
    given = tuple(Param(a.operand.name, "in" if a.kind == "raw" else a.kind, a.dtype, strided=a.array) for a in form.arguments)
    dtype, names, _ = unpacked(layout_values(form), form.narrow)
    return (*given, Param("kops_n", "scalar", "i64"), *(Param(name, "scalar", dtype) for name in names))


def grid(form: Form) -> str:
    return f"ceil_div(kops_n, {BLOCK * lanes(form)})"


def source(text: Text, form: Form) -> str:
    """The kernel's source."""
    arguments = form.arguments
    dtype, layout, value = unpacked(layout_values(form), form.narrow)
    parameters = [_parameter(i, a) for i, a in enumerate(arguments)]
    parameters += ["const long long kops_n", *(f"const {C_NAMES[dtype]} {name}" for name in layout)]
    body = _flat(form) if form.rank == 0 else _strided(form, value)
    prelude = f'#line 1 "prelude of {text.name}"\n{text.prelude}\n#line 1 "<generated>"\n' if text.prelude else ""
    return (
        headers(a.dtype for a in arguments) + prelude + _operation(text, form)
        + f'extern "C" __global__ void {entry_of(text.name)}({", ".join(parameters)})\n{{\n{body}}}\n'
    )  # fmt: skip


def _parameter(i: int, a: Argument) -> str:
    kind = C_NAMES[a.dtype]
    if a.kind == "scalar":
        return f"const {kind} kops_p{i}"
    return f"const {kind} *__restrict__ kops_p{i}" if a.kind in ("in", "raw") else f"{kind} *kops_p{i}"


def _operation(text: Text, form: Form) -> str:
    taken = {a.operand.name for a in form.arguments} | {operand.name for operand, _ in form.same}
    parameters = ["const long long i"] if "i" not in taken else ["const long long"]
    for a in form.arguments:
        if a.kind == "raw":
            parameters.append(f"const {C_NAMES[a.dtype]} *{a.operand.name}")
            continue
        parameters.append(f"{compute_type(a.dtype)} {'&' if a.kind in ('out', 'inout') else ''}{a.operand.name}")
    for operand, place in form.same:
        parameters.append(f"const {compute_type(form.arguments[place].dtype)} {operand.name}")
    return formula(f"void kops_operation({', '.join(parameters)})", text.operation, dict(form.types), text.name)


def _call(form: Form, index: str, elements: Mapping[int, str], indent: str) -> str:
    """The formula on one element of each array; `elements` are their places."""
    lines, given = [], [index]
    for i, a in enumerate(form.arguments):
        kind = compute_type(a.dtype)
        if a.kind in ("out", "inout"):
            first = f"static_cast<{kind}>({elements[i]})" if a.kind == "inout" else "{}"
            lines.append(f"{kind} kops_v{i} = {first};")
            given.append(f"kops_v{i}")
        elif a.kind == "raw":
            given.append(f"kops_p{i}")
        else:
            given.append(f"static_cast<{kind}>({elements.get(i, f'kops_p{i}')})")
    for _, place in form.same:
        lines.append(f"const {compute_type(form.arguments[place].dtype)} kops_s{len(given)} = kops_v{place};")
        given.append(f"kops_s{len(given)}")
    lines.append(f"kops_operation({', '.join(given)});")
    for i, a in enumerate(form.arguments):
        if a.kind in ("out", "inout"):
            lines.append(f"{elements[i]} = static_cast<{C_NAMES[a.dtype]}>(kops_v{i});")
    return "".join(f"{indent}{line}\n" for line in lines)


def _flat(form: Form) -> str:
    count = lanes(form)
    arrays = [(i, a) for i, a in enumerate(form.arguments) if a.array]
    single = _call(form, "kops_i", {i: f"kops_p{i}[kops_i]" for i, _ in arrays}, " " * 12)
    begin = f"    const long long kops_at = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * {count};\n"
    rest = (
        f"        for (long long kops_i = kops_at; kops_i < kops_at + {count} && kops_i < kops_n; kops_i++) {{\n{single}        }}\n"
    )
    if count == 1:
        return begin + f"    {{\n{rest}    }}\n"
    packs = "".join(
        f"    struct alignas({DTYPES[a.dtype] * count}) kops_t{i} {{ {C_NAMES[a.dtype]} e[{count}]; }};\n" for i, a in arrays
    )
    misaligned = " | ".join(f"reinterpret_cast<unsigned long long>(kops_p{i}) % {DTYPES[a.dtype] * count}" for i, a in arrays)
    loads = "".join(
        f"        kops_t{i} kops_a{i} = *reinterpret_cast<const kops_t{i} *>(kops_p{i} + kops_at);\n" if a.kind != "out" else
        f"        kops_t{i} kops_a{i};\n" for i, a in arrays
    )  # fmt: skip
    stores = "".join(
        f"        *reinterpret_cast<kops_t{i} *>(kops_p{i} + kops_at) = kops_a{i};\n" for i, a in arrays if a.kind != "in"
    )
    each = _call(form, "kops_at + kops_j", {i: f"kops_a{i}.e[kops_j]" for i, _ in arrays}, " " * 12)
    return (
        begin + packs + f"    if (({misaligned}) == 0 && kops_at + {count} <= kops_n) {{\n{loads}"
        f"#pragma unroll\n        for (int kops_j = 0; kops_j < {count}; kops_j++) {{\n{each}        }}\n{stores}"
        f"    }} else {{\n{rest}    }}\n"
    )


def _strided(form: Form, value: Callable[[int], str]) -> str:
    index = "unsigned" if form.narrow else "long long"
    lines = [
        "    const long long kops_i = blockIdx.x * (long long)blockDim.x + threadIdx.x;",
        "    if (kops_i >= kops_n) return;",
        f"    {index} kops_rest = ({index})kops_i;",
    ]
    for d in range(form.rank - 1, 0, -1):
        size = f"({index}){value(d - 1)}"
        lines += [f"    const {index} kops_d{d} = kops_rest % {size};", f"    kops_rest /= {size};"]
    lines.append(f"    const {index} kops_d0 = kops_rest;")
    at, elements = form.rank - 1, {}
    for i, a in enumerate(form.arguments):
        if not a.array:
            continue
        if a.dense:
            elements[i] = f"kops_p{i}[kops_i]"
            continue
        offset = " + ".join(f"kops_d{d} * ({index}){value(at + d)}" for d in range(form.rank))
        at += form.rank
        elements[i] = f"kops_p{i}[kops_o{i}]"
        lines.append(f"    const {index} kops_o{i} = {offset};")
    return "\n".join(lines) + "\n" + _call(form, "kops_i", elements, "    ")
