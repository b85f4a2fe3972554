"""Classes with the shape of CuPy's RawKernel and RawModule, whose kernels the daemon compiles and launches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .._base.errors import BadArgument, Unsupported
from .._base.records import Entry
from .._kernels.code import Code
from .._kernels.kernels import checked_fallback
from .._kernels.untyped import Untyped
from .._source.options import of_nvcc
from .._source.source import headers, names
from .client import Client
from .inline import default_client

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
