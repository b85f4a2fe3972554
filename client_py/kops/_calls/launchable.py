"""The part of a kernel that launches and recordings need. The kernels that users have are in `_kernels`."""

from __future__ import annotations

from typing import Any

from .._base.results import Timing
from .._source.signature import Param


class Recordable:
    """A formula: what a recorder notes for it are launches of the kernels that its arguments need."""

    def _record(self, recorder: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        raise NotImplementedError


class Launchable:
    """An entry of a source with its parameter list, and its id on each connection."""

    name: str
    params: tuple[Param, ...]
    ids: dict[int, int]

    def _result(self, arguments: tuple[Any, ...]) -> Any:
        """The result of a call."""
        raise NotImplementedError

    def _fast(
        self, link: Any, arguments: tuple[Any, ...], given: Any, blocking: bool | None, timing: Timing, timeout: Any,
        sent: int | None = None,
    ) -> Any:  # fmt: skip
        """The launch by the extension, with a geometry or a packed one; NotImplemented where it cannot."""
        return NotImplemented
