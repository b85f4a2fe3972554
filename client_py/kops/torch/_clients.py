"""The client that the ops of this process go through."""

from __future__ import annotations

from typing import Any

from .._base.errors import WrongType
from .._clients.client import Client
from .._clients.inline import default_client

__all__ = ["client", "use"]

_used: Client | None = None
_chosen = False


def use(client: Client | None) -> None:
    """Lets `torch.ops.kops` go through `client`, in all threads, from the next call on; None: through the process's own client
    again, `kops.default_client()`, which connects at its first use.

    Kernels that became ops by `kops.torch.custom_op` stay with the clients that they belong to. Raises `kops.WrongType`."""
    global _used, _chosen
    if client is not None and not isinstance(client, Client):
        raise WrongType(f"torch.ops.kops needs a kops.Client, of kops.connect(), not {type(client).__name__}")
    _used, _chosen = client, client is not None


def client() -> Any:
    """The client that `torch.ops.kops` go through now."""
    global _used
    found = _used
    if found is None or (found._closed and not _chosen):
        found = _used = default_client()
    return found
