"""Forked processes: they connect anew and share no memory that either side reuses."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._session.plain import PlainLink
from test_client import wait_for
from which import compiled_only


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array(numpy.arange(16, dtype="float32"))


@pytest.fixture
def held(daemon: FakeDaemon) -> Iterator[threading.Event]:
    daemon.gate.clear()
    yield daemon.gate
    daemon.gate.set()


def in_child(function: Any) -> None:
    """Runs a function in a forked child and asserts that it returned True."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"yes" if function() is True else b"no")
        except BaseException as error:
            os.write(write, repr(error).encode()[:500])
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], 60)
    answer = os.read(read, 1000) if ready else b"nothing"
    os.close(read)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert answer == b"yes"


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


def test_memory_that_was_free_at_a_fork_is_reused_by_one_side_only(k: kops.Client, daemon: FakeDaemon) -> None:
    k.array(numpy.ones(5000, "float32"))  # goes back at once
    filled, checked = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = [k.array(numpy.full(5000, 7, "float32")) for _ in range(3)]
        os.write(filled[1], b"x")
        os.read(checked[0], 1)
        os._exit(0 if all((m == 7).all() for m in mine) else 1)
    os.read(filled[0], 1)
    mine = [k.array(numpy.full(5000, 8, "float32")) for _ in range(3)]
    os.write(checked[1], b"x")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0 and all((m == 8).all() for m in mine)
    for fd in (*filled, *checked):
        os.close(fd)


def test_memory_in_use_at_a_fork_is_reused_by_neither_side(k: kops.Client, daemon: FakeDaemon) -> None:
    result = k.square(numpy.full(5000, 3, "float32"))
    go, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go[0], 1)
        os.write(done[1], b"y" if (result == 9).all() else b"n")
        os._exit(0)
    del result
    for i in range(20):
        k.square(numpy.full(5000, i, "float32"))
    os.write(go[1], b"x")
    assert os.read(done[0], 1) == b"y"
    os.waitpid(pid, 0)
    for fd in (*go, *done):
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
