"""What the declarations of ops do not say: derivatives, by op; autocast and vmap, by shape rule.

An op without an entry here works all the same, and says so where its derivative is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ._dispatch import Gradient

__all__ = ["AUTOCAST", "BATCHED", "GRADIENTS"]

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
