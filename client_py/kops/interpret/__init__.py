"""Kernels on the CPU, for debugging and tests: `kops.interpret.run` compiles a CUDA source with the system's C++ compiler
and runs it thread by thread, watching every access of memory.

What it needs is g++ or clang++ (C++17); no CUDA, no GPU and no daemon. Blocks run one after another. See
`InterpretError` for what is found. What is left to the device: races between blocks, inline PTX, and speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from . import _runtime
from ._arguments import DTYPES, Arguments, Parameter, parameters
from ._compiler import compile_kernel
from ._errors import InterpretError
from ._geometry import dimensions, evaluate
from ._report import error_of

__all__ = ["InterpretError", "run"]

MAX_SHARED = 227 << 10  # bytes of a block
MAX_DYNAMIC = 256 << 10


def _check_signature(kernel: _runtime.Kernel, declared: Sequence[Parameter], entry: str) -> None:
    if len(kernel.parameters) != len(declared):
        raise InterpretError(
            f"{entry} has {len(kernel.parameters)} parameters in the source, {len(declared)} are declared", "signature"
        )
    for i, (found, parameter) in enumerate(zip(kernel.parameters, declared)):
        category, element = found.category.decode(), found.element.decode()
        size, wanted, _, _ = DTYPES[parameter.dtype]
        what = f"{entry}, parameter {i} ({parameter.name})"
        if parameter.is_tensor != (category == "p"):
            raise InterpretError(
                f"{what}: declared as {'a tensor' if parameter.is_tensor else 'a scalar'}, in the source it is "
                f"{'a pointer' if category == 'p' else 'no pointer'}",
                "signature",
            )
        have, bytes_ = (element, found.element_size) if parameter.is_tensor else (category, found.size)
        if have in "vcp" and parameter.is_tensor:
            continue  # void *, or vectors and classes that stand for several elements or bits
        if bytes_ != size or (have in "f" and wanted not in "f") or (have in "iu" and wanted == "f"):
            raise InterpretError(f"{what}: declared as {parameter.dtype}, in the source it is another type of {bytes_} bytes", "signature")


def _load(
    source: str, name: str, entry: str, files: Mapping[str, str], options: Sequence[str], instrumented: bool
) -> _runtime.Kernel:
    path = compile_kernel(source, name, entry, files, options, instrumented)
    try:
        return _runtime.load(path)
    except OSError:  # something happened to it: once more
        path.unlink(missing_ok=True)
        return _runtime.load(compile_kernel(source, name, entry, files, options, instrumented))


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


def run(
    source: str,
    entry: str,
    params: Sequence[Any],
    args: Sequence[Any],
    *,
    grid: Any,
    block: Any,
    shared: int | str = 0,
    cluster: Any = None,
    files: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    device: Any = None,
    check: bool | Collection[str] = True,
    timeout: float = 60.0,
    name: str = "kernel.cu",
) -> None:
    """Runs a kernel on the CPU and raises `InterpretError` for the first thing that it does wrong.

    `params` declares the parameters (objects or maps with `name`, `kind` and `dtype`), `args` has an array, a
    number or None (a null pointer) for each: NumPy arrays, torch tensors, and for `in` what `numpy.asarray` takes.
    Arrays are contiguous unless declared strided; bfloat16 is that of ml_dtypes or of torch, or uint16 with the
    bits. Written ones are written in place, when the kernel has ended without an error.

    `grid`, `block` and `shared` are numbers or expressions as for a launch; `cluster` and `device` change nothing here.
    `files` are what the source includes by name, `options` those of the compile: macros count, the rest does not.
    With `check=False` accesses are not watched, which is faster; a collection chooses among "race" and "uninitialised",
    bounds are always watched then. `timeout` is in seconds. What the kernel prints goes to `sys.stdout`.
    """
    declared = parameters(params)
    arguments = Arguments(declared, args)
    grid3 = dimensions(grid, arguments.names, "grid", 0)
    block3 = dimensions(block, arguments.names, "block")
    dynamic = evaluate(shared, arguments.names, "shared")
    if cluster is not None:
        dimensions(cluster, arguments.names, "cluster")
    kernel = _load(source, name, entry, files or {}, options, check is not False)
    _check_signature(kernel, declared, entry)
    if not 0 <= dynamic <= MAX_SHARED - kernel.static_bytes:
        raise InterpretError(
            f"{dynamic} bytes of dynamic and {kernel.static_bytes} of static shared memory; a block has {MAX_SHARED}", "launch"
        )
    if 0 in grid3:
        if arguments.can_write and not arguments.written:
            return
        raise InterpretError(f"grid is {grid3}: there is no block to run", "launch")
    with arguments:
        regions, count = _regions(arguments)
        launch = _runtime.Launch(
            entry=kernel.entry,
            args=ctypes.cast(arguments.pointers, ctypes.c_void_p),
            shared=dynamic,
            timeout=timeout,
            checks=_checks(check),
            n_regions=count,
            regions=ctypes.cast(regions, ctypes.c_void_p),
            guards=ctypes.cast(kernel.guards, ctypes.c_void_p),
            n_guards=len(kernel.guards),
            dynamic=kernel.dynamic,
        )
        launch.grid[:], launch.block[:] = grid3, block3
        report = _runtime.Report()
        _runtime.run(launch, report)
        if report.kind:
            raise error_of(report, kernel, arguments, regions, dynamic)
        arguments.copy_back()
