"""Why a source does not compile here, where that can be said more plainly than the compiler does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .._companions import NAME, closest_first, scan, tokens
from ._errors import InterpretError

_ASM_MESSAGE = re.compile(r"Assembler messages|\basm\b|<inline asm>|constraint|in inline assembly", re.I)
_UNKNOWN = re.compile(
    r"^(\S+?):(\d+):\d+: error: (?:use of undeclared identifier |no type named |no template named |no member named |unknown type name |)"
    r"['‘](?:[\w:]*::)?(\w+)[^'’]*['’]"
    r"(?: was not declared| does not name a| is not a member| in namespace|; did|$| is not a class|[^\n]*declared)",
    re.M,
)
_NO_HEADER = re.compile(r"^(\S+?):(\d+):\d+: fatal error: ['‘]?([\w./]+?)['’]?(?:: No such file| file not found)", re.M)
# What the headers in include/ lack of CUDA's: textures and surfaces, clusters, tensor maps, barriers by number and by address, small
# floats, numbers of 128 bits, and the rest of its libraries.
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
