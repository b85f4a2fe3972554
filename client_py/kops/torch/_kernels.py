"""Kernels of users as torch's ops."""

from __future__ import annotations

import keyword
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._base.dtypes import NAMES
from .._base.errors import BadArgument, WrongType
from .._calls.launch import CODE_FEATURE
from .._kernels.kernels import Bound, Kernel
from .._source.signature import Param
from ._dispatch import Gradient, Spec, register, tags
from ._graphs import TREES, launches_here

__all__ = ["custom_op"]

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
