"""What calls do when their daemon goes away: which are made once more, how often, and what the others raise."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, Peer, Refused
from test_kernels import add2
from which import compiled_only, in_child, wait_for

pytestmark = compiled_only


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array(numpy.arange(1, 7, dtype="float32").reshape(2, 3))


def once(daemon: FakeDaemon, method: str, act: Callable[[Peer], Any]) -> list[int]:
    """The next request of that method meets `act` in place of being carried out. Counts the requests."""
    asked = [0]

    def script(peer: Peer, params: dict[str, Any], fds: list[int]) -> Any:
        asked[0] += 1
        if asked[0] == 1:
            return act(peer)
        return getattr(peer, "do_" + method)(params, fds)

    daemon.script[method] = script
    return asked


def always(daemon: FakeDaemon, method: str, act: Callable[[Peer], Any]) -> list[int]:
    asked = [0]

    def script(peer: Peer, *_: Any) -> Any:
        asked[0] += 1
        return act(peer)

    daemon.script[method] = script
    return asked


def hang_up(peer: Peer) -> Any:
    """The daemon has read the request, and dies."""
    peer.hang_up()
    return NotImplemented


def lose_device(peer: Peer) -> Any:
    """It says that its device is lost, and dies a moment later."""
    peer.leaves = True
    raise Refused("device_lost", "an illegal address was accessed")


def refuse(peer: Peer) -> Any:
    raise Refused("shutting_down", "the daemon is ending; connect again")


# What may run twice


def sequence(k: kops.Client, a: Any) -> Any:
    with k.sequence() as s:
        b = s.add(a, a)
        s.square(b, out=b)  # reads what it writes, but that is written again before
    return b


def program(k: kops.Client, a: Any) -> Any:
    with k.program() as p:
        b = p.add(a, a)
        c = p.square(b)
    p.run()
    return c


SAFE: dict[str, tuple[str, Callable[[kops.Client, Any], Any], Callable[[Any], Any]]] = {
    "op": ("run", lambda k, a: k.square(a), lambda a: a * a),
    "ordinary array": ("run", lambda k, a: k.add(numpy.array(a), 1.0), lambda a: a + 1),
    "out": ("run", lambda k, a: k.square(a, out=k.empty((2, 3))), lambda a: a * a),
    "gemm": ("run", lambda k, a: k.gemm(a, a, trans_b=True, beta=0.0), lambda a: a @ a.T),
    "half and half": ("run", lambda k, a: (m := k.array(numpy.stack([a, a])), k.square(m[0], out=m[1]))[1], lambda a: a * a),
    "profile": ("run", lambda k, a: (out := k.empty((2, 3)), k.profile("square", a, out=out))[0], lambda a: a * a),
    "sequence": ("sequence", sequence, lambda a: 4 * a * a),
    "program": ("run_program", program, lambda a: 4 * a * a),
    "registering": ("register", lambda k, a: k.square(k.array(numpy.ones(300_000, "float32"))), lambda a: numpy.ones(300_000)),
    "ping": ("ping", lambda k, a: k.ping({"x": 1})["x"], lambda a: 1),
    "stats": ("stats", lambda k, a: k.stats()["uptime_s"], lambda a: 1.0),
}


@pytest.mark.parametrize("how", [hang_up, lose_device])
@pytest.mark.parametrize("name", SAFE)
def test_what_may_run_twice_is_repeated_once(name: str, how: Any, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    method, call, expected = SAFE[name]
    k.square(a)
    asked = once(daemon, method, how)
    assert (call(k, a) == expected(a)).all() if not numpy.isscalar(expected(a)) else call(k, a) == expected(a)
    assert asked == [2] or name in ("registering", "ping")  # with the result's memory; to see whether it is still there
    wait_for(lambda: [peer.ended.is_set() for peer in daemon.peers] == [True, False])  # the second try is with another


@pytest.mark.parametrize("name", SAFE)
def test_not_more_than_once(name: str, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    method, call, _ = SAFE[name]
    k.square(a)
    asked = always(daemon, method, hang_up)
    with pytest.raises(kops.ConnectionLost, match="repeated once already"):
        call(k, a)
    assert asked == [2]
    del daemon.script[method]
    assert (k.square(a) == a * a).all()


def test_what_breaks_the_device_twice_is_told_so(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    asked = always(daemon, "run", lose_device)
    with pytest.raises(kops.DeviceLost, match="illegal address.*made twice"):
        k.square(a)
    assert asked == [2]
    del daemon.script["run"]
    assert (k.square(a) == a * a).all()


@pytest.mark.parametrize("code", ["device_lost", "job_timeout"])
@pytest.mark.parametrize("name", SAFE)
def test_the_error_of_a_daemon_that_goes_on_is_the_callers(name: str, code: str, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    def refuse_once(peer: Peer) -> Any:
        raise Refused(code, "a kernel beside it faulted", daemon="goes_on")

    method, call, expected = SAFE[name]
    k.square(a)
    asked = once(daemon, method, refuse_once)
    with pytest.raises((kops.DeviceLost, kops.JobTimeout), match="^a kernel beside it faulted$") as caught:
        call(k, a)
    assert caught.value.detail == {"daemon": "goes_on"}
    assert asked == [1]
    assert (k.square(a) == a * a).all() and len(daemon.peers) == 1


@pytest.mark.parametrize("code", ["device_lost", "job_timeout"])
def test_the_next_call_is_the_next_daemons(code: str, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    """The one that said it will end reads nothing any more; what would go there might have run."""

    def end(peer: Peer) -> Any:
        peer.leaves = True
        raise Refused(code, "it hangs")

    kern, c = add2(k), k.zeros(3)
    kern(c, a[0], a[1], 3)
    once(daemon, "launch", end)
    daemon.script["run"] = lambda peer, *rest: NotImplemented if peer is daemon.peers[0] else peer.do_run(*rest)
    with pytest.raises((kops.DeviceLost, kops.JobTimeout)):
        kern(c, a[0], a[1], 3)
    before = a.copy()
    k.square(a, out=a)
    assert (a == before * before).all()


# What must not


def in_sequence(k: kops.Client, a: Any) -> Any:
    with k.sequence() as s:
        s.add(a, a, out=a)


def read_then_written(k: kops.Client, a: Any) -> Any:
    with k.sequence() as s:
        b = s.square(a)
        s.square(b, out=a)


def bound_to_its_input(k: kops.Client, a: Any) -> Any:
    with k.program() as p:
        b = p.square(a)
    p.run([(b, a)])


def with_a_kernel(k: kops.Client, a: Any) -> Any:
    with k.sequence() as s:
        s.launch(add2(k), k.zeros(3), a[0], a[1], 3)


UNSAFE: dict[str, tuple[str, Callable[[kops.Client, Any], Any], str]] = {
    "in place": ("run", lambda k, a: k.square(a, out=a), "writes to memory that it reads"),
    "partly in place": ("run", lambda k, a: (v := k.array(numpy.ones(9, "f4")), k.square(v[:8], out=v[1:])), "that it reads"),
    "beta": ("run", lambda k, a: k.gemm(a, a, trans_b=True, beta=0.5, out=k.zeros((2, 2))), "reads its output"),
    "kernel": ("launch", lambda k, a: add2(k)(k.zeros(3), a[0], a[1], 3), "kernel of your own"),
    "kernel's profile": ("launch", lambda k, a: add2(k).profile(k.zeros(3), a[0], a[1], 3, warmup=0, repeat=1), "kernel of your own"),
    "sequence": ("sequence", in_sequence, "has read before"),
    "a loop of memory": ("sequence", read_then_written, "has read before"),
    "sequence with a kernel": ("sequence", with_a_kernel, "kernel of your own"),
    "program": ("run_program", bound_to_its_input, "has read before"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_must_not_run_twice_is_not_repeated(name: str, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    method, call, why = UNSAFE[name]
    k.square(a)
    asked = once(daemon, method, hang_up)
    with pytest.raises(kops.ConnectionLost, match=f"may or may not have run.*{why}.*connects anew"):
        call(k, a)
    assert asked == [1]
    call(k, a)
    assert asked == [2]


@pytest.mark.parametrize("name", UNSAFE)
def test_of_a_lost_device_the_error_says_so(name: str, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    method, call, why = UNSAFE[name]
    k.square(a)
    asked = once(daemon, method, lose_device)
    with pytest.raises(kops.DeviceLost, match=f"illegal address.*{why}.*undefined"):
        call(k, a)
    assert asked == [1]


def test_what_was_never_written_is_made_again_whatever_it_does(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    kern, c = add2(k), k.zeros(3)
    kern(c, a[0], a[1], 3)
    for _ in range(3):
        daemon.hang_up()
        before = a.copy()
        k.square(a, out=a)
        assert (a == before * before).all()
        daemon.hang_up()
        kern(c, a[0], a[1], 3)
        assert (c == a[0] + a[1]).all()
    assert daemon.count("run") == 3 and daemon.count("launch") == 4


# What was refused because the daemon is ending


@pytest.mark.parametrize("call", [lambda k, a: k.square(a, out=a), lambda k, a: add2(k)(a[0], a[0], a[1], 3)])
def test_a_daemon_that_is_ending_is_asked_again(call: Any, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    """Nothing ran, so that this holds for whatever it is; at first on the same connection, which ends behind the fourth answer."""
    asked = [0]

    def script(peer: Peer, params: dict[str, Any], fds: list[int]) -> Any:
        asked[0] += 1
        peer.ends = asked[0] == 4
        if asked[0] <= 4:
            refuse(peer)
        return getattr(peer, "do_" + ("run" if "op" in params else "launch"))(params, fds)

    k.ping()
    daemon.hang_up()  # so that the client below is the second
    daemon.script["run"] = daemon.script["launch"] = script
    first = numpy.array(a)
    call(k, a)
    assert asked[0] == 5 and len(daemon.peers) == 3 and not (first == a).all()


def test_it_is_asked_no_longer_than_the_time_allows(daemon: FakeDaemon) -> None:
    with kops.connect(daemon.path, timeout=20, reconnect_timeout=0.3) as k:
        asked = always(daemon, "run", refuse)
        with pytest.raises(kops.ShuttingDown, match="is ending.*Nothing ran"):
            k.square(k.zeros(4))
        assert asked[0] > 2


def test_a_calls_own_time_is_the_limit(k: kops.Client, daemon: FakeDaemon) -> None:
    always(daemon, "run", refuse)
    with pytest.raises(kops.ShuttingDown, match=r"for 0\.5 s"):  # in which at least one answer comes
        k.square(k.zeros(4), timeout=0.5)


# Finding the daemon that follows


def test_a_socket_that_is_absent_for_a_while(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    k.square(a)
    daemon.stop()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(k.square(a)))
    thread.start()
    with pytest.raises(kops.ConnectFailed):  # a new client does not wait for what may never be there
        kops.connect(daemon.path)
    assert thread.is_alive() and not answers
    daemon.start()
    thread.join()
    assert (answers[0] == a * a).all() and len(daemon.peers) == 2


def test_a_daemon_that_accepts_and_dies_again(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    tries = [0]

    def hello(peer: Peer, *_: Any) -> Any:
        tries[0] += 1
        return daemon.hello if tries[0] > 3 else hang_up(peer)

    daemon.script["hello"] = hello
    daemon.hang_up()
    assert (k.square(a) == a * a).all() and tries[0] == 4
    tries[0] = 0
    with kops.connect(daemon.path, timeout=20) as other:
        assert other.ping() == {} and tries[0] == 4


def test_nobody_comes(daemon: FakeDaemon) -> None:
    with kops.connect(daemon.path, timeout=20, reconnect_timeout=0.1) as k:
        daemon.stop()
        for _ in range(2):
            with pytest.raises(kops.ConnectFailed, match=r"was lost.*within 0\.1 s.*No such file"):
                k.ping()
        k.reconnect_timeout = 20  # the next one answers late where the machine has much to do
        daemon.start()
        assert k.ping({"x": 1}) == {"x": 1}


def test_one_that_accepts_and_says_nothing(daemon: FakeDaemon) -> None:
    with kops.connect(daemon.path, reconnect_timeout=0.3) as k:
        daemon.script["hello"] = lambda *_: NotImplemented
        daemon.hang_up()
        k._connection.poll()  # type: ignore[union-attr]
        with pytest.raises(kops.ConnectFailed, match="does not answer"):
            k.ping(timeout=0.3)
        k.reconnect_timeout = 20
        del daemon.script["hello"]
        assert k.ping({"x": 1}) == {"x": 1}


def test_ctrl_c_ends_the_waiting(k: kops.Client, daemon: FakeDaemon) -> None:
    k.ping()
    daemon.stop()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        k.ping()
    timer.join()
    daemon.start()
    assert k.ping({"x": 1}) == {"x": 1}


def test_another_threads_close_ends_the_waiting(k: kops.Client, daemon: FakeDaemon) -> None:
    k.ping()
    daemon.stop()
    timer = threading.Timer(0.2, k.close)
    timer.start()
    with pytest.raises(kops.ConnectionLost, match="the client was closed"):
        k.ping()
    timer.join()
    daemon.start()


def test_a_forked_child_waits_as_well(k: kops.Client, daemon: FakeDaemon) -> None:
    k.ping()
    daemon.stop()
    timer = threading.Timer(0.3, daemon.start)
    timer.start()
    in_child(lambda: k.ping({"x": 1}) == {"x": 1})
    timer.join()


def test_how_long_is_said_by_the_environment(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPS_RECONNECT_TIMEOUT", "0.1")
    with kops.connect(daemon.path) as k, kops.connect(daemon.path, reconnect_timeout=3) as longer:
        assert (k.reconnect_timeout, longer.reconnect_timeout) == (0.1, 3)
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv("KOPS_RECONNECT_TIMEOUT", wrong)
        with pytest.raises(kops.BadArgument, match=f"KOPS_RECONNECT_TIMEOUT.*{wrong}"):
            kops.connect(daemon.path)
    with pytest.raises(kops.BadArgument, match="reconnect_timeout"):
        kops.connect(daemon.path, reconnect_timeout=-1)
    monkeypatch.delenv("KOPS_RECONNECT_TIMEOUT")
    with kops.connect(daemon.path) as k:
        assert k.reconnect_timeout == 10


def test_threads_share_one_new_connection(k: kops.Client, daemon: FakeDaemon) -> None:
    arrays = [k.array(numpy.full(8, i, "float32")) for i in range(8)]
    for one in arrays:
        k.square(one)
    before = len(daemon.peers)
    daemon.gate.clear()
    limit = k.info.limits["inflight"] - 1
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(k.square, arrays)
        wait_for(lambda: daemon.count("run") >= 8 + limit)
        daemon.hang_up()
        daemon.gate.set()
        assert all((result == i * i).all() for i, result in enumerate(results))
    assert len(daemon.peers) == before + 1


# What was submitted


def test_submitted_requests_are_not_repeated(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    out = k.empty((2, 3))
    k.square(a)
    asked = once(daemon, "run", hang_up)
    pending = k.submit("square", a, out=out)
    with pytest.raises(kops.ConnectionLost):
        pending.result()
    assert asked == [1]
    assert (k.square(a) == a * a).all()


def test_a_call_after_a_lost_submission_hears_of_it(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    """It may count on what the other one writes, which nobody knows to be there."""
    out = k.zeros((2, 3))
    k.square(a)
    asked = once(daemon, "run", hang_up)
    pending = k.submit("square", a, out=out)
    others: list[Any] = []
    with pytest.raises(kops.ConnectionLost, match="1 submitted"):
        k.square(out)
    thread = threading.Thread(target=lambda: others.append(k.ping({"x": 1})))  # it submitted nothing
    thread.start()
    thread.join()
    assert others == [{"x": 1}] and asked[0] <= 2
    assert (k.square(a) == a * a).all()
    with pytest.raises(kops.ConnectionLost):
        pending.result()


# What the daemon that follows does not take


def test_memory_that_is_refused_is_lost(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    k.square(a)

    def refuse_memory(*_: Any) -> Any:
        raise Refused("invalid_fd", "no memory of others is taken")

    daemon.script["register"] = refuse_memory
    daemon.hang_up()
    for _ in range(2):
        with pytest.raises(kops.BufferLost, match="before it was replaced.*no memory of others") as caught:
            k.square(a)
        assert caught.value.detail["refusal"] == "invalid_fd"
    with pytest.raises(kops.InvalidFd):  # new memory is no lost memory
        k.square(k.zeros(777_777))
    del daemon.script["register"]
    assert (k.square(a) == a * a).all()
