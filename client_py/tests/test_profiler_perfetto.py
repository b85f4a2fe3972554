"""A trace of kops.profiler in Perfetto's own trace processor: nothing is lost, and all is where it was made.

KOPS_TRACE_CALLS is how many calls are made; without it a few.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import kops
import numpy
import pytest
from built import Daemon, real
from kops.profiler import profile, record_function

from support import chrome_trace, perfetto, perfetto_shows, records  # isort: skip

__all__ = ["real"]

pytestmark = pytest.mark.skipif(not perfetto.IS_HERE, reason=perfetto.WHY_NOT)
A = numpy.ones(1000, "float32")
THREADS, TOGETHER, STREAMS = 8, 25, 3
ROUND = 2 * TOGETHER * THREADS
CALLS = -(-int(os.environ.get("KOPS_TRACE_CALLS", "1600")) // ROUND) * ROUND


def work(path: str, calls: int, failures: list[BaseException]) -> None:
    """Half of the calls wait, and the others are under way at once on some streams."""
    try:
        with kops.connect(path, timeout=120) as k, record_function("Größe … 世"):
            for _ in range(0, calls, 2 * TOGETHER):
                for i in range(TOGETHER):
                    k.square(A) if i % 2 else k.add(A, A)
                pending = [k.submit("square", A, stream=i % STREAMS) for i in range(TOGETHER)]
                for one in pending:
                    one.result()
    except BaseException as failure:
        failures.append(failure)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_of_threads(real: Daemon, tmp_path: Path, name: str) -> None:
    failures: list[BaseException] = []
    with profile(socket=real.socket_path) as p:
        with record_function("all of it"):
            threads = [threading.Thread(target=work, args=(real.socket_path, CALLS // THREADS, failures)) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not failures, failures
    p.export_chrome_trace(tmp_path / name)
    events = p.chrome_trace()["traceEvents"]
    made = chrome_trace.check(events)
    assert made.categories["call"] == len(p.events()) and p.dropped == 0
    assert len(p.events()) == CALLS
    shown = perfetto_shows.check(tmp_path / name, events)
    assert shown.slices == sum(made.categories.values())
    waited = made.categories["cpu_op"]
    assert waited == len(p.events()) / 2 and shown.flows == waited + len(p.events()), "from calls to requests, and on to the work"
    records.keep(
        "profile_in_perfetto", "calls", CALLS, clients=THREADS, file=name, kept=len(p.events()), dropped=p.dropped,
        slices=shown.slices, flows=shown.flows, rows=shown.rows, import_errors=shown.losses, engine=perfetto.version(),
    )  # fmt: skip
