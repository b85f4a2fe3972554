"""Reductions as CUDA C++: formulas that map the operands to one number, combine two numbers, and make the result of the last one.

A result is computed by one block, whose threads each combine every 256th (or 64th) number, then by halves in shared memory; or by one
thread, where neighbours in memory belong to different results, or a result has few numbers. Where results are few, several blocks
compute parts of each, `parts` of one `chunk`, and a second kernel combines them. The order depends on shapes and strides only, and
nothing is added by atomics, so a result is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .elementwise import Argument, entry_of
from .formulas import c_string, compute_type, headers, unpacked
from .signature import Param
from .types import C_NAMES

THREADS, SMALL, FEW = 256, 64, 32  # threads of a block; of one for chunks up to SMALL * 8; numbers that one thread combines
CHUNK_OF_BLOCK, CHUNK_OF_THREAD = 4096, 64  # elements, at least, where results are computed in parts
BLOCKS, LANES = 1024, 131_072  # blocks and lanes to aim for


class Formulas(NamedTuple):
    """Of a reduction: `map` of the operands, `reduce` of `a` and `b`, `post` of `a` and `n`, and the number that changes nothing."""

    name: str
    prelude: str
    map: str
    reduce: str
    post: str
    identity: str


class Form(NamedTuple):
    """What a kernel is generated for. The last of `arguments` is the output. `kept` and `reduced` are the ranks of both loops."""

    arguments: tuple[Argument, ...]
    accumulator: str  # dtype
    types: tuple[tuple[str, str], ...]
    kept: int
    reduced: int
    narrow: bool
    threads: bool  # a thread computes a result, or a part of one
    block: int
    partial: bool  # the output is parts of results, before `post`


class Split(NamedTuple):
    """How the numbers of a result are divided."""

    threads: bool
    block: int
    parts: int
    chunk: int


def split(results: int, length: int, neighbours: bool) -> Split:
    """For so many results of so many numbers each. `neighbours`: numbers that lie side by side are of different results."""
    length = max(length, 1)
    threads = length <= FEW or neighbours
    wanted, least = (-(-LANES // max(results, 1)), CHUNK_OF_THREAD) if threads else (-(-BLOCKS // max(results, 1)), CHUNK_OF_BLOCK)
    parts = max(1, min(wanted, length // least))
    chunk = -(-length // parts)
    parts = -(-length // chunk)
    return Split(threads, SMALL if not threads and chunk <= SMALL * 8 else THREADS, parts, chunk)


def layout_values(form: Form) -> int:
    """How many sizes and strides the kernel takes: the outermost sizes are not needed."""
    inputs = sum(a.kind == "in" for a in form.arguments)
    sizes = max(form.kept - 1, 0) + max(form.reduced - 1, 0)
    return sizes + inputs * (form.kept + form.reduced) + (0 if form.arguments[-1].dense else form.kept)


def params(form: Form) -> tuple[Param, ...]:
    given = tuple(Param(a.operand.name, a.kind, a.dtype, strided=a.array) for a in form.arguments)
    dtype, names, _ = unpacked(layout_values(form), form.narrow)
    counts = ("kops_results", "kops_length", "kops_chunk", "kops_n")
    return (*given, *(Param(name, "scalar", "i64") for name in counts), *(Param(name, "scalar", dtype) for name in names))


def grid(form: Form) -> tuple[str, str]:
    """Results, and parts of them."""
    across = f"ceil_div(kops_results, {form.block})" if form.threads else "kops_results"
    return across, "max(1, ceil_div(kops_length, kops_chunk))"


def source(formulas: Formulas, form: Form) -> str:
    """The kernel's source."""
    dtype, layout, value = unpacked(layout_values(form), form.narrow)
    parameters = [
        f"const {C_NAMES[a.dtype]} kops_p{i}" if not a.array else
        f"{'const ' if a.kind == 'in' else ''}{C_NAMES[a.dtype]} *__restrict__ kops_p{i}" for i, a in enumerate(form.arguments)
    ]  # fmt: skip
    parameters += [f"const long long {name}" for name in ("kops_results", "kops_length", "kops_chunk", "kops_n")]
    parameters += [f"const {C_NAMES[dtype]} {name}" for name in layout]
    prelude = f'#line 1 "prelude of {formulas.name}"\n{formulas.prelude}\n#line 1 "<generated>"\n' if formulas.prelude else ""
    return (
        headers(a.dtype for a in form.arguments) + prelude + _functions(formulas, form)
        + f'extern "C" __global__ void {entry_of(formulas.name)}({", ".join(parameters)})\n{{\n{_body(form, value)}}}\n'
    )  # fmt: skip


def _functions(formulas: Formulas, form: Form) -> str:
    number = C_NAMES[form.accumulator]
    operands = ", ".join(f"const {compute_type(a.dtype)} {a.operand.name}" for a in form.arguments[:-1])
    result = number if form.partial else compute_type(form.arguments[-1].dtype)
    typedefs = "".join(f"    typedef {kind} {placeholder};\n" for placeholder, kind in form.types)

    def function(kind: str, name: str, parameters: str, expression: str) -> str:
        head = f"static __device__ __forceinline__ {kind} kops_{name}({parameters})"
        line = f"#line 1 {c_string(f'{name} of {formulas.name}')}"
        return f'{head}\n{{\n{typedefs}    return (\n{line}\n{expression}\n    );\n}}\n#line 1 "<generated>"\n'

    return (
        function(number, "map", operands, formulas.map)
        + function(number, "reduce", f"const {number} a, const {number} b", formulas.reduce)
        + function(result, "post", f"const {number} a, const long long n", "a" if form.partial else formulas.post)
        + function(number, "identity", "", formulas.identity)
    )


def _places(form: Form, value: Callable[[int], str]) -> tuple[list[str], list[str], dict[int, str], str]:
    """Lines that compute where a result begins, those for one of its numbers, the numbers' places, and the result's."""
    index = "unsigned" if form.narrow else "long long"
    at = max(form.kept - 1, 0) + max(form.reduced - 1, 0)

    def digits(name: str, source: str, rank: int, first: int) -> list[str]:
        lines = [f"{index} {name}_rest = ({index}){source};"]
        for d in range(rank - 1, 0, -1):
            size = f"({index}){value(first + d - 1)}"
            lines += [f"const {index} {name}{d} = {name}_rest % {size};", f"{name}_rest /= {size};"]
        return [*lines, f"const {index} {name}0 = {name}_rest;"]

    def offset(name: str, rank: int) -> str:
        return " + ".join([f"{name}{d} * ({index}){value(at + d)}" for d in range(rank)] or ["0"])

    outer = digits("kops_k", "kops_r", form.kept, 0)
    inner = digits("kops_d", "kops_j", form.reduced, max(form.kept - 1, 0))
    elements = {}
    for i, a in enumerate(form.arguments[:-1]):
        if a.array:
            outer.append(f"const {index} kops_b{i} = {offset('kops_k', form.kept)};")
            at += form.kept
            inner.append(f"const {index} kops_o{i} = kops_b{i} + {offset('kops_d', form.reduced)};")
            at += form.reduced
            elements[i] = f"kops_p{i}[kops_o{i}]"
    result = "kops_part * kops_results + kops_r" if form.arguments[-1].dense else offset("kops_k", form.kept)
    return outer, inner, elements, f"kops_p{len(form.arguments) - 1}[{result}]"


def _body(form: Form, value: Callable[[int], str]) -> str:
    number, block = C_NAMES[form.accumulator], form.block
    outer, inner, elements, result = _places(form, value)
    arguments = ", ".join(
        f"static_cast<{compute_type(a.dtype)}>({elements.get(i, f'kops_p{i}')})" for i, a in enumerate(form.arguments[:-1])
    )
    kind = C_NAMES[form.arguments[-1].dtype]
    first, step = ("0", "1") if form.threads else ("threadIdx.x", str(block))
    place = f"blockIdx.x * {block}ll + threadIdx.x" if form.threads else "blockIdx.x"
    lines = [
        f"const long long kops_r = {place}, kops_part = blockIdx.y;",
        *(["if (kops_r >= kops_results) return;"] if form.threads else [f"__shared__ {number} kops_shared[{block}];"]),
        *outer,
        "const long long kops_begin = kops_part * kops_chunk;",
        "const long long kops_end = kops_length - kops_begin < kops_chunk ? kops_length : kops_begin + kops_chunk;",
        f"{number} kops_a = kops_identity();",
        "#pragma unroll 4",
        f"for (long long kops_j = kops_begin + {first}; kops_j < kops_end; kops_j += {step}) {{",
        *(f"    {line}" for line in inner),
        f"    kops_a = kops_reduce(kops_a, kops_map({arguments}));",
        "}",
    ]
    write = f"{result} = static_cast<{kind}>(kops_post(kops_a, kops_n));"
    if form.threads:
        lines.append(write)
    else:
        lines += [
            "kops_shared[threadIdx.x] = kops_a;",
            "__syncthreads();",
            f"for (int kops_s = {block // 2}; kops_s > 0; kops_s >>= 1) {{",
            "    if (threadIdx.x < kops_s)",
            "        kops_shared[threadIdx.x] = kops_reduce(kops_shared[threadIdx.x], kops_shared[threadIdx.x + kops_s]);",
            "    __syncthreads();",
            "}",
            "if (threadIdx.x == 0) {",
            "    kops_a = kops_shared[0];",
            f"    {write}",
            "}",
        ]
    return "".join(f"{'' if line.startswith('#') else '    '}{line}\n" for line in lines)
