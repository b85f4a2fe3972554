"""The synchronous client: calls, timeouts, Ctrl-C, threads, pipelining, lost connections."""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, refuser
from which import compiled_only, drained, unanswered, wait_for


def test_hello(k: kops.Client, daemon: FakeDaemon) -> None:
    assert daemon.requests[0][0] == "hello" and daemon.requests[0][1]["protocol"] == 1
    assert k.info.server == "kopsd 0.0 (fake)" and k.info.limits["inflight"] == 8
    assert [d.uuid for d in k.devices] == ["host"] and k.devices[0].default
    assert k.ops["add"].inputs == ("a", "b") and k.ops["add"].variants == {"host": ("v",)}


def test_who_gets_no_connection(k: kops.Client, daemon: FakeDaemon) -> None:
    k.close()
    k.close()
    with pytest.raises(kops.ConnectionLost, match="closed"):
        k.ping()
    daemon.script["hello"] = refuser("protocol_mismatch", "speak 7", protocol=7, protocol_min=7)
    with pytest.raises(kops.ProtocolMismatch, match="speak 7"):
        kops.connect(daemon.path)


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
    assert str(kops.Timings()) == "no times"
    assert str(kops.Timings(gpu_us=0.5, h2d_us=1234.5, device="GPU-1")) == "h2d 1234, gpu 0.50 us; GPU-1"
    unknown = kops.Profile("mine", "", ((),), kops.Timings(), 4, None)
    assert [line.split() for line in str(unknown).splitlines()][::2] == [["mine", "scalar"], ["0", *"-------"]]
    console = pytest.importorskip("rich.console").Console(width=200, record=True, file=io.StringIO())
    console.print(profile)
    text = console.export_text()
    assert "gemm 4x5,5x6,4x6 f32" in text and all(name in text for name in ("n", "median us", "GB/s", "GFLOP/s"))


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


def test_what_cannot_be_sent(k: kops.Client) -> None:
    for wrong in (object(), 1 << 64):
        with pytest.raises(kops.BadArgument):
            k.ping({"x": wrong})
    assert k.ping() == {}


def test_messages_larger_than_a_sockets_buffer(daemon: FakeDaemon) -> None:
    daemon.hello["limits"] = {**daemon.hello["limits"], "message_bytes": 8 << 20}
    with kops.connect(daemon.path, timeout=60) as k:
        data = {"bytes": os.urandom(3 << 20)}
        for _ in range(3):
            assert k.ping(data) == data
        with pytest.raises(kops.LimitExceeded):
            k.ping({"bytes": bytes(8 << 20)})
        assert k.ping(data) == data


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
        """Again every ten seconds: the interpreter does not see a signal that comes just before it blocks until it wakes."""
        wait_for(lambda: daemon.count("run") == 1)
        while not noticed.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            noticed.wait(10)

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


def test_submit_keeps_order_and_results(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    doubled = k.empty(16)
    first = k.submit("add", a, a, out=doubled)
    second = k.submit("square", doubled, timing=True)
    result, timings = second.result()
    assert (result == (a + a) ** 2).all() and timings.host_us == 10
    assert first.done() and first.result() is doubled and first.result() is doubled


def test_a_dropped_pending_is_drained(k: kops.Client, a: Any) -> None:
    for _ in range(30):
        k.submit("square", a)
    drained(k)


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
def test_close_wakes_waiting_threads(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(k.square, a, timeout=None) for _ in range(3)]
        wait_for(lambda: daemon.count("run") == 3)
        k.close()
        assert [type(one.exception(30)) for one in waiting] == [kops.ConnectionLost] * 3


def test_nothing_is_repeated_without_a_reconnect_timeout(daemon: FakeDaemon, a: Any) -> None:
    with kops.connect(daemon.path, timeout=20, reconnect_timeout=0) as k:
        daemon.script["run"] = lambda peer, *_: peer.hang_up()
        with pytest.raises(kops.ConnectionLost):
            k.square(a)
        assert daemon.count("run") == 1
        del daemon.script["run"]
        assert (k.square(a) == a * a).all()
        assert len(daemon.peers[-1].buffers) >= 1
        daemon.peers[-1].hang_up()  # found when the next request is written
        with pytest.raises(kops.ConnectionLost):
            k.square(a)
        assert (k.square(a) == a * a).all()


def test_no_descriptor_is_leaked(daemon: FakeDaemon) -> None:
    def used() -> int:
        """How many descriptors there are once a client has come and gone."""
        with kops.connect(daemon.path) as k:
            k.square(k.zeros(200_000))
            k.square([1.0])
            k.trim()
        for peer in daemon.peers:
            peer.thread.join()
            peer.socket.close()
        return len(os.listdir("/proc/self/fd"))

    before = used()
    assert max(used() for _ in range(10)) <= before


# A timeout is seconds above 0 or None, wherever it is given

WRONG_TIMES = (-1, 0, "1", True, float("nan"), [1])
SOURCE = 'extern "C" __global__ void f(float* y, int n) {}'
SAYS = "timeout is a number of seconds above 0, or None for no limit, not"


@pytest.mark.parametrize("wrong", WRONG_TIMES, ids=repr)
def test_wrong_ones_are_value_errors(k: kops.Client, daemon: FakeDaemon, wrong: Any) -> None:
    a = k.array([1.0])
    kern = k.kernel(SOURCE, "f", "float* y, int n", grid=1, block=32)
    with k.program() as p:
        k.square(a)
    before = len(daemon.requests)
    for call in (
        lambda: k.add(a, a, timeout=wrong), lambda: k.ping(timeout=wrong), lambda: k.run("add", a, a, timeout=wrong),
        lambda: k.submit("add", a, a, timeout=wrong), lambda: k.profile("add", a, a, timeout=wrong), lambda: k.stats(timeout=wrong),
        lambda: k.clients(timeout=wrong), lambda: k.trim(timeout=wrong), lambda: k.synchronize(timeout=wrong),
        lambda: k.sequence([("add", a, a)], timeout=wrong), lambda: p.run(timeout=wrong), lambda: kern(a, 1, timeout=wrong),
        lambda: kern.submit(a, 1, timeout=wrong), lambda: setattr(k, "timeout", wrong), lambda: kops.connect(daemon.path, timeout=wrong),
        lambda: kops.connect_async(daemon.path, timeout=wrong),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=SAYS) as caught:
            call()
        assert isinstance(caught.value, kops.BadArgument) and caught.value.detail["key"] == "timeout"
    assert len(daemon.requests) == before
    assert k.timeout == 20


async def test_asyncio(daemon: FakeDaemon) -> None:
    async with kops.connect_async(daemon.path) as k:
        a = k.array([1.0])
        for call in (lambda: k.add(a, a, timeout=0), lambda: k.ping(timeout=0), lambda: k.drain(timeout=0)):
            with pytest.raises(ValueError, match=SAYS):
                await call()


def test_right_ones(daemon: FakeDaemon) -> None:
    with kops.connect(daemon.path) as k:
        assert k.timeout is None, "there is no limit"
        for right in (20, 20.5, numpy.float32(20), None, float("inf"), 1e300):
            assert k.square([2.0], timeout=right).tolist() == [4]
