"""Kernels without a client of one's own: the process's default client, and `load_inline`, with the arguments of
torch's."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, overload

from .._base.compiled import native
from .._base.errors import BadArgument, CompileFailed, Unsupported
from .._base.records import Entry
from .._kernels.formulas import Elementwise, Reduction
from .._kernels.kernels import Code, Kernel, checked_fallback
from .._kernels.untyped import Untyped, on_stream
from .._source.geometry import Geometry, Sizes
from .._source.hostcode import blank
from .._source.options import of_nvcc
from .._source.source import gather, headers, names, scan
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
    launch are compiled by the daemon, and launched there or here, as with `where="auto"` unless the client says otherwise. With
    `fallback="interpret"` kernels on tensors in the memory of the CPU, and on NumPy's arrays, run in the interpreter, with its checks and
    without a daemon.

    Where `functions` are kernels, or there are neither functions nor a PYBIND11_MODULE, the kernels are what is loaded, a `Module`;
    functions of the host are left out:

        mod = kops.load_inline("tutorial", cuda_sources=source, functions=["square_matrix_kernel"],
                               grid=("ceil_div(width, 16)", "ceil_div(height, 16)"), block=(16, 16))
        mod.square_matrix_kernel(matrix, result, width, height)

    Raises `CompileFailed` with the file and line of the first error. `extra_cuda_cflags` are the options of `Client.compile`, and those
    of nvcc that change nothing here (-O…); their macros, and those of `extra_cflags`, are the host's, too. Headers of
    `extra_include_paths` are sent along. `grid` to `signatures` are for kernels that are loaded. `verbose` prints the compiler's
    warnings of kernels. `client` is the default client's place to run. torch's other options have no meaning here and are taken, but for
    those that ask for something that cannot be: `extra_ldflags`, `sycl_sources`. With `is_python_module=False` the functions of a
    TORCH_LIBRARY are torch's ops alone. With `fallback="torch"` torch compiles what does not compile here, once for all processes.
    """
    if fallback == "torch":
        return _or_torch("load_inline", load_inline, client, {
            "name": name, "cpp_sources": cpp_sources, "cuda_sources": cuda_sources, "functions": functions, "extra_cflags": extra_cflags,
            "extra_cuda_cflags": extra_cuda_cflags, "extra_include_paths": extra_include_paths, "verbose": verbose, **torch_only,
        })  # fmt: skip
    in_python = _check_torch_only(torch_only)
    fallback = checked_fallback(fallback)
    client = client or default_client()
    made, of_host = gathered_inline(
        name, cpp_sources, cuda_sources, functions, extra_cflags, extra_cuda_cflags, extra_include_paths
    )
    if of_host:
        from .. import extension

        loaded = extension.compile(client, **made, fallback=fallback)
        return loaded if in_python else loaded.__file__
    ((source_name, cuda),) = made["device_sources"]
    text = blank([cuda])[0] if native is not None else cuda
    module = client.compile(
        _without_headers(text), list(made["functions"]) or None, options=made["options"], files=made["files"], name=source_name, grid=grid,
        block=block, shared=shared, cluster=cluster, signatures=signatures,
    )  # fmt: skip
    if verbose and module.log:
        print(module.log)
    return module


def gathered_inline(
    name: str, cpp_sources: str | Iterable[str] = "", cuda_sources: str | Iterable[str] | None = None,
    functions: str | Iterable[str] | Mapping[str, str] | None = None, extra_cflags: Iterable[str] | None = None,
    extra_cuda_cflags: Iterable[str] | None = None, extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """What `extension.compile` takes, of texts, and whether there are functions of the host: without any, the functions are kernels."""
    cpp, cuda = _joined(cpp_sources), _joined(cuda_sources)
    options, folders = of_nvcc(extra_cuda_cflags or ())
    folders = _own_folders([*map(str, extra_include_paths or ()), *folders])
    files = headers(f"{cpp}\n{cuda}", folders) if folders else {}
    named = {functions: ""} if isinstance(functions, str) else functions or ()
    named = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named, "")
    of_host = _has_module(cpp, cuda) or bool(named and not _are_kernels(name, named, cpp, cuda, files))
    if not of_host and not cuda.strip():
        raise BadArgument(f"{name} has no cuda_sources and no functions: there is nothing to load", {"key": "cuda_sources"})
    return {
        "name": name, "sources": [("cuda.cu", cuda), ("main.cpp", cpp)], "functions": named, "device_sources": [(f"{name}.cu", cuda)],
        "options": options, "files": files, "host_options": list(extra_cflags or ()),
    }, of_host  # fmt: skip


def gathered(
    name: str, sources: Iterable[str | os.PathLike[str]], extra_cflags: Iterable[str] | None = None,
    extra_cuda_cflags: Iterable[str] | None = None, extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What `extension.compile` takes, of files and the headers that they include."""
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
    return {
        "name": name, "sources": texts, "functions": None, "device_sources": cuda, "options": options, "files": files,
        "host_options": list(extra_cflags or ()),
    }  # fmt: skip


def gathered_setup(
    name: str, sources: Iterable[str | os.PathLike[str]], extra_compile_args: Any = None, define_macros: Any = (),
    include_dirs: Iterable[str] | None = None, undef_macros: Iterable[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """As `gathered`, with the arguments of a setup.py's CUDAExtension."""
    given = extra_compile_args or {}
    flags: Mapping[str, Any] = given if isinstance(given, Mapping) else {"cxx": given}
    macros = [f"-D{macro}" if value is None else f"-D{macro}={value}" for macro, value in define_macros or ()]
    macros += [f"-U{macro}" for macro in undef_macros or ()]
    cxx, nvcc = ([*macros, *(flags.get(key) or ())] for key in ("cxx", "nvcc"))
    return gathered(name.rpartition(".")[2], sources, cxx, nvcc, include_dirs)


def _load_files(
    name: str, sources: Sequence[str | os.PathLike[str]], extra_cflags: Iterable[str] | None = None,
    extra_cuda_cflags: Iterable[str] | None = None, extra_include_paths: Iterable[str | os.PathLike[str]] | None = None,
    verbose: bool = False, client: Client | None = None, fallback: str | None = None, **torch_only: Any,
) -> Any:  # fmt: skip
    """torch's load of files."""
    from .. import extension

    how: dict[str, Any] = {"extra_cflags": extra_cflags, "extra_cuda_cflags": extra_cuda_cflags, "extra_include_paths": extra_include_paths}
    if fallback == "torch":
        given = {"name": name, "sources": [os.path.abspath(source) for source in sources], "verbose": verbose, **how, **torch_only}
        return _or_torch("load", _load_files, client, given)
    in_python = _check_torch_only(torch_only)
    made = extension.compile(client or default_client(), **gathered(name, sources, **how), fallback=checked_fallback(fallback))
    return made if in_python else made.__file__


def _or_torch(function: str, ours: Callable[..., Any], client: Client | None, given: dict[str, Any]) -> Any:
    """`fallback="torch"`: what does not compile here is torch's own to compile."""
    try:
        return ours(**given, client=client)
    except (BadArgument, CompileFailed, Unsupported) as why:
        from .. import extension

        return extension.by_torch(function, why, {key: value for key, value in given.items() if value is not None})


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
    kernels = [kernel.name for kernel in scan(_without_headers(cuda), files).kernels]
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


def _check_torch_only(given: Mapping[str, Any]) -> bool:
    """Raises for arguments of torch's that cannot be. Whether a module of Python is wanted, and not its functions as torch's ops alone."""
    for key, value in given.items():
        if key == "extra_ldflags":
            other = next((flag for flag in value or () if flag.strip() and _OF_CUDA.fullmatch(flag) is None), None)
            if other is not None:
                raise BadArgument(f"extra_ldflags: {other}: no libraries are linked here but CUDA's own", {"key": key})
        elif key == "sycl_sources":
            if value:
                raise BadArgument("sycl_sources: only CUDA is compiled", {"key": key})
        elif key == "is_python_module":
            if not value and importlib.util.find_spec("torch") is None:
                raise Unsupported("is_python_module=False: the functions would be torch's ops, and there is no torch", {"key": key})
            if not value:
                importlib.import_module("torch")
        elif key not in WITHOUT_MEANING:
            raise TypeError(f"load_inline() has no argument {key!r}")
    return bool(given.get("is_python_module", True))


# Classes with the shape of CuPy's


BACKENDS = ("nvrtc", "nvcc")
THREADS_MOST = 1024  # threads of a block
REGISTERS, WARP, WARPS_STEP = 65536, 32, 4  # registers of a block; threads of a warp; warps that get registers together
NO_ADDRESS = (
    "the daemon's memory has no address in this process. Let the kernel take a pointer to the table, and pass an array; or pass the "
    "numbers as -D options"
)


def _code(text: Any, path: Any, entries: Any, options: Iterable[str]) -> Code:
    """A source with CuPy's arguments for it."""
    name = None
    if path is not None:
        file = Path(path)
        if file.suffix in (".cubin", ".ptx", ".fatbin"):
            raise Unsupported(f"{file.name} is compiled already, and the daemon takes sources only: pass code=", {"key": "path"})
        text, name = file.read_text(encoding="utf-8"), file.name
    if not isinstance(text, str):
        raise BadArgument("give the source of a module, as a text: code= or path=", {"key": "code"})
    kept, folders = of_nvcc(options)
    return Code(text, entries, kept, headers(text, folders), name, None, None)


def _check(backend: str, jitify: bool, translate_cucomplex: bool, enable_cooperative_groups: bool) -> None:
    if backend not in BACKENDS:
        raise BadArgument(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}", {"key": "backend"})
    for asked, why in (
        (
            backend == "nvcc" and 'backend="nvcc"',
            "the daemon compiles by NVRTC. A source whose host code needs nvcc does not compile there",
        ),
        (jitify and "jitify=True", "the daemon has CUDA's headers, and stand-ins for those of the C++ library; others are to be sent (-I)"),
    ):
        if asked:
            warnings.warn(f"{asked} changes nothing: {why}. Leave it out", stacklevel=3)
    if translate_cucomplex:
        raise Unsupported(
            "translate_cucomplex=True: the daemon compiles sources as they are. cuComplex.h is there, and so is cuda::std::complex",
            {"key": "translate_cucomplex"},
        )
    if enable_cooperative_groups:
        raise Unsupported(
            "enable_cooperative_groups=True: kernels with a barrier of the whole grid are not launched here. Split the kernel at the "
            "barrier into two, which run one after another",
            {"key": "enable_cooperative_groups"},
        )


class RawKernel:
    """A kernel of a source, called as `cupy.RawKernel` is: with grid, block and a list of arguments.

        add = kops.RawKernel(source, "add")
        add((n // 256,), (256,), (x, y, out, n))

    `code`: CUDA C++; `name`: the kernel, or an instantiation of a template ("scale<float>"). `options` are NVRTC's as CuPy takes them;
    files of the folders that `-I` names are sent along where the source includes them, and options that change nothing in the daemon
    (`-O3`, `-arch=`, …) are left out. `backend="nvcc"` and `jitify=True` change nothing, and warn: the daemon compiles all by NVRTC, and
    has stand-ins for headers of the host. `client`: the default client without it. With `fallback="interpret"` calls run on the CPU, with
    the checks of `Kernel.interpret`, where the daemon has no GPU.

    Arguments of a call: for a pointer an array (CuPy's, torch's, NumPy's, anything that an op takes) or None. The array's dtype, shape
    and strides are the caller's business: the kernel gets the address of the first element. For a number a Python or NumPy number,
    which is converted to the type that the source declares; where the source does not say that plainly NumPy's numbers have their
    own, and `int`, `float` and `bool` the type of the parameter's size. Not converted without loss: `kops.OutOfRange`.

    A launch runs here, in this process's CUDA context, or in the daemon: where tiny launches were measured to take less time, as with
    `where="auto"` of a `kops.Kernel`. On a stream under capture it runs here. A kernel that faults here ends this process's context, as
    CuPy's does. One that faults in the daemon does not.

    A call on torch CUDA tensors is ordered on torch's current stream and returns at once. So does a launch here on arrays of CuPy's. A call
    that runs in the daemon on other arrays than torch's waits. `stream=` orders it on another one. Compiled at the first call, or by
    `compile()`. Thread-safe.

    Raises `CompileFailed`, `WrongType`, `SignatureMismatch` for another number of arguments, `Unsupported` for what cannot be here.
    """

    def __init__(
        self, code: str, name: str, options: Sequence[str] = (), backend: str = "nvrtc", *, translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False, jitify: bool = False, client: Client | None = None, fallback: str | None = None,
    ) -> None:  # fmt: skip
        _check(backend, jitify, translate_cucomplex, enable_cooperative_groups)
        untyped = Untyped(client or default_client(), _code(code, None, name, options), name, checked_fallback(fallback))
        self._set(untyped, tuple(options), backend)

    def _set(self, untyped: Untyped, options: tuple[str, ...], backend: str) -> None:
        self._untyped, self.options, self.backend = untyped, options, backend

    @classmethod
    def _of(cls, untyped: Untyped, options: tuple[str, ...], backend: str) -> RawKernel:
        made = cls.__new__(cls)
        made._set(untyped, options, backend)
        return made

    def __call__(self, grid: Any, block: Any, args: Sequence[Any] = (), *, shared_mem: int = 0, stream: Any = None) -> None:
        """Launches it: `grid` in blocks, `block` in threads, of one to three dimensions, `shared_mem` in bytes."""
        self._untyped(args, grid, block, shared_mem, stream)

    def compile(self, log_stream: Any = None) -> None:
        """Compiles the source, or finds that it was compiled before, and writes the compiler's messages to `log_stream`."""
        self._untyped.compile()
        if log_stream is not None and self._untyped.code.compiled is not None:
            log_stream.write(self._untyped.code.compiled.log)

    @property
    def name(self) -> str:
        return self._untyped.entry

    @property
    def code(self) -> str:
        return self._untyped.code.source

    @property
    def file_path(self) -> str | None:
        """The file that its module was made of, None where that was a text."""
        return self._file_path

    _file_path: str | None = None

    @property
    def _entry(self) -> Entry:
        return self._untyped.attributes

    @property
    def num_regs(self) -> int:
        """Registers of a thread."""
        return self._entry.registers

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory of a block."""
        return self._entry.shared_bytes

    @property
    def local_size_bytes(self) -> int:
        """Spilled registers and local arrays of a thread."""
        return self._entry.local_bytes

    @property
    def const_size_bytes(self) -> int:
        """Constant memory of the kernel."""
        return self._entry.const_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Threads that a block can have: as `__launch_bounds__` says, and as the registers suffice."""
        entry = self._entry
        registers = -(-max(entry.registers, 1) // 8) * 8 * WARP
        threads = REGISTERS // registers // WARPS_STEP * WARPS_STEP * WARP
        return min(entry.max_threads or THREADS_MOST, threads, THREADS_MOST)

    @property
    def binary_version(self) -> int:
        """Of the architecture that it is compiled for: 90 for sm_90a."""
        entry, compiled = self._entry, self._untyped.code.compiled
        return int("".join(c for c in compiled.arch if c.isdecimal())) if compiled is not None and entry else 0

    @property
    def attributes(self) -> dict[str, int]:
        """What the daemon knows of the compiled kernel, by CuPy's names. The other names of CuPy's are those of a function that is
        loaded in this process; there is none."""
        told = ("binary_version", "const_size_bytes", "local_size_bytes", "max_threads_per_block", "num_regs", "shared_size_bytes")
        return {name: getattr(self, name) for name in told}

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """What `shared_mem` may be; the daemon allows each launch what its GPU has, so setting it changes nothing."""
        return self._shared_most

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, bytes: int) -> None:
        if bytes < 0:
            raise BadArgument(f"max_dynamic_shared_size_bytes must be 0 or more, not {bytes}", {"key": "max_dynamic_shared_size_bytes"})
        self._shared_most = bytes

    _shared_most = 48 << 10

    def __repr__(self) -> str:
        return f"<kops.RawKernel {self.name}>"


class RawModule:
    """A source of kernels, used as `cupy.RawModule` is:

        module = kops.RawModule(code=source, options=("-std=c++17",), name_expressions=["scale<float>"])
        scale = module.get_function("scale<float>")
        scale((4,), (256,), (y, x, numpy.float32(0.5), 1024))

    `code`: CUDA C++, or `path`: a file of it. `name_expressions`: instantiations of templates; kernels that are no templates have their
    names, `extern "C"` or not. Anything else that a source does not show, a kernel that a macro makes, is compiled when it is asked for.
    The rest is as in `RawKernel`. Compiled at the first `get_function`, or by `compile()`, once for all kernels.

    `get_global` and `get_texref` raise `Unsupported`: what they return are addresses in this process.
    """

    def __init__(
        self, code: str | None = None, *, path: str | os.PathLike[str] | None = None, options: Sequence[str] = (), backend: str = "nvrtc",
        translate_cucomplex: bool = False, enable_cooperative_groups: bool = False, name_expressions: Iterable[str] | None = None,
        jitify: bool = False, client: Client | None = None, fallback: str | None = None,
    ) -> None:  # fmt: skip
        if (code is None) == (path is None):
            raise BadArgument("give either code= or path=", {"key": "code"})
        _check(backend, jitify, translate_cucomplex, enable_cooperative_groups)
        self.options, self.backend = tuple(options), backend
        self.name_expressions = None if name_expressions is None else tuple(name_expressions)
        self._client, self._fallback = client or default_client(), checked_fallback(fallback)
        self.file_path = None if path is None else os.fspath(path)
        self._code = self._of(_code(code, path, "", options))
        self._functions: dict[str, RawKernel] = {}

    def _of(self, plain: Code) -> Code:
        """With all kernels that the source shows, and the instantiations."""
        plain.entries = tuple(dict.fromkeys((*names(plain.scan), *(self.name_expressions or ()))))
        return plain

    @property
    def code(self) -> str:
        return self._code.source

    def compile(self, log_stream: Any = None) -> None:
        """Compiles the source, or finds that it was compiled before, and writes the compiler's messages to `log_stream`."""
        if not self._code.entries:
            raise BadArgument("the source shows no kernel: name them in name_expressions=", {"key": "name_expressions"})
        first = Untyped(self._client, self._code, self._code.entries[0])
        first.compile()
        if log_stream is not None and self._code.compiled is not None:
            log_stream.write(self._code.compiled.log)

    def get_function(self, name: str) -> RawKernel:
        """The kernel of this name, or instantiation. Raises `CompileFailed` where the source has none."""
        found = self._functions.get(name)
        if found is None:
            entries = self._code.entries
            entry = name if name in entries else next((e for e in entries if e.rpartition("::")[2] == name), None)
            code = self._code
            if entry is None:
                code = Code(code.source, name, code.options, code.files, code.name, None, None)
            untyped = Untyped(self._client, code, entry or name, self._fallback)
            if self._fallback is None:
                untyped.compile()
            found = self._functions[name] = RawKernel._of(untyped, self.options, self.backend)
            found._file_path = self.file_path
        return found

    def get_global(self, name: str) -> Any:
        """Raises `Unsupported`."""
        raise Unsupported(f"get_global({name!r}): {NO_ADDRESS}", {"key": "name"})

    def get_texref(self, name: str) -> Any:
        """Raises `Unsupported`."""
        why = "there are no texture references. Let the kernel read a pointer to const"
        raise Unsupported(f"get_texref({name!r}): {why}", {"key": "name"})

    def __getitem__(self, name: str) -> RawKernel:
        return self.get_function(name)

    def __repr__(self) -> str:
        return f"<kops.RawModule {', '.join(self._code.entries)}>"


class ElementwiseKernel:
    """A formula, used as `cupy.ElementwiseKernel` is:

        squared = kops.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared")
        z = squared(x, y)

    What may be written is told by `kops.elementwise`. `client`, `fallback`: as of `RawKernel`.
    """

    def __init__(
        self, in_params: str, out_params: str, operation: str, name: str = "kernel", reduce_dims: bool = True, preamble: str = "",
        no_return: bool = False, return_tuple: bool = False, *, options: Sequence[str] = (), loop_prep: str = "", after_loop: str = "",
        client: Client | None = None, fallback: str | None = None,
    ) -> None:  # fmt: skip
        if loop_prep or after_loop:
            raise Unsupported("loop_prep and after_loop: a thread has one element, so put them into the operation", {"key": "loop_prep"})
        self._made = (client or default_client()).elementwise(
            in_params, out_params, operation, name=name, prelude=preamble, options=of_nvcc(options)[0], fallback=fallback
        )
        self.name, self._no_return, self._return_tuple = name, no_return, return_tuple

    def __call__(self, *args: Any, size: int | None = None, stream: Any = None) -> Any:
        """The results. `args`: the inputs, and the outputs where they are given. `size` changes nothing: the arrays tell it."""
        count = len(self._made.inputs)
        with on_stream(stream) if stream is not None else nullcontext():
            made = self._made(*args[:count], out=args[count] if len(args) == count + 1 else args[count:] or None)
        return None if self._no_return else (made,) if self._return_tuple and not isinstance(made, tuple) else made

    def __repr__(self) -> str:
        return f"<kops.ElementwiseKernel {self.name}>"


class ReductionKernel:
    """A reduction, used as `cupy.ReductionKernel` is:

        norm = kops.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
        y = norm(x, axis=1)

    What may be written is told by `kops.reduce`. `client`, `fallback`: as of `RawKernel`.
    """

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: Any,
        name: str = "reduce_kernel", reduce_type: str | None = None, reduce_dims: bool = True, preamble: str = "",
        options: Sequence[str] = (), *, client: Client | None = None, fallback: str | None = None,
    ) -> None:  # fmt: skip
        post = re.fullmatch(r"\s*(\w+)\s*=(?!=)(.*?);?\s*", post_map_expr, re.S)
        if post is None or post[1] != out_params.split()[-1]:
            raise BadArgument(f"post_map_expr must assign the output, {out_params.split()[-1]} = …", {"key": "post_map_expr"})
        self._made = (client or default_client()).reduce(
            map_expr, reduce_expr, post[2].strip(), identity, inputs=in_params, output=out_params, accumulate=reduce_type, name=name,
            prelude=preamble, options=of_nvcc(options)[0], fallback=fallback,
        )  # fmt: skip
        self.name, self._inputs = name, len(in_params.split(","))

    def __call__(self, *args: Any, axis: Any = None, out: Any = None, keepdims: bool = False, stream: Any = None) -> Any:
        """The results. `args`: the inputs, and the output where it is given."""
        given = args[self._inputs] if len(args) > self._inputs else out
        with on_stream(stream) if stream is not None else nullcontext():
            return self._made(*args[: self._inputs], axis=axis, out=given, keepdims=keepdims)

    def __repr__(self) -> str:
        return f"<kops.ReductionKernel {self.name}>"
