"""A trace of kops.profiler in Perfetto's own trace processor: nothing is lost, and all is where it was made."""

from __future__ import annotations

import threading
from pathlib import Path

import kops
import numpy
import pytest
from kops.profiler import profile, record_function
from test_daemon import Daemon, chrome_trace, real  # noqa: F401

from support import perfetto, perfetto_shows  # isort: skip

pytestmark = pytest.mark.skipif(not perfetto.IS_HERE, reason=perfetto.WHY_NOT)
A = numpy.ones(1000, "float32")
THREADS, CALLS, PENDING = 3, 200, 100


def work(path: str, failures: list[BaseException]) -> None:
    """Calls that wait, and some that are under way at once on three streams."""
    try:
        with kops.connect(path, timeout=120) as k, record_function("Größe … 世"):
            for i in range(CALLS):
                k.square(A) if i % 2 else k.add(A, A)
            pending = [k.submit("square", A, stream=i % 3) for i in range(PENDING)]
            for one in pending:
                one.result()
    except BaseException as failure:
        failures.append(failure)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_of_threads(real: Daemon, tmp_path: Path, name: str) -> None:  # noqa: F811
    failures: list[BaseException] = []
    with profile(socket=real.socket_path) as p:
        with record_function("all of it"):
            threads = [threading.Thread(target=work, args=(real.socket_path, failures)) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not failures, failures
    p.export_chrome_trace(tmp_path / name)
    events = p.chrome_trace()["traceEvents"]
    made = chrome_trace.check(events)
    assert p.dropped == 0 and made.categories["call"] == THREADS * (CALLS + PENDING)
    shown = perfetto_shows.check(tmp_path / name, events)
    assert shown.slices == sum(made.categories.values())
    assert shown.flows == THREADS * (2 * CALLS + PENDING), "from a call that waits to the request, from each request to its work"
