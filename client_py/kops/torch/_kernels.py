"""Kernels of users in torch: as torch's ops, and as those of `torch.cuda._compile_kernel`."""

from __future__ import annotations

import keyword
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .._base.dtypes import NAMES
from .._base.errors import BadArgument, CompileFailed, WrongType
from .._calls.launch import CODE_FEATURE
from .._kernels.kernels import Bound, Code, Kernel, checked_fallback, lacks_gpu
from .._kernels.untyped import Untyped
from .._source.options import of_nvcc
from .._source.signature import Param
from .._source.source import headers
from ._dispatch import Gradient, Spec, register, tags
from ._where import TREES, launches_here
from ._where import client as current_client

__all__ = ["compile_kernel", "custom_op"]

NAMESPACE = "kops_kernels"
TAGS = tags("pt2_compliant_tag")
_libraries: dict[str, Any] = {}  # by the op's name: what is registered lasts as long as its library
_lock = threading.Lock()


def _scalar_type(dtype: str) -> str:
    return "bool" if dtype == "bool" else "SymInt" if dtype[0] in "iu" else "float"


def _argument_names(params: Sequence[Param]) -> dict[str, str]:
    """The parameters' names in a schema, by those in the signature: `in` and other words of torch's language and of
    Python's get an underscore."""
    names: dict[str, str] = {}
    taken = {param.name for param in params}
    for param in params:
        name = param.name
        while not _is_argument(name) or (name != param.name and name in taken):
            name += "_"
        names[param.name] = name
        taken.add(name)
    return names


def _is_argument(name: str) -> bool:
    if keyword.iskeyword(name):
        return False
    try:
        torch._C.parse_schema(f"op(Tensor {name}) -> ()")
    except RuntimeError:
        return False
    return True


def schema(name: str, params: Sequence[Param]) -> str:
    """The op of a kernel: its parameters but those that are only written, which are the results."""
    given, names = [], _argument_names(params)
    written = iter("abcdefghijklmnopqrstuvwxyz" * len(params))
    for param in params:
        if param.is_structure:
            raise BadArgument(f"{name}: {param.name} is a structure by value, which no op of torch takes: take a pointer, or its parts")
        if param.kind == "scalar":
            given.append(f"{_scalar_type(param.dtype)} {names[param.name]}")
        elif param.kind != "out":
            given.append(f"Tensor({next(written)}!) {names[param.name]}" if param.kind == "inout" else f"Tensor {names[param.name]}")
    outs = sum(param.kind == "out" for param in params)
    made = "Tensor" if outs == 1 else f"({', '.join(['Tensor'] * outs)})"
    return f"{name}({', '.join(given)}) -> {made}"


def _evaluate(size: Any, names: Mapping[str, Any], what: str) -> Any:
    from ..interpret._expressions import evaluate

    return evaluate(size, names, what, (int, torch.SymInt))


def _by_signature(kernel: Kernel) -> Callable[..., Any]:
    """Makes the results as their sizes are declared. Raises BadArgument where they are not."""
    outs = [param for param in kernel.params if param.kind == "out"]
    inputs = [param for param in kernel.params if param.kind != "out"]
    for param in outs:
        if (param.shape is None and param.elements is None) or (param.shape is not None and None in param.shape):
            raise BadArgument(
                f"the shape of {kernel.name}'s result {param.name} is not known: declare its size in the signature "
                f"(`out {param.dtype}* {param.name}[n]`), or give fake=, a function of the op's arguments that returns an empty tensor "
                "like the result: fake=lambda x, n: torch.empty_like(x)",
                {"key": "fake"},
            )

    def empty(*given: Any) -> Any:
        names = {p.name: tuple(v.shape) if p.is_tensor else v for p, v in zip(inputs, given)}
        like = next(value for param, value in zip(inputs, given) if param.is_tensor)
        made = []
        for param in outs:
            sizes = param.shape if param.shape is not None else (param.elements,)
            shape = [_evaluate(size, names, f"{kernel.name}: {param.name}") for size in sizes]
            made.append(like.new_empty(shape, dtype=getattr(torch, NAMES[param.dtype])))
        return made[0] if len(made) == 1 else tuple(made)

    return empty if outs else lambda *given: None


def _run(kernel: Kernel, launch: Any, empty: Callable[..., Any], interpret: bool) -> Callable[..., Any]:
    outs = [i for i, param in enumerate(kernel.params) if param.kind == "out"]
    inputs = [param for param in kernel.params if param.kind != "out"]
    compact = [i for i, param in enumerate(inputs) if param.kind == "in" and not param.strided]
    first = next(i for i, param in enumerate(inputs) if param.is_tensor)

    def run(*given: Any) -> Any:
        made = empty(*given)
        arguments = list(given)
        for i in compact:
            arguments[i] = arguments[i].contiguous()
        for i, result in zip(outs, (made,) if len(outs) == 1 else made or ()):
            arguments.insert(i, result)
        if interpret and given[first].device.type == "cpu":
            launch.interpret(*(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments))
        elif TREES in sys.modules and launches_here(kernel._client, given[first], CODE_FEATURE):
            launch(*arguments, where="here")
        else:
            launch(*arguments)
        return made

    return run


def _gradient(params: Sequence[Param], backward: Callable[..., Any], setup_context: Callable[..., Any] | None) -> Gradient:
    inputs, names = [param for param in params if param.kind != "out"], _argument_names(params)
    tensors = [param.name for param in inputs if param.is_tensor]

    def save(ctx: Any, given: Mapping[str, Any], output: Any) -> None:
        if setup_context is not None:
            setup_context(ctx, tuple(given[names[param.name]] for param in inputs), output)
            return
        ctx.save_for_backward(*(given[names[name]] for name in tensors))
        ctx.scalars = {param.name: given[names[param.name]] for param in inputs if not param.is_tensor}

    def gradients(ctx: Any, *of_outputs: Any) -> Sequence[Any]:
        made = backward(ctx, *of_outputs)
        made = made if isinstance(made, tuple) else (made,)
        if len(made) == len(inputs):
            return made
        if len(made) != len(tensors):
            raise BadArgument(
                f"backward returned {len(made)} gradients: return one for each tensor ({', '.join(tensors)}), None where there is none",
                {"key": "backward"},
            )
        by_tensor = dict(zip(tensors, made))
        return [by_tensor.get(param.name) for param in inputs]

    return Gradient(save, gradients)


def custom_op(
    kern: Kernel | Bound, name: str | None = None, *, fake: Callable[..., Any] | None = None, backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None, interpret: bool = False,
) -> Any:  # fmt: skip
    """A kernel as an op of torch's: for eager code, autograd and `torch.compile`, without C++.

        scale = kops.torch.custom_op(kern, backward=lambda ctx, g: g * ctx.scalars["factor"])
        y = scale(x, 0.5, x.numel())

    `kern` is a kernel of `Client.kernel`, `kops.kernel` and the like, or one with a geometry, `kern[grid, block]`. The op takes the
    kernel's parameters in their order without those marked `out`, which are its results: none, one tensor or a tuple. Tensors are
    of the dtypes that the kernel declares, and not None; one that is only read is copied first where it is not contiguous and the
    kernel is not declared to take it so. A parameter whose name Python or torch has for itself gets an underscore: `in_`. Numbers may
    be symbolic in `torch.compile`. Parameters that are read and written (`inout`)
    are mutated, and declared so.

    `name`: "namespace::name"; "kops_kernels::" and the kernel's name without it. An op that had the name is replaced.
    `fake`: makes the results, for torch.compile without data and for each call: a function of the op's arguments that returns an
    empty tensor, or a tuple of them, with shape, dtype and device of the results. Not needed where the signature has the
    results' sizes: `out float* y[n]`, `out float* y[h][w]`; expressions over the arguments (`[x.numel]`).
    `backward(ctx, *gradients)`: the gradients of the tensors among the arguments, or of all arguments, in order; one, or a tuple.
    `ctx.saved_tensors` are those tensors and `ctx.scalars` the numbers by name, unless `setup_context(ctx, inputs, output)` saves
    something else, as with `torch.library.register_autograd`. A kernel without `backward` runs, and raises `NotImplementedError` when its
    gradient is asked for. A kernel that mutates can have none.
    `interpret`: calls on CPU tensors run in the interpreter (`Kernel.interpret`), which checks every access and needs neither a GPU nor
    a daemon: for `torch.autograd.gradcheck` and `torch.library.opcheck`. Without it they go to the daemon, as calls of the kernel do.

    Returns torch's `OpOverload`. On CUDA tensors a call is ordered on torch's current stream; an error of the launch appears at a later
    call. vmap loops over the examples. Autocast leaves arguments as they are. Thread-safe. Raises `kops.BadArgument` and
    `kops.WrongType` for what cannot be an op."""
    kernel = kern._kernel if isinstance(kern, Bound) else kern
    if not isinstance(kernel, Kernel):
        raise WrongType(f"custom_op takes a kernel of Client.kernel or kops.kernel, not {type(kern).__name__}", {"key": "kern"})
    namespace, _, own = (name or f"{NAMESPACE}::{kernel.name}").rpartition("::")
    if not namespace.isidentifier() or not own.isidentifier():
        raise BadArgument(f'{namespace}::{own} cannot name an op: give name="namespace::name", of letters, digits and _', {"key": "name"})
    mutated = tuple(param.name for param in kernel.params if param.kind == "inout")
    if not any(param.is_tensor and param.kind != "out" for param in kernel.params):
        raise BadArgument(f"{kernel.name} takes no tensor that it reads: torch would not know where to run it", {"key": "kern"})
    if mutated and backward is not None:
        raise BadArgument(
            f"{kernel.name} writes to {', '.join(mutated)}, which autograd does not follow: mark what it only writes `out` in the "
            "signature, or leave backward= out",
            {"key": "backward"},
        )
    empty = fake if fake is not None else _by_signature(kernel)
    no_gradient = (
        f"{namespace}::{own} writes to {', '.join(mutated)}, which autograd does not follow: pass x.detach(), or call it in torch.no_grad()"
        if mutated
        else f"{namespace}::{own} has no derivative: give backward= to kops.torch.custom_op"
    )
    gradient = _gradient(kernel.params, backward, setup_context) if backward is not None else None
    names = _argument_names(kernel.params)
    written = tuple(names[param] for param in mutated)
    spec = Spec(schema(own, kernel.params), _run(kernel, kern, empty, interpret), empty, gradient, no_gradient, written, TAGS)
    with _lock:
        before = _libraries.pop(f"{namespace}::{own}", None)
        if before is not None:
            before._destroy()
        library = torch.library.Library(namespace, "FRAGMENT")
        op = register(library, namespace, spec)
        _libraries[f"{namespace}::{own}"] = library
    return op


# Kernels that are compiled and called as by torch.cuda._compile_kernel


class CompiledKernel:
    """A kernel that `compile_kernel` has made. Call it with `grid`, `block` and `args`. Thread-safe."""

    def __init__(self, untyped: Untyped) -> None:
        self._untyped = untyped

    def __call__(
        self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Sequence[Any] | None = None, shared_mem: int = 0, stream: Any = None
    ) -> None:
        """Launches it: `grid` in blocks, `block` in threads, `shared_mem` of a block in bytes. `args` are a tensor or None for each
        pointer and a number for each other parameter. Ordered on `stream`, a `torch.cuda.Stream`, or on torch's current one."""
        self._untyped(args or (), grid, block, shared_mem, stream)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Does nothing but look at the number: the daemon allows each launch the shared memory that it asks for, up to what the GPU has."""
        if shared_mem_bytes < 0:
            raise BadArgument(f"shared_mem_bytes must be 0 or more, not {shared_mem_bytes}", {"key": "shared_mem_bytes"})

    @property
    def attributes(self) -> Any:
        """A `kops.Entry`: registers, shared memory, spills…"""
        return self._untyped.attributes

    def __repr__(self) -> str:
        return f"<kops.torch kernel {self._untyped.entry}>"


def _arch(client: Any, capability: Any) -> str | None:
    """What to compile for: None for the daemon's GPU itself."""
    if capability is None:
        return None
    asked = str(capability)
    digits = asked.rstrip("abcdefghijklmnopqrstuvwxyz")
    if not digits.isdecimal():
        raise BadArgument(f"compute_capability must be like \"90\", not {asked!r}", {"key": "compute_capability"})
    here = [arch for arch in client._live().info.kernels.get("arch", ()) if arch]
    for arch in here:
        if arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz") == digits:
            return None
    if here:
        raise BadArgument(
            f"compute_capability {asked} is not that of the daemon's GPU ({', '.join(here)}), so the kernel could not be launched: "
            "leave it out",
            {"key": "compute_capability"},
        )
    return f"sm_{asked}"


def _device() -> str | None:
    """The UUID of torch's current device, where there are several."""
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        return None
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def compile_kernel(
    kernel_source: str, kernel_name: str, compute_capability: str | None = None,
    cuda_include_dirs: Iterable[str | os.PathLike[str]] | None = None, nvcc_options: Iterable[str] | None = None, *,
    client: Any = None, fallback: str | None = None,
) -> CompiledKernel:  # fmt: skip
    """As `torch.cuda._compile_kernel`, by the daemon, which compiles a source once for all processes and keeps it for its next start.

        add = kops.torch.compile_kernel(source, "add_tensors")
        add(grid=(4, 1, 1), block=(256, 1, 1), args=[a, b, c, a.numel()])

    `kernel_source`: CUDA C++. `kernel_name`: a `__global__` function, `extern "C"` or not, or an instantiation of a template,
    "scale<float>". `compute_capability`: the GPU's own, or None; for another one nothing could be launched. `cuda_include_dirs`: folders
    whose headers the source includes. The daemon reads no folder of yours: the included files are sent along, 64 at most, and CUDA's own
    headers are the daemon's. `nvcc_options`: NVRTC's, of those that the daemon allows; those without effect there are left out.
    `client`: that of `kops.torch.use` or the default one without it. `fallback="interpret"`: calls run on the CPU, checked, where the
    daemon has no GPU.

    Returns a callable, `kernel(grid=(1, 1, 1), block=(1, 1, 1), args=None, shared_mem=0, stream=None)`, whose launches are ordered on
    torch's current stream, or on `stream`, and return at once. What differs from torch's:

    - Numbers are converted to the type that the source declares: a Python float for a `float` is right, and a number that does not fit
      raises an error. None is a null pointer.
    - Tensors on the CPU are copied to the GPU and, where the parameter is no pointer to const, back; the call waits then.
    - A launch runs here, in this process's CUDA context, or in the daemon: where tiny launches were measured to take less time, as with
      `where="auto"` of a `kops.Kernel`. On a stream under capture it runs here. A kernel that faults here ends this process's context, as
      torch's does. One that faults in the daemon does not.
    - Errors are `kops.KopsError`, `kops.CompileFailed` of the compiler. Those of a launch in the daemon appear at a later call or at
      `client.synchronize()`.
    - More than 48 KiB of shared memory need no `set_shared_memory_config`.
    - Symbolic names, such as of `__constant__` variables, have no address here.

    The types of tensors are not compared with the source, as torch's does not. Raises `CompileFailed`, `BadArgument`, `WrongType`.
    """
    if not isinstance(kernel_source, str) or not isinstance(kernel_name, str):
        raise WrongType("kernel_source and kernel_name must be texts", {"key": "kernel_source"})
    chosen = client if client is not None else current_client()
    options, folders = of_nvcc(nvcc_options or ())
    files = headers(kernel_source, [*map(str, cuda_include_dirs or ()), *folders])
    name, arch = f"{kernel_name.partition('<')[0]}.cu", _arch(chosen, compute_capability)
    code = Code(kernel_source, kernel_name, options, files, name, arch, _device())
    untyped = Untyped(chosen, code, kernel_name, checked_fallback(fallback))
    if untyped.fallback is None or not lacks_gpu(chosen):
        _compile(untyped)
    return CompiledKernel(untyped)


def _compile(untyped: Untyped) -> None:
    try:
        untyped.compile()
    except CompileFailed as error:
        if "could not open source file" not in error.log and "cannot open source file" not in error.log:
            raise
        why = f"{error.message}. The daemon has CUDA's own headers; name the folders of others in cuda_include_dirs"
        raise CompileFailed(why, error.detail) from None
