"""Batches: ordered calls that libkops gathers into few requests, of which the stream waits only for the last.

Without the compiled part every call waits for its result, and a batch gathers nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from .._session.native_link import NativeLink
from .._tensors.torch import current_stream


class Batch:
    """See `Client.batch`. Of one thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._link: NativeLink | None = None
        self._place = (0, 0)  # device and stream that libkops gathers for

    def __enter__(self) -> Batch:
        self._client._batch_begin(self)
        try:
            self._begin()
        except BaseException:
            self._client._batch_end(self)
            raise
        return self

    def __repr__(self) -> str:
        return "<kops.Batch>"

    def _begin(self) -> None:
        """On the stream that is current now."""
        link, torch = self._client._live(), sys.modules.get("torch")
        if not isinstance(link, NativeLink) or torch is None or not (link.offers_ordered and link.offers_sequences):
            return
        index = torch.cuda.current_device()
        self._place = (index, current_stream(index))
        link.batch(*self._place, True)
        self._link = link

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client._batch_end(self)
        try:
            if self._link is not None:
                self._link.batch(*self._place, False)
        except Exception:
            if kind is None:  # otherwise the exception that ended the block says more
                raise

    def flush(self) -> None:
        """Sends the gathered ops. Later work on the stream waits for them."""
        if self._link is not None:
            self._link.batch(*self._place, False)
            self._link.batch(*self._place, True)
