"""A kernel's source as the C++ compiler gets it: unchanged but for the declarations of dynamic shared memory and for shifts, with its
launch bounds for the compiler to evaluate. Shifts are marked on tokens, so a `>>` is told from the end of two templates by what is
before it; include/kops_host/shifts.h has a marked one give what a GPU gives. A shift that is not marked is one of the host's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .._companions import DIRECTIVE, NAME, NUMBER, STRING, Token, closing, template_of, tokens

# Headers to write beside a source, by name. The first ones are of libraries for the host, which kernels do not need.
HOST_HEADERS = dict.fromkeys(
    (
        "ATen/ATen.h", "ATen/cuda/CUDAContext.h", "c10/cuda/CUDAException.h", "c10/cuda/CUDAGuard.h", "c10/cuda/CUDAStream.h",
        "cuda_profiler_api.h", "curand.h", "cusparse.h", "helper_cuda.h", "helper_functions.h", "helper_image.h",
        "helper_string.h", "helper_timer.h", "omp.h", "torch/all.h", "torch/extension.h", "torch/types.h",
    ),
    "",
)  # fmt: skip
HOST_HEADERS |= {
    f"cuda/std/{name}": f'#include <{name}>\n#include "kops_host/cuda_std.h"\n'
    for name in (
        "algorithm", "array", "atomic", "bitset", "cassert", "cfloat", "chrono", "climits", "cmath", "complex", "cstddef", "cstdint",
        "cstdlib", "cstring", "ctime", "functional", "initializer_list", "iterator", "limits", "numeric", "optional", "ratio",
        "string_view", "tuple", "type_traits", "utility", "variant",
    )
}  # fmt: skip
HOST_HEADERS |= {f"cuda/{name}": f"#include <cuda/std/{name}>\n" for name in ("cmath", "functional", "numeric", "type_traits", "utility")}
HOST_HEADERS |= {
    f"cub/{name}.cuh": "#include <cub/cub.cuh>\n"
    for name in ("block/block_load", "block/block_reduce", "block/block_scan", "block/block_store", "warp/warp_reduce", "warp/warp_scan")
}
HOST_HEADERS.update(dict.fromkeys(("cublasLt.h", "cublas_v2.h"), "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"))

# CUDA headers whose content for kernels every source has anyway.
HOST_HEADERS |= dict.fromkeys(
    (
        "builtin_types.h", "cuda.h", "cuda_device_runtime_api.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_runtime.h",
        "cuda_runtime_api.h", "device_atomic_functions.h", "device_functions.h", "device_launch_parameters.h", "driver_types.h",
        "library_types.h", "math_functions.h", "sm_30_intrinsics.h", "vector_functions.h", "vector_types.h",
    ),
    '#include "cuda_on_host.h"\n',
)  # fmt: skip

_BETWEEN = r"(?:\s|\\\n|\b(?:volatile|const|static)\b|(?:__align__|alignas)\s*\([^()]*(?:\([^()]*\)[^()]*)*\))*"
_DYNAMIC = re.compile(rf"\bextern\b({_BETWEEN})\b__shared__\b|\b__shared__\b({_BETWEEN})\bextern\b")
_ALIGNED = re.compile(r"\b(__shared__|KOPS_HOST_DYNAMIC)(\s+)alignas\b")
# The C++ library has attributes of this name, so it is no macro.
_NOT_INLINED = re.compile(r"(?<!\(\()\b__noinline__\b")


def for_compiler(text: str, shifts: bool = True) -> str:
    """`extern __shared__`, `__noinline__` and, if wanted, shifts become words of the headers; lines stay where they are."""
    text = mark(text) if shifts else text
    text = _DYNAMIC.sub(lambda m: f"KOPS_HOST_DYNAMIC{(m.group(1) or m.group(2) or '').replace('alignas', '__align__')}", text)
    return _NOT_INLINED.sub("KOPS_HOST_NOINLINE", _ALIGNED.sub(r"\1\2__align__", text))


def _callable(entry: str, number: int, bounds: LaunchBounds | None) -> str:
    """Definitions that make a kernel callable from outside. The symbols of the first kernel have no number."""
    suffix = f"_{number}" if number else ""
    return f"""typedef kops_host_entry_of<(&{entry})> kops_host_entry{suffix};
{_threads(entry, suffix, bounds)}extern "C" {{
__attribute__((visibility("default"))) unsigned kops_host_count{suffix} = kops_host_entry{suffix}::n;
__attribute__((visibility("default"))) const kops_host_parameter *kops_host_parameters{suffix} = kops_host_entry{suffix}::parameters;
__attribute__((visibility("default"))) void (*kops_host_call{suffix})(void **) = kops_host_entry{suffix}::call;
}}
"""


def _threads(entry: str, suffix: str, bounds: LaunchBounds | None) -> str:
    """The threads that a block may have by the kernel's launch bounds, evaluated where the kernel is; 0: as many as any."""
    base, _, rest = entry.partition("<")
    scope = base.rpartition("::")[0].strip()
    before, value = "", "0"
    if bounds is not None:
        template = f"template <{bounds.template}> " if bounds.template else ""
        constant = f"{template}constexpr unsigned kops_host_bounds{suffix} = kops_host_first({bounds.arguments});"
        before = f"namespace {scope} {{ {constant} }}\n" if scope else f"{constant}\n"
        value = f"{scope}::kops_host_bounds{suffix}{'<' + rest if template else ''}"
    return f"""{before}extern "C" {{
__attribute__((visibility("default"))) unsigned kops_host_threads{suffix} = {value};
}}
"""


def translation_unit(source: str, name: str, entries: Sequence[str], files: Mapping[str, str] | None = None, plain: bool = False) -> str:
    """The source with what makes an object of it whose kernels can be called. They share its variables. If it is to be plain, its shifts
    and launch bounds are those of the host."""
    quoted = (name.rpartition("/")[2] if name.startswith("/") else name).replace("\\", "\\\\").replace('"', '\\"')
    texts = [] if plain else [source, *(files or {}).values()]
    return f"""#line 1 "{quoted}"
{for_compiler(source, not plain)}
#line 1 "<entry>"
extern "C" {{
__attribute__((visibility("default"), aligned(1024))) char kops_host_dynamic[KOPS_HOST_DYNAMIC_BYTES];
}}
""" + "".join(_callable(entry, number, launch_bounds(texts, entry)) for number, entry in enumerate(entries))


# Launch bounds

class LaunchBounds(NamedTuple):
    arguments: str
    template: str  # the kernel's parameters as a template; empty if it is none


def launch_bounds(texts: Iterable[str], entry: str) -> LaunchBounds | None:
    """None where the source shows none for the kernel, or several."""
    name = entry.partition("<")[0].strip().rpartition("::")[2]
    found = {bounds for text in texts if "__launch_bounds__" in text for bounds in _of_kernel(tokens(text), name)}
    return found.pop() if len(found) == 1 else None


def _of_kernel(items: Sequence[Token], name: str) -> list[LaunchBounds]:
    result = []
    for i, token in enumerate(items):
        if token.text != "__launch_bounds__" or token.kind != NAME:
            continue
        end = closing(items, i + 1)
        if end < 0:
            continue
        begin, at = i, end + 1
        while begin and items[begin - 1].text not in (";", "{", "}"):
            begin -= 1
        while at < len(items) and items[at].text not in (";", "{", name):
            at += 1
        if at < len(items) and items[at].text == name and at + 1 < len(items) and items[at + 1].text == "(":
            result.append(LaunchBounds(_text(items[i + 2 : end]), _text(template_of(items[begin:i]) or ())))
    return result


def _text(items: Sequence[Token]) -> str:
    """The tokens as text: a space only where there was one, or a comment."""
    parts = []
    for i, token in enumerate(items):
        parts.append(token.text)
        if i + 1 < len(items) and items[i + 1].start > token.start + len(token.text):
            parts.append(" ")
    return "".join(parts)


# Shifts

_STREAMS = {"cout", "cerr", "clog", "endl", "ostream", "istream"}
_OPENING, _CLOSING = {"(", "[", "{"}, {")", "]", "}"}
_DEFINE = re.compile(r"#\s*define\b")
_FAR = 256  # tokens between the begin and the end of a template's arguments


def mark(text: str) -> str:
    """The source with `a << kops_host_shift + b` for `a << b`; lines stay where they are."""
    if "<<" not in text and ">>" not in text:
        return text
    parts, end = [], 0
    for at, length, new in _places(text, 0):
        parts += [text[end:at], new]
        end = at + length
    return "".join([*parts, text[end:]])


def _places(text: str, base: int) -> list[tuple[int, int, str]]:
    """Replacements in a text: place, length and new text of each."""
    found: list[tuple[int, int, str]] = []
    items = tokens(text)
    open_templates = [0]  # for each bracket
    is_stream = False  # the statement is one of streams
    i = 0
    while i < len(items):
        token = items[i]
        if token.kind == DIRECTIVE:
            found += [(base + at, length, new) for at, length, new in _in_define(token)]
        elif token.text in _OPENING:
            open_templates.append(0)
        elif token.text in _CLOSING:
            open_templates[-2:] = open_templates[-2:-1] or [0]
        is_stream = token.text in _STREAMS or (is_stream and token.text not in (";", "{", "}"))
        if token.text in (";", "{", "}"):
            open_templates[-1] = 0
        n = _run(items, i) if token.text in "<>" else 0
        if n >= 2 and (token.text == "<" or (n == 2 and open_templates[-1] < 2)):
            assigns = _follows(items, i + 1, "=")
            if n == 2 and not is_stream and _counts(items, i, i + 2 + assigns):
                at = token.start + 2 + assigns
                found.append((base + at, 0, "kops_host_shift_to = " if assigns else "kops_host_shift + "))
            i += n
            continue
        if token.text == ">":
            open_templates[-1] = max(open_templates[-1] - n, 0)
        elif token.text == "<" and _begins_template(items, i):
            open_templates[-1] += 1
        i += max(n, 1)
    return found


def _in_define(token: Token) -> list[tuple[int, int, str]]:
    found = _DEFINE.match(token.text)
    return _places(token.text[found.end() :], token.start + found.end()) if found else []


def _follows(items: Sequence[Token], i: int, text: str) -> bool:
    return i + 1 < len(items) and items[i + 1].text == text and items[i + 1].start == items[i].start + len(items[i].text)


def _run(items: Sequence[Token], i: int) -> int:
    """How many of the same token stand there without a space."""
    n = 1
    while _follows(items, i + n - 1, items[i].text):
        n += 1
    return n


def _counts(items: Sequence[Token], before: int, after: int) -> bool:
    """Whether a shift between these tokens is one of numbers that may be by too much."""
    if not before or after >= len(items):
        return False
    previous, following = items[before - 1], items[after]
    if "..." in (previous.text, following.text) or STRING in (previous.kind, following.kind) or previous.text == "operator":
        return False
    if any(token.text in _STREAMS for token in items[after : after + 3]):
        return False
    if following.kind == NUMBER and following.text.isdigit() and int(following.text) < 32:
        return after + 1 < len(items) and items[after + 1].text in ("+", "-", "*", "/", "%")
    return True


def _begins_template(items: Sequence[Token], i: int) -> bool:
    """Whether a `<` looks like the begin of a template's arguments or parameters."""
    if not i or items[i - 1].kind != NAME or _follows(items, i, "="):
        return False
    depth, inside = 0, 1
    for k in range(i + 1, min(i + _FAR, len(items))):
        text = items[k].text
        if text in _OPENING and text != "{":
            depth += 1
        elif text in _CLOSING and text != "}":
            depth -= 1
        if depth < 0 or text in (";", "{", "}") or items[k].kind == DIRECTIVE:
            return False
        if depth:
            continue
        logical = text in "&|" and _follows(items, k, text) and not (k + 2 < len(items) and items[k + 2].text in (",", ">", "..."))
        if logical or text in ("?", "||"):
            return False
        inside += (text == "<") - (text == ">")
        if not inside:
            return True
    return False
