"""What comes between: forked processes, which connect anew and share no memory that either side reuses, other threads, Ctrl-C."""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._calls import launch, ops_here
from kops._memory import device_pool, pool
from kops._session.native_link import NativeLink
from kops._session.plain import PlainLink
from which import compiled_only, drained, in_child, plain_only, wait_for


def test_a_forked_child_connects_anew(k: kops.Client, daemon: FakeDaemon, a: Any) -> None:
    (k.square(a), k.ping())
    parent = k._connection
    expected = a * a

    def child() -> bool:
        closed = not isinstance(parent, PlainLink) or parent._socket.fileno() == -1
        return bool(closed and (k.square(a) == expected).all() and k._connection is not parent)

    in_child(child)
    assert len(daemon.peers) == 2
    assert (k.square(a) == a * a).all() and k._connection is parent
    assert len(daemon.peers) == 2


def test_a_fork_while_other_threads_wait(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    waiter = threading.Thread(target=lambda: k.square(a))
    waiter.start()
    wait_for(lambda: daemon.count("run") == 1)
    in_child(lambda: k.ping({"a": 1}, timeout=20) == {"a": 1})
    held.set()
    waiter.join()


@compiled_only
def test_a_pending_request_of_the_parent_is_none_of_the_childs(k: kops.Client, daemon: FakeDaemon, held: Any, a: Any) -> None:
    pending = k.submit("square", a)

    def child() -> bool:
        with pytest.raises(kops.ConnectionLost):
            pending.result()
        return True

    in_child(child)
    held.set()
    assert (pending.result() == a * a).all()


def test_memory_is_reused_by_one_side_only(k: kops.Client, daemon: FakeDaemon) -> None:
    """What was free at the fork by one of them, what was in use by neither while the other has it."""
    k.array(numpy.ones(5000, "float32"))  # goes back at once
    result = k.square(numpy.full(5000, 3, "float32"))
    filled, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = [k.array(numpy.full(5000, 7, "float32")) for _ in range(3)]
        os.write(filled[1], b"x")
        os.read(go[0], 1)
        os._exit(0 if all((m == 7).all() for m in mine) and (result == 9).all() else 1)
    os.read(filled[0], 1)
    del result
    mine = [k.array(numpy.full(5000, 8, "float32")) for _ in range(20)]
    os.write(go[1], b"x")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0 and all((m == 8).all() for m in mine)
    for fd in (*filled, *go):
        os.close(fd)


@compiled_only
def test_a_child_without_a_daemon(daemon: FakeDaemon) -> None:
    """It waits as long as its parent would; close() ends the wait."""
    quick, patient = (kops.connect(daemon.path, timeout=seconds, reconnect_timeout=seconds) for seconds in (0.3, 60))
    (quick.ping(), patient.ping())
    daemon.stop()

    def child() -> bool:
        with pytest.raises(kops.ConnectFailed) as failed:
            quick.ping()
        assert failed.value.detail["tried"]
        closing = threading.Thread(target=lambda: (wait_for(lambda: patient._making is not None), patient.close()))
        closing.start()
        with pytest.raises(kops.ConnectionLost, match="the client was closed"):
            patient.ping()
        return True

    in_child(child)
    daemon.start()
    (quick.close(), patient.close())


# What threads share is gone through while others change it: a test lets the other thread come in the middle

def test_ids_are_pruned_while_another_thread_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {key: key for key in range(9)}

    class Connections:
        def __contains__(self, key: int) -> bool:
            ids.setdefault(100, 1)
            return key in (3, 100)

    monkeypatch.setattr(pool, "garbage", Connections())
    pool.prune(ids)
    assert ids == {3: 3, 100: 1}


def test_another_thread_sends_the_last_release_that_was_due() -> None:
    class Shared(deque[tuple[str, int]]):
        def __len__(self) -> int:
            left = super().__len__()
            if left == 1:
                self.popleft()  # the other thread, between a look and what follows
            return left

    told: list[bytes] = []
    link = NativeLink.__new__(NativeLink)
    link._native = SimpleNamespace(forget=lambda buffer: None, notify=lambda method, params: told.append(params))
    link.garbage = Shared([("buffer", 1), ("buffer", 2), ("buffer", 3)])
    link.release()
    assert len(told) == 2 and not link.garbage


def test_the_daemon_is_told_of_launches_while_another_thread_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        pass

    told: list[Any] = []
    monkeypatch.setattr(launch, "tell_launched", lambda connection, kernel: told.append(kernel))
    monkeypatch.setattr(ops_here, "tell", lambda client: None)
    client = kops.Client.unconnected("/nowhere/kopsd.sock")
    kept: deque[Any] = deque(maxlen=50)
    ended = threading.Event()

    def launches() -> None:
        while not ended.is_set():
            kernel = Kernel()
            client._launched[id(kernel)] = kernel
            kept.append(kernel)

    other = threading.Thread(target=launches)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as can be
    other.start()
    try:
        for _ in range(1000):
            client._tell_launched()
            told.clear()
    finally:
        ended.set()
        other.join()
        sys.setswitchinterval(before)
    client._tell_launched()
    assert {id(kernel) for kernel in told} >= {id(kernel) for kernel in kept}


# Ctrl-C at every moment of every kind of call

PACKAGE = str(Path(kops.__file__).parent)


def handlers(code: Any) -> Any:
    """From a bytecode offset to the place where an exception raised there is handled."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return lambda offset: next((e.target for e in entries if e.start <= offset < e.end), None)


class Interrupter:
    """Raises KeyboardInterrupt in this thread where the interpreter looks for signals: after the `at`-th call that
    returns to a function of the package. Counts them when `at` is None.

    The interpreter raises it at the call itself, a trace function only at the next instruction: where another handler
    is in force there (a `return f()` inside `with`), nothing is raised."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.seen = 0
        self.before: dict[Any, tuple[str, int]] = {}
        self.handlers: dict[Any, Any] = {}

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith((PACKAGE, "<op")) or "__del__" in frame.f_code.co_name:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.opcode

    def opcode(self, frame: Any, event: str, _: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            name, where = self.before.get(frame, ("", 0))
            self.before[frame] = (dis.opname[code.co_code[at]], at)
            if name.startswith("CALL"):
                handler = self.handlers.get(code) or self.handlers.setdefault(code, handlers(code))
                if handler(where) == handler(at):
                    self.seen += 1
                    if self.seen == self.at:
                        raise KeyboardInterrupt
        return self.opcode

    def run(self, function: Any) -> bool:
        """True when the function was interrupted."""
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            function()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


# 3.10 has no exception tables to tell where a signal's exception is handled, 3.12 traces instructions in another way.
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="reads the bytecode of Python 3.11")
@plain_only
@pytest.mark.parametrize("what", ["ping", "shared", "staged", "submit", "register"])
def test_ctrl_c_at_any_moment(k: kops.Client, what: str, a: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_pool, "_pools", {})  # trim() looks at every free block that other tests have left there
    ordinary = numpy.arange(16, dtype="float32")
    calls = {
        "ping": lambda: k.ping({"x": 1}),
        "shared": lambda: k.add(a, a),
        "staged": lambda: k.add(ordinary, ordinary, out=ordinary.copy()),
        "submit": lambda: [pending.result() for pending in [k.submit("square", a) for _ in range(3)]],
        "register": lambda: k.square(k.zeros(70_000)) is not None and k.trim(),
    }
    call = calls[what]
    for _ in range(3):
        call()
    counter = Interrupter(None)
    assert not counter.run(call)
    assert counter.seen > 10
    connection = k._connection
    for at in range(1, counter.seen + 1, counter.seen // 300 + 1):
        Interrupter(at).run(call)
        assert k.ping({"at": at}) == {"at": at}, f"after an interrupt at {at} of {counter.seen}"
        assert (k.add(ordinary, a) == ordinary + a).all()
    assert k._connection is connection, "the connection did not survive"
    drained(k)
