"""cancel and deadline_ms: what is queued is dropped, what runs stops between repeats, and the stream goes on."""

from __future__ import annotations

from collections.abc import Callable

from arrays import BACKEND, POISON, LongRun, Vectors, run_params
from support import backends, proc, raw

EXEC, OTHER = ("host_us", "gpu_us") if BACKEND == backends.HOST else ("gpu_us", "host_us")


def test_cancel_running(connection: raw.Connection) -> None:
    work = LongRun(connection)
    assert connection.call("cancel", {"msgid": work.msgid}) == {"cancelled": True}
    assert connection.reply_error(work.msgid).code == "cancelled"
    # The memory is the client's again: nothing writes it any more.
    work.vectors[1][:] = POISON
    assert connection.alive()
    assert (work.vectors[1] == POISON).all()


def test_cancel_queued(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 100)
    vectors[1][:] = POISON
    work = LongRun(connection)
    queued = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1)))
    assert connection.call("cancel", {"msgid": queued}) == {"cancelled": True}
    assert connection.reply_error(queued).code == "cancelled"
    assert work.msgid not in connection.replies, "the one before it was cancelled, too"
    connection.call("cancel", {"msgid": work.msgid})
    connection.reply(work.msgid)
    assert connection.alive()
    assert (vectors[1] == POISON).all(), "a cancelled run was executed"


def test_the_stream_goes_on_after_a_cancel(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 100)
    vectors[0][:] = 3
    work = LongRun(connection)
    behind = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1)))
    connection.call("cancel", {"msgid": work.msgid})
    connection.reply(behind).get()
    assert (vectors[1] == 9).all()


def test_cancel_what_has_ended(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 10)
    msgid = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1)))
    connection.reply(msgid).get()
    assert connection.call("cancel", {"msgid": msgid}) == {"cancelled": False}


def test_cancel_itself_and_others(connection: raw.Connection) -> None:
    """Only runs can be cancelled."""
    assert connection.reply(connection.request("cancel", {"msgid": 500}, msgid=500)).get() == {"cancelled": False}


def test_cancel_of_another_connection(connect: Callable[..., raw.Connection]) -> None:
    one, two = connect(), connect()
    work = LongRun(one)
    assert two.call("cancel", {"msgid": work.msgid}) == {"cancelled": False}
    assert one.alive() and work.msgid not in one.replies
    one.call("cancel", {"msgid": work.msgid})


def test_cancel_twice(connection: raw.Connection) -> None:
    work = LongRun(connection)
    first = connection.request("cancel", {"msgid": work.msgid})
    second = connection.request("cancel", {"msgid": work.msgid})
    assert connection.reply(first).get() == {"cancelled": True}
    connection.reply(second).get()
    assert connection.reply_error(work.msgid).code == "cancelled"


def test_cancel_right_after_run(connection: raw.Connection) -> None:
    """In one send, a hundred times: each ends one way or the other, once."""
    vectors = Vectors(connection, 2, 1000)
    vectors[0][:] = 3
    for i in range(100):
        run = raw.pack_request(
            1000 + i, "run", run_params("square", [vectors.tensor(0)], vectors.tensor(1), repeat=100)
        )
        connection.send(run + raw.pack_request(2000 + i, "cancel", {"msgid": 1000 + i}))
        cancelled = connection.reply(2000 + i).get()["cancelled"]
        reply = connection.reply(1000 + i)
        if reply.error is None:
            assert not cancelled or reply.result
        else:
            assert cancelled and reply.error["code"] == "cancelled"


def test_deadline_of_a_running_job(connection: raw.Connection) -> None:
    work = LongRun(connection, wait=False, deadline_ms=20)
    assert connection.reply_error(work.msgid).code == "deadline_exceeded"
    work.vectors[1][:] = POISON
    assert connection.alive()
    assert (work.vectors[1] == POISON).all()


def test_deadline_of_a_queued_job(connection: raw.Connection) -> None:
    """It is answered when its time is over, though the job before it still runs, and it is never executed."""
    vectors = Vectors(connection, 2, 100)
    vectors[1][:] = POISON
    work = LongRun(connection)
    queued = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1), deadline_ms=20))
    assert connection.reply_error(queued).code == "deadline_exceeded"
    assert work.msgid not in connection.replies
    connection.call("cancel", {"msgid": work.msgid})
    connection.reply(work.msgid)
    assert connection.alive()
    assert (vectors[1] == POISON).all()


def test_deadline_that_is_kept(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 100)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)], deadline_ms=86400000)


def test_deadlines_leave_nothing(connection: raw.Connection, daemon: object) -> None:
    """Answered runs with far deadlines keep no memory mapped and no request alive."""
    for _ in range(200):
        vectors = Vectors(connection, 2, 100)
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)], deadline_ms=86400000)
        connection.call("release", {"buffer": vectors.buffer})
    pid = daemon.pid  # type: ignore[attr-defined]
    proc.eventually(lambda: proc.maps(pid) == 0, "the mappings are closed")


def test_repeat_and_warmup(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 1000)
    vectors[0][:] = 3
    result = connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)], warmup=3, repeat=20)
    timings = result["timings"]
    assert len(timings["samples"]) == 20 and all(s > 0 for s in timings["samples"])
    ordered = sorted(timings["samples"])
    assert timings["min"] == ordered[0] and timings["max"] == ordered[-1]
    assert ordered[0] <= timings["median"] <= timings["p90"] <= ordered[-1]
    assert timings[EXEC] == timings["median"]
    assert OTHER not in timings


def test_timings_of_one_execution(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 1000)
    timings = connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])["timings"]
    assert set(timings) >= {"recv_to_start_us", "queue_us", "total_us", EXEC}
    assert not set(timings) & {OTHER, "min", "samples"}
    assert ("h2d_us" in timings) == ("d2h_us" in timings) == (EXEC == "gpu_us")
    assert all(isinstance(v, float) and v >= 0 for v in timings.values()), timings
    assert timings["queue_us"] <= timings["recv_to_start_us"] <= timings["total_us"]
    assert timings[EXEC] <= timings["total_us"]
