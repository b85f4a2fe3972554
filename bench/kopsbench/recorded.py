"""What CUPTI records of a daemon's kernels, by a library of ours in the daemon's process. The daemon itself leaves CUPTI alone."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from support import backends, raw

from .context import Context, Skipped

GATE = "kops_gate"  # not part of the work: the daemon launches it ahead of what it times by events
SETTLE_S = 0.02


@dataclass(frozen=True)
class Ran:
    """A kernel, or a graph. Times in nanoseconds by CUPTI's clock."""

    call: int
    begin: int
    end: int
    name: str


def parse(lines: Iterable[str]) -> list[Ran]:
    found = []
    for line in lines:
        if line == "lost":
            raise RuntimeError("the daemon's process had no memory for CUPTI's records")
        call, begin, end, name = line.split(" ", 3)
        found.append(Ran(int(call), int(begin), int(end), name))
    return found


def executions(ran: Iterable[Ran], n: int) -> list[float]:
    """Microseconds of n executions of one piece of work, from the begin of the first kernel of each to the end of its last. They
    ran one after another, and each as the same kernels."""
    kernels = sorted((one for one in ran if one.name != GATE), key=lambda one: (one.begin, one.end))
    each, rest = divmod(len(kernels), n)
    if rest or not each:
        names = sorted({one.name for one in kernels})
        raise RuntimeError(f"{n} executions ran {len(kernels)} kernels, which is no multiple: {', '.join(names)}")
    groups = [kernels[i : i + each] for i in range(0, len(kernels), each)]
    return [(max(one.end for one in group) - group[0].begin) * 1e-3 for group in groups]


class Recorder:
    """The records of one process, as they come."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
        self.pid = int(self._stream.readline())

    def _new(self) -> list[Ran]:
        self._stream.write("?")
        self._stream.flush()
        lines = []
        while (line := self._stream.readline()) != "\n":
            if not line:
                raise RuntimeError(f"process {self.pid}, whose kernels are recorded, ended")
            lines.append(line.rstrip("\n"))
        return parse(lines)

    def new(self) -> list[Ran]:
        """All since the last time, when the GPU has nothing to do any more: CUPTI hands the last ones out a little later."""
        found = self._new()
        while True:
            time.sleep(SETTLE_S)
            more = self._new()
            if not more:
                return found
            found += more

    def close(self) -> None:
        self._stream.close()


def _library(context: Context) -> Path:
    path = context.build / "lib" / "libbench_records.so"
    if not path.exists():
        raise Skipped("libbench_records.so is not built: the CUDA toolkit has no cupti.h")
    return path


def _accept(listener: socket.socket, pid: int) -> Recorder:
    """Of the daemon, whatever other process of its has connected."""
    until = time.monotonic() + raw.PATIENCE
    while select.select([listener], [], [], max(0.0, until - time.monotonic()))[0]:
        connection, _ = listener.accept()
        recorder = Recorder(connection)
        connection.close()  # the stream keeps it
        if recorder.pid == pid:
            return recorder
        recorder.close()
    raise Skipped("CUPTI records no kernels of the daemon; what the daemon wrote to stderr has the reason")


@contextmanager
def recorded_daemon(context: Context, settings: Sequence[str]) -> Iterator[tuple[str, Recorder]]:
    """A daemon that does its GPU work itself, without use of CUPTI: its socket, and CUPTI's records of it."""
    with TemporaryDirectory(prefix="kops-records-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = os.path.join(folder, "records")
        listener.bind(path)
        listener.listen()
        environment = {"CUDA_INJECTION64_PATH": str(_library(context)), "KOPS_BENCH_RECORDS": path}
        if context.smoke:
            environment["KOPS_BENCH_CUPTI"] = str(backends.standin_cupti())
        arguments = [word for setting in (*settings, "executors.isolate=off", "executors.cupti=off") for word in ("--set", setting)]
        with context.daemon(*arguments, cuda=True, environment=environment) as daemon:
            recorder = _accept(listener, daemon.pid)
            try:
                yield daemon.socket_path, recorder
            finally:
                recorder.close()
