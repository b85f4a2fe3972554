"""Kernels without a client of one's own: the process's default client, and `load_inline`, with the arguments of
torch's."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, overload

from .._base.compiled import native
from .._base.errors import BadArgument
from .._kernels.code import Code
from .._kernels.elementwise import Elementwise
from .._kernels.kernels import Kernel, checked_fallback
from .._kernels.reduction import Reduction
from .._source.geometry import Geometry, Sizes
from .._source.hostcode import blank
from .._source.options import of_nvcc
from .._source.source import gather, headers, scan
from .client import Client

_lock = threading.Lock()
_default: Client | None = None


def default_client() -> Client:
    """The process's own client: made here, connected at its first use."""
    global _default
    with _lock:
        if _default is None or _default._closed:
            _default = Client.unconnected()
        return _default


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def load(path: str | os.PathLike[str] | None = None, entries: str | Iterable[str] | None = None, *, sources: Any = None, **how: Any) -> Any:
    """As `Client.load`, with the default client. With `name` and `sources` as torch.utils.cpp_extension.load: files of C++ and CUDA with a
    PYBIND11_MODULE, whose functions are the attributes of what is returned; the other arguments are those of `load_inline`."""
    if sources is None:
        if path is None:
            raise TypeError("load() needs a path, or torch's name= and sources=")
        return default_client().load(path, entries, **how)
    name = how.pop("name", None) or path
    if entries is not None or not isinstance(name, str):
        raise TypeError("load() takes torch's name= and sources=, or a path and entries")
    return _load_files(name, [sources] if isinstance(sources, (str, os.PathLike)) else list(sources), **how)


def kernel(
    source: str | os.PathLike[str], entry: str | None = None, signature: Any = None, grid: Sizes = None, block: Sizes = None, *,
    shared: Any = 0, cluster: Sizes = None, options: Iterable[str] = (), files: Mapping[str, str] | None = None,
    name: str | None = None, arch: str | None = None, device: Any = None, alias: bool = False, cooperative: bool = False,
    pdl: bool = False, fallback: str | None = None,
) -> Kernel:  # fmt: skip
    """As `Client.kernel`, with the default client, and compiled at its first call: `interpret` works without a daemon."""
    code = Code(source, entry, options, files, name, arch, device)
    geometry = Geometry(grid, block, shared, cluster, cooperative, pdl)
    return Kernel(default_client(), code, code.only(), signature, geometry, alias, fallback)


def elementwise(inputs: str, outputs: str | None = None, operation: str | None = None, **how: Any) -> Elementwise:
    """As `Client.elementwise`, with the default client, which connects at the first call: `interpret` works without a daemon."""
    return default_client().elementwise(inputs, outputs, operation, **how)


def reduce(map: str, reduce: str, post: str = "a", identity: Any = None, **how: Any) -> Reduction:
    """As `Client.reduce`, with the default client, which connects at the first call: `interpret` works without a daemon."""
    return default_client().reduce(map, reduce, post, identity, **how)


@overload
def cuda_kernel(function: Callable[..., object]) -> Kernel: ...


@overload
def cuda_kernel(
    function: None = None, *, grid: Sizes = None, block: Sizes = None, shared: Any = 0, cluster: Sizes = None, prelude: str = "",
    options: Iterable[str] = (), files: Mapping[str, str] | None = None, arch: str | None = None, device: Any = None,
    alias: bool = False, fallback: str | None = None,
) -> Callable[[Callable[..., object]], Kernel]: ...  # fmt: skip


def cuda_kernel(function: Any = None, **how: Any) -> Any:
    """As `Client.cuda_kernel`, with the default client, which connects at the kernel's first call."""
    return default_client().cuda_kernel(function, **how)


# Arguments of torch.utils.cpp_extension.load_inline() that change nothing.
WITHOUT_MEANING = (
    "build_directory", "extra_sycl_cflags", "keep_intermediates", "no_implicit_headers", "use_pch", "with_cuda", "with_sycl",
    "with_pytorch_error_handling",
)  # fmt: skip


_PROVIDED = ("cuda_runtime.h", "Python.h", "torch/extension.h", "torch/all.h")


def _own_folders(folders: Iterable[str]) -> list[str]:
    """Folders of headers without those of CUDA, Python and torch, which there are here."""
    return [folder for folder in folders if not any(Path(folder, name).is_file() for name in _PROVIDED)]


def _joined(value: str | Iterable[str] | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else "\n".join(value)


def load_inline(
    name: str,
    cpp_sources: str | Iterable[str] = "",
    cuda_sources: str | Iterable[str] | None = None,
    functions: str | Iterable[str] | Mapping[str, str] | None = None,
    extra_cuda_cflags: Iterable[str] | None = None,
    extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
    verbose: bool = False,
    *,
    grid: Sizes = None,
    block: Sizes = None,
    shared: Any = 0,
    cluster: Sizes = None,
    signatures: Mapping[str, Any] | None = None,
    client: Client | None = None,
    fallback: str | None = None,
    extra_cflags: Iterable[str] | None = None,
    **torch_only: Any,
) -> Any:
    """As torch.utils.cpp_extension.load_inline. What is returned has the `functions` as attributes.

        mod = kops.load_inline("tutorial", "torch::Tensor square(torch::Tensor x);", source, ["square"])
        y = mod.square(x)

    Functions of the host are compiled by the system's C++ compiler and run in this process, see `kops.extension`; the kernels that they
    launch are compiled by the daemon, and launched there or here as `where` of the client says. With `fallback="interpret"` kernels on
    tensors in the memory of the CPU, and on NumPy's arrays, run in the interpreter, with its checks and without a daemon.

    Where `functions` are kernels, or there are neither functions nor a PYBIND11_MODULE, the kernels are what is loaded, a `Module`;
    functions of the host are left out:

        mod = kops.load_inline("tutorial", cuda_sources=source, functions=["square_matrix_kernel"],
                               grid=("ceil_div(width, 16)", "ceil_div(height, 16)"), block=(16, 16))
        mod.square_matrix_kernel(matrix, result, width, height)

    Raises `CompileFailed` with the file and line of the first error. `extra_cuda_cflags` are the options of `Client.compile`, and those
    of nvcc that change nothing here (-O…); their macros, and those of `extra_cflags`, are the host's, too. Headers of
    `extra_include_paths` are sent along. `grid` to `signatures` are for kernels that are loaded. `verbose` prints the compiler's
    warnings of kernels. `client` is the default client's place to run. torch's other options have no meaning here and are taken, but for
    those that ask for something that cannot be: `extra_ldflags`, `sycl_sources`, `is_python_module=False`.
    """
    _check_torch_only(torch_only)
    checked_fallback(fallback)
    cpp, cuda = _joined(cpp_sources), _joined(cuda_sources)
    options, folders = of_nvcc(extra_cuda_cflags or ())
    folders = _own_folders([*map(str, extra_include_paths or ()), *folders])
    files = headers(f"{cpp}\n{cuda}", folders) if folders else {}
    docs = dict(functions) if isinstance(functions, Mapping) else None
    entries = [functions] if isinstance(functions, str) else list(functions) if functions is not None else None
    client = client or default_client()
    if _has_module(cpp, cuda) or (entries and not _are_kernels(name, entries, cpp, cuda, files)):
        from .. import extension

        named = docs or dict.fromkeys(entries or (), "")
        sources = [("cuda.cu", cuda), ("main.cpp", cpp)]
        return extension.compile(client, name, sources, named, [(f"{name}.cu", cuda)], options, files, fallback, extra_cflags or ())
    if not cuda.strip():
        raise BadArgument(f"{name} has no cuda_sources and no functions: there is nothing to load", {"key": "cuda_sources"})
    text = blank([cuda])[0] if native is not None else cuda
    module = client.compile(
        _without_headers(text), entries, options=options, files=files, name=f"{name}.cu", grid=grid, block=block, shared=shared,
        cluster=cluster, signatures=signatures,
    )  # fmt: skip
    if verbose and module.log:
        print(module.log)
    return module


def _load_files(
    name: str, sources: Iterable[str | os.PathLike[str]], extra_cflags: Iterable[str] | None = None,
    extra_cuda_cflags: Iterable[str] | None = None, extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
    verbose: bool = False, client: Client | None = None, fallback: str | None = None, **torch_only: Any,
) -> Any:  # fmt: skip
    """torch's load of files."""
    from .. import extension

    _check_torch_only(torch_only)
    checked_fallback(fallback)
    options, folders = of_nvcc(extra_cuda_cflags or ())
    folders = _own_folders([*map(str, extra_include_paths or ()), *folders])
    paths = [Path(source) for source in sources]
    texts = [(str(path), path.read_text(encoding="utf-8")) for path in paths]
    files: dict[str, str] = {}
    for path, (_, text) in zip(paths, texts):
        files |= gather(text, path.parent, folders)
    if not _has_module(*(text for _, text in texts)):
        why = f"{name}: no source has a PYBIND11_MODULE, which says what Python calls; kernels alone: kops.load(path)"
        raise BadArgument(why, {"key": "sources"})
    cuda = [(Path(path).name, text) for path, text in texts if path.endswith((".cu", ".cuh"))]
    return extension.compile(client or default_client(), name, texts, None, cuda, options, files, fallback, extra_cflags or ())


# Libraries whose functions host code reaches where torch has loaded them.
_OF_CUDA = re.compile(r"-l(?:cu[a-zA-Z]+|c10(?:_cuda)?|torch(?:_cpu|_cuda|_python)?)|-L.*")
_MODULE = re.compile(r"\b(?:PYBIND11_MODULE|TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?)\s*\(")
_FOREIGN = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/.*$", re.M)


def _has_module(*texts: str) -> bool:
    """Whether a source says itself what its functions for Python are."""
    return any(_MODULE.search(text) for text in texts)


def _without_headers(text: str) -> str:
    """The source without torch's headers, which code for the device does not need."""
    return _FOREIGN.sub("", text)


def _are_kernels(name: str, entries: Iterable[str], cpp: str, cuda: str, files: Mapping[str, str]) -> bool:
    """Whether these are kernels, and not functions of the host. Raises BadArgument where some are, or the source has no function of the
    host."""
    kernels = [kernel.name for kernel in scan(cuda, files).kernels]
    known = {*kernels, *(kernel.rpartition("::")[2] for kernel in kernels)}
    others = [entry for entry in entries if entry.partition("<")[0].strip() not in known]
    if not others:
        return True
    if kernels and not cpp.strip() and native is not None and blank([cuda])[0] == cuda:
        why = f"{others[0]} is no kernel of {name}; there are {', '.join(dict.fromkeys(kernels))}. Name the kernels in functions"
        raise BadArgument(why, {"key": "functions"})
    if kernel := next((entry for entry in entries if entry not in others), None):
        why = f"{kernel} is a kernel of {name}, and {others[0]} is none: name functions of the host alone, or kernels alone"
        raise BadArgument(why, {"key": "functions"})
    return False


def _check_torch_only(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key in WITHOUT_MEANING:
            continue
        if key == "extra_ldflags":
            other = next((flag for flag in value or () if _OF_CUDA.fullmatch(flag) is None), None)
            if other is not None:
                raise BadArgument(f"extra_ldflags: {other}: no libraries are linked here but CUDA's own", {"key": key})
        elif key == "sycl_sources":
            if value:
                raise BadArgument("sycl_sources: only CUDA is compiled", {"key": key})
        elif key == "is_python_module":
            if not value:
                raise BadArgument("is_python_module=False: a module is what this returns", {"key": key})
        else:
            raise TypeError(f"load_inline() has no argument {key!r}")
