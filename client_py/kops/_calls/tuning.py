"""Plans of `Client.tune` and `Client.tuning`."""

from __future__ import annotations

from typing import Any

from .._base.errors import Unsupported
from .._base.tuning import Choice, choice_of, tuned_of
from .._memory.exports import Allocation
from .._session.link import Call, Link
from .._tensors.operands import Operand
from .plans import Plan, Request


def _check(connection: Link) -> None:
    if connection.info is None or "tune" not in connection.info.features:
        raise Unsupported("this daemon tunes nothing: it has no GPU, or is older than tuning")


def _layout(operand: Operand) -> dict[str, Any]:
    """The tensor without its memory."""
    layout: dict[str, Any] = {"shape": operand.shape, "dtype": operand.dtype, "offset": operand.offset}
    if operand.strides is not None:
        layout["strides"] = operand.strides
    return layout


def tune(connection: Link, request: Request) -> Plan:
    _check(connection)
    params: dict[str, Any] = {
        "op": request.op,
        "in": [_layout(operand) for operand in request.inputs],
        "out": [_layout(operand) for operand in request.outputs],
    }
    if request.attrs:
        params["attrs"] = request.attrs
    device = request.options.get("device")
    for operand in (*request.inputs, *request.outputs):
        if device is None and isinstance(operand.source, Allocation):
            device = operand.source.device
    if device is not None:
        params["device"] = device
    return tuned_of((yield Call("tune", params)))


def tuning(connection: Link, clear: bool) -> Plan:
    _check(connection)
    choices: list[Choice] = []
    while True:
        reply = yield Call("tuning", {"from": len(choices), **({"clear": True} if clear else {})})
        clear = False
        choices += [choice_of(row) for row in reply["choices"]]
        if not reply["choices"] or len(choices) >= reply["total"]:
            return choices
