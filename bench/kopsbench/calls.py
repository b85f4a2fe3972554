"""Calls through the Python client whose GPU or host time is what counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def profile(
    client: Any,
    op: str,
    inputs: Sequence[Any],
    out: Any,
    *,
    repeat: int,
    ret_variant: list[str] | None = None,
    **attributes: Any,
) -> list[float]:
    """Kernel times in microseconds of `repeat` executions in one request, by the daemon's own clock."""
    found = client.profile(op, *inputs, out=out, warmup=0, repeat=repeat, **attributes)
    if ret_variant is not None:
        ret_variant.append(found.variant)
    return list(found.samples)


def call_gpu_us(
    client: Any, op: str, inputs: Sequence[Any], out: Any, *, ret_variant: list[str] | None = None, **attributes: Any
) -> float:
    """Kernel time in microseconds of one blocking call."""
    return profile(client, op, inputs, out, repeat=1, ret_variant=ret_variant, **attributes)[0]
