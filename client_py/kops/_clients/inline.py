"""Kernels without a client of one's own: the process's default client, and `load_inline`, with the arguments of
torch's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, overload

from .._base.compiled import native, why_not
from .._base.errors import BadArgument, CompileFailed, KopsError
from .._kernels.code import Code
from .._kernels.elementwise import Elementwise
from .._kernels.kernels import Kernel
from .._kernels.modules import Module
from .._kernels.reduction import Reduction
from .._source.geometry import Geometry, Sizes
from .._source.options import of_nvcc
from .._source.porting import Port, port
from .._source.source import headers, names, scan
from .._source.tokens import DIRECTIVE, PUNCTUATION, directive, tokens
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


def load(path: str | os.PathLike[str], entries: str | Iterable[str] | None = None, **how: Any) -> Module:
    """As `Client.load`, with the default client."""
    return default_client().load(path, entries, **how)


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


# Arguments of torch.utils.cpp_extension.load_inline() that change nothing, since nothing is built on this machine.
WITHOUT_MEANING = (
    "build_directory", "extra_cflags", "extra_sycl_cflags", "keep_intermediates", "no_implicit_headers", "use_pch", "with_cuda",
    "with_sycl", "with_pytorch_error_handling",
)  # fmt: skip


def _joined(value: str | Iterable[str] | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else "\n".join(value)


def _host_code(text: str) -> str | None:
    """The first sign that a source contains code for the host, with its line; None without one."""
    for token in tokens(text):
        if token.kind == DIRECTIVE:
            word, rest = directive(token)
            if word == "include" and rest.lstrip('<"').startswith(("torch/", "ATen/", "c10/", "pybind11/")):
                return f"line {token.line}: #include {rest}"
        elif token.kind == PUNCTUATION and token.text == "<<<":
            return f"line {token.line}: a launch with <<<…>>>"
        elif token.text == "torch":
            return f"line {token.line}: {text.splitlines()[token.line - 1].strip()}"
    return None


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
    **torch_only: Any,
) -> Module:
    """As torch.utils.cpp_extension.load_inline for sources that hold kernels: a `Module` whose attributes they are.

        mod = kops.load_inline("tutorial", cuda_sources=source, functions=["square_matrix_kernel"],
                               grid=("ceil_div(width, 16)", "ceil_div(height, 16)"), block=(16, 16))
        mod.square_matrix_kernel(matrix, result, width, height)

    Functions of the host cannot go to the daemon. A source that has them, a whole tutorial's, is answered with `BadArgument`: its
    message names the lines that have to go and has the Python to paste in place of this call, the kernels and each function of the host
    with its launches. Where the program is to write those itself: `detail` has them as `lines` (first and last), `replacement` (the
    Python), and `missing` (lines of C++ that have no translation, and why; there the Python raises `NotImplementedError`). Before
    the answer the kernels are compiled where the daemon has a GPU, so `CompileFailed` comes first. Where all `functions` are kernels the
    functions of the host are left out without a word.

    `functions` are all kernels of the source when left out. `cpp_sources` may hold declarations, which are not needed.
    `extra_cuda_cflags` are the options of `Client.compile`, and those of nvcc that change nothing here (-O…); headers of
    `extra_include_paths` are sent along. `signatures` (by name) say what the source does not. `verbose` prints the compiler's warnings.
    `client` is the default client's place to run. torch's other options have no meaning here and are taken, but for those that ask for
    something that cannot be: `extra_ldflags`, `sycl_sources`, `is_python_module=False`.
    """
    _check_torch_only(torch_only)
    text = _joined(cuda_sources)
    if not text.strip():
        raise BadArgument(f"{name} has no cuda_sources: kernels are what is loaded", {"key": "cuda_sources"})
    options, folders = of_nvcc(extra_cuda_cflags or ())
    folders = [*map(str, extra_include_paths or ()), *folders]
    files = headers(text, folders) if folders else {}
    entries = [functions] if isinstance(functions, str) else list(functions) if functions is not None else None
    client = client or default_client()
    how: dict[str, Any] = {"options": options, "files": files, "name": f"{name}.cu"}
    ported = port(name, _joined(cpp_sources), text, entries, options, _paths(files, folders)) if native is not None else None
    if ported is not None:
        text = ported.blanked
        if entries is None or not set(entries).isdisjoint(ported.functions) or not _are_kernels(entries, text, files):
            _answer(client, name, ported, how)
    host = _host_code(text)
    if host is not None:
        why = f"cuda_sources of {name} hold code for the host ({host}), which cannot go to the daemon"
        answer = f". The compiled part of the package says what to write in its place: {why_not}" if native is None else ""
        raise BadArgument(why + answer, {"key": "cuda_sources"})
    made = scan(text, files)
    for entry in entries or ():
        known = names(made)
        if "<" not in entry and known and entry not in known and entry not in (n.rpartition("::")[2] for n in known):
            why = f"{entry} is no kernel of {name}; there are {', '.join(known)}. Name the kernels in functions"
            raise BadArgument(why, {"key": "functions"})
    module = client.compile(text, entries, **how, grid=grid, block=block, shared=shared, cluster=cluster, signatures=signatures)
    if verbose and module.log:
        print(module.log)
    return module


def _paths(files: Mapping[str, str], folders: Iterable[str]) -> dict[str, str]:
    """Where the headers that are sent along lie."""
    places = [*folders, os.curdir]
    found = {name: next((Path(folder, name) for folder in places if Path(folder, name).is_file()), None) for name in files}
    return {name: str(path.resolve()) for name, path in found.items() if path is not None}


def _are_kernels(entries: Iterable[str], text: str, files: Mapping[str, str]) -> bool:
    known = {kernel.name for kernel in scan(text, files).kernels}
    known |= {name.rpartition("::")[2] for name in known}
    return all(entry.partition("<")[0].strip() in known for entry in entries)


def _answer(client: Client, name: str, ported: Port, how: Mapping[str, Any]) -> NoReturn:
    """Raises BadArgument with what to do with a source for the host and the device, CompileFailed where its kernels are at fault."""
    if ported.entries:
        try:
            client.compile(ported.blanked, ported.entries, **how)
        except CompileFailed:
            raise
        except KopsError:  # no daemon, or one without a compiler: the answer is the same
            pass
    lines = [f"  {first if first == last else f'{first}-{last}'}: {what}" for first, last, what in ported.lines]
    parts = [f"{name}: the daemon compiles kernels and no functions of the host. Those become Python, which launches the kernels."]
    if lines:
        parts.append("\n".join(["These lines have to go out of cuda_sources:", *lines]))
    parts.append("cpp_sources are not needed." if lines else "cpp_sources are not needed; cuda_sources stay as they are.")
    if ported.missing:
        untold = [f"  line {line}: {why}" for line, why in ported.missing]
        parts.append("\n".join(["These have no translation: write them where the Python raises NotImplementedError:", *untold]))
    parts.append(f"Paste this in place of the call of load_inline:\n\n{ported.replacement}")
    detail = {
        "key": "cuda_sources",
        "lines": [[first, last] for first, last, _ in ported.lines],
        "replacement": ported.replacement,
        "missing": [list(one) for one in ported.missing],
    }
    raise BadArgument("\n".join(parts), detail)


def _check_torch_only(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key in WITHOUT_MEANING:
            continue
        if key == "extra_ldflags":
            if value:
                raise BadArgument("extra_ldflags: nothing is linked here; kernels use what CUDA's headers have", {"key": key})
        elif key == "sycl_sources":
            if value:
                raise BadArgument("sycl_sources: only CUDA is compiled", {"key": key})
        elif key == "is_python_module":
            if not value:
                raise BadArgument("is_python_module=False: a module is what this returns", {"key": key})
        else:
            raise TypeError(f"load_inline() has no argument {key!r}")
