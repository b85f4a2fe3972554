"""What is mapped, as bytes: kernels and functions travel whole, clients do not. Whatever refers to a client of the driver's refers to
the worker's own in the worker."""

from __future__ import annotations

import io
import pickle
from typing import Any

from ray import cloudpickle

from .. import AsyncClient, BadArgument, Client, default_client


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
    """In a worker, whose default client is connected."""
    return pickle.loads(packed)
