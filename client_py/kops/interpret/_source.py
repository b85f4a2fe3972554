"""A kernel's source as the C++ compiler gets it: unchanged but for the declarations of dynamic shared memory and for shifts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ._bounds import LaunchBounds, launch_bounds
from ._shifts import mark

# Headers of libraries for the host that sources include and kernels do not need, by name.
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
    """What makes a kernel callable from outside: the symbols of the first have no number."""
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
