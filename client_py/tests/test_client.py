"""The synchronous client: calls, timeouts, Ctrl-C, threads, forks, pipelining, lost connections."""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, Refused
from kops._session.link import Call
from kops._session.plain import RECEIVE
from which import compiled_only, plain_only, unanswered

PACKAGE = str(Path(kops.__file__).parent)


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array(numpy.arange(16, dtype="float32"))


def wait_for(condition: Any) -> None:
    """Waits for something that another thread does; the limit only ends a test that would hang."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def press_ctrl_c(noticed: threading.Event) -> None:
    """Presses again every ten seconds until it is noticed: the interpreter does not see a signal that comes just before it blocks
    until it wakes."""
    while not noticed.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        noticed.wait(10)


def drained(k: kops.Client) -> None:
    """Waits until every request of the client was answered, also those that nobody waits for."""
    wait_for(lambda: k.ping() == {} and not unanswered(k._connection))


@pytest.fixture
def held(daemon: FakeDaemon) -> Iterator[threading.Event]:
    """`run` is not answered until the gate is set."""
    daemon.gate.clear()
    yield daemon.gate
    daemon.gate.set()


# Connecting


def test_hello(k: kops.Client, daemon: FakeDaemon) -> None:
    assert daemon.requests[0][0] == "hello" and daemon.requests[0][1]["protocol"] == 1
    assert k.info.server == "kopsd 0.0 (fake)" and k.info.limits["inflight"] == 8
    assert [d.uuid for d in k.devices] == ["host"] and k.devices[0].default
    assert k.ops["add"].inputs == ("a", "b") and k.ops["add"].variants == {"host": ("v",)}


def test_closed(k: kops.Client) -> None:
    k.close()
    k.close()
    with pytest.raises(kops.ConnectionLost, match="closed"):
        k.ping()


def test_protocol_mismatch(daemon: FakeDaemon) -> None:
    def hello(*_: Any) -> Any:
        raise Refused("protocol_mismatch", "speak 7", protocol=7, protocol_min=7)

    daemon.script["hello"] = hello
    with pytest.raises(kops.ProtocolMismatch, match="speak 7"):
        kops.connect(daemon.path)


# Calls


def test_ping_stats_trim(k: kops.Client) -> None:
    assert k.ping({"x": [1, b"2", None]}) == {"x": [1, b"2", None]}
    assert k.ping() == {}
    assert k.stats("add", dtype="f32", device=k.devices[0], reset=True)["asked"] == {
        "op": "add", "dtype": "f32", "device": "host", "reset": True,
    }  # fmt: skip
    assert k.trim()["unpinned"] == 0


def test_timing_and_options(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    result, timings = k.add(a, a, timing=True, variant="slow", device=0, stream=3, deadline_ms=5)
    assert (result == a + a).all()
    assert timings.host_us == 10 and timings.exec_us == 10 and timings.gpu_us is None and timings.variant == "slow"
    run = daemon.runs()[-1]
    assert (run["attrs"], run["device"], run["stream"], run["deadline_ms"]) == ({"variant": "slow"}, 0, 3, 5)
    assert "timing" not in run
    k.add(a, a)
    assert daemon.runs()[-1].keys() == {"op", "in", "out", "timing"} and daemon.runs()[-1]["timing"] is False


def test_profile(k: kops.Client, daemon: FakeDaemon) -> None:
    x = k.zeros((4, 5)), k.zeros((5, 6))
    profile = k.profile("gemm", *x, warmup=2, repeat=8, alpha=2)
    run = daemon.runs()[-1]
    assert (run["warmup"], run["repeat"], run["attrs"]) == (2, 8, {"alpha": 2.0})
    assert profile.shapes == ((4, 5), (5, 6), (4, 6)) and profile.dtype == "f32" and profile.op == "gemm"
    assert (profile.min, profile.median, profile.p90, profile.max) == (1, 4, 8, 8) and len(profile.samples) == 8
    assert profile.operations == 2 * 4 * 5 * 6 and profile.bytes == 4 * (20 + 30 + 24)
    assert profile.gflop_s == pytest.approx(240 / 4 / 1e3) and profile.gb_s == pytest.approx(296 / 4 / 1e3)
    assert str(profile).splitlines() == [
        "gemm 4x5,5x6,4x6 f32, fake on host",
        "n  min us  median us  p90 us  max us   interval us  GB/s  GFLOP/s",
        "8    1.00       4.00    8.00    8.00  1.00 to 8.00  0.07     0.06",
        "clocks and temperature are not known: this daemon is older than readings of them",
    ]
    assert str(profile.timings) == "host 10.0, total 12.0 us; 8 executions: min 1.00, median 4.00, p90 8.00, max 8.00 us; fake on host"
    assert k.profile("add", x[0], x[0], repeat=1).median == 10


def test_a_profile_as_a_table(k: kops.Client) -> None:
    console = pytest.importorskip("rich.console").Console(width=200, record=True, file=io.StringIO())
    console.print(k.profile("add", k.zeros((4, 5)), k.zeros(5), repeat=8))
    text = console.export_text()
    assert "add 4x5,5,4x5 f32" in text and all(name in text for name in ("n", "median us", "GB/s", "GFLOP/s"))


def test_what_was_not_measured_is_not_printed(k: kops.Client) -> None:
    assert str(kops.Timings()) == "no times"
    assert str(kops.Timings(gpu_us=0.5, h2d_us=1234.5, device="GPU-1")) == "h2d 1234, gpu 0.50 us; GPU-1"
    profile = kops.Profile("mine", "", ((),), kops.Timings(), 4, None)
    assert [line.split() for line in str(profile).splitlines()][::2] == [["mine", "scalar"], ["0", *"-------"]]


def test_a_pickled_client_connects_anew(k: kops.Client, daemon: FakeDaemon) -> None:
    with pickle.loads(pickle.dumps(k)) as other:
        assert other.ping({"a": 1}) == {"a": 1} and other.timeout == k.timeout
    assert len(daemon.peers) == 2 and k.ping() == {}


def test_an_op_of_a_newer_daemon(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    daemon.script["run"] = lambda peer, params, fds: {"timings": {}}
    out = k.zeros(16)
    assert k.run("newer", a, a, a, out=out, factor=3) is out
    assert daemon.runs()[-1]["op"] == "newer" and daemon.runs()[-1]["attrs"] == {"factor": 3}
    with pytest.raises(kops.UnknownOp, match="out="):
        k.run("newer", a)
    with pytest.raises(kops.BadArgument, match="takes 2 inputs"):
        k.run("add", a, out=out)


def test_an_error_reply_leaves_the_connection_usable(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    def run(*_: Any) -> Any:
        raise Refused("device_error", "it burns", driver="CUDA_ERROR_X")

    daemon.script["run"] = run
    with pytest.raises(kops.DeviceError, match="it burns") as caught:
        k.add(a, a)
    assert caught.value.detail == {"driver": "CUDA_ERROR_X"} and isinstance(caught.value, RuntimeError)
    del daemon.script["run"]
    assert (k.add(a, a) == a + a).all()


def test_what_cannot_be_sent(k: kops.Client) -> None:
    with pytest.raises(kops.BadArgument):
        k.ping({"x": object()})
    with pytest.raises(kops.BadArgument):
        k.ping({"x": 1 << 64})
    assert k.ping() == {}


def test_messages_larger_than_a_sockets_buffer(daemon: FakeDaemon) -> None:
    daemon.hello["limits"] = {**daemon.hello["limits"], "message_bytes": 8 << 20}
    with kops.connect(daemon.path, timeout=60) as k:
        data = {"bytes": os.urandom(3 << 20)}
        for _ in range(3):
            assert k.ping(data) == data


@plain_only
def test_what_an_interrupted_reader_left_is_read_first(k: kops.Client) -> None:
    connection: Any = k._connection
    call = Call("ping", {"x": 1})
    connection.put(call)
    connection._inbox.extend(map(connection._socket.recvmsg, *RECEIVE))
    assert k.ping({"x": 2}) == {"x": 2} and call.outcome() == {"x": 1}


# Timeouts and Ctrl-C


def test_timeout_cancels_and_leaves_the_connection_usable(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    with pytest.raises(kops.Timeout) as caught:
        k.add(a, a, timeout=0.5)
    assert isinstance(caught.value, TimeoutError)
    wait_for(lambda: daemon.count("cancel") == 1)
    held.set()
    assert k.ping({"still": "here"}) == {"still": "here"}
    assert (k.square(a) == a * a).all()
    drained(k)


def test_the_clients_own_timeout(daemon: FakeDaemon, held: Any) -> None:
    with kops.connect(daemon.path, timeout=0.3) as k:
        with pytest.raises(kops.Timeout):
            k.square([1.0])
        assert k.ping(timeout=20) == {}
        held.set()
        assert k.square([2.0], timeout=None).tolist() == [4]


@compiled_only
def test_staged_memory_is_not_reused_while_the_daemon_may_write_it(k: kops.Client, daemon: FakeDaemon, held: Any) -> None:
    gc.collect()
    daemon.script["cancel"] = lambda *_: {"cancelled": False}
    big = numpy.ones(100_000, "float32")
    with pytest.raises(kops.Timeout):
        k.add(big, big, timeout=0.5)
    wait_for(lambda: daemon.count("run") == 1)
    given_up = {t["buffer"] for t in daemon.runs()[-1]["in"] + daemon.runs()[-1]["out"]}
    pending = k.submit("add", big, big)
    wait_for(lambda: daemon.count("run") == 2)
    used = {t["buffer"] for t in daemon.runs()[-1]["in"] + daemon.runs()[-1]["out"]}
    assert not given_up & used
    held.set()
    assert (pending.result() == 2).all()


def test_ctrl_c_cancels_and_leaves_the_connection_usable(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    noticed = threading.Event()

    def press() -> None:
        wait_for(lambda: daemon.count("run") == 1)
        press_ctrl_c(noticed)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        k.add(a, a, timeout=None)
    noticed.set()
    presser.join()
    assert daemon.count("cancel") == 1
    assert not unanswered(k._connection), "the cancelled request's reply was not awaited"
    held.set()
    assert (k.square(a) == a * a).all()


# Pipelining


def test_submit_keeps_order_and_results(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    doubled = k.empty(16)
    first = k.submit("add", a, a, out=doubled)
    second = k.submit("square", doubled, timing=True)
    result, timings = second.result()
    assert (result == (a + a) ** 2).all() and timings.host_us == 10
    assert first.done() and first.result() is doubled and first.result() is doubled


@compiled_only
def test_submit_respects_the_limit(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    k.ping()
    pending = []
    with pytest.raises(kops.Timeout):
        for _ in range(20):
            pending.append(k.submit("square", a, timeout=0.5))
    assert 7 <= len(pending) <= 8
    wait_for(lambda: daemon.count("run") == len(pending))
    held.set()
    assert all((p.result() == a * a).all() for p in pending)
    assert daemon.count("run") == len(pending)


def test_replies_are_read_while_sending(daemon: FakeDaemon) -> None:
    """A socket takes some hundred messages: more than that go through when both sides write at once."""
    daemon.hello["limits"] = {**daemon.hello["limits"], "inflight": 100_000, "message_bytes": 1 << 20}
    # Answered before the next request is read.
    daemon.script["run"] = lambda peer, params, fds: peer.do_run(params, fds)
    with kops.connect(daemon.path, timeout=60) as k:
        a = k.array([3.0])
        pending = [k.submit("square", a) for _ in range(2000)]
        assert all(p.result() == 9 for p in pending)


def test_a_dropped_pending_is_drained(k: kops.Client, a: Any) -> None:
    for _ in range(30):
        k.submit("square", a)
    drained(k)


# Threads


def test_threads_share_a_client(k: kops.Client) -> None:
    def work(seed: int) -> None:
        mine = k.array(numpy.full(1000, seed, "float32"))
        for i in range(100):
            assert (k.add(mine, numpy.full(1000, i, "float32")) == seed + i).all()
            assert k.ping({"seed": seed, "i": i}) == {"seed": seed, "i": i}

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert not unanswered(k._connection)


@compiled_only
def test_a_waiting_thread_does_not_hold_up_another(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(k.square, a)
        wait_for(lambda: daemon.count("run") == 1)
        for i in range(50):
            assert k.ping({"i": i}) == {"i": i}
        held.set()
        assert (waiting.result() == a * a).all()


@compiled_only
def test_close_wakes_waiting_threads(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(k.square, a, timeout=None) for _ in range(3)]
        wait_for(lambda: daemon.count("run") == 3)
        k.close()
        assert [type(one.exception(30)) for one in waiting] == [kops.ConnectionLost] * 3


# Lost connections


def test_nothing_is_repeated_without_a_reconnect_timeout(daemon: FakeDaemon, a: Any) -> None:
    def die(peer: Any, *_: Any) -> Any:
        peer.socket.shutdown(2)
        return NotImplemented

    with kops.connect(daemon.path, timeout=20, reconnect_timeout=0) as k:
        daemon.script["run"] = die
        with pytest.raises(kops.ConnectionLost):
            k.square(a)
        del daemon.script["run"]
        assert (k.square(a) == a * a).all()
        assert len(daemon.peers[-1].buffers) >= 1
        daemon.peers[-1].socket.shutdown(2)  # found when the next request is written
        with pytest.raises(kops.ConnectionLost):
            k.square(a)
        assert (k.square(a) == a * a).all()


def test_no_descriptor_is_leaked(daemon: FakeDaemon) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def use() -> None:
        with kops.connect(daemon.path) as k:
            k.square(k.zeros(200_000))
            k.square([1.0])
            k.trim()

    use()
    for peer in daemon.peers:
        peer.thread.join()
        peer.socket.close()
    before = count()
    for _ in range(10):
        use()
    for peer in daemon.peers:
        peer.thread.join()
        peer.socket.close()
    assert count() <= before
