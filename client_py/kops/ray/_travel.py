"""Traffic between the driver and its workers, by Ray: kernels and functions travel whole, clients do not. Whatever refers to a client
of the driver's refers to the worker's own in the worker. Errors of single items come back with the item's number."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

from .. import AsyncClient, BadArgument, Client, KopsError, default_client

try:
    import ray as ray
    import ray.exceptions
    from ray import cloudpickle
except ImportError as error:
    raise ImportError(f'kops.ray needs Ray, which cannot be imported ({error}): pip install "ray>=2.9" numpy', name=error.name) from error

# Errors of a worker or node that has ended, or that Ray lost touch with: its item may or may not have been done.
_LOST = ("RayActorError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "OutOfMemoryError")
LOST: tuple[type[Exception], ...] = tuple(getattr(ray.exceptions, name) for name in _LOST if hasattr(ray.exceptions, name))


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc,unused-ignore]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Client):
            return default_client, ()  # a worker's own, see _worker.py
        if isinstance(obj, AsyncClient):
            raise BadArgument("a kernel of an asyncio client does not travel: declare it with kops.kernel or a client of kops.connect()")
        return super().reducer_override(obj)


def pack(what: Any) -> bytes:
    """Raises TypeError or pickle.PicklingError for what cannot travel."""
    with io.BytesIO() as file:
        _Pickler(file).dump(what)
        return file.getvalue()


def unpack(packed: bytes) -> Any:
    """The object of packed bytes, in a worker whose default client is connected."""
    return pickle.loads(packed)


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
    except Exception:  # an error of a class that this process does not have
        error = None
    if error is None:
        error = Untold(text.strip().rpartition("\n")[2], {"index": index, "node": node, "traceback": text})
    if hasattr(error, "add_note"):
        error.add_note(note)
    error.kops_item, error.kops_node = index, node
    return error  # type: ignore[no-any-return]
