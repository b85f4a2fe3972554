"""Kernels with a geometry: `kernel[grid, block]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.errors import Capturing
from .._base.timeouts import DEFAULT_TIMEOUT


class Bound:
    """A kernel with a geometry, `kernel[grid, block]`: call it as the kernel."""

    __slots__ = ("_kernel", "_sizes", "_packed")

    def __init__(self, kernel: Any, sizes: Mapping[str, Any], packed: bytes | None) -> None:
        self._kernel = kernel
        self._sizes = sizes
        self._packed = packed

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Launches the kernel, with the arguments of a call."""
        kernel = self._kernel
        if self._packed is not None and not keywords and len(arguments) == kernel._count:
            client = kernel._client
            if not client._scopes and client.where == "daemon":
                try:
                    made = kernel._fast(client._live(), arguments, self._packed, None, False, DEFAULT_TIMEOUT)
                except Capturing:
                    made = NotImplemented
                if made is not NotImplemented:
                    return made
        return kernel(*arguments, **{**self._sizes, **keywords})

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size!r}" for name, size in self._sizes.items())
        return f"{repr(self._kernel)[:-1]}[{sizes}]>"

    def profile(self, *arguments: Any, **keywords: Any) -> Any:
        return self._kernel.profile(*arguments, **{**self._sizes, **keywords})

    def interpret(self, *arguments: Any, **keywords: Any) -> Any:
        return self._kernel.interpret(*arguments, **{**self._sizes, **keywords})
