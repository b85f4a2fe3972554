"""Compile requests of a node for sources that another node has compiled and put on an HTTP server, beside compiling them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from support import http_store, proc, shared_cache

from ..context import Context, Skipped
from ..record import Record, summarise
from ..user_kernels import VECTOR_ADD, fresh
from . import add

SOURCES, ARCH = 100, "sm_90a"


def compile_all(client: Any, sources: Sequence[str], cached: str) -> Iterator[float]:
    for source in sources:
        start = perf_counter_ns()
        module = client.compile(source, [VECTOR_ADD.entry], arch=ARCH)
        us = (perf_counter_ns() - start) * 1e-3
        if module.cached != cached:
            raise RuntimeError(f"the code was cached: {module.cached}, not {cached}")
        yield us


def publish(context: Context, url: str, key: shared_cache.Key, sources: Sequence[str]) -> None:
    settings = ("--set", f"cache.remote={url}", "--set", f"cache.remote_key={key.path}")
    with context.daemon(*settings, cuda=False) as daemon, context.connect(daemon.socket_path) as client:
        if "compile" not in client.info.features:
            raise Skipped("the daemon compiles nothing: no NVRTC, or no sandbox can be made here")
        for _ in compile_all(client, sources, "no"):
            pass
        proc.eventually(lambda: client.stats()["kernels"]["remote_uploads"] == len(sources), "all is on the server")


def run(context: Context) -> Record:
    """The second node and one that compiles take turns, request by request."""
    if http_store.nginx() is None:
        raise Skipped("there is no nginx here")
    count = 8 if context.smoke else SOURCES
    sources = [fresh(VECTOR_ADD.source) for _ in range(count)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kops-remote-")))
        key = shared_cache.Key(folder / "key")
        (folder / "nginx").mkdir()
        folder.chmod(0o755)
        server = stack.enter_context(http_store.Nginx(folder / "nginx", open_to_all=True))
        publish(context, server.url, key, sources)
        settings = ("--set", f"cache.remote={server.url}", "--set", f"cache.remote_trust={key.public}")
        reader = stack.enter_context(context.daemon(*settings, cuda=False))
        compiler = stack.enter_context(context.daemon(cuda=False))
        ours_client = stack.enter_context(context.connect(reader.socket_path))
        peer_client = stack.enter_context(context.connect(compiler.socket_path))
        peer_client.compile(fresh(VECTOR_ADD.source), [VECTOR_ADD.entry], arch=ARCH)  # its compiler is loaded
        ours: list[float] = []
        peer: list[float] = []
        for i in range(count):
            ours += compile_all(ours_client, sources[i : i + 1], "remote")
            peer += compile_all(peer_client, sources[i : i + 1], "no")
        counted = ours_client.stats()["kernels"]
    if counted["cache_remote_hits"] != count:
        raise RuntimeError(f"not all came from the server: {counted}")
    return Record(
        "remote_cache",
        "us",
        "lower",
        summarise(ours),
        summarise(peer, "the node's own compiler, loaded and warm"),
        {
            "measured": "compile request of vector_add, a text that is new to the node each time and that another node has put on"
            " nginx on the same machine, over HTTP: asked, fetched, its signature verified, answered; the peer compiles the same"
            " texts; both take turns request by request",
            "n": "sources",
            "first_us": ours[0],
            "wait_ms": 50,
            "compiles_begun": counted["compiles"],  # where the server was not heard of for so long
            "load_average": os.getloadavg()[0],  # of the machine: above its processors both wait for others
            "launched": "nothing: the daemons have no GPU here",
            **context.python_link(),
        },
        target=20000.0,
        absolute=True,
        statistic="p99",
    )


add("remote_cache", run, on_gpu=False, table=True, seconds=120)
