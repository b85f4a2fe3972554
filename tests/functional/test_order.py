"""Requests of one connection take effect in the order sent, within a stream; streams are independent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from arrays import LongRun, Vectors, run_params
from support import raw


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
