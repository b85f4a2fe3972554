"""Refusals: why a source does not compile here, where that can be said more plainly than the compiler does, and what would take a
function out of the interpreter's checks: attributes, pragmas, assembly, and functions of the checks' own names. These are looked for in
what the compiler has made of a source, so that no macro hides them: the text behind the preprocessor, the assembler's text, and the
symbols of the object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .._companions import NAME, closest_first, scan, tokens
from ._elf import symbols
from ._errors import InterpretError

_ASM_MESSAGE = re.compile(r"Assembler messages|\basm\b|<inline asm>|constraint|in inline assembly", re.I)
_UNKNOWN = re.compile(
    r"^(\S+?):(\d+):\d+: error: (?:use of undeclared identifier |no type named |no template named |no member named |unknown type name |)"
    r"['‘](?:[\w:]*::)?(\w+)[^'’]*['’]"
    r"(?: was not declared| does not name a| is not a member| in namespace|; did|$| is not a class|[^\n]*declared)",
    re.M,
)
_NO_HEADER = re.compile(r"^(\S+?):(\d+):\d+: fatal error: ['‘]?([\w./]+?)['’]?(?:: No such file| file not found)", re.M)
# CUDA names that the headers in include/ lack: textures and surfaces, clusters, tensor maps, barriers by number and by
# address, small floats, numbers of 128 bits, and the rest of its libraries.
_OF_CUDA = re.compile(
    r"(?:tex|surf)(?:1D|2D|3D|Cubemap)(?:Layered)?(?:fetch|gather|Grad|Lod|read|write)?|cuda[A-Z]\w*|curand\w*|CUtensorMap|cp_async_\w+"
    r"|__cluster\w+|this_cluster|cluster_group|map_shared_rank|__threadfence_cluster|__is(?:Cluster|Cta)Shared|__u128Atomic\w+"
    r"|__mbarrier_\w+|awbarrier_\w+|__barrier_sync(?:_count)?|__uni_sync|__prof_trigger|__pm[0-3]|(?:counting_|binary_)semaphore|latch"
    r"|__nv_fp[46]\w*|__nv_cvt_\w*(?:e8m0|fp4|fp6)\w*|Device(?:Reduce|Scan|Select|RadixSort|Histogram|Segmented\w+)|KeyValuePair|ArgM(?:ax|in)"
    r"|Block(?:RadixSort|RadixRank|MergeSort|Histogram|Exchange|Discontinuity|Shuffle|AdjacentDifference)|Warp(?:Exchange|MergeSort|Load|Store)"
)
_HEADERS_OF_CUDA = re.compile(
    r"(?:cub|thrust|cuda|cute|cutlass|nv|cooperative_groups|crt)/[\w./]+|(?:cu|nv|vector_|texture_|surface_|sm_)\w*\.(?:h|hpp|cuh)"
)


def explained(
    error: InterpretError, source: str, name: str, entries: Sequence[str], files: Mapping[str, str], options: Sequence[str]
) -> InterpretError:
    """The error, or a plainer one."""
    return (
        _missing_kernel(error, source, entries, files, options)
        or _inline_ptx(error, source, name, files)
        or _missing_function(error)
        or error
    )  # fmt: skip


def _missing_kernel(
    error: InterpretError, source: str, entries: Sequence[str], files: Mapping[str, str], options: Sequence[str]
) -> InterpretError | None:
    have = list(dict.fromkeys(kernel.name for kernel in scan(source, files, options).kernels))
    plain = {kernel.rpartition("::")[2] for kernel in have}
    for entry in entries:
        base = entry.partition("<")[0].strip()
        if have and base.rpartition("::")[2] not in plain:
            there = ", ".join(closest_first(base, have))
            return InterpretError(f"the source has no kernel {base}; it has {there}", "compile", log=error.log)
    return None


def _inline_ptx(error: InterpretError, source: str, name: str, files: Mapping[str, str]) -> InterpretError | None:
    """If PTX in the source is the reason: the first that the compiler complains of."""
    if not _ASM_MESSAGE.search(error.log):
        return None
    found: list[tuple[str, int]] = []
    for file, text in ((name.rpartition("/")[2] if name.startswith("/") else name, source), *files.items()):
        for at in tokens(text):
            if at.kind == NAME and at.text in ("asm", "__asm__", "__asm"):
                found.append((file, at.line))
    if not found:
        return None
    blamed = [place for place in found if re.search(rf"{re.escape(place[0])}:{place[1]}:", error.log)]
    file, line = (blamed or found)[0]
    return InterpretError(
        f"inline PTX, line {line} of {file}: the interpreter runs C++ only. Give it a branch of its own, such as "
        "`#ifdef KOPS_INTERPRET`, or use the function of CUDA's headers that stands for the instruction",
        "unsupported", file=file, line=line, log=error.log,
    )  # fmt: skip


def _missing_function(error: InterpretError) -> InterpretError | None:
    """If the first thing that the compiler does not know is one of CUDA's."""
    for pattern, of_cuda, what in ((_NO_HEADER, _HEADERS_OF_CUDA, "header"), (_UNKNOWN, _OF_CUDA, "function or type")):
        found = pattern.search(error.log)
        if found is None:
            continue
        file, line, unknown = found.groups()
        if not of_cuda.fullmatch(unknown):
            return None
        file = file.removeprefix("files/")
        return InterpretError(
            f"`{unknown}` is a CUDA {what} that the interpreter does not have, {file}:{line}; on a GPU this kernel may be right. Run it "
            "there, or give the interpreter a branch of its own, such as `#ifdef KOPS_INTERPRET`",
            "unsupported", file=file, line=int(line), log=error.log,
        )  # fmt: skip
    return None


# Switches

SAVED = "-save-temps=obj"  # has the compiler leave the texts beside the object
INCLUDE = Path(__file__).resolve().parent / "include"

# In any place: the words have no other use. Two underscores around a word are the same attribute.
_WORDS = re.compile(
    r"\b(?:__)?(?:no_sanitize|disable_sanitizer_instrumentation|no_address_safety_analysis|no_instrument_function|"
    r"no_profile_instrument_function|optnone)\w*|"
    r"^[ \t]*#[ \t]*pragma[ \t]+(?:clang[ \t]+(?:attribute|optimize)|GCC[ \t]+(?:optimize|target|push_options|pop_options))\b",
    re.M,
)
# Attributes whose names are words that sources use for other things, too.
_ATTRIBUTES = re.compile(
    r"(?:__attribute(?:__)?\s*\(\s*\(|\[\s*\[)(?:(?!\)\s*\)|\]\s*\]).)*?\b(?:__)?(optimize|naked|target|target_clones|ifunc)(?:__)?\s*[(),\]]",
    re.S,
)
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_MARKER = re.compile(r'^# (\d+) "((?:[^"\\\n]|\\.)*)"', re.M)
_CHECKS = re.compile(r"__(?:tsan|asan|ubsan|sanitizer|cyg_profile)_\w+|__(?:wrap|real)_\w+|kops_host_\w+")
_APP = re.compile(r"^[ \t]*#APP\n(.*?)^[ \t]*#NO_APP\n", re.M | re.S)
_APP_OF_FILE = "# Start of file scope inline assembly"  # clang's
_ASSEMBLY_IN_IR = re.compile(r'^module asm "|\basm (?:[a-z]+ )*"[^"]', re.M)


@cache
def _own_words() -> int:
    """How often the interpreter's own headers, which are there once, use such words."""
    return sum(len(_WORDS.findall(_COMMENTS.sub("", path.read_text(encoding="utf-8")))) for path in INCLUDE.rglob("*.h"))


def _place(text: str, at: int) -> tuple[str, int]:
    """File and line of a place behind the preprocessor."""
    marker = None
    for found in _MARKER.finditer(text, 0, at):
        marker = found
    return (marker[2], int(marker[1]) + text.count("\n", marker.end(), at) - 1) if marker is not None else ("", 0)


def _refuse(name: str, what: str, file: str = "", line: int = 0) -> None:
    where = f", line {line} of {Path(file).name}" if file else ""
    raise InterpretError(
        f"{name}: {what}{where}: the interpreter checks every function, and nothing in a source can switch that off. Leave it out",
        "compile", file=Path(file).name if file else None, line=line or None,
    )  # fmt: skip


def _in_text(name: str, text: str) -> None:
    found = list(_WORDS.finditer(text))
    if len(found) > _own_words():
        places = [(one, *_place(text, one.start())) for one in found]
        one, file, line = next((place for place in places if not place[1].startswith(str(INCLUDE))), places[-1])
        _refuse(name, " ".join(one[0].split()), file, line)
    attribute = _ATTRIBUTES.search(text)
    while attribute is not None:
        file, line = _place(text, attribute.start(1))
        if not file.startswith("/"):  # the C library's headers have some
            _refuse(name, f"the attribute {attribute[1]}", file, line)
        attribute = _ATTRIBUTES.search(text, attribute.end())


def _assembles(path: Path) -> bool:
    """Whether assembly of the source's own, other than an empty text, is in what the compiler wrote."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".ll":
        return bool(_ASSEMBLY_IN_IR.search(text))
    lines = (line.strip() for part in _APP.findall(text) for line in part.splitlines())
    return _APP_OF_FILE in text or any(line and not line.startswith("#") for line in lines)


def refuse_switches(made: Path, runtime: Path, name: str) -> None:
    """Raises InterpretError for an object whose source would escape the checks. The compiler's texts lie beside it."""
    for text in made.parent.glob(f"{made.stem}*.ii"):
        _in_text(name, text.read_text(encoding="utf-8", errors="replace"))
    for kind in ("s", "ll"):
        if any(map(_assembles, made.parent.glob(f"{made.stem}*.{kind}"))):
            raise InterpretError(
                f"{name}: inline assembly: the interpreter runs C++ only. Give it a branch of its own, such as `#ifdef KOPS_INTERPRET`",
                "unsupported",
            )
    taken = {one.name for one in symbols(runtime.read_bytes()) if one.section and _CHECKS.fullmatch(one.name)}
    for one in symbols(made.read_bytes()):
        if one.section and (one.name in taken or one.name.startswith(("__tsan_", "__ubsan_", "__sanitizer_"))):
            _refuse(name, f"a function or variable that is called {one.name}, as one of the checks'")
