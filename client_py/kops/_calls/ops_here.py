"""Ops in a CUDA context of this process, by the daemon's own kernels, which are handed out once a process. Every call is checked
and planned by the daemon's own rules, which the compiled part of the package has."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .._base.compiled import fast_types, native, pack
from .._base.declarations import OPS
from .._base.dtypes import NAMES
from .._base.errors import BadArgument, ReadOnly, ShapeMismatch, Unsupported, WrongType
from .._base.results import Timing
from .._memory.exports import allocations
from .._memory.pool import code_file
from .._session.link import Call, Link
from .._tensors.adapters import adapter_of
from .._tensors.operands import Layout, Operands, as_dtype, widened_sizes
from . import contexts, rules
from .contexts import Place, place, torch_device_of
from .ops import NUMBERS
from .plans import Plan

FEATURE = "images"
_DECLARED: Mapping[str, Any] = OPS
BLASLT = "cublaslt"  # the daemon's variant that is not its own kernel


def offered(connection: Link) -> bool:
    return contexts.offered(connection, FEATURE)


def uses_blaslt(connection: Link, op: str, arrays: Sequence[Any]) -> bool:
    """Whether the daemon gives the op to cuBLASLt on the arrays' device, whose kernels are not handed out."""
    device, info = torch_device_of(arrays), connection.info
    known = None if info is None else info.ops.get(op)
    if known is None or device is None:
        return False
    return known.variants.get(allocations.driver.uuid(device), ())[:1] == (BLASLT,)


def chosen(client: Any, connection: Link, op: str, arrays: tuple[Any, ...]) -> Place:
    """Where `where="auto"` runs an op."""
    if uses_blaslt(connection, op, arrays):
        made = Place("daemon", f"the daemon's {op} is cuBLASLt's, which is faster than the kernel that is launched here")
    else:
        made = place(client, connection, arrays, FEATURE)
    _remember(client, op, arrays, made)
    return made


def _remember(client: Any, op: str, arrays: tuple[Any, ...], made: Place) -> None:
    """Tells the extension what "auto" is for such calls, until the client connects anew: torch CUDA tensors alone are its own, and what
    was not measured yet may be measured later."""
    device = torch_device_of(arrays)
    number = NUMBERS.get(op)
    if client._ops_here is None or device is None or number is None or not made.stays or type(arrays[0]) not in fast_types:
        return
    if all(type(value) in fast_types and value.device.type == "cuda" for value in arrays):
        client._ops_here.decide(number, device, made.where == "here")


def fetch(connection: Link, op: str, name: str) -> Plan:
    """Has a binary of the daemon's kernels handed out."""
    contexts.need(connection, op, FEATURE)
    told = yield Call("code", {"image": name})
    native.check_layout(told["layout"])
    with code_file(told["bytes"]) as fd:
        reply = yield Call("code", {"image": name, "fd": 0, "nfds": 1}, (fd,))
        native.keep_image(name, fd, reply["bytes"])


def tell(client: Any) -> None:
    """Tells the daemon of the ops that were launched here since the last time, for its statistics: without waiting."""
    connection = client._connection
    if client._ops_here is None or connection is None or not connection.alive:
        return
    for params in client._ops_here.tell():
        connection.tell("launched", params)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not adapter_of(value).plain


def _not_here(op: str, what: str) -> WrongType:
    return WrongType(
        f'{op}: {what} is not in device memory, where a launch here finds it: pass a CUDA tensor, or leave where="daemon", which copies '
        "arrays"
    )


def _inputs(op: str, values: tuple[Any, ...], rule: rules.Rule) -> tuple[tuple[Any, ...], Any]:
    """The inputs as arrays in device memory, and the first of those that were given."""
    names = _DECLARED[op]["inputs"]
    rules.check_count(op, len(values))
    like = next((value for value in values if _is_array(value) and contexts.on_device(value)), None)
    made = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if contexts.on_device(value):
            made.append(contexts.settled(f"{op}: {name}", value))
        elif like is None or _is_array(value) or not adapter_of(value).number:
            raise _not_here(op, name)
        elif not rule.broadcasts and rules.own_dtype(op, i) is None:
            raise WrongType(f"{op} takes arrays, and no numbers beside them")
        else:
            made.append(_number(op, name, value, like, rules.own_dtype(op, i)))
    return tuple(made), like


def _number(op: str, name: str, value: Any, like: Any, dtype: str | None) -> Any:
    """A number as a tensor; the fill is put on the stream, or into the graph, as the launch is."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(like, torch.Tensor):
        raise _not_here(op, name)
    return torch.full((), value, dtype=getattr(torch, NAMES[dtype]) if dtype else like.dtype, device=like.device)


def _layout(value: Any) -> Layout:
    return adapter_of(value).layout(value, staged=False)


def _shape(value: Any) -> tuple[int, ...]:
    torch = sys.modules.get("torch")
    return tuple(value.shape) if torch is not None and isinstance(value, torch.Tensor) else tuple(_layout(value).shape)


def _allocate(op: str, like: Any, shape: tuple[int, ...], wanted: str | None) -> Any:
    """A new array of the framework and on the device of `like`, of the dtype of the op's results."""
    torch = sys.modules.get("torch")
    plain = wanted is None and not rules.takes_out_dtype(op)
    if plain and torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    adapter, operands = adapter_of(like), Operands()
    of = adapter.operand(like, operands)
    return adapter.allocate(as_dtype(of, rules.out_dtype_of(op, of.dtype, wanted)), shape, operands).value


def _check_writable(value: Any) -> None:
    """What an adapter refuses as an output, which is not asked for an operand here."""
    if hasattr(value, "is_neg"):
        if value.is_neg():
            raise BadArgument("out is a negated view: pass a tensor of its own")
    elif value.__cuda_array_interface__["data"][1]:
        raise ReadOnly("out is a read-only array")


def _as_matrix(value: Any, row: bool, column: bool) -> Layout:
    """A vector as the matrix that the op takes."""
    layout = _layout(value)
    shape, strides = widened_sizes(layout.shape, layout.strides, row, column)
    return layout._replace(shape=shape, strides=strides)


def _prepare(
    op: str, values: tuple[Any, ...], out: Any, attrs: Mapping[str, Any], wanted: str | None
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """The inputs and the outputs of one call as the caller knows them, and all of them as the op takes them."""
    rule = rules.RULES[_DECLARED[op]["rule"]]
    inputs, like = _inputs(op, values, rule)
    shapes = [_shape(value) for value in inputs]
    row, column = rules.vectors_among(op, _DECLARED[op]["inputs"], shapes, attrs) if rule.vectors else (False, False)
    taken: list[Any] = list(inputs)
    if row:
        shapes[0], taken[0] = (1, *shapes[0]), _as_matrix(taken[0], True, False)
    if column:
        shapes[1], taken[1] = (*shapes[1], 1), _as_matrix(taken[1], False, True)
    shape = rules.of_vectors(rule.out_shape(shapes, attrs), row, column)
    names = _DECLARED[op]["outputs"]
    if out is None:
        rule.check_no_out(op, attrs)
        outputs = tuple(_allocate(op, like, shape, wanted) for _ in names)
    else:
        outputs = tuple(out) if isinstance(out, (tuple, list)) and len(names) != 1 else (out,)
        for value in outputs:
            _check_output(op, value, shape if row or column else None)
    return inputs, outputs, (*taken, *(_as_matrix(value, row, column) if row or column else value for value in outputs))


def _check_output(op: str, value: Any, shape: tuple[int, ...] | None) -> None:
    """Checks an array of `out=`; `shape`: what it must have where an input is a vector."""
    if not contexts.on_device(value):
        raise _not_here(op, "out")
    contexts.settled(f"{op}: out", value, written=True)
    _check_writable(value)
    if shape is not None and _shape(value) != shape:
        raise ShapeMismatch(f"{op} of these has shape {shape}, but out= {_shape(value)}")


def launch(
    client: Any, op: str, values: tuple[Any, ...], out: Any, attrs: Mapping[str, Any], timing: Timing, timeout: Any, sent: int | None
) -> Any:
    """Puts the op on the caller's stream; the result, with its Timings when they are asked for, and then it has ended."""
    contexts.exact_is_not_here(timing)
    if op not in OPS:
        raise Unsupported(f"{op} cannot be launched here: this client does not know it. Leave out where=", {"op": op})
    if native is None:
        contexts.need(client._live(), op, FEATURE)
    client._flush_batch()
    attrs, wanted = rules.without_out_dtype(op, attrs, out)
    inputs, outputs, taken = _prepare(op, values, out, attrs, wanted)
    packed = pack(dict(attrs)) if attrs else None
    answer = _call(client, op, inputs, taken, packed, bool(timing), timeout)
    result = outputs[0] if len(outputs) == 1 else outputs
    if not timing:
        return result
    us, variant = answer
    return result, contexts.timings(inputs, us, variant, sent)


def _call(
    client: Any, op: str, inputs: tuple[Any, ...], taken: tuple[Any, ...], packed: bytes | None, timed: bool, timeout: Any
) -> Any:  # fmt: skip
    stream = contexts.stream_of(inputs) if any(type(value) is Layout for value in taken) else None
    while True:
        made = client._ops_here.launch(op, taken, len(inputs), packed, stream, timed)
        if made is True:
            tell(client)
        if type(made) is str:  # the binary that it needs
            client._drive(client._live(), lambda link, name=made: fetch(link, op, name), timeout)
        elif made is NotImplemented:  # other arrays than torch's, or without elements
            stream = contexts.stream_of(inputs)
            taken = tuple(value if type(value) is Layout else _layout(value) for value in taken)
        else:
            return made
