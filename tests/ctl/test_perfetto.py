"""Traces of kopsctl in Perfetto's own trace processor: nothing is lost, and all is where it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Ctl
from fake import FakeDaemon
from support import chrome_trace, perfetto, perfetto_shows, records
from support.daemon import Daemon
from test_trace import VECTORS, give_devices, of, tell
from test_trace_load import CALLS, CLIENTS, daemon, record  # noqa: F401

pytestmark = pytest.mark.skipif(not perfetto.IS_HERE, reason=perfetto.WHY_NOT)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vector(fake: FakeDaemon, ctl: Ctl, tmp_path: Path, vector: dict[str, Any]) -> None:
    give_devices(fake, vector)
    tell(fake, of(vector))
    path = tmp_path / "trace.json"
    ctl("trace", "--seconds", "0.001", "-o", str(path))
    shown = perfetto_shows.check(path, vector["traceEvents"])
    assert shown.slices == sum(event["ph"] == "X" for event in vector["traceEvents"])


@pytest.mark.parametrize("room", [65536, 8])
def test_a_trace_of_eight_clients(daemon: Daemon, tmp_path: Path, room: int) -> None:  # noqa: F811
    path = tmp_path / "trace.json"
    record(daemon, path, room)
    trace = chrome_trace.load(path)
    shown = perfetto_shows.check(path, trace["traceEvents"])
    said = trace["otherData"]["kops"]
    assert shown.flows == said["events"] > 0, "an arrow from each call to its work"
    assert shown.slices >= 4 * said["events"], "the call, the wait, the work, and that on the device's row"
    records.keep(
        "trace_in_perfetto", "calls", CALLS, clients=CLIENTS, room=room, kept=said["events"], dropped=said["dropped"],
        slices=shown.slices, flows=shown.flows, rows=shown.rows, import_errors=shown.losses, engine=perfetto.version(),
    )  # fmt: skip
