"""Forked processes: they connect anew and share no memory that either side reuses."""

from __future__ import annotations

import os
import threading
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._session.plain import PlainLink
from which import compiled_only, in_child, wait_for


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
