"""Batches: ordered calls gathered into few requests, of which the stream waits only for the last."""

from __future__ import annotations

from typing import Any

from . import _plans
from ._recording import Recorder

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
        self._streams: dict[tuple[int, int], _Stream] = {}

    def __enter__(self) -> Batch:
        self._client._batch_begin(self)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client._batch_end(self)
        try:
            self.flush()
        except Exception:
            if kind is None:  # otherwise the exception that ended the block says more
                raise

    def add(self, link: Any, request: _plans.Request, index: int, handle: int, timeout: float | None) -> None:
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
        streams, self._streams = self._streams, {}
        for place, stream in streams.items():
            self._send(place, stream, True, timeout)

    def _send(self, place: tuple[int, int], stream: _Stream, end: bool, timeout: float | None) -> None:
        link, recorder = self._link, stream.recorder
        begin, stream.begun = not stream.begun, True
        params = self._client._drive(link, _plans.prepare(link, recorder), timeout)
        params["timing"] = False
        link.enqueue("sequence", params, recorder.names, recorder.operands.keep, *place, timeout, begin, end)
