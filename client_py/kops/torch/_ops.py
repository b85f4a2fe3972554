"""`torch.ops.kops`, made from the op declarations: a new declaration needs no code here, only its derivative, in `_formulas`."""

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
from . import _clients
from ._dispatch import Spec, register, tags
from ._formulas import AUTOCAST, BATCHED, GRADIENTS
from ._graphs import TREES, captures, ordered, place, warms_up

__all__ = ["SCALED", "define"]

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
        "clients": _clients, "scaled": _run_scaled(name), "check_matrices": _check_matrices, "ordered": ordered(name),
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
        "clients": _clients, "TREES": TREES, "modules": sys.modules, "warms_up": warms_up, "Capturing": Capturing,
    }  # fmt: skip
    exec(compile(source, f"<torch.ops.{NAMESPACE}.{name}, quick>", "exec"), scope)
    quick: Callable[..., Any] = scope["quick"]
    return quick


def _run_scaled(name: str) -> Callable[..., Any]:
    """The op with the previous values of `out`, which are a copy."""
    call = ordered(name)

    def run(*inputs: Any, **attrs: Any) -> Any:
        start = attrs.pop(SCALED)
        (shape, dtype), first, client = _result(name, inputs, start, attrs), inputs[0], _clients.client()
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
