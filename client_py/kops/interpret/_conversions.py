"""Conversions from floating point to integers that cannot hold the value: what a GPU gives, where the processor gives something else.

A GPU takes the nearest number that the integer has. A NaN becomes 0, but of 64 bits or to 64 bits only the highest bit. For 8 and 16 bits
a GPU converts to 32 bits and keeps the low ones. AArch64 differs for a NaN only. x86-64 gives a number of its own, and its unsigned
conversions are signed ones of twice the width. So g++'s sanitizer calls the runtime before a conversion that does not fit, the runtime
notes what the conversion shall give, and each converting instruction of the assembly looks for such a note. clang++ has saturating
conversions, which are corrected in its intermediate code.
"""

from __future__ import annotations

import platform
import re

FLAGS_OF_CLANG = ["-fno-strict-float-cast-overflow"]
FLAGS_OF_GCC = (
    ["-fsanitize=float-cast-overflow", "-fsanitize-recover=float-cast-overflow", "-mno-red-zone", "-mno-avx", "-masm=att"]
    if platform.machine() in ("x86_64", "AMD64")
    else []
)

_CONVERSION = re.compile(r"^\tcvtt(ss|sd)2si([lq]?)\t(.+), (%\w+)$", re.M)
_HOOK = re.compile(
    r"^\tcall\t__ubsan_handle_float_cast_overflow(?:@PLT)?$|^\tcall\t\*__ubsan_handle_float_cast_overflow@GOTPCREL\(%rip\)$", re.M
)
_ON_STACK = re.compile(r"^(-?\d*)(\(%rsp.*)$")
_LEGACY = {f"e{name}": f"r{name}" for name in ("ax", "bx", "cx", "dx", "si", "di", "bp")}


def _deeper(operand: str, by: int) -> str:
    """A source as it is after `by` bytes were pushed."""
    found = _ON_STACK.match(operand)
    return f"{int(found.group(1) or 0) + by}{found.group(2)}" if found else operand


def _looking(found: re.Match[str]) -> str:
    """The instruction behind a look for a note: its width, the bits that are converted, and the result."""
    kind, suffix, source, target = found.groups()
    width = 8 if suffix == "q" or (not suffix and (target[1:] in _LEGACY.values() or re.fullmatch(r"%r\d+", target))) else 4
    whole = "%" + _LEGACY.get(target[1:], target[1:].rstrip("d"))
    scratch = "%r11" if whole != "%r11" else "%r10"
    small = kind == "ss"
    load = ("movd" if small else "movq") if source.startswith("%") else ("movl" if small else "movq")
    bits = f"{scratch}d" if small else scratch
    return f"""\tpushfq
\tcmpl\t${width}, kops_host_note(%rip)
\tje\t772f
\tpopfq
771:
{found.group(0)}
\tjmp\t774f
772:
\tpushq\t{scratch}
\t{load}\t{_deeper(source, 16)}, {bits}
\tcmpq\tkops_host_note+8(%rip), {scratch}
\tpopq\t{scratch}
\tje\t773f
\tpopfq
\tjmp\t771b
773:
\tmovl\t$0, kops_host_note(%rip)
\tpopfq
\tmovq\tkops_host_note+16(%rip), {whole}
774:"""


def in_assembly(text: str) -> str:
    """The assembly of g++ for x86-64 with conversions as a GPU has them."""
    text, hooks = _HOOK.subn("\tleaq\tkops_host_note(%rip), %rdx\n\tcall\tkops_host_note_conversion@PLT", text)
    if not hooks:
        return text
    return _CONVERSION.sub(_looking, text) + "\n\t.local\tkops_host_note\n\t.comm\tkops_host_note,32,8\n"


_SATURATING = re.compile(
    r"^  (%\S+) = ((?:tail )?call) i(8|16|32|64) @llvm\.fpto([su])i\.sat\.i(?:8|16|32|64)\.(\w+)\((\w+) ([^,]+?)\)(.*)$", re.M
)


def in_intermediate_code(text: str) -> str:
    """The intermediate code of clang++ with conversions as a GPU has them."""
    wide: dict[str, str] = {}

    def corrected(found: re.Match[str]) -> str:
        name, call, bits, sign, source, kind, value, rest = found.groups()
        between = f"%kops.{found.start()}"
        if int(bits) < 32:
            function = f"@llvm.fpto{sign}i.sat.i32.{source}"
            wide[function] = f"declare i32 {function}({kind})"
            return f"  {between} = {call} i32 {function}({kind} {value}){rest}\n  {name} = trunc i32 {between} to i{bits}"
        if bits == "32" and kind != "double":
            return found.group(0)
        return (
            f"  {between} = {call} i{bits} @llvm.fpto{sign}i.sat.i{bits}.{source}({kind} {value}){rest}\n"
            f"  {between}.nan = fcmp uno {kind} {value}, 0.0\n"
            f"  {name} = select i1 {between}.nan, i{bits} {-(1 << int(bits) - 1)}, i{bits} {between}"
        )

    text = _SATURATING.sub(corrected, text)
    return "\n".join([text, *(line for line in wide.values() if line not in text), ""])
