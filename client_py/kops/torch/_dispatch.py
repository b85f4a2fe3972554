"""One op, registered with torch's dispatcher: its kernels for CPU and CUDA, what they mean to autograd, to torch.compile and vmap.

A call from Python with tensors by position alone does not pass the dispatcher where nothing in it could see the call: no gradient, mode,
transform, autocast, tracer or profiler. The compiled part asks, `native.Shortcut`, and tries the op's `quick` way before `run`. (An
`ExecutionTraceObserver` without a profiler sees the overloads alone, `add.default`.) Through the dispatcher an op costs what a
launch does. Otherwise the call passes it once: the kernel at the autograd keys runs the op at once where nothing below it could see the
call. Every other call goes on below autograd, through the dispatcher, by a `torch.autograd.Function` where gradients are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from .._base.compiled import native

DEVICES = ("CPU", "CUDA")
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))

_C: Any = torch._C
# Tells whether something between autograd and the device would see a call: a dispatch mode (fake tensors,
# functionalisation, tracing), a transform of torch.func. Where torch has no such functions, every call goes through the
# dispatcher twice.
_modes: Callable[[], int] = getattr(_C, "_len_torch_dispatch_stack", lambda: 1)
_transforms: Callable[[], bool] = getattr(_C, "_are_functorch_transforms_active", lambda: True)
_SingleLevel: Any = getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)
_forward_ad: Any = torch.autograd.forward_ad
# Tells whether something above autograd would see a call: a function mode (asked with a plain tensor), autocast,
# torch.jit's tracer, a profiler. Where torch has no such functions, every call goes through the dispatcher.
_watched: Callable[[Any], bool] = getattr(_C, "_has_torch_function_unary", lambda value: True)
_autocasts: Callable[[], bool] = getattr(_C, "_is_any_autocast_enabled", lambda: True)
_traced: Callable[[], bool] = getattr(_C, "_is_tracing", lambda: True)
_profiled: Callable[[], bool] = getattr(_C._autograd, "_profiler_enabled", lambda: True)


class Gradient(NamedTuple):
    """How an op is differentiated. `save(ctx, inputs, output)` keeps what `backward(ctx, *gradients)` needs, which returns one
    gradient, or None, for each input. `inputs` are all arguments by name."""

    save: Callable[[Any, Mapping[str, Any], Any], None]
    backward: Callable[..., Sequence[Any]]


class Spec(NamedTuple):
    """What is registered. `run` computes, on real tensors; `fake` makes empty results, on tensors without data."""

    schema: str
    run: Callable[..., Any]
    fake: Callable[..., Any] | None
    gradient: Gradient | None
    no_gradient: str  # message where a gradient is asked for and there is none
    mutates: tuple[str, ...] = ()
    tags: tuple[Any, ...] = ()
    autocast: bool = True  # whether it has, or may get, kernels for torch.autocast
    quick: Callable[..., Any] | None = None  # `run` for plain tensors, given by position, where it is shorter; else NotImplemented


def tags(*names: str) -> tuple[Any, ...]:
    """Those of torch's tags that this torch has."""
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def register(library: Any, namespace: str, spec: Spec) -> Any:
    """Defines and implements an op; returns torch's callable for it."""
    library.define(spec.schema, tags=spec.tags)
    name = spec.schema.partition("(")[0]
    qualified = f"{namespace}::{name}"
    packet, _, overload = name.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    run = _counted(spec) if spec.mutates else spec.run
    for device in DEVICES:
        library.impl(name, run, device)
    if spec.fake is not None:
        torch.library.register_fake(qualified, spec.fake, lib=library)
    differentiated = _refusing(op, spec) if spec.mutates else _function(op, spec)
    names = [argument.name for argument in op._schema.arguments if _is_tensor(argument)]
    kernel = _at_autograd(op, names, run, differentiated)
    for device in DEVICES:
        library.impl(name, kernel, f"Autograd{device}")
    library.impl(name, differentiated, "Autograd")  # on other devices
    if not overload:
        _shorten(getattr(getattr(torch.ops, namespace), packet), op, run, spec)
    return op


def _is_tensor(argument: Any) -> bool:
    return str(argument.type) in ("Tensor", "Optional[Tensor]")


def _counted(spec: Spec) -> Callable[..., Any]:
    """`run`, which says that it has written to tensors: autograd finds out that what it saved has changed."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        made = spec.run(*arguments, **keywords)
        given = dict(zip(names, arguments)) | keywords
        for name in spec.mutates:
            if not given[name].is_inference():
                torch.autograd.graph.increment_version(given[name])
        return made

    names = parameters(spec.schema)
    return run


def parameters(schema: str) -> list[str]:
    """The names of a schema's arguments, in order."""
    return [argument.name for argument in _C.parse_schema(schema).arguments]


_SCOPE: Mapping[str, Any] = {
    "plain": PLAIN, "modes": _modes, "transforms": _transforms, "forward_ad": _forward_ad, "grad": torch.is_grad_enabled,
}  # fmt: skip


def _local(i: int) -> str:
    """An argument in generated source: the names of kernels' parameters may be those that the source uses itself."""
    return f"argument_{i}"


def _shorten(packet: Any, op: Any, run: Callable[..., Any], spec: Spec) -> None:
    """Lets calls of the packet, `torch.ops.kops.add(a, b)`, run the op at once where nothing in the dispatcher would see them. The
    compiled part asks; without it calls go through the dispatcher, whose cost is not what they wait for then."""
    required = [argument for argument in op._schema.arguments if not argument.has_default_value() and not argument.kwarg_only]
    if native is None or not required or not all(str(argument.type) == "Tensor" for argument in required):
        return
    kind = torch._ops.OpOverloadPacket
    questions = (_modes, _transforms, *((_autocasts,) if spec.autocast else ()), _traced, _profiled)
    seen = (questions, _watched, torch.is_grad_enabled, vars(_forward_ad))
    original = partial(kind.__call__, packet)
    shortcut = native.Shortcut(tuple(PLAIN), len(required), *seen, spec.quick, run, original)
    packet.__class__ = type(kind.__name__, (kind,), {"__call__": shortcut, "__module__": kind.__module__})


def _at_autograd(op: Any, tensors: list[str], run: Callable[..., Any], differentiated: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of the autograd keys. It is made from source, as the methods of a client are: this is the way of every call."""
    positional: list[tuple[str, str]] = []
    named: list[tuple[str, str]] = []
    scope: dict[str, Any] = {**_SCOPE, "run": run, "differentiated": differentiated}
    local: dict[str, str] = {}
    for i, argument in enumerate(op._schema.arguments):
        shown = name = local[argument.name] = argument.name if argument.kwarg_only else _local(i)
        if argument.has_default_value():
            scope[f"default_{i}"] = argument.default_value
            shown = f"{name}=default_{i}"
        (named if argument.kwarg_only else positional).append((name, shown))
    declared = ", ".join([shown for _, shown in positional] + (["*"] if named else []) + [shown for _, shown in named])
    passed = ", ".join([name for name, _ in positional] + [f"{name}={name}" for name, _ in named])
    optional = {local[argument.name] for argument in op._schema.arguments if str(argument.type) == "Optional[Tensor]"}
    tensors = [local[name] for name in tensors]
    types = " and ".join(f"({n} is None or type({n}) in plain)" if n in optional else f"type({n}) in plain" for n in tensors)
    asked = " or ".join(f"({n} is not None and {n}.requires_grad)" if n in optional else f"{n}.requires_grad" for n in tensors)
    source = (
        f"def kernel({declared}):\n"
        f"    if {types} and not modes() and not transforms() and forward_ad._current_level < 0 and not (({asked}) and grad()):\n"
        f"        return run({passed})\n"
        f"    return differentiated({passed})\n"
    )
    exec(compile(source, f"<{op}>", "exec"), scope)
    kernel: Callable[..., Any] = scope["kernel"]
    return kernel


def _asked(values: Sequence[Any]) -> bool:
    """Gradients are asked for, in either direction."""
    given = [value for value in values if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(value.requires_grad for value in given):
        return True
    return _forward_ad._current_level >= 0 and any(_forward_ad.unpack_dual(value).tangent is not None for value in given)


def _one_level() -> Any:
    """Transforms of torch.func call the autograd kernel once for each of their levels, as they do for torch's own ops. So the
    function is of that level alone, and does not start the transforms anew."""
    from torch._functorch.utils import enable_single_level_autograd_function

    return enable_single_level_autograd_function()


def _refusing(op: Any, spec: Spec) -> Callable[..., Any]:
    """For an op that writes to its arguments."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        if _asked([*arguments, *keywords.values()]):
            raise RuntimeError(spec.no_gradient)
        with _C._AutoDispatchBelowAutograd():
            return op(*arguments, **keywords)

    return call


def _function(op: Any, spec: Spec) -> Callable[..., Any]:
    """For an op that writes to nothing: by a `torch.autograd.Function` where gradients are asked for."""
    names = [argument.name for argument in op._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in op._schema.arguments if argument.has_default_value()}

    def forward(keywords: dict[str, Any], *arguments: Any) -> Any:
        with _C._AutoDispatchBelowAutograd():
            return op(*arguments, **keywords)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if spec.gradient is not None:
            ctx.inputs_given = len(inputs) - 1
            spec.gradient.save(ctx, {**defaults, **dict(zip(names, inputs[1:])), **inputs[0]}, output)

    def backward(ctx: Any, *gradients: Any) -> Any:
        if spec.gradient is None:
            raise NotImplementedError(spec.no_gradient)
        made = tuple(spec.gradient.backward(ctx, *gradients))
        return (None, *made[: ctx.inputs_given])

    def call(*arguments: Any, **keywords: Any) -> Any:
        if _asked(arguments):
            if not _transforms():
                return function.apply(keywords, *arguments)
            with _one_level():
                return of_one_level.apply(keywords, *arguments)
        with _C._AutoDispatchBelowAutograd():
            return op(*arguments, **keywords)

    members = {"forward": staticmethod(forward), "setup_context": staticmethod(setup_context), "backward": staticmethod(backward)}
    function: Any = type(f"kops_{op._opname}", (torch.autograd.Function,), members)
    of_one_level: Any = type(f"kops_{op._opname}", (_SingleLevel,), members)
    return call
