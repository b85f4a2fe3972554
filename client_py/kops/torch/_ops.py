"""`torch.ops.kops`, made from the op declarations: a new declaration needs no code here but its derivative. What the declarations do not
say comes first: derivatives, by op; autocast and vmap, by shape rule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._base.compiled import FAST_RULES
from .._base.declarations import OPS
from .._base.dtypes import NAMES
from .._base.errors import BadArgument, Capturing, ShapeMismatch
from .._calls import rules
from .._calls.ops import check_attrs, signature_source
from .._calls.rules import RULES, UNKNOWN, Rule, broadcast, check_inputs, own_dtypes, result_dtype
from .._tensors.operands import check_dtype, unknown_dtype
from . import _where
from ._dispatch import Gradient, Spec, register, tags
from ._where import TREES, captures, ordered, place, warms_up

__all__ = ["GRADIENTS", "SCALED", "define"]

_ops: Any = torch.ops.kops


def _summed(gradient: Any, shape: Sequence[int]) -> Any:
    """The gradient of a tensor that was broadcast: summed to the tensor's shape."""
    return gradient if gradient.shape == shape else gradient.sum_to_size(shape)


def _save_add(ctx: Any, inputs: Mapping[str, Any], output: Any) -> None:
    ctx.shapes = inputs["a"].shape, inputs["b"].shape


def _add(ctx: Any, gradient: Any) -> Sequence[Any]:
    return [_summed(gradient, shape) if needed else None for shape, needed in zip(ctx.shapes, ctx.needs_input_grad[1:])]


def _save_square(ctx: Any, inputs: Mapping[str, Any], output: Any) -> None:
    ctx.save_for_backward(inputs["a"])


def _square(ctx: Any, gradient: Any) -> Sequence[Any]:
    (a,) = ctx.saved_tensors
    return (gradient * (2 * a),)


def _save_two(ctx: Any, inputs: Mapping[str, Any], output: Any) -> None:
    ctx.save_for_backward(inputs["a"], inputs["b"])


def _add_square(ctx: Any, gradient: Any) -> Sequence[Any]:
    a, b = ctx.saved_tensors
    scaled = gradient * (2 * (a + b))
    return [_summed(scaled, x.shape) if needed else None for x, needed in zip((a, b), ctx.needs_input_grad[1:])]


def _sub_square(ctx: Any, gradient: Any) -> Sequence[Any]:
    a, b = ctx.saved_tensors
    scaled = gradient * (2 * (a - b))
    of_a, of_b = ctx.needs_input_grad[1:]
    return _summed(scaled, a.shape) if of_a else None, _summed(-scaled, b.shape) if of_b else None


def _save_gemm(ctx: Any, inputs: Mapping[str, Any], output: Any) -> None:
    ctx.save_for_backward(inputs["a"], inputs["b"])
    ctx.c_shape = None if inputs["c"] is None else inputs["c"].shape
    ctx.attrs = {name: inputs[name] for name in ("trans_a", "trans_b", "alpha", "beta", "precision")}


def _gemm(ctx: Any, gradient: Any) -> Sequence[Any]:
    a, b = ctx.saved_tensors
    of_a, of_b = _products(ctx, gradient.to(a.dtype), a, b)  # `out_dtype` may have been another
    of_c = None
    if ctx.c_shape is not None and ctx.needs_input_grad[3]:
        of_c = _summed(gradient * ctx.attrs["beta"], ctx.c_shape)
    return of_a, of_b, of_c


def _products(ctx: Any, gradient: Any, a: Any, b: Any) -> Sequence[Any]:
    """With P = op(A) op(B) and its gradient G: that of op(A) is G op(B)ᵀ, that of op(B) op(A)ᵀ G, each transposed where op does."""
    trans_a, trans_b = ctx.attrs["trans_a"], ctx.attrs["trans_b"]
    needs = ctx.needs_input_grad[1:]

    def product(x: Any, y: Any, trans_x: bool, trans_y: bool, shape: Sequence[int]) -> Any:
        scaled = {"alpha": ctx.attrs["alpha"], "precision": ctx.attrs["precision"]}
        return _summed(_ops.gemm(x, y, trans_a=trans_x, trans_b=trans_y, **scaled), shape)

    of_a = of_b = None
    if needs[0]:
        of_a = product(b, gradient, trans_b, True, a.shape) if trans_a else product(gradient, b, False, not trans_b, a.shape)
    if needs[1]:
        of_b = product(gradient, a, True, trans_a, b.shape) if trans_b else product(a, gradient, not trans_a, False, b.shape)
    return of_a, of_b


def _save_linear(ctx: Any, inputs: Mapping[str, Any], output: Any) -> None:
    ctx.save_for_backward(inputs["a"], inputs["b"], inputs["bias"])
    ctx.attrs = {name: inputs[name] for name in ("trans_a", "trans_b", "alpha", "precision")}
    ctx.activation = inputs["activation"]


_DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda gradient, x: torch.ops.aten.threshold_backward(gradient, x, 0),
    "gelu": lambda gradient, x: torch.ops.aten.gelu_backward(gradient, x, approximate="none"),
    "gelu_tanh": lambda gradient, x: torch.ops.aten.gelu_backward(gradient, x, approximate="tanh"),
}


def _linear(ctx: Any, gradient: Any) -> Sequence[Any]:
    """That of the sum before the activation, whose value is computed again and not rounded; then a product's."""
    a, b, bias = ctx.saved_tensors
    if ctx.activation != "none":
        wide = torch.float32 if a.dtype.itemsize == 2 else a.dtype
        sums = _ops.linear(a, b, bias, **ctx.attrs, out_dtype=wide)
        gradient = _DERIVATIVES[ctx.activation](gradient.to(wide), sums)
    of_a, of_b = _products(ctx, gradient.to(a.dtype), a, b)
    return of_a, of_b, _summed(gradient, bias.shape).to(bias.dtype) if ctx.needs_input_grad[3] else None


def _save_copy(ctx: Any, inputs: Mapping[str, Any], output: Any) -> None:
    pass


def _copy(ctx: Any, gradient: Any) -> Sequence[Any]:
    return (gradient,)


GRADIENTS = {
    "add": Gradient(_save_add, _add), "copy": Gradient(_save_copy, _copy), "square": Gradient(_save_square, _square),
    "gemm": Gradient(_save_gemm, _gemm), "linear": Gradient(_save_linear, _linear),
    "add_square": Gradient(_save_two, _add_square), "sub_square": Gradient(_save_two, _sub_square),
}  # fmt: skip


# Autocast, as torch does it for its own ops: products are computed in the lower precision, sums in the widest type
# among the operands.


def _castable(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device and value.is_floating_point()


def lower(values: Sequence[Any], device: str) -> list[Any]:
    """Floats as autocast's dtype, but for those of 64 bits."""
    dtype = torch.get_autocast_dtype(device)
    return [v.to(dtype) if _castable(v, device) and v.dtype != torch.float64 else v for v in values]


def widest(values: Sequence[Any], device: str) -> list[Any]:
    """Floats as the widest dtype among them."""
    found = [v.dtype for v in values if _castable(v, device)]
    dtype = found[0] if found else None
    for other in found:
        dtype = torch.promote_types(dtype, other)
    return [v.to(dtype) if _castable(v, device) else v for v in values]


# scaled_gemm has no entry: an 8-bit tensor with its scale cannot have another dtype.
AUTOCAST: dict[str, Callable[[Sequence[Any], str], list[Any]]] = {"elementwise": widest, "gemm": lower, "linear": lower}


# vmap: rules for ops whose inputs have leading dimensions that broadcast. The mapped dimension is put before them.


def _aligned(value: Any, dimension: int | None, rank: int) -> Any:
    """`value` with its mapped dimension first, and as many after it as the largest input has."""
    if dimension is None:
        return value
    value = value.movedim(dimension, 0)
    missing = rank - (value.dim() - 1)
    return value.reshape(value.shape[0], *(1,) * missing, *value.shape[1:]) if missing > 0 else value


def _broadcasting(op: Any) -> Callable[..., Any]:
    def rule(info: Any, dimensions: Sequence[Any], *inputs: Any, **attrs: Any) -> tuple[Any, int]:
        tensors = [(v, d) for v, d in zip(inputs, dimensions) if isinstance(v, torch.Tensor)]
        rank = max(v.dim() - (d is not None) for v, d in tensors)
        aligned = [_aligned(v, d, rank) if isinstance(v, torch.Tensor) else v for v, d in zip(inputs, dimensions)]
        return op(*aligned, **attrs), 0

    return rule


def _product(op: Any) -> Callable[..., Any]:
    """A product has the leading dimensions of its first two inputs: where only another one is mapped, the first one is repeated."""
    broadcasting = _broadcasting(op)

    def rule(info: Any, dimensions: Sequence[Any], *inputs: Any, **attrs: Any) -> tuple[Any, int]:
        if dimensions[0] is None and dimensions[1] is None:
            first = inputs[0].expand(info.batch_size, *inputs[0].shape)
            dimensions, inputs = (0, *dimensions[1:]), (first, *inputs[1:])
        made: tuple[Any, int] = broadcasting(info, dimensions, *inputs, **attrs)
        return made

    return rule


BATCHED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "elementwise": _broadcasting, **dict.fromkeys(("gemm", "linear", "scaled_gemm"), _product)
}  # fmt: skip


NAMESPACE = "kops"
_DECLARED: Mapping[str, Any] = OPS
SCALED = "c"  # the input that an op has for the previous values of `out`, where it can read them
_TYPES = {"bool": "bool", "float": "float", "int": "int", "choice": "str"}
_DTYPES = {getattr(torch, name): short for short, name in NAMES.items() if hasattr(torch, name)}
TAGS = tags("pt2_compliant_tag")


def dtype_name(dtype: Any) -> str:
    try:
        return _DTYPES[dtype]
    except KeyError:
        raise unknown_dtype(dtype) from None


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _attributes(declared: Mapping[str, Any], out: bool) -> list[str]:
    made = [f"{_TYPES[attr['type']]} {attr['name']}={_literal(attr['default'])}" for attr in declared["attrs"]]
    return made + ([f"ScalarType? {rules.OUT_DTYPE}=None"] if "out_dtypes" in declared and not out else [])


def schema(name: str, out: bool = False) -> str:
    """An op's schema, of the form that makes its results, or of the one that writes to `out`."""
    declared = _DECLARED[name]
    inputs = [f"Tensor {tensor}" for tensor in declared["inputs"]]
    outs = [f"Tensor({chr(ord('a') + i)}!) {tensor}" for i, tensor in enumerate(declared["outputs"])] if out else []
    if not out and _rule(name).out_scale is not None:
        inputs.append(f"Tensor? {SCALED}=None")
    keywords = _attributes(declared, out) + outs
    given = ", ".join(inputs + (["*", *keywords] if keywords else []))
    made = "Tensor" if len(declared["outputs"]) == 1 else f"({', '.join('Tensor' for _ in declared['outputs'])})"
    return f"{name}{'.out' if out else ''}({given}) -> {'()' if out else made}"


def _rule(name: str) -> Rule:
    return RULES.get(_DECLARED[name]["rule"], UNKNOWN)


def _split(name: str, arguments: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """The inputs, and the tensor that `out` is to start from."""
    count = len(_DECLARED[name]["inputs"])
    return arguments[:count], arguments[count] if len(arguments) > count else None


def _check_matrices(name: str, inputs: Sequence[Any]) -> None:
    """The methods of a client take vectors, too; an op of torch has one form of each derivative."""
    if any(tensor.dim() < 2 for tensor in inputs[:2]):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in inputs[:2])
        raise ShapeMismatch(f"torch.ops.{NAMESPACE}.{name} takes matrices, and these are {shapes}: make a vector one with unsqueeze()")


def _result(name: str, inputs: Sequence[Any], start: Any, attrs: Mapping[str, Any]) -> tuple[tuple[int, ...], Any]:
    """The shape and the dtype of the results. Raises what a call would raise: DtypeMismatch, ShapeMismatch, UnknownDtype, BadArgument."""
    rule = _rule(name)
    plain, wanted = rules.without_out_dtype(name, attrs, None)
    checked = check_attrs(name, dict(plain), None)
    dtypes = [dtype_name(tensor.dtype) for tensor in inputs]
    for dtype, own in zip(dtypes, own_dtypes(name) or [()] * len(dtypes), strict=True):
        if not own:
            check_dtype(name, dtype)
    reads = rule.reads_out(checked)
    if reads and start is None:
        raise BadArgument(
            f"{name} with {rule.out_scale} reads what it scales: give {SCALED}, or call torch.ops.{NAMESPACE}.{name}.out",
            {"key": SCALED},
        )
    result = rules.out_dtype_of(name, check_inputs(name, dtypes), wanted)
    if reads and dtype_name(start.dtype) != result:  # autocast makes `c` of the inputs' dtype
        result_dtype([*dtypes, dtype_name(start.dtype)])
    if rule.vectors:
        _check_matrices(name, inputs)
    shape = rule.out_shape([tensor.shape for tensor in inputs], checked)
    if reads and tuple(broadcast(shape, start.shape)) != tuple(shape):
        raise ShapeMismatch(f"{name}: {SCALED} of shape {tuple(start.shape)} does not broadcast to that of the result, {tuple(shape)}")
    return shape, getattr(torch, NAMES[result])


def _fake(name: str) -> Callable[..., Any]:
    count = len(_DECLARED[name]["outputs"])

    def fake(*arguments: Any, **attrs: Any) -> Any:
        inputs, start = _split(name, arguments)
        shape, dtype = _result(name, inputs, start, attrs)
        made = tuple(inputs[0].new_empty(shape, dtype=dtype) for _ in range(count))
        return made[0] if count == 1 else made

    return fake


def _run(name: str) -> Callable[..., Any]:
    """The op by the client in use, made from source as its method is."""
    inputs, attributes = signature_source(name)
    scale, names = _rule(name).out_scale, [attr["name"] for attr in _DECLARED[name]["attrs"]]
    if rules.takes_out_dtype(name):
        attributes += f"{rules.OUT_DTYPE}=None, "
        names.append(rules.OUT_DTYPE)
    given = ", ".join([inputs, *(f"{attr}={attr}" for attr in names)])
    lines = [f"def run({inputs}{f', {SCALED}=None' if scale else ''}{f', *, {attributes}' if attributes else ''}):"]
    if _rule(name).vectors:
        few = " or ".join(f"{tensor}.dim() < 2" for tensor in _DECLARED[name]["inputs"][:2])
        lines.append(f"    if {few}: check_matrices({name!r}, ({inputs},))")
    if scale:
        lines.append(f"    if {scale}: return scaled({given}, {SCALED}={SCALED})")
    first = _DECLARED[name]["inputs"][0]
    lines += [
        f"    if TREES in modules and warms_up({first}): return ordered({given})",
        "    used = clients._used",
        "    if used is None or used._closed: used = clients.client()",
        f"    if used._may_tell_of_turns and {first}.is_cuda: tell_of_turns(used, {first})",
        f"    try: return used.{name}({given}, where='daemon' if used.where == 'daemon' else place(used, {name!r}, {first}))",
        "    except Capturing: pass",
        f"    return ordered({given})",
    ]
    scope: dict[str, Any] = {
        "clients": _where, "scaled": _run_scaled(name), "check_matrices": _check_matrices, "ordered": ordered(name),
        "TREES": TREES, "modules": sys.modules, "warms_up": warms_up, "Capturing": Capturing, "place": place,
        "tell_of_turns": tell_of_turns,
    }  # fmt: skip
    exec(compile("\n".join(lines), f"<torch.ops.{NAMESPACE}.{name}>", "exec"), scope)
    run: Callable[..., Any] = scope["run"]
    return run


def tell_of_turns(client: Any, first: Any) -> None:
    if not captures(first):
        client._tell_of_turns((first,))


def _quick(name: str) -> Callable[..., Any] | None:
    """The op without attributes, by the extension alone, on the current stream; None for an op that it does not know so."""
    rule = FAST_RULES.get(name, 0)
    if not rule or name in rules.OTHER_DTYPES:
        return None
    inputs = ", ".join(_DECLARED[name]["inputs"])
    # A product under capture may be torch's own, which the longer way finds out.
    elsewhere = "NotImplemented" if name == "gemm" else f"NotImplemented if used._closed else used.{name}({inputs})"
    source = (
        f"def quick({inputs}):\n"
        "    used = clients._used\n"
        f"    if used is None or (TREES in modules and warms_up({_DECLARED[name]['inputs'][0]})): return NotImplemented\n"
        f"    if used.where != 'daemon': return {elsewhere}\n"
        f"    try: return used._at_once({name!r}, ({inputs},), {rule})\n"
        "    except Capturing: return NotImplemented\n"
    )
    scope: dict[str, Any] = {
        "clients": _where, "TREES": TREES, "modules": sys.modules, "warms_up": warms_up, "Capturing": Capturing,
    }  # fmt: skip
    exec(compile(source, f"<torch.ops.{NAMESPACE}.{name}, quick>", "exec"), scope)
    quick: Callable[..., Any] = scope["quick"]
    return quick


def _run_scaled(name: str) -> Callable[..., Any]:
    """The op with the previous values of `out`, which are a copy."""
    call = ordered(name)

    def run(*inputs: Any, **attrs: Any) -> Any:
        start = attrs.pop(SCALED)
        (shape, dtype), first, client = _result(name, inputs, start, attrs), inputs[0], _where.client()
        attrs.pop(rules.OUT_DTYPE, None)
        out = client.empty(shape, dtype) if first.device.type == "cpu" else first.new_empty(shape, dtype=dtype)
        return call(*inputs, out=out.copy_(start), **attrs)

    return run


def _run_out(name: str) -> Callable[..., Any]:
    outputs, call = _DECLARED[name]["outputs"], ordered(name)

    def run(*inputs: Any, **named: Any) -> None:
        if _rule(name).vectors:
            _check_matrices(name, inputs)
        outs = tuple(named.pop(output) for output in outputs)
        call(*inputs, out=outs[0] if len(outs) == 1 else outs, **named)

    return run


def _autocast(op: Any, cast: Callable[[Sequence[Any], str], list[Any]], device: str) -> Callable[..., Any]:
    def call(*arguments: Any, **attrs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return op(*cast(arguments, device), **attrs)

    return call


def define(library: Any, name: str) -> None:
    """Registers an op of the declarations, and its form with `out`."""
    declared, rule = _DECLARED[name], _DECLARED[name]["rule"]
    no_gradient = f"torch.ops.{NAMESPACE}.{name} has no derivative: pass x.detach(), or write the derivative with torch.autograd.Function"
    spec = Spec(
        schema(name), _run(name), _fake(name), GRADIENTS.get(name), no_gradient, tags=TAGS, autocast=rule in AUTOCAST, quick=_quick(name)
    )  # fmt: skip
    op = register(library, NAMESPACE, spec)
    if rule in BATCHED:
        torch.library.register_vmap(f"{NAMESPACE}::{name}", BATCHED[rule](op), lib=library)
    if rule in AUTOCAST:
        for device in ("cpu", "cuda"):
            library.impl(name, _autocast(op, AUTOCAST[rule], device), f"Autocast{device.upper()}")
    refusal = f"torch.ops.{NAMESPACE}.{name}.out writes to a tensor, which autograd does not follow: pass x.detach(), or leave out= out"
    out = Spec(schema(name, out=True), _run_out(name), lambda *inputs, **named: None, None, refusal, tuple(declared["outputs"]), TAGS)
    register(library, NAMESPACE, out)
