"""Kernels on the CPU, for debugging and tests: `kops.interpret.run` compiles a CUDA source with the system's C++ compiler
and runs it thread by thread, watching every access of memory.

What it needs is g++ or clang++ (C++17) and the package's compiled part; no CUDA, no GPU and no daemon. Blocks run one after another. See
`InterpretError` for what is found. What is left to the device: races between blocks, inline PTX, and speed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .. import Param
from .._companions import Found, disagreement, type_of
from . import _runtime
from ._arguments import Arguments, parameters
from ._compiler import compile_kernel
from ._elf import static_bytes
from ._errors import InterpretError
from ._expressions import cluster_of, dimensions, evaluate, one_block
from ._report import error_of

__all__ = ["InterpretError", "run"]

MAX_SHARED = 227 << 10  # bytes of a block
MAX_STATIC = 48 << 10  # most static shared memory that ptxas takes


def _found(parameter: Any) -> Found:
    """A parameter as the compiler describes it."""
    name = re.sub(r"^.*?\bT = |\]$", "", parameter.name.decode())
    words = [word for word in name.replace("*", " * ").split() if word not in ("const", "volatile")]
    text = f"{name} *" if parameter.is_pointer else name
    return Found(text, bool(parameter.is_pointer), type_of(words, dtypes=False), 0 if parameter.is_pointer else parameter.size)


def _check_signature(kernel: _runtime.Kernel, declared: Sequence[Param], entry: str) -> None:
    wrong = disagreement(entry, declared, [_found(parameter) for parameter in kernel.parameters])
    if wrong is not None:
        raise InterpretError(wrong, "signature")


def _check_resources(kernel: _runtime.Kernel, entry: str, dynamic: int, threads: int) -> None:
    """Refuses what a GPU refuses, or its compiler."""
    name = entry.partition("<")[0].strip().rpartition("::")[2]
    static = static_bytes(kernel.shared, name)
    if static > MAX_STATIC:
        raise InterpretError(
            f"{name} uses too much shared data: {static} bytes of static shared memory, and a GPU's compiler takes {MAX_STATIC}. Declare "
            "it `extern __shared__` and launch the kernel with shared=",
            "compile",
        )
    if not 0 <= dynamic <= MAX_SHARED - static:
        raise InterpretError(f"{dynamic} bytes of dynamic and {static} of static shared memory; a block has {MAX_SHARED}", "launch")
    if kernel.max_threads and threads > kernel.max_threads:
        raise InterpretError(
            f"a block of {threads} threads, and the __launch_bounds__ of {name} allow {kernel.max_threads}: a GPU refuses the launch",
            "launch",
        )


def _load(source: str, name: str, entry: str, files: Mapping[str, str], options: Sequence[str], instrumented: bool) -> _runtime.Kernel:
    path = compile_kernel(source, name, (entry,), files, options, instrumented)
    try:
        return _runtime.load(path)
    except OSError:  # the object was removed meanwhile: once more
        path.unlink(missing_ok=True)
        return _runtime.load(compile_kernel(source, name, (entry,), files, options, instrumented))


def _regions(arguments: Arguments) -> Any:
    starts: dict[int, list[Any]] = {}
    for tensor in arguments.tensors:
        starts.setdefault(tensor.start, []).append(tensor)
    regions = (_runtime.Region * max(len(starts), 1))()
    for region, (start, tensors) in zip(regions, starts.items()):
        region.start, region.end = start, start + tensors[0].size
        region.low, region.high = start - arguments.gap // 2, region.end + arguments.gap // 2
        region.writable = any(t.parameter.kind != "in" for t in tensors)
    return regions, len(starts)


def _checks(check: bool | Collection[str]) -> int:
    if isinstance(check, bool):
        return _runtime.CHECK_RACE | _runtime.CHECK_UNINITIALISED if check else 0
    return (_runtime.CHECK_RACE if "race" in check else 0) | (_runtime.CHECK_UNINITIALISED if "uninitialised" in check else 0)


class _How(NamedTuple):
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    timeout: float
    exited_pass: bool
    keeps: bool


def _launch(kernel: _runtime.Kernel, arguments: Arguments, how: _How, checks: int, only_first: bool = False) -> None:
    regions, count = _regions(arguments)
    launch = _runtime.Launch(
        entry=kernel.entry, args=ctypes.cast(arguments.pointers, ctypes.c_void_p), shared=how.shared, timeout=how.timeout, checks=checks,
        n_regions=count, only_first=only_first, exited_pass=how.exited_pass, keeps=how.keeps,
        regions=ctypes.cast(regions, ctypes.c_void_p), guards=ctypes.cast(kernel.guards, ctypes.c_void_p), n_guards=len(kernel.guards),
        dynamic=kernel.dynamic,
    )  # fmt: skip
    launch.grid[:], launch.block[:] = how.grid, how.block
    report = _runtime.Report()
    _runtime.run(launch, report, quiet=only_first)
    if report.kind:
        raise error_of(report, kernel, arguments, regions, how.shared)


def _try_first_block(kernel: _runtime.Kernel, arguments: Arguments, how: _How) -> None:
    """Runs one block and watches it. Without watching, threads run one after another between barriers, so what relies
    on the threads of a warp going in step would give something else than on a device and nobody would say so."""
    try:
        _launch(kernel, arguments, how, _runtime.CHECK_RACE, True)
    except InterpretError as error:
        if error.kind != "timeout":
            raise
    arguments.fill()


def run(
    source: str, entry: str, params: Sequence[Any], args: Sequence[Any], *, grid: Any, block: Any, shared: int | str = 0,
    cluster: Any = None, cooperative: bool = False, pdl: bool = False, files: Mapping[str, str] | None = None,
    options: Sequence[str] = (), device: Any = None, alias: bool = False, exited_threads: str = "error",
    check: bool | Collection[str] = True, timeout: float = 60.0, name: str = "kernel.cu",
) -> None:  # fmt: skip
    """Runs a kernel on the CPU and raises `InterpretError` for the first thing that it does wrong.

    `params` declares the parameters (objects or maps with `name`, `kind` and `dtype`), `args` has an array, a
    number or None (a null pointer) for each: NumPy arrays, torch tensors, and for `in` what `numpy.asarray` takes.
    Arrays are contiguous unless declared strided, and written ones share no memory with others unless `alias` is true,
    as in launches; bfloat16 is that of ml_dtypes or of torch, or uint16 with the bits. Written ones are written in
    place, when the kernel has ended without an error.

    `grid`, `block` and `shared` are numbers or expressions as for a launch; `cluster`, `pdl` and `device` change nothing
    here; a `cooperative` kernel runs with one block only.
    `files` are what the source includes by name, `options` those of the compile: macros count, the rest does not.
    With `check=False` accesses are watched in the first block only, which is faster; a collection chooses among "race" and
    "uninitialised", bounds are always watched then. A barrier that some threads cannot reach because they have returned is an
    error, though devices from sm_70 on let the others pass: `exited_threads="allow"` does that. `timeout` is in seconds.
    What the kernel prints goes to `sys.stdout`. The macro `KOPS_INTERPRET` is defined.

    Local variables that are read before they are written are not found, but hold a pattern (0xfe in every byte) and not 0
    where the compiler knows -ftrivial-auto-var-init.
    """
    launch(
        lambda instrumented: _load(source, name, entry, files or {}, options, instrumented), entry, params, args, grid=grid, block=block,
        shared=shared, cluster=cluster, cooperative=cooperative, alias=alias, exited_threads=exited_threads, check=check, timeout=timeout,
    )  # fmt: skip


def launch(
    load: Callable[[bool], _runtime.Kernel], entry: str, params: Sequence[Any], args: Sequence[Any], *, grid: Any, block: Any,
    shared: int | str = 0, cluster: Any = None, cooperative: bool = False, alias: bool = False, exited_threads: str = "error",
    check: bool | Collection[str] = True, timeout: float = 60.0, keeps: bool = False,
) -> None:  # fmt: skip
    """Runs a kernel that `load` answers: with all its accesses watched, or without. `keeps`: the variables of its source are
    as the launch before left them, as in a module on a device, and not new."""
    declared = parameters(params)
    arguments = Arguments(declared, args, alias)
    grid3 = dimensions(grid, arguments.names, "grid", 0)
    nothing = 0 in grid3 and arguments.can_write and not arguments.written  # to run: the rest is not looked at
    block3 = (1, 1, 1) if nothing else dimensions(block, arguments.names, "block")
    dynamic = 0 if nothing else evaluate(shared, arguments.names, "shared")
    if cluster is not None and not nothing:
        cluster_of(cluster, arguments.names, grid3)
    if cooperative:
        one_block(grid3)
    if exited_threads not in ("error", "allow"):
        raise InterpretError(f'exited_threads is {exited_threads!r}; it is "error" or "allow"', "launch")
    kernel = load(check is not False)
    _check_signature(kernel, declared, entry)
    _check_resources(kernel, entry, dynamic, 0 if nothing else block3[0] * block3[1] * block3[2])
    if nothing:
        return
    if 0 in grid3:
        raise InterpretError(f"grid is {grid3}: there is no block to run", "launch")
    how = _How(grid3, block3, dynamic, timeout, exited_threads == "allow", keeps)
    with arguments:
        if check is False:
            _try_first_block(load(True), arguments, how)
        _launch(kernel, arguments, how, _checks(check))
        arguments.check_margins()
        arguments.copy_back()
