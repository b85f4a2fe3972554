"""Sources to be compiled: the request `compile`, and the module that it makes on each connection."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from .._base.errors import BadArgument, InvalidArgument, MissingKey, Unsupported, WrongType
from .._base.records import Compiled, Entry
from .._calls.plans import Plan, device_ref
from .._memory.pool import Remote, release
from .._session.link import Call, Link
from .._source.source import Scan, gather, names, scan

DEFAULT_NAME = "kernel.cu"
_OPTION = re.compile(r"options\[(\d+)\]")  # the key of an error


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several."""
    values = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) for text in values):
        raise WrongType(f"{name} must be texts, not {value!r:.80}", {"key": name})
    return values


WITHOUT_GPU = (
    "Without a GPU a kernel runs on the CPU, with checks, by kops.kernel(…).interpret(…), which takes the same arguments, or by each "
    'call of a kernel that is made with fallback="interpret"'
)


def launches_none(connection: Link) -> bool:
    """Whether a daemon has no device that launches kernels."""
    info = connection.info
    return info is not None and "kernels" not in info.features and all(device.backend == "host" for device in info.devices)


def check_launches(connection: Link) -> None:
    """Raises Unsupported for a daemon that has no device which launches kernels, before anything is asked of it. One that
    knows of no kernels, or lets this user launch none, says so itself."""
    info = connection.info
    if info is not None and info.kernels.get("allowed") and launches_none(connection):
        raise Unsupported(
            f"this daemon has no GPU, so it launches no kernels. {WITHOUT_GPU}. To compile only: k.compile(source, arch=\"sm_90a\")",
            {"feature": "kernels"},
        )


class Code(Remote):
    """A source with all that its compilation depends on. A new connection gets a new module when a kernel is used on it."""

    what = "module"
    usual_device: ClassVar[str | int | None] = None  # device for this process's sources that name none; None: the daemon's first GPU

    def __init__(
        self,
        source: str | os.PathLike[str],
        entries: Any,
        options: Iterable[str],
        files: Mapping[str, str] | None,
        name: str | None,
        arch: str | None,
        device: Any,
    ) -> None:
        self.ids: dict[int, int] = {}
        self.compiled: Compiled | None = None
        if isinstance(source, os.PathLike):
            path = Path(source)
            self.source = path.read_text(encoding="utf-8")
            self.files = {**gather(self.source, path.parent), **(files or {})}
            self.name = name or path.name
        elif isinstance(source, str):
            self.source, self.files, self.name = source, dict(files or {}), name or DEFAULT_NAME
        else:
            raise WrongType(f"source must be CUDA C++ as a text, or a pathlib.Path, not {type(source).__name__}", {"key": "source"})
        self.options = _texts("options", options)
        self._scan: Scan | None = None
        self.entries = _texts("entries", entries if entries is not None else names(self.scan))
        if not self.entries:
            why = "no kernel to compile: the source shows no plain `__global__ void name(…)`; give entries="
            raise BadArgument(why, {"key": "entries"})
        self.arch = arch
        self.device = None if device is None else device_ref(device)

    @property
    def scan(self) -> Scan:
        """The contents of the source."""
        if self._scan is None:
            self._scan = scan(self.source, self.files, self.options)
        return self._scan

    def request(self) -> dict[str, Any]:
        params: dict[str, Any] = {"source": self.source, "name": self.name, "entries": self.entries}
        for key in ("files", "options", "arch", "device"):
            value = getattr(self, key)
            if value is not None and (value != () and value != {}):
                params[key] = value
        if self.device is None and self.usual_device is not None:
            params["device"] = self.usual_device
        return params

    def define(self, connection: Link) -> Plan:
        """Makes the module known to the daemon; its id."""
        known = self.ids.get(connection.key)
        if known is not None:
            return known
        if connection.info is None or not connection.info.kernels:
            connection.need("compile")
        try:
            reply = yield Call("compile", self.request(), (), None, "module")
        except MissingKey as error:
            if error.detail.get("key") != "arch":
                raise
            raise MissingKey(f"{error.message}. {WITHOUT_GPU}", error.detail) from None
        except InvalidArgument as error:
            found = _OPTION.fullmatch(str(error.detail.get("key", "")))
            if found is None or int(found[1]) >= len(self.options):
                raise
            raise InvalidArgument(f"{self.options[int(found[1])]!r}: {error.message}", error.detail) from None
        self.compiled = Compiled.read(reply)
        return self.know(connection, reply["module"])

    def only(self) -> str:
        """The only entry."""
        if len(self.entries) != 1:
            raise BadArgument(f"which kernel? There are {', '.join(self.entries)}", {"key": "entry"})
        return self.entries[0]

    def entry(self, name: str) -> Entry:
        """An entry's attributes, once compiled."""
        for entry in self.compiled.entries if self.compiled is not None else ():
            if entry.name == name:
                return entry
        raise BadArgument(f"no entry {name!r} was compiled; there are {', '.join(self.entries)}", {"key": "entry"})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ids": {}, "_scan": None}

    def __del__(self) -> None:
        release(self)
