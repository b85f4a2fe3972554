"""Requests of one connection take effect in the order sent, within a stream; streams are independent."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from arrays import LongRun, Vectors, run_params
from support import memfd, raw


def test_dependent_runs_in_one_send(connection: raw.Connection) -> None:
    """x ← 2x, 30 times over two buffers, everything sent before any reply is read."""
    vectors = Vectors(connection, 2, 1000)
    vectors[0][:] = 1
    ids, data = [], b""
    for i in range(30):
        source, target = vectors.tensor(i % 2), vectors.tensor((i + 1) % 2)
        ids.append(1000 + i)
        data += raw.pack_request(1000 + i, "run", run_params("add", [source, source], target))
    connection.send(data)
    for msgid in ids:
        connection.reply(msgid).get()
    assert (vectors[0] == 2**30).all()


def test_register_run_release_in_one_stream(connection: raw.Connection) -> None:
    """What takes long (a big run) and what is quick (register, release) keep their order."""
    big = Vectors(connection, 2, 2 << 20)
    big[0][:] = 3
    shared = memfd.Shared(4096)
    shared.view(np.float32, 4)[:] = [1, 2, 3, 4]
    slow = connection.request("run", run_params("square", [big.tensor(0)], big.tensor(1), repeat=3))
    register = connection.request("register", {"kind": "memfd", "size": 4096, "fd": 0}, [shared.fd])
    buffer = connection.reply(register).get()["buffer"]
    view = raw.tensor(buffer, [4])
    first = connection.request("run", run_params("square", [view], {**view, "offset": 64}))
    release = connection.request("release", {"buffer": buffer})
    late = connection.request("run", run_params("square", [view], {**view, "offset": 128}))
    assert connection.reply_error(late).code == "unknown_buffer"
    connection.reply(release).get()
    connection.reply(first).get()
    connection.reply(slow).get()
    assert shared.view(np.float32, 4, 64).tolist() == [1, 4, 9, 16]
    assert not shared.view(np.float32, 4, 128).any()


def test_mixed_sizes_of_one_stream(connection: raw.Connection) -> None:
    """Large and small, single- and many-threaded runs that depend on each other."""
    rng = random.Random(5)
    vectors = Vectors(connection, 3, 1 << 20)
    vectors[0][:], vectors[1][:] = 1, 2
    mirror = [vectors[0].copy(), vectors[1].copy(), vectors[2].copy()]
    ids = []
    for _ in range(40):
        n = rng.choice([1, 7, 100, 5000, 1 << 20])
        a, b, out = rng.randrange(3), rng.randrange(3), rng.randrange(3)
        views = [{**vectors.tensor(i), "shape": [n]} for i in (a, b, out)]
        ids.append(connection.request("run", run_params("add", views[:2], views[2])))
        mirror[out][:n] = mirror[a][:n] + mirror[b][:n]
    for msgid in ids:
        connection.reply(msgid).get()
    for i in range(3):
        assert np.array_equal(vectors[i], mirror[i])


@pytest.mark.parametrize("apart", ["streams", "connections"])
def test_others_do_not_wait(apart: str, connect: Callable[..., raw.Connection]) -> None:
    """One stream's or connection's long run does not hold up another's short one."""
    one = connect()
    two = one if apart == "streams" else connect()
    vectors = Vectors(two, 2, 100)
    vectors[0][:] = 2
    work = LongRun(one, stream=1)
    two.run("square", [vectors.tensor(0)], [vectors.tensor(1)], stream=2 if apart == "streams" else 1)
    assert (vectors[1] == 4).all()
    assert work.msgid not in one.replies and not one.readable(0)
    assert one.call("cancel", {"msgid": work.msgid})["cancelled"] is True
    assert one.reply_error(work.msgid).code == "cancelled"


def test_ping_and_cancel_overtake(connection: raw.Connection) -> None:
    """They take effect at once, also behind a long run."""
    work = LongRun(connection)
    assert connection.alive()
    assert connection.call("hello")["protocol"] == 1
    assert work.msgid not in connection.replies
    connection.call("cancel", {"msgid": work.msgid})


def test_trim_and_stats_wait_for_earlier_requests(connection: raw.Connection) -> None:
    work = LongRun(connection)
    stats, trim = connection.request("stats"), connection.request("trim")
    assert connection.alive()
    assert stats not in connection.replies and trim not in connection.replies
    connection.call("cancel", {"msgid": work.msgid})
    assert connection.reply_error(work.msgid).code == "cancelled"
    for msgid in (stats, trim):
        connection.reply(msgid).get()


def test_a_failed_run_does_not_stop_its_stream(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 10)
    vectors[0][:] = 3
    bad = connection.request("run", run_params("square", [vectors.tensor(0)], raw.tensor(99999, [10])))
    good = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1)))
    assert connection.reply_error(bad).code == "unknown_buffer"
    connection.reply(good).get()
    assert (vectors[1] == 9).all()


def test_all_streams_at_once(connection: raw.Connection, limits: dict[str, int]) -> None:
    vectors = Vectors(connection, 257, 64)
    vectors[0][:] = 3
    for first in range(0, limits["streams"], 32):
        ids = []
        for stream in range(first, first + 32):
            ids.append(connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(stream + 1), stream=stream)))
        for msgid in ids:
            connection.reply(msgid).get()
    assert all((vectors[i] == 9).all() for i in range(1, 257))
