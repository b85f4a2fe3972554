"""Batches: ordered calls gathered into few requests, of which the stream waits only for the last."""

from __future__ import annotations

import sys
from typing import Any

from . import _plans
from ._launch import Launch
from ._native_link import NativeLink
from ._recording import Recorder
from ._torch import current_stream

GATHERED = 32  # ops in one request: few enough that the daemon starts soon, enough that a request costs little


class _Stream:
    """What is gathered for one stream and not sent yet; `begun` once a part of it was."""

    __slots__ = ("recorder", "begun")

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.begun = False


class Batch:
    """See `Client.batch`. Of one thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._link: Any = None
        self._place: tuple[int, int] | None = None  # the stream that libkops gathers for
        self._streams: dict[tuple[int, int], _Stream] = {}

    def __enter__(self) -> Batch:
        self._client._batch_begin(self)
        try:
            self._begin_native()
        except BaseException:
            self._client._batch_end(self)
            raise
        return self

    def __repr__(self) -> str:
        count = sum(len(stream.recorder) for stream in self._streams.values())
        return f"<kops.Batch: {count} calls gathered here>" if self._place is None else "<kops.Batch>"

    def _begin_native(self) -> None:
        """With the extension, libkops gathers: on the stream that is current now."""
        link, torch = self._client._live(), sys.modules.get("torch")
        if not isinstance(link, NativeLink) or torch is None or not (link.offers_ordered and link.offers_sequences):
            return
        index = torch.cuda.current_device()
        self._place = (index, current_stream(index))
        link.batch(*self._place, True)
        self._link = link

    def _flush_native(self, again: bool) -> None:
        if self._place is not None:
            self._link.batch(*self._place, False)
            if again:
                self._link.batch(*self._place, True)

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client._batch_end(self)
        try:
            self._flush_native(False)
            self._flush_gathered(None)
        except Exception:
            if kind is None:  # otherwise the exception that ended the block says more
                raise

    def add(self, link: Any, request: _plans.Request | Launch, index: int, handle: int, timeout: float | None) -> None:
        if link is not self._link:
            self._streams.clear()  # gathered for a connection that was lost
            self._link = link
        stream = self._streams.get((index, handle))
        if stream is None:
            stream = self._streams[index, handle] = _Stream()
        if len(stream.recorder) >= min(GATHERED, link.info.limits.get("sequence_ops", GATHERED)):
            self._send((index, handle), stream, False, timeout)
            stream.recorder = Recorder()
        stream.recorder.note(request)
        stream.recorder.operands.keep.extend(request.operands.keep)

    def flush(self, timeout: float | None = None) -> None:
        """Sends what is gathered. What comes later on the streams waits for it."""
        self._flush_native(True)
        self._flush_gathered(timeout)

    def _flush_gathered(self, timeout: float | None) -> None:
        streams, self._streams = self._streams, {}
        for place, stream in streams.items():
            self._send(place, stream, True, timeout)

    def _send(self, place: tuple[int, int], stream: _Stream, end: bool, timeout: float | None) -> None:
        link, recorder = self._link, stream.recorder
        begin, stream.begun = not stream.begun, True
        _, params = self._client._known(link, recorder, timeout)  # where that is another link, what follows says so
        params["timing"] = False
        link.enqueue("sequence", params, recorder.names, recorder.operands.keep, *place, timeout, begin, end)
