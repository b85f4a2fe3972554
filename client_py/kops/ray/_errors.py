"""Errors of single items, and how they cross from a worker to the driver."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from .. import KopsError


class GivenUp(KopsError):
    """An item was given up: each worker that tried it was lost, or took longer than `timeout`.

    `detail` has the item's `index`, its `tries`, and the last one's `node` and `why`.
    """

    code = "given_up"


class WorkersFailed(KopsError):
    """No worker has started. `detail` has `reasons`, one for each that failed."""

    code = "workers_failed"


class Untold(KopsError):
    """An error of a worker that cannot be sent from process to process: its type and its text."""

    code = "untold"


def packed(error: BaseException) -> tuple[bytes | None, str]:
    """An error as bytes, None where it does not survive that, and as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        made = pickle.dumps(error)
        pickle.loads(made)
    except Exception:
        return None, text
    return made, text


def unpacked(made: bytes | None, text: str, index: int, node: str) -> BaseException:
    """The error in the driver. Its note says which item it belongs to, and shows the worker's traceback."""
    note = f"item {index}, on {node}:\n{text.rstrip()}"
    try:
        error: Any = pickle.loads(made) if made is not None else None
    except Exception:  # of a class that this process does not have
        error = None
    if error is None:
        error = Untold(text.strip().rpartition("\n")[2], {"index": index, "node": node, "traceback": text})
    if hasattr(error, "add_note"):
        error.add_note(note)
    error.kops_item, error.kops_node = index, node
    return error  # type: ignore[no-any-return]
