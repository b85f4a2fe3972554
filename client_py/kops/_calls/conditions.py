"""Plans that read what a device's speed depends on, around a measurement. What cannot be read never costs the measurement."""

from __future__ import annotations

from typing import Any

from .._base.conditions import Conditions, Reading
from .._base.errors import KopsError
from .._memory.exports import Allocation
from .._session.link import Call, Link
from .._session.recovery import LOSSES
from .plans import Plan

OLDER = "this daemon is older than readings of them"


def reading(connection: Link, device: Any) -> Plan:
    """A device, by UUID or number, at this time; None: the default device."""
    if connection.info is None or "conditions" not in connection.info.features:
        return Reading(missing=OLDER)
    reply = yield Call("conditions", {} if device is None else {"device": device})
    return Reading.of(reply["conditions"], reply["device"])


def before(connection: Link, request: Any) -> Plan:
    """The device that a request will run on, as far as that is known."""
    device = request.options.get("device")
    for operand in request.inputs:
        if device is None and isinstance(operand.source, Allocation):
            device = operand.source.device
    try:
        return (yield from reading(connection, device))
    except LOSSES:
        raise
    except KopsError as error:
        return Reading(missing=error.message)


def around(connection: Link, earlier: Reading, device: str) -> Plan:
    """The conditions of a measurement that has just ended on that device."""
    try:
        later = yield from reading(connection, device or None)
    except KopsError as error:
        later = Reading(device, error.message)
    if not earlier.missing and earlier.device != later.device:
        earlier = Reading(earlier.device, "it ran on another device than the one that was read before")
    return Conditions(earlier, later)
