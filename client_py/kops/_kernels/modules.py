"""Compiled sources and the kernels in them, kernels that are written as Python functions (annotations for parameters, the docstring for
the body), and the methods of clients that make kernels.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_origin, overload

from .._base.errors import BadArgument
from .._base.records import Compiled, Entry
from .._base.texts import closest_first
from .._base.twins import DEFAULT_TIMEOUT, Steps, awaited
from .._source.geometry import Geometry, Sizes
from .._source.signature import Param, declarations
from .formulas import AsyncElementwise, AsyncReduction, Elementwise, Reduction
from .kernels import AsyncKernel, BaseKernel, Code, Kernel


def _evaluated(value: str, function: Callable[..., object]) -> Any:
    """An annotation that is text because of `from __future__ import annotations`: what it stands for, where that is more
    than a C type."""
    if "[" in value and not value.lstrip().startswith(("'", '"')):
        try:
            found = eval(value, getattr(function, "__globals__", {}), dict(inspect.getclosurevars(function).nonlocals))
        except Exception:  # "float*[n]" is no Python
            return value
        if get_origin(found) is Annotated:
            return found
    return value


def _annotation(name: str, value: Any, function: Callable[..., object]) -> str:
    """The C type that an annotation says: a text, also where it was quoted twice (`from __future__ import annotations`), or
    the first text of an `Annotated`."""
    if isinstance(value, str):
        value = _evaluated(value, function)
    if get_origin(value) is Annotated:
        value = next((text for text in value.__metadata__ if isinstance(text, str)), value)
    if not isinstance(value, str):
        raise BadArgument(
            f"the annotation of {name} must be a C type as a text, such as \"const float*\" or Annotated[Any, \"const float*\"], "
            f"not {value!r}"
        )
    try:
        inner = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return inner if isinstance(inner, str) else value


def _declaration(name: str, annotation: str) -> str:
    """`out float*[n]` for c: `out float* c[n]`."""
    kind, bracket, sizes = annotation.partition("[")
    return f"{kind} {name}{bracket}{sizes}"


def source_of(function: Callable[..., Any], prelude: str) -> tuple[str, tuple[Param, ...] | None]:
    """The source that a function stands for, and its parameters where the source does not tell them."""
    body = textwrap.dedent(inspect.getdoc(function) or "")
    name = function.__name__
    if not body.strip():
        raise BadArgument(f"{name} has no docstring: it is the kernel's body in CUDA C++")
    parameters = inspect.signature(function).parameters.values()
    annotated = [p for p in parameters if p.annotation is not inspect.Parameter.empty]
    text = ", ".join(_declaration(p.name, _annotation(p.name, p.annotation, function)) for p in annotated)
    if "__global__" in body:
        if annotated and len(annotated) != len(parameters):
            raise BadArgument(f"{name}: annotate all parameters, or none: then the source says what they are")
        return prelude + body + "\n", tuple(d.param for d in declarations(text)) if annotated else None
    if len(annotated) != len(parameters):
        raise BadArgument(f"{name}: annotate every parameter with its C type, such as c: \"out float*\"")
    declared = declarations(text)
    head = f"extern \"C\" __global__ void {name}({', '.join(d.c for d in declared)})"
    return f"{prelude}\n{head}\n{{\n{body}\n}}\n", tuple(d.param for d in declared)


Signature = str | Iterable[Param] | None


class Entries(Mapping[str, Entry]):
    """A module's kernels, by the names that it was compiled for, in that order."""

    def __init__(self, compiled: Compiled) -> None:
        self._entries = {entry.name: entry for entry in compiled.entries}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<kops.Entries {', '.join(f'{e.name} ({e.registers} registers)' for e in self._entries.values())}>"


class BaseModule:
    """A compiled source. Its kernels are attributes, `module.add2_kernel(c, a, b, n)`, also `module["scale<float>"]`;
    `kernel()` declares one with more to say.
    """

    _kernel_type: type[BaseKernel]

    def __init__(self, client: Any, code: Code, launches: dict[str, Any], signatures: Mapping[str, Any] | None) -> None:
        self._client = client
        self._code = code
        self._launches = launches
        self._signatures = dict(signatures or {})
        self._kernels: dict[str, BaseKernel] = {}

    @property
    def _compiled(self) -> Compiled:
        compiled = self._code.compiled
        if compiled is None:
            raise BadArgument("this source is not compiled yet")
        return compiled

    @property
    def key(self) -> str:
        """Names the code: 64 digits, the same for the same source, options, compiler and architecture."""
        return self._compiled.key

    @property
    def arch(self) -> str:
        """Such as "sm_90a"."""
        return self._compiled.arch

    @property
    def compiler(self) -> str:
        """Such as "NVRTC 13.0"."""
        return self._compiled.compiler

    @property
    def cached(self) -> str:
        """Where the daemon had it: "no" (it was compiled now), "memory", "disk" or "remote"."""
        return self._compiled.cached

    @property
    def compile_us(self) -> float:
        """Microseconds that compiling took, when that was done."""
        return self._compiled.compile_us

    @property
    def log(self) -> str:
        """The compiler's warnings."""
        return self._compiled.log

    @property
    def image_bytes(self) -> int:
        """Size of the binary."""
        return self._compiled.image_bytes

    @property
    def entries(self) -> Entries:
        """The compiled kernels by name."""
        return Entries(self._compiled)

    def _make(
        self, entry: str | None, signature: Signature, grid: Sizes, block: Sizes, shared: Any, cluster: Sizes, alias: bool,
        cooperative: bool, pdl: bool,
    ) -> Any:  # fmt: skip
        if entry is None:
            entry = self._code.only()
        elif entry not in self._code.entries:
            raise BadArgument(
                f"no kernel {entry!r} was compiled; there are {', '.join(closest_first(entry, self._code.entries))}", {"key": "entry"}
            )
        geometry = Geometry(grid, block, shared, cluster, cooperative, pdl)
        return self._kernel_type(self._client, self._code, entry, signature, geometry, alias)

    def __getitem__(self, name: str) -> Any:
        found = self._kernels.get(name)
        if found is None:
            entries = self._code.entries
            full = name if name in entries else next((e for e in entries if e.rpartition("::")[2] == name), None)
            if full is None:
                raise KeyError(f"{name}; there are {', '.join(closest_first(name, entries))}")
            signature = self._signatures.get(full, self._signatures.get(name))
            found = self._kernels[name] = self.kernel(full, signature, **self._launches)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{self!r} has no kernel {name}; it has {', '.join(closest_first(name, self._code.entries))}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(entry.rpartition("::")[2] for entry in self._code.entries)]

    def __repr__(self) -> str:
        return f"<kops.{type(self).__name__} {self._code.name}: {', '.join(self._code.entries)}>"


class Module(BaseModule):
    __doc__ = BaseModule.__doc__
    _kernel_type = Kernel

    def kernel(
        self, entry: str | None = None, signature: Signature = None, grid: Sizes = None, block: Sizes = None, *, shared: Any = 0,
        cluster: Sizes = None, alias: bool = False, cooperative: bool = False, pdl: bool = False,
    ) -> Kernel:  # fmt: skip
        """Declares one of its kernels, see `Client.kernel`. Without a name the only one."""
        made: Kernel = self._make(entry, signature, grid, block, shared, cluster, alias, cooperative, pdl)
        declared: Kernel = made._declare(DEFAULT_TIMEOUT)
        return declared


class AsyncModule(BaseModule):
    """As `Module`, of an `AsyncClient`. An error in a declaration is raised at the first call of its kernel."""

    _kernel_type = AsyncKernel

    def kernel(
        self, entry: str | None = None, signature: Signature = None, grid: Sizes = None, block: Sizes = None, *, shared: Any = 0,
        cluster: Sizes = None, alias: bool = False, cooperative: bool = False, pdl: bool = False,
    ) -> AsyncKernel:  # fmt: skip
        """As `Module.kernel`; the first call declares it."""
        made: AsyncKernel = self._make(entry, signature, grid, block, shared, cluster, alias, cooperative, pdl)
        return made


def _launches(grid: Any, block: Any, shared: Any, cluster: Any) -> dict[str, Any]:
    return {"grid": grid, "block": block, "shared": shared, "cluster": cluster}


M = TypeVar("M")
K = TypeVar("K")
E = TypeVar("E")
R = TypeVar("R")


class Compiles(Generic[M, K]):
    """Methods of a client for kernels of the user's own. `M`, `K`: the client's modules and kernels."""

    _module_type: Any
    _kernel_type: Any

    def compile(
        self, source: str | os.PathLike[str], entries: str | Iterable[str] | None = None, *, options: Iterable[str] = (),
        files: Mapping[str, str] | None = None, name: str | None = None, arch: str | None = None, device: Any = None,
        grid: Sizes = None, block: Sizes = None, shared: Any = 0, cluster: Sizes = None,
        signatures: Mapping[str, Any] | None = None, timeout: float | None = DEFAULT_TIMEOUT,
    ) -> M:  # fmt: skip
        """Compiles CUDA C++ in the daemon, or finds that it was compiled before, by anyone: a `Module`.

        `source` is the text, or a `pathlib.Path`, whose `#include "…"` of files beside it are sent along. `files` are
        other texts that it may include, by name. `entries` are the kernels wanted: names of `__global__` functions, or
        instantiations such as "scale<float, 4>"; without them all that are no templates. `options` are NVRTC's, of
        those that the daemon allows ("-DN=3", "--use_fast_math", …). `arch` ("sm_90a") is the device's by
        default, and required of a daemon without a GPU.
        `grid`, `block`, `shared`, `cluster` and `signatures` (by name) are for the kernels that are its attributes, see
        `kernel`.

        Raises `CompileFailed`, whose `log` has all that the compiler said; `PermissionDenied` where the daemon's policy
        lets this user run no kernels.
        """
        code = Code(source, entries, options, files, name, arch, device)
        client: Any = self

        def steps() -> Steps:
            link = yield client._live
            yield partial(client._drive, link, code.define, timeout)
            return self._module_type(self, code, _launches(grid, block, shared, cluster), signatures)

        made: M = client._take(steps())
        return made

    def kernel(
        self, source: str | os.PathLike[str], entry: str | None = None, signature: Signature = None, grid: Sizes = None,
        block: Sizes = None, *, shared: Any = 0, cluster: Sizes = None, options: Iterable[str] = (),
        files: Mapping[str, str] | None = None, name: str | None = None, arch: str | None = None, device: Any = None,
        alias: bool = False, cooperative: bool = False, pdl: bool = False, fallback: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> K:  # fmt: skip
        """Compiles a kernel and declares how it is called: a `Kernel`.

            kern = k.kernel(source, "add2_kernel", "float* c, const float* a, const float* b, int n",
                            grid="ceil_div(n, 256)", block=256)
            kern(c, a, b, n)

        `signature` is the parameter list as C writes it. A pointer to const is read (`in`), any other read and written
        (`inout`) unless marked: `out float* c` is only written, which `profile` needs. `float* c[n]` asks for at least n
        elements, `c[h][w]` for that shape. Also a list of `kops.Param`. Without one it is taken from the source, where
        that says it plainly.

        `grid` and `block` are numbers, tuples of up to three, texts with expressions over the arguments ("ceil_div(n,
        256)", "a.shape[0]", "a.numel", "multiprocessors"), or functions of the arguments that return numbers. `shared` is
        the dynamic shared memory of a block in bytes, `cluster` the blocks of a cluster. Those that are left out are given with
        each launch: `kern[grid, block](…)`. With `alias` written tensors may overlap others. With `fallback="interpret"` calls run
        in this process, on the CPU and with the checks of `interpret`, where the daemon has no GPU. `cooperative`: all blocks run at
        one time, as `grid.sync()` needs; a grid with more blocks than fit raises `OutOfRange`. `pdl`: in a sequence or program, behind
        another kernel, it may begin before that one has ended, and waits for it with `griddepcontrol.wait`.

        The rest is as in `compile`. Raises also `SignatureMismatch` where the binary has other parameters.
        """
        code = Code(source, entry, options, files, name, arch, device)
        geometry = Geometry(grid, block, shared, cluster, cooperative, pdl)
        made: K = self._kernel_type(self, code, code.only(), signature, geometry, alias, fallback)._declare(timeout)
        return made

    def load(self, /, path: str | os.PathLike[str], entries: str | Iterable[str] | None = None, **how: Any) -> M:
        """Compiles a .cu file: a `Module` whose attributes are its kernels. The keywords are those of `compile`.

        mod = k.load("tutorial.cu", block=256, grid="ceil_div(n, 256)")
        mod.add2_kernel(c, a, b, n)
        mod.square_matrix_kernel[(4, 4), (16, 16)](m, out, w, h)
        """
        return self.compile(Path(path), entries, **how)


class Makes(Generic[K, E, R]):
    """Methods of a client that make kernels of functions and formulas, which are compiled at their first call."""

    _kernel_type: Any
    _elementwise_type: Any
    _reduction_type: Any

    @overload
    def cuda_kernel(self, function: Callable[..., object]) -> K: ...

    @overload
    def cuda_kernel(
        self, function: None = None, *, grid: Sizes = None, block: Sizes = None, shared: Any = 0,
        cluster: Sizes = None, prelude: str = "", options: Iterable[str] = (), files: Mapping[str, str] | None = None,
        arch: str | None = None, device: Any = None, alias: bool = False, cooperative: bool = False,
        pdl: bool = False, fallback: str | None = None,
    ) -> Callable[[Callable[..., object]], K]: ...  # fmt: skip

    def cuda_kernel(
        self, function: Callable[..., object] | None = None, *, grid: Sizes = None, block: Sizes = None, shared: Any = 0,
        cluster: Sizes = None, prelude: str = "", options: Iterable[str] = (), files: Mapping[str, str] | None = None,
        arch: str | None = None, device: Any = None, alias: bool = False, cooperative: bool = False,
        pdl: bool = False, fallback: str | None = None,
    ) -> Any:  # fmt: skip
        """Makes a kernel of a Python function: its annotations are the parameters' types, its docstring is the body.

            @k.cuda_kernel(grid="ceil_div(n, 256)", block=256)
            def scale(y: "out float*", x: "const float*", a: "float", n: "int"):
                '''
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) y[i] = a * x[i];
                '''

        Where a type checker reads the file: `y: Annotated[Any, "out float*"]`, of `typing`, for each, and `-> None`.
        A docstring that holds a `__global__` function of the same name is the whole source, and the annotations may be
        left out. `prelude` comes before the kernel: includes, other functions. Compiled at its first call.
        """
        geometry = Geometry(grid, block, shared, cluster, cooperative, pdl)
        return _decorate(self, self._kernel_type, function, geometry, prelude, options, files, arch, device, alias, fallback)

    def elementwise(
        self, inputs: str, outputs: str | None = None, operation: str | None = None, *, name: str = "elementwise", prelude: str = "",
        options: Iterable[str] = (), device: Any = None, arch: str | None = None, fallback: str | None = None,
    ) -> E:  # fmt: skip
        """Makes a kernel of a formula in CUDA C++, which is applied to each element:

            f = k.elementwise("x * y + z")
            f = k.elementwise("T x, T y, float alpha", "T out", "out = alpha * x + y", name="axpy")
            c = f(a, b, 0.5)

        The short form takes its operands from the expression, in the order in which they appear; all and the result have one dtype.
        The full form declares inputs and outputs, and `operation` assigns every output; several statements are separated by `;`,
        and `i` is the number of the element. A type is one of C or of a dtype (`float`, `half`, `int64`, `bool`), or a capital
        letter, `T`, for the dtype that a call has. An input that is `raw T x` is a whole contiguous array, which is not broadcast and whose
        elements the formula takes itself, `x[i + 1]`. Halves and 8-bit floats are computed as float and rounded once,
        but in raw inputs.

        A call takes arrays, which are broadcast as NumPy does, with any strides, and numbers, in the order of the inputs. It returns
        a new array where the first array is, or a tuple; `out=` gives the arrays, which may be operands. The kernel is compiled at
        the first call with other dtypes or layouts, by the daemon, which keeps it. `prelude` comes before it: includes, functions.
        `options` are those of `compile`. `name` is in statistics and errors. With `fallback="interpret"` calls run in this process, on
        the CPU and with the checks of `interpret`, where the daemon has no GPU.

        Raises `CompileFailed` at a call, with the line of the formula in `line`.
        """
        made: E = self._elementwise_type(self, inputs, outputs, operation, name, prelude, options, device, arch, fallback)
        return made

    def reduce(
        self, map: str, reduce: str, post: str = "a", identity: Any = None, *, inputs: str | None = None, output: str | None = None,
        accumulate: str | None = None, axis: Any = None, name: str = "reduction", prelude: str = "", options: Iterable[str] = (),
        device: Any = None, arch: str | None = None, fallback: str | None = None,
    ) -> R:  # fmt: skip
        """Makes kernels that reduce arrays to one number, or to one along each of some axes:

            norm = k.reduce("x * x", "a + b", "sqrt(a)", 0)
            mean = k.reduce("x", "a + b", "a / n", 0, axis=-1)
            dot = k.reduce("x * y", "a + b", identity=0, inputs="T x, T y", output="float out", accumulate="double", name="dot")
            c = norm(a)
            d = mean(a, keepdims=True)

        `map` is an expression over the operands. `reduce` combines two numbers, `a` and `b`, in any order; `post` makes the result of
        the last, `a`, and of how many there were, `n`. `identity` is the number that changes nothing, or an expression, "-INFINITY"; it
        is also what is left of no numbers. `inputs` and `output` are declared as in `elementwise`; without them the operands are those
        of `map`, and all and the result have one dtype. Numbers are computed in the result's dtype, halves in float; `accumulate`
        is another type for that.

        A call takes arrays, which are broadcast, and numbers, and `axis` (None for all, a number or a tuple; `axis` here is the
        default), `keepdims` and `out`. Results are the same each time: the order depends on shapes and strides alone, and there are no
        atomics. Reductions to few numbers are two kernels, in one sequence.
        """
        made: R = self._reduction_type(
            self, map, reduce, post, identity, inputs, output, accumulate, axis, name, prelude, options, device, arch, fallback
        )  # fmt: skip
        return made


class KernelMethods(Compiles[Module, Kernel], Makes[Kernel, Elementwise, Reduction]):
    """Of `Client`."""

    _module_type, _kernel_type, _elementwise_type, _reduction_type = Module, Kernel, Elementwise, Reduction


class AsyncKernelMethods(Makes[AsyncKernel, AsyncElementwise, AsyncReduction]):
    """Of `AsyncClient`. What `Makes` makes is awaited when it is called."""

    _module_type, _kernel_type, _elementwise_type, _reduction_type = AsyncModule, AsyncKernel, AsyncElementwise, AsyncReduction
    compile = awaited(Compiles[AsyncModule, AsyncKernel].compile)
    kernel = awaited(Compiles[AsyncModule, AsyncKernel].kernel)
    load = awaited(Compiles[AsyncModule, AsyncKernel].load)


def _decorate(
    client: Any, kind: type[BaseKernel], function: Callable[..., object] | None, geometry: Geometry, prelude: str, options: Iterable[str],
    files: Mapping[str, str] | None, arch: str | None, device: Any, alias: bool, fallback: str | None,
) -> Any:  # fmt: skip
    def decorate(function: Callable[..., object]) -> BaseKernel:
        source, signature = source_of(function, prelude)
        code = Code(source, function.__name__, options, files, f"{function.__name__}.cu", arch, device)
        made = kind(client, code, function.__name__, signature, geometry, alias, fallback)
        made.__doc__, made.__module__ = function.__doc__, function.__module__
        return made

    return decorate if function is None else decorate(function)
