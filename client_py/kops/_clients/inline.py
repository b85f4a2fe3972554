"""Kernels without a client of one's own: the process's default client, and `load_inline`, with the arguments of
torch's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, overload

from .._base.errors import BadArgument
from .._kernels.code import Code
from .._kernels.elementwise import Elementwise
from .._kernels.kernels import Kernel
from .._kernels.modules import Module
from .._kernels.reduction import Reduction
from .._source.geometry import Geometry, Sizes
from .._source.source import gather, names, scan
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
    name: str | None = None, arch: str | None = None, device: Any = None, alias: bool = False, fallback: str | None = None,
) -> Kernel:  # fmt: skip
    """As `Client.kernel`, with the default client, and compiled at its first call: `interpret` works without a daemon."""
    code = Code(source, entry, options, files, name, arch, device)
    return Kernel(default_client(), code, code.only(), signature, Geometry(grid, block, shared, cluster), alias, fallback)


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


# torch.utils.cpp_extension.load_inline's, which change nothing here: nothing is built on this machine.
WITHOUT_MEANING = (
    "build_directory", "extra_cflags", "extra_sycl_cflags", "keep_intermediates", "no_implicit_headers", "use_pch", "with_cuda",
    "with_sycl", "with_pytorch_error_handling",
)  # fmt: skip
OPTIMISATION = ("-O0", "-O1", "-O2", "-O3", "-O")  # NVRTC has no such option and optimises


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

    To port: leave the host function that launches the kernel out of `cuda_sources`, name the kernel itself in
    `functions`, and give the launch's geometry as `grid=` and `block=` here, or with the call: `mod.name[grid, block](…)`.
    Outputs are made by the caller: `torch.empty_like(a)`. Host code cannot go to the daemon and raises `BadArgument`, which
    names the line.

    `functions` are all kernels of the source when left out. `cpp_sources` may hold declarations, which are not needed.
    `extra_cuda_cflags` are the options of `Client.compile`, without -O…; headers of `extra_include_paths` are sent along.
    `signatures` (by name) say what the source does not. `verbose` prints the compiler's warnings. `client` is the default
    client's place to run. torch's other options have no meaning here and are taken, but for those that ask for something
    that cannot be: `extra_ldflags`, `sycl_sources`, `is_python_module=False`.
    """
    _check_torch_only(torch_only)
    for text in (_joined(cpp_sources),):
        if any(token.text == "{" for token in tokens(text)):
            raise BadArgument(f"cpp_sources of {name} hold functions, which would run on the host: {_PORT}", {"key": "cpp_sources"})
    text = _joined(cuda_sources)
    if not text.strip():
        raise BadArgument(f"{name} has no cuda_sources: kernels are what is loaded", {"key": "cuda_sources"})
    host = _host_code(text)
    if host is not None:
        raise BadArgument(f"cuda_sources of {name} hold code for the host ({host}): {_PORT}", {"key": "cuda_sources"})
    files = gather(text, Path.cwd(), extra_include_paths) if extra_include_paths else {}
    entries = [functions] if isinstance(functions, str) else list(functions) if functions is not None else None
    made = scan(text, files)
    for entry in entries or ():
        known = names(made)
        if "<" not in entry and known and entry not in known and entry not in (n.rpartition("::")[2] for n in known):
            raise BadArgument(f"{entry} is no kernel of {name}; there are {', '.join(known)}. {_PORT}", {"key": "functions"})
    options = [flag for flag in extra_cuda_cflags or () if flag not in OPTIMISATION]
    module = (client or default_client()).compile(
        text, entries, options=options, files=files, name=f"{name}.cu", grid=grid, block=block, shared=shared, cluster=cluster,
        signatures=signatures,
    )  # fmt: skip
    if verbose and module.log:
        print(module.log)
    return module


_PORT = "leave the function that launches out, name the kernels in functions, and give grid= and block="


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
