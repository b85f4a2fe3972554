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
from fake_daemon import FakeDaemon, Peer, Refused, refuser
from test_kernels import add2
from which import compiled_only, wait_for

pytestmark = compiled_only


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array(numpy.arange(1, 7, dtype="float32").reshape(2, 3))


def once(daemon: FakeDaemon, method: str, act: Callable[[Peer], Any], times: float = 1, then: Any = None) -> list[int]:
    """The next requests of that method meet `act` in place of being carried out, or of the script `then`. Counts the requests."""
    asked = [0]
    then = then or (lambda peer, params, fds: getattr(peer, "do_" + method)(params, fds))

    def script(peer: Peer, params: dict[str, Any], fds: list[int]) -> Any:
        asked[0] += 1
        return act(peer) if asked[0] <= times else then(peer, params, fds)

    daemon.script[method] = script
    return asked


def always(daemon: FakeDaemon, method: str, act: Callable[[Peer], Any]) -> list[int]:
    return once(daemon, method, act, numpy.inf)


hang_up = Peer.hang_up  # it has read the request, and dies
refuse = refuser("shutting_down", "the daemon is ending; connect again")


def lose_device(peer: Peer) -> Any:
    """It says that its device is lost, and dies a moment later."""
    peer.leaves = True
    raise Refused("device_lost", "an illegal address was accessed")


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
@pytest.mark.parametrize("name", ["op", "sequence", "program", "ping"])
def test_the_error_of_a_daemon_that_goes_on_is_the_callers(name: str, code: str, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    method, call, expected = SAFE[name]
    k.square(a)
    asked = once(daemon, method, refuser(code, "a kernel beside it faulted", daemon="goes_on"))
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
        refuser(code, "it hangs")()

    kern, c = add2(k), k.zeros(3)
    kern(c, a[0], a[1], 3)
    once(daemon, "launch", end)
    daemon.script["run"] = lambda peer, *rest: NotImplemented if peer is daemon.peers[0] else peer.do_run(*rest)
    with pytest.raises((kops.DeviceLost, kops.JobTimeout)):
        kern(c, a[0], a[1], 3)
    before = a.copy()
    k.square(a, out=a)
    assert (a == before * before).all()


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


@pytest.mark.parametrize("how", [hang_up, lose_device])
@pytest.mark.parametrize("name", UNSAFE)
def test_what_must_not_run_twice_is_not_repeated(name: str, how: Any, k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    method, call, why = UNSAFE[name]
    k.square(a)
    asked = once(daemon, method, how)
    error, text = (kops.ConnectionLost, f"may or may not have run.*{why}.*connects anew")
    if how is lose_device:
        error, text = (kops.DeviceLost, f"illegal address.*{why}.*undefined")
    with pytest.raises(error, match=text):
        call(k, a)
    assert asked == [1]
    call(k, a)
    assert asked == [2]


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

    daemon.script["run"] = daemon.script["launch"] = script
    first = numpy.array(a)
    call(k, a)
    assert asked[0] == 5 and len(daemon.peers) == 2 and not (first == a).all()


@pytest.mark.parametrize("reconnect, own, said", [(0.3, None, "is ending.*Nothing ran"), (20, 0.5, r"for 0\.5 s")])
def test_it_is_asked_no_longer_than_the_time_allows(daemon: FakeDaemon, reconnect: float, own: float | None, said: str) -> None:
    with kops.connect(daemon.path, timeout=20, reconnect_timeout=reconnect) as k:
        asked = always(daemon, "run", refuse)
        with pytest.raises(kops.ShuttingDown, match=said):
            k.square(k.zeros(4), **({} if own is None else {"timeout": own}))
        assert asked[0] > 2


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
    tries = once(daemon, "hello", hang_up, 3)
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, kops.ConnectionLost])
def test_ctrl_c_and_close_end_the_waiting(error: Any, k: kops.Client, daemon: FakeDaemon) -> None:
    k.ping()
    daemon.stop()
    timer = threading.Timer(0.2, *((k.close,) if error is kops.ConnectionLost else (os.kill, (os.getpid(), signal.SIGINT))))
    timer.start()
    with pytest.raises(error, match="the client was closed" if error is kops.ConnectionLost else ""):
        k.ping()
    timer.join()
    daemon.start()
    if error is KeyboardInterrupt:
        assert k.ping({"x": 1}) == {"x": 1}


def test_how_long_is_said_by_the_environment(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with kops.connect(daemon.path) as k:
        assert k.reconnect_timeout == 10
    monkeypatch.setenv("KOPS_RECONNECT_TIMEOUT", "0.1")
    with kops.connect(daemon.path) as k, kops.connect(daemon.path, reconnect_timeout=3) as longer:
        assert (k.reconnect_timeout, longer.reconnect_timeout) == (0.1, 3)
    with pytest.raises(kops.BadArgument, match="reconnect_timeout"):
        kops.connect(daemon.path, reconnect_timeout=-1)
    for wrong in ("soon", "-1", "nan"):
        monkeypatch.setenv("KOPS_RECONNECT_TIMEOUT", wrong)
        with pytest.raises(kops.BadArgument, match=f"KOPS_RECONNECT_TIMEOUT.*{wrong}"):
            kops.connect(daemon.path)


def test_threads_share_one_new_connection(k: kops.Client, daemon: FakeDaemon) -> None:
    arrays = [k.array(numpy.full(8, i, "float32")) for i in range(8)]
    for one in arrays:
        k.square(one)
    daemon.gate.clear()
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(k.square, arrays)
        wait_for(lambda: daemon.count("run") >= 8 + k.info.limits["inflight"] - 1)
        daemon.hang_up()
        daemon.gate.set()
        assert all((result == i * i).all() for i, result in enumerate(results))
    assert len(daemon.peers) == 2


def test_submitted_requests_are_not_repeated(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    """A call after a lost one hears of it: it may count on what the other one writes, which nobody knows to be there."""
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
    asked = once(daemon, "run", hang_up)
    with pytest.raises(kops.ConnectionLost):
        k.submit("square", a, out=out).result()
    assert asked == [1] and (k.square(a) == a * a).all()


def test_memory_that_is_refused_is_lost(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    k.square(a)
    daemon.script["register"] = refuser("invalid_fd", "no memory of others is taken")
    daemon.hang_up()
    for _ in range(2):
        with pytest.raises(kops.BufferLost, match="before it was replaced.*no memory of others") as caught:
            k.square(a)
        assert caught.value.detail["refusal"] == "invalid_fd"
    with pytest.raises(kops.InvalidFd):  # new memory is no lost memory
        k.square(k.zeros(777_777))
    del daemon.script["register"]
    assert (k.square(a) == a * a).all()
