"""register, alloc, release, trim: what is shared, for how long, and who may touch it."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from arrays import LongRun, Vectors
from support import memfd, proc, raw
from support.daemon import Daemon
from support.raw import tensor


def alloc(connection: raw.Connection, size: int) -> tuple[dict[str, Any], mmap.mmap]:
    reply = connection.reply(connection.request("alloc", {"size": size}))
    result = reply.get()
    assert result["nfds"] == 1 and result["fd"] == 0 and len(reply.fds) == 1
    assert result["kind"] == "memfd" and result["size"] >= size
    fd = reply.fds.pop()
    assert os.fstat(fd).st_size >= size
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW and not seals & fcntl.F_SEAL_WRITE
    mapped = mmap.mmap(fd, size)
    os.close(fd)
    return result, mapped


def test_alloc_is_shared_and_zeroed(connection: raw.Connection) -> None:
    """It never shows old memory."""
    for _ in range(20):
        result, mapped = alloc(connection, 1 << 20)
        values = np.frombuffer(mapped, np.float32)
        assert not values.any()
        values[:] = 3
        connection.run("square", [tensor(result["buffer"], [4])], [tensor(result["buffer"], [4], offset=4096)])
        assert values[1023:1029].tolist() == [3, 9, 9, 9, 9, 3]
        connection.call("release", {"buffer": result["buffer"]})


def test_pipelined_allocs_wait_their_turn(connection: raw.Connection) -> None:
    """More descriptors than the daemon keeps for a connection at a time: requests wait, and all are answered."""
    asked = [connection.request("alloc", {"size": 4096}) for _ in range(250)]
    for msgid in asked:
        reply = connection.reply(msgid)
        assert reply.error is None and len(reply.fds) == 1 and os.fstat(reply.fds[0]).st_size == 4096
        os.close(reply.fds[0])
    assert connection.alive()


def test_register_the_same_memory_twice(connect: Callable[..., raw.Connection]) -> None:
    """Two connections and two ids see one memory; each is released by itself."""
    one, two = connect(), connect()
    shared = memfd.Shared(8192)
    values = shared.view(np.float32, 2048)
    first, second = one.register(shared), one.register(shared)
    other = two.register(shared)
    assert first != second
    values[:4] = [1, 2, 3, 4]
    one.run("square", [tensor(first, [4])], [tensor(first, [4], offset=64)])
    one.call("release", {"buffer": first})
    two.run("square", [tensor(other, [4], offset=64)], [tensor(other, [4], offset=128)])
    one.run("square", [tensor(second, [4], offset=128)], [tensor(second, [4], offset=192)])
    assert values[48:52].tolist() == [1, 2**8, 3**8, 4**8]


def test_the_same_memory_under_two_ids_overlaps(connection: raw.Connection) -> None:
    """An output that is an input under another id is still the same memory: refused, unless it is exactly it."""
    shared = memfd.Shared(4096)
    one, two = connection.register(shared), connection.register(shared)
    shared.view(np.float32, 4)[:] = [1, 2, 3, 4]
    error = connection.run_error("square", [tensor(one, [4])], [tensor(two, [4], offset=4)])
    assert error.code == "overlap", error
    connection.run("square", [tensor(one, [4])], [tensor(two, [4])])
    assert shared.view(np.float32, 4).tolist() == [1, 4, 9, 16]


def test_the_client_may_close_its_descriptor(connection: raw.Connection) -> None:
    """Also before trim closes the idle mapping: it is there again at its next use."""
    vectors = Vectors(connection, 2, 4)
    vectors.shared.close_fd()
    for i in (2, 3):
        vectors[0][:] = i
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        assert vectors[1].tolist() == [i * i] * 4
        assert set(connection.call("trim")) >= {"unpinned", "mappings"}


def test_mapping_goes_with_its_last_use(connection: raw.Connection, daemon: Any) -> None:
    """A released buffer stays mapped while a run uses it, and no longer."""
    before = proc.memfd_bytes(daemon.pid)
    work = LongRun(connection)
    connection.call("release", {"buffer": work.vectors.buffer})
    assert proc.memfd_bytes(daemon.pid) > before
    connection.call("cancel", {"msgid": work.msgid})
    connection.reply(work.msgid)
    proc.eventually(lambda: proc.memfd_bytes(daemon.pid) == before, "the mapping is closed")


def test_memory_that_the_daemon_made_outlives_it() -> None:
    """Whoever kept the descriptor registers it with the next daemon, contents and all."""
    with Daemon() as daemon, daemon.connect() as connection:
        reply = connection.reply(connection.request("alloc", {"size": 4096}))
        (fd,) = reply.fds
        reply.fds.clear()
        assert reply.get()["kind"] == "memfd"
        view = mmap.mmap(fd, 4096)
        data = np.frombuffer(view, "f4")
        data[:512] = np.arange(512)
        buffer = reply.get()["buffer"]
        connection.run("square", [tensor(buffer, [512])], [tensor(buffer, [512], offset=2048)])
    with Daemon() as daemon, daemon.connect() as connection:
        buffer = connection.call("register", {"kind": "memfd", "size": 4096, "fd": 0}, [fd])["buffer"]
        assert np.array_equal(data[512:], data[:512] ** 2)
        connection.run("add", [tensor(buffer, [512]), tensor(buffer, [512])], [tensor(buffer, [512], offset=2048)])
        assert np.array_equal(data[512:], 2 * data[:512])
    del data
    view.close()
    os.close(fd)
