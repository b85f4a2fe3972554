"""What `submit` returns is a `concurrent.futures.Future`."""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import threading
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, refuser
from which import compiled_only, wait_for


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array([1.0, 2.0, 3.0])


def test_is_a_future(k: kops.Client, a: Any) -> None:
    pending = k.submit("square", a)
    assert isinstance(pending, concurrent.futures.Future)
    assert pending.result().tolist() == [1, 4, 9]
    assert pending.done() and not pending.running() and not pending.cancelled() and pending.exception() is None
    assert repr(pending) == "<kops.Pending square: returned ndarray>"
    failed, other = (k.submit("newer", a, out=k.empty(3)) for _ in range(2))
    with pytest.raises(kops.UnknownOp):
        failed.result()
    assert isinstance(failed.exception(), kops.UnknownOp) and not failed.cancelled()
    assert repr(failed) == "<kops.Pending newer: raised UnknownOp>"
    (ended,) = concurrent.futures.wait([other], timeout=20).done
    assert isinstance(ended.exception(), kops.UnknownOp)


@compiled_only
def test_callbacks_without_anybody_who_asks(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    """They may use the client."""
    daemon.gate.clear()
    told: list[Any] = []
    here = threading.Event()
    out = numpy.zeros(3, "float32")
    pending = k.submit("square", numpy.float32([1, 2, 3]), out=out)
    pending.add_done_callback(lambda future: (told.append(out.tolist()), told.append(k.square(future.result())), here.set()))
    assert not here.is_set() and pending.running() and repr(pending) == "<kops.Pending square: running>"
    daemon.gate.set()
    assert here.wait(20) and told[0] == [1, 4, 9] and told[1].tolist() == [1, 16, 81]
    pending.add_done_callback(lambda future: told.append("late"))
    assert told[2:] == ["late"]


@compiled_only
def test_as_completed_and_wait(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    pendings = [k.submit("add", a, float(i)) for i in range(20)]
    ended = list(concurrent.futures.as_completed(pendings, timeout=20))
    assert sorted(p.result()[0] for p in ended) == [1.0 + i for i in range(20)]
    daemon.gate.clear()
    pendings = [k.submit("add", a, float(i)) for i in range(3)]
    assert concurrent.futures.wait(pendings, timeout=0.05) == (set(), set(pendings))
    daemon.gate.set()
    assert concurrent.futures.wait(pendings, timeout=20) == (set(pendings), set())


@compiled_only
def test_cancelled_ones(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    daemon.gate.clear()
    pending = k.submit("square", a)
    assert pending.cancel()
    with pytest.raises(concurrent.futures.CancelledError) as caught:
        pending.result()
    assert isinstance(caught.value, kops.Cancelled) and pending.cancelled() and pending.done()
    daemon.gate.set()
    assert not pending.cancel()


@compiled_only
def test_timeouts(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    daemon.gate.clear()
    pending = k.submit("square", a)
    for seconds in (0, 0.01):
        with pytest.raises(TimeoutError):
            pending.result(timeout=seconds)
        with pytest.raises(kops.Timeout):
            pending.exception(timeout=seconds)
    pending.add_done_callback(lambda future: None)  # from now on another thread reads
    with pytest.raises(kops.Timeout):
        pending.result(timeout=0.01)
    daemon.gate.set()
    assert pending.result(timeout=20).tolist() == [1, 4, 9]
    assert k.submit("square", a).result(timeout=None).tolist() == [1, 4, 9]


@compiled_only
def test_many_threads_wait_for_one(k: kops.Client, held: threading.Event, a: Any) -> None:
    pending = k.submit("square", a)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(pending.result) for _ in range(8)]
        held.set()
        assert len({id(one.result(20)) for one in asked}) == 1


def test_threads_that_wait_for_different_ones(k: kops.Client, a: Any) -> None:
    def work(at: float) -> None:
        for _ in range(50):
            pendings = [k.submit("add", a, at + i) for i in range(3)]
            assert [p.result()[0] for p in pendings] == [1 + at + i for i in range(3)]
            assert all(p.done() for p in pendings)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(work, (0.0, 10.0, 20.0, 30.0)))


@compiled_only
@pytest.mark.parametrize("closed", [False, True])
def test_a_lost_connection_ends_them(daemon: FakeDaemon, held: Any, closed: bool) -> None:
    with kops.connect(daemon.path, timeout=20) as k:
        pending = k.submit("square", k.array([1.0]))
        here = threading.Event()
        pending.add_done_callback(lambda _: here.set())
        wait_for(lambda: daemon.count("run") == 1)
        if not closed:
            daemon.hang_up()
            assert here.wait(20)
    assert here.wait(20) and isinstance(pending.exception(), kops.ConnectionLost)


def test_errors_that_nobody_asked_for_are_told(k: kops.Client, daemon: FakeDaemon, a: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kops"):
        k.submit("newer", a, out=k.empty(3))
        k.submit("square", a).result()
        gc.collect()

        def told() -> bool:
            k.ping()  # a reply is taken in with a later call
            return len(caplog.records) == 1

        wait_for(told)
    assert "submitted newer failed and nobody asked for its result" in caplog.text and "[unknown_op]" in caplog.text


@compiled_only
def test_a_deadline_passes_while_the_work_goes_on(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    k.square(a)
    daemon.script["run"] = refuser("deadline_exceeded", "the deadline passed, and the work goes on", ended=False)
    daemon.script["trim"] = lambda *_: NotImplemented
    for _ in range(2):
        with pytest.raises(kops.DeadlineExceeded):
            k.submit("square", a, deadline_ms=1).result()
