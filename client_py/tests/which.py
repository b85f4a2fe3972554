"""Which of the two links is tested: KOPS_NATIVE=0 is the plain one. Helpers of several modules."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from kops._base.compiled import native
from kops._session.plain import PlainLink

plain_only = pytest.mark.skipif(native is not None, reason="looks into the plain link")
compiled_only = pytest.mark.skipif(native is None, reason="the compiled part alone does it")


def unanswered(connection: Any) -> Any:
    """The requests of a connection that no reply came to."""
    return connection._waiting if isinstance(connection, PlainLink) else connection.open


def wait_for(condition: Callable[[], Any]) -> None:
    """Waits for something that another thread does; the limit only ends a test that would hang."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def drained(k: Any) -> None:
    """Waits until every request of the client was answered, also those that nobody waits for."""
    wait_for(lambda: k.ping() == {} and not unanswered(k._connection))


def in_child(function: Callable[[], bool]) -> None:
    """Runs the function in a forked child and asserts that it returned True."""
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
