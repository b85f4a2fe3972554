"""kopsctl trace of eight clients at once: no call is lost that is not said, and a viewer shows all of the file.

KOPS_TRACE_CALLS is how many calls are made; without it a few. Time and memory grow with it alone: 100000 take some 20 s.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from conftest import Ctl
from fake import FakeDaemon
from support import backends, chrome_trace, memfd, perfetto, perfetto_shows, proc, raw, records
from support.daemon import Daemon
from test_trace import VECTORS, give_devices, of, tell

CALLS = int(os.environ.get("KOPS_TRACE_CALLS", "4000"))
CLIENTS, TOGETHER, STREAMS = 8, 50, 3
BASE_BYTES, EVENT_BYTES = 128 << 20, 400  # that kopsctl may take for itself, and for an event: its lists double


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(config=backends.config(backends.HOST)) as made:
        yield made


def work(path: str, calls: int, failures: list[BaseException]) -> None:
    """Adds, some under way at once, on some streams."""
    try:
        with raw.Connection(path) as connection:
            shared = memfd.Shared(3 * 64)
            buffer = connection.register(shared)
            operands = [raw.tensor(buffer, [16], offset=64 * i) for i in range(3)]
            for begin in range(0, calls, TOGETHER):
                count = min(TOGETHER, calls - begin)
                sent = [
                    connection.request("run", {"op": "add", "in": operands[:2], "out": operands[2:], "stream": i % STREAMS})
                    for i in range(count)
                ]
                for msgid in sent:
                    connection.reply(msgid).get()
    except BaseException as failure:
        failures.append(failure)


def record(daemon: Daemon, path: Path, room: int) -> None:
    """What `kopsctl trace` makes of CALLS calls."""
    recorder = Ctl(daemon.socket_path).start("trace", "--seconds", "86400", "-o", str(path), "--events", str(room))
    proc.eventually(path.exists, "the recording begins")
    failures: list[BaseException] = []
    shares = [CALLS // CLIENTS + (i < CALLS % CLIENTS) for i in range(CLIENTS)]
    clients = [Thread(target=work, args=(daemon.socket_path, share, failures)) for share in shares]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    most = 1024 * proc.status(recorder.pid, "VmHWM")
    recorder.send_signal(signal.SIGINT)
    out, err = recorder.communicate(timeout=raw.PATIENCE)
    assert not failures, failures
    assert recorder.returncode == 0 and "clients in" in out, err
    assert 0 < most < BASE_BYTES + CALLS * EVENT_BYTES


@pytest.mark.parametrize("room", [65536, 8])
def test_events_and_dropped_are_the_calls(daemon: Daemon, tmp_path: Path, room: int) -> None:
    path = tmp_path / "trace.json"
    record(daemon, path, room)
    trace = chrome_trace.load(path)
    said = trace["otherData"]["kops"]
    assert said["events"] + said["dropped"] == CALLS
    assert said["dropped"] > 0 if room < TOGETHER else said["events"] > 0
    made = chrome_trace.check(trace["traceEvents"])
    assert made.categories["call"] == made.categories["device"] == len(made.arrows) == said["events"]
    assert len({pid for pid, _ in made.slices}) == 2, "this process, and the device"
    if perfetto.IS_HERE:
        shown = perfetto_shows.check(path, trace["traceEvents"])
        assert shown.flows == said["events"] > 0, "an arrow from each call to its work"
        assert shown.slices >= 4 * said["events"], "the call, the wait, the work, and that on the device's row"
        records.keep(
            "trace_in_perfetto", "calls", CALLS, clients=CLIENTS, room=room, kept=said["events"], dropped=said["dropped"],
            slices=shown.slices, flows=shown.flows, rows=shown.rows, import_errors=shown.losses, engine=perfetto.version(),
        )  # fmt: skip


@pytest.mark.skipif(not perfetto.IS_HERE, reason=perfetto.WHY_NOT)
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vector(fake: FakeDaemon, ctl: Ctl, tmp_path: Path, vector: dict[str, Any]) -> None:
    give_devices(fake, vector)
    tell(fake, of(vector))
    path = tmp_path / "trace.json"
    ctl("trace", "--seconds", "0.001", "-o", str(path))
    shown = perfetto_shows.check(path, vector["traceEvents"])
    assert shown.slices == sum(event["ph"] == "X" for event in vector["traceEvents"])
