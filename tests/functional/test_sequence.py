"""Several ops in one request, and programs: sequences that are kept and run by id."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import BACKEND, POISON, LongRun, Vectors, run_params
from support import backends, memfd, proc, raw

N = 500


def op(name: str, ins: list[int], out: int, **attrs: Any) -> dict[str, Any]:
    return {"op": name, "in": ins, "out": [out], **({"attrs": attrs} if attrs else {})}


@pytest.fixture
def vectors(connection: raw.Connection) -> Vectors:
    made = Vectors(connection, 6, N)
    rng = np.random.default_rng()
    for i in range(6):
        made[i][:] = rng.integers(1, 8, N)
    return made


def tensors(vectors: Vectors) -> list[dict[str, Any]]:
    return [vectors.tensor(i) for i in range(vectors.count)]


def spoiled(steps: list[tuple[list[int], int]], views: list[range]) -> int | None:
    """The first op that reads an element which it or a later one writes, unless the same view was written before."""
    for i, (ins, _) in enumerate(steps):
        for t in ins:
            before = any(views[out] == views[t] for _, out in steps[:i])
            if not before and any(set(views[out]) & set(views[t]) for _, out in steps[i:]):
                return i
    return None


def test_which_sequences_may_be_repeated(connection: raw.Connection) -> None:
    """Random ones, against the rule spelled out: whole, left, right, even and odd parts of two vectors."""
    rng = random.Random()
    vectors = Vectors(connection, 2, 32)
    views = [range(32 * v + at, 32 * v + at + 16 * step, step) for v in (0, 1) for at, step in ((0, 1), (16, 1), (0, 2), (1, 2))]
    views += views[:3]  # the same once more
    described = [raw.tensor(vectors.buffer, [16], offset=4 * v.start, strides=[v.step]) for v in views]
    refused = 0
    for _ in range(1000):
        steps: list[tuple[list[int], int]] = []
        for _ in range(rng.randrange(1, 9)):
            out = rng.randrange(len(views))
            fits = [i for i, v in enumerate(views) if v == views[out] or not set(v) & set(views[out])]
            steps.append((rng.choices(fits, k=2), out))
        want = spoiled(steps, views)
        ops = [op("add", ins, out) for ins, out in steps]
        reply = connection.reply(connection.request("sequence", {"tensors": described, "ops": ops, "repeat": 2}))
        got = reply.error and reply.error["detail"]["op_index"]
        assert got == want, (steps, reply)
        refused += want is not None
    assert 100 < refused < 1000


def test_an_arena_that_is_filled_first_may_be_repeated(connection: raw.Connection) -> None:
    """However many parts of it are read and written afterwards, and each lies below the end of the whole."""
    n, part = 500, 4
    arena = Vectors(connection, 2, 2 * n * part)
    whole = arena.tensor(0)
    parts = [{**whole, "shape": [part], "offset": 4 * part * i} for i in range(2 * n)]
    ops = [op("square", [1], 0)] + [op("square", [2 + n + i], 2 + i) for i in range(n)]
    arena[1][:] = 2
    connection.call("sequence", {"tensors": [whole, arena.tensor(1), *parts], "ops": ops, "repeat": 2})
    assert (arena[0][: n * part] == 16).all() and (arena[0][n * part :] == 4).all()


def test_a_program_may_be_repeated_for_ever(connection: raw.Connection) -> None:
    """What its checks cost is counted for each run anew."""
    n, part = 400, 4
    vectors = Vectors(connection, 3, n * part)
    parts = [{**vectors.tensor(v), "shape": [part], "offset": vectors.tensor(v)["offset"] + 4 * part * i} for v in (1, 2) for i in range(n)]
    ops = [op("square", [0], 1)] + [op("square", [2 + i], 2 + n + i) for i in range(n)]
    program = connection.call("program", {"tensors": [vectors.tensor(0), vectors.tensor(1), *parts], "ops": ops})["program"]
    for _ in range(200):
        connection.call("run_program", {"program": program, "repeat": 2})


@pytest.mark.parametrize(
    ("change", "code", "key"),
    [
        ({"ops": [op("add", [0, 1], 2)] * 513}, "limit_exceeded", "ops"),
        ({"ops": [op("add", [0, 1], 2), op("nosuch", [0], 1)]}, "unknown_op", "ops[1].op"),
        ({"ops": [op("add", [0, 1], 2), op("gemm", [0, 1], 2, alpha="x")]}, "wrong_type", "ops[1].attrs.alpha"),
        ({"ops": [3]}, "wrong_type", None),
        ({"tensors": []}, "invalid_argument", "tensors"),
        ({"ops": [{"op": "add", "in": [0, 1]}]}, "missing_key", "ops[0].out"),
        ({"ops": [op("add", [0, 1], 6)]}, "overlap", "ops[0].out"),
        ({"ops": [op("add", [0, 1], 2), op("add", [0, 7], 1)]}, "shape_mismatch", "ops[1].in[1]"),
        ({"ops": [op("add", [0, 1], 2), op("add", [0, 1], 8)]}, "out_of_bounds", "tensors[8]"),
        ({"ops": [op("add", [0, 1], 2, variant="nosuch")]}, "invalid_argument", "ops[0].attrs.variant"),
    ],
)
def test_errors_say_where(connection: raw.Connection, vectors: Vectors, change: dict[str, Any], code: str, key: str | None) -> None:
    """When a sequence is run or a program defined. Nothing ran."""
    views = [*tensors(vectors), {**vectors.tensor(0), "offset": 4}, {**vectors.tensor(3), "shape": [N - 1]}]
    if code == "out_of_bounds":
        views.append(raw.tensor(vectors.buffer, [N], offset=4 * 6 * N))
    params = {"tensors": views, "ops": [op("add", [0, 1], 2)], **change}
    vectors[2][:] = POISON
    for method in ("sequence", "program"):
        error = connection.error(method, params)
        assert error.code == code, error
        assert key is None or error.key == key, error
    assert (vectors[2] == POISON).all()
    assert connection.alive()


def test_a_read_only_output(connection: raw.Connection, vectors: Vectors) -> None:
    shared = memfd.Shared(4 * N)
    buffer = connection.register(shared, access="r")
    views = [*tensors(vectors), raw.tensor(buffer, [N])]
    error = connection.error("sequence", {"tensors": views, "ops": [op("add", [0, 1], 6)]})
    assert error.code == "read_only" and error.key == "ops[0].out[0].buffer"
    connection.call("sequence", {"tensors": views, "ops": [op("add", [6, 0], 1)]})


def test_a_sequence_can_be_cancelled(connection: raw.Connection, vectors: Vectors) -> None:
    LongRun(connection)
    msgid = connection.request("sequence", {"tensors": tensors(vectors), "ops": [op("add", [0, 1], 2)]})
    assert connection.call("cancel", {"msgid": msgid})["cancelled"] is True
    assert connection.reply_error(msgid).code == "cancelled"


def test_stats_count_the_ops_of_sequences_and_programs(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 777)
    ops = [op("square", [0], 1)] * 3
    connection.call("sequence", {"tensors": tensors(vectors), "ops": ops})
    program = define(connection, vectors, ops)
    for _ in range(5):
        connection.call("run_program", {"program": program})
    rows = [row for row in connection.call("stats", {"op": "square"})["ops"] if row["shapes"] == [[777], [777]]]
    assert sum(row["count"] for row in rows) == 3 * (1 + 5)


@pytest.mark.skipif(BACKEND != backends.HOST, reason="only there a test sees when a long run begins")
def test_low_work_waits_for_other_work(connect: Any) -> None:
    """It starts when nothing else is on the device, and then as soon as that."""
    busy, idle = connect(), connect()
    work = LongRun(busy)
    vectors = Vectors(idle, 2, N)
    vectors[0][:] = 3
    low = idle.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1), priority="low"))
    idle.run("square", [vectors.tensor(0)], [vectors.tensor(0)], stream=1)
    assert low not in idle.replies and idle.alive() and low not in idle.replies
    busy.call("cancel", {"msgid": work.msgid})
    idle.reply(low).get()
    assert (vectors[1] == 81).all()


# ---- programs


def define(connection: raw.Connection, vectors: Vectors, ops: list[dict[str, Any]]) -> int:
    return connection.call("program", {"tensors": tensors(vectors), "ops": ops})["program"]


def test_programs_of_a_connection_are_limited(connection: raw.Connection, vectors: Vectors) -> None:
    programs = [define(connection, vectors, [op("square", [0], 1)]) for _ in range(1024)]
    error = connection.error("program", {"tensors": tensors(vectors), "ops": [op("square", [0], 1)]})
    assert (error.code, error.detail) == ("quota_exceeded", {"quota": "programs", "current": 1024, "limit": 1024})
    connection.call("release", {"program": programs[0]})
    define(connection, vectors, [op("square", [0], 1)])


@pytest.mark.parametrize(
    ("bind", "code", "key"),
    [
        ({"index": 99, "offset": 0}, "invalid_argument", "bind[0].index"),
        ({"index": 1, "offset": 4 * 6 * N}, "out_of_bounds", "bind[0]"),
        ({"index": 1, "offset": 2}, "misaligned", "bind[0]"),
        ({"index": 2, "offset": 4}, "overlap", "ops[0].out"),
        ({"index": 1, "offset": 0, "nosuch": 1}, "unknown_key", "bind[0].nosuch"),
    ],
)
def test_bad_bindings(connection: raw.Connection, vectors: Vectors, bind: dict[str, Any], code: str, key: str) -> None:
    program = define(connection, vectors, [op("add", [0, 1], 2)])
    vectors[2][:] = POISON
    error = connection.error("run_program", {"program": program, "bind": [{"buffer": vectors.buffer, **bind}]})
    assert error.code == code and error.key == key, error
    assert (vectors[2] == POISON).all()
    connection.call("run_program", {"program": program})
    assert (vectors[2] != POISON).all()


def test_a_program_whose_memory_was_released(connection: raw.Connection, vectors: Vectors) -> None:
    program = define(connection, vectors, [op("add", [0, 1], 2)])
    connection.call("release", {"buffer": vectors.buffer})
    assert connection.error("run_program", {"program": program}).code == "unknown_buffer"
    again = Vectors(connection, 6, N)
    bind = [{"index": i, "buffer": again.buffer, "offset": 4 * N * i} for i in range(6)]
    connection.call("run_program", {"program": program, "bind": bind})


def test_releasing_a_program(connection: raw.Connection, vectors: Vectors) -> None:
    program = define(connection, vectors, [op("add", [0, 1], 2)])
    running = [connection.request("run_program", {"program": program}) for _ in range(20)]
    release = connection.request("release", {"program": program})
    late = connection.request("run_program", {"program": program})
    for msgid in running:
        connection.reply(msgid).get()
    connection.reply(release).get()
    assert connection.reply_error(late).code == "unknown_program"
    assert connection.error("release", {"program": program}).code == "unknown_program"
    assert connection.error("release", {"program": 1, "buffer": 1}).code == "invalid_argument"


def test_a_program_belongs_to_its_connection(connect: Any, vectors: Vectors, connection: raw.Connection) -> None:
    program = define(connection, vectors, [op("add", [0, 1], 2)])
    other = connect()
    assert other.error("run_program", {"program": program}).code == "unknown_program"
    assert other.error("release", {"program": program}).code == "unknown_program"
    connection.call("run_program", {"program": program})


def test_priorities_keep_the_streams_order(connection: raw.Connection, vectors: Vectors) -> None:
    vectors[0][:] = 1
    ids = []
    for i, priority in enumerate(["high", "low", "normal"] * 10):
        params = run_params("add", [vectors.tensor(i % 2)] * 2, vectors.tensor((i + 1) % 2), priority=priority)
        ids.append(connection.request("run", params))
    for msgid in ids:
        connection.reply(msgid).get()
    assert (vectors[0] == 2.0**30).all()


# ---- what a connection may take


def long_body(vectors: Vectors) -> dict[str, Any]:
    return {"tensors": [vectors.tensor(i) for i in range(3)], "ops": [op("add", [0, 1], 2)] * 512}


def test_the_memory_of_programs_has_a_limit(connection: raw.Connection, vectors: Vectors) -> None:
    """In bytes: a thousand short ones are allowed, and so long ones would take gigabytes."""
    made: list[int] = []
    for _ in range(2):
        while True:
            reply = connection.reply(connection.request("program", long_body(vectors)))
            if reply.error:
                break
            made.append(reply.result["program"])
            assert len(made) < 400
            for _ in range(2 if BACKEND == backends.HOST else 0):  # what runs keep for the next ones gives way
                ids = [connection.request("run_program", {"program": made[-1]}) for _ in range(4)]
                for msgid in ids:
                    connection.reply(msgid).get()
        assert reply.error["code"] == "quota_exceeded" and len(made) >= 10
        assert reply.error["detail"]["current"] > reply.error["detail"]["limit"]
        connection.call("run_program", {"program": made[0], "timing": False})
        for program in made:
            connection.call("release", {"program": program})
        made.clear()


def test_long_sequences_that_wait_are_not_read(connect: Callable[[], raw.Connection], bystander: raw.Connection) -> None:
    """A request of some kB becomes megabytes: the daemon reads only so many ahead."""
    connection = connect()
    vectors = Vectors(connection, 6, N)
    LongRun(connection, stream=0)
    packed = [raw.pack_request(1000 + i, "sequence", {**long_body(vectors), "stream": 0}) for i in range(200)]
    before = bystander.call("stats")["counters"]["jobs"]
    data, sent, idle = b"".join(packed), 0, 0
    connection.socket.setblocking(False)
    while idle < 50 and sent < len(data):
        try:
            sent += connection.socket.send(data[sent:])
            idle = 0
        except BlockingIOError:
            assert bystander.alive()
            idle += 1
    taken = bystander.call("stats")["counters"]["jobs"] - before
    assert 0 < taken < 100, "the daemon holds two hundred sequences"


@pytest.mark.skipif(BACKEND != backends.HOST, reason="a GPU takes all of a sequence at once")
def test_others_have_their_turn_between_the_ops_of_a_sequence(connect: Callable[[], raw.Connection]) -> None:
    """As between the repeats of an op: a short run is not behind hundreds of ops of another client."""
    one, two = connect(), connect()
    long, short = Vectors(one, 3, LongRun.LENGTH), Vectors(two, 2, LongRun.LENGTH)
    long[2][:] = POISON
    msgid = one.request("sequence", long_body(long))
    proc.eventually(lambda: long[2][0] != POISON, "the sequence begins")
    two.call("run", run_params("square", [short.tensor(0)], short.tensor(1)))
    assert not one.readable(0), "the sequence had all the time"
    assert one.call("cancel", {"msgid": msgid})["cancelled"] is True
