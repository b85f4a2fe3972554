"""A tutorial's extension by kops.load_inline beside torch's: compiled, loaded by the next process, called."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from ..context import Context, Skipped
from ..record import Record, summarise
from ..user_kernels import WRAPPER, fresh, load_inline_missing, load_wrapper
from . import add
from .common import beside, check, client_with, in_rows, vectors
from .compile import child

PEER = "torch's load_inline"
COLD, LATER, CALLS = 3, 5, 1000


@contextmanager
def folder_of_both(context: Context) -> Iterator[Path]:
    """A folder for what both sides compile, with the package's precompiled header in it."""
    lacking = "the stand-in has no load_inline" if context.smoke else load_inline_missing()
    if lacking is not None:
        raise Skipped(lacking)
    with tempfile.TemporaryDirectory(prefix="kops-extensions-") as name:
        # Python's bytecode is kept, as that of an installed package is.
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=name, PYTHONPYCACHEPREFIX=f"{name}/bytecode", PYTHONDONTWRITEBYTECODE=""):
            loads(context, Path(name), "ours", fresh(WRAPPER), 1)
            yield Path(name)


def loads(context: Context, folder: Path, who: str, source: str, count: int) -> list[float]:
    """Seconds of load_inline in so many processes, one after the other."""
    said = {"socket": context.gpu_daemon.socket_path, "folder": str(folder / "torch"), "who": who, "source": source}
    return [child(context, "extension", "-", said, seconds=200)["us"] * 1e-6 for _ in range(count)]


def run(context: Context) -> list[Record]:
    """torch's takes a minute to compile, so that is measured once."""
    a, b = vectors(context, 2)
    with client_with(context, "kernels", blocking=False) as client, folder_of_both(context) as folder:
        source = fresh(WRAPPER)
        sources = [fresh(WRAPPER) for _ in range(COLD - 1)] + [source]
        cold = [loads(context, folder, "ours", one, 1)[0] for one in sources]
        later = loads(context, folder, "ours", source, LATER)
        cold_peer, later_peer = loads(context, folder, "torch", source, 1), loads(context, folder, "torch", source, LATER)
        modules: list[Any] = [load_wrapper(who, source, folder / "torch", client) for who in ("ours", "torch")]
        for module in modules:
            check(context, module.added(a, b), 3.0)
        ours, peer = in_rows(context, [lambda module=module: module.added(a, b) for module in modules], CALLS)
    measured = "load_inline of a wrapper with one launch, in a process with torch, its context"
    first = {"measured": f"{measured}; a text that is new each time, the package's headers precompiled", "n": "processes"}
    second = {"measured": f"{measured}; an earlier process had compiled it", "n": "processes"}
    call = f"{CALLS} calls in a row, by their number, of a wrapper that checks two tensors, makes a third and launches one kernel"
    return [
        Record("extension_load_cold", "s", "lower", summarise(cold), summarise(cold_peer, PEER), first, target=0.05),
        Record("extension_load_second_process", "s", "lower", summarise(later), summarise(later_peer, PEER), second, target=1 / 3),
        beside("extension_call", ours, (peer, PEER), call, 1.1, **context.python_link()),
    ]


add("extension", run, on_gpu=True, table=True, seconds=400)
