"""trace: the way of every run, recorded for who asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arrays import LongRun, Vectors
from support import backends, proc, raw, users
from support.daemon import Daemon
from support.users import STRANGER, as_root

CONFIG = backends.config(backends.HOST)
COLUMNS = (
    "kind", "client", "call", "stream", "received", "ready", "started", "ended", "busy", "executions", "failed", "began", "finished",
)  # fmt: skip
TRACES_OF_USER, ROOM_MAX = 4, 65536


@dataclass
class Event:
    kind: dict[str, Any]
    client: dict[str, Any]
    row: dict[str, int]

    def __getattr__(self, name: str) -> int:
        return self.row[name]


class Trace:
    """What a connection records, read in as many replies as the test likes."""

    def __init__(self, connection: raw.Connection, **options: Any) -> None:
        self.connection = connection
        self.kinds: dict[int, dict[str, Any]] = {}
        self.clients: dict[int, dict[str, Any]] = {}
        self.last = connection.call("trace", {"begin": True, **options})
        self.take(self.last)

    def take(self, reply: dict[str, Any]) -> list[Event]:
        self.last = reply
        for known, rows, key in ((self.kinds, reply["kinds"], "kind"), (self.clients, reply["clients"], "client")):
            for row in rows:
                assert row[key] not in known, "told twice"
                known[row[key]] = row
        assert all(len(event) == len(COLUMNS) for event in reply["events"])
        rows = [dict(zip(COLUMNS, event, strict=True)) for event in reply["events"]]
        return [Event(self.kinds[row["kind"]], self.clients[row["client"]], row) for row in rows]

    def read(self, **options: Any) -> list[Event]:
        return self.take(self.connection.call("trace", options))


@pytest.fixture
def watcher(connect: Callable[..., raw.Connection]) -> raw.Connection:
    return connect()


@pytest.fixture
def vectors(connection: raw.Connection) -> Iterator[Vectors]:
    yield Vectors(connection, 3, 1000)


def test_a_run_and_its_way(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    connection.call("hello", {"client": "traced"})
    trace = Trace(watcher)
    assert trace.last["recording"] and trace.read() == []
    operands = {"in": [vectors.tensor(0), vectors.tensor(1)], "out": [vectors.tensor(2)]}
    msgid = connection.request("run", {"op": "add", **operands, "stream": 3, "warmup": 2, "repeat": 5})
    result = connection.reply(msgid).get()
    (event,) = trace.read()
    kind = {"what": "run", "op": "add", "ops": 1, "device": result["device"], "variant": result["variant"], "dtype": "f32"}
    assert event.kind.items() >= {**kind, "shapes": [[1000]] * 3}.items()
    client = {"pid": os.getpid(), "uid": os.getuid(), "name": "traced", "comm": Path("/proc/self/comm").read_text().strip()}
    assert event.client.items() >= client.items()
    assert (event.call, event.stream, event.executions, event.failed) == (msgid, 3, 5, 0)
    assert 0 < event.received <= event.ready <= event.started <= event.ended < trace.last["now_ns"]
    assert event.started <= event.began < event.finished <= event.ended and trace.last["pending"] == 0
    assert event.busy == pytest.approx(1e3 * sum(result["timings"]["samples"]), abs=5)
    assert event.busy <= event.finished - event.began + 5
    assert event.ended - event.received == pytest.approx(1e3 * result["timings"]["total_us"], abs=2)
    assert trace.last["origin_ns"] + event.received <= time.monotonic_ns()


def test_the_end(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    trace = Trace(watcher)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert len(trace.read(end=True)) == 1 and not trace.last["recording"]
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert trace.read() == [] and not trace.last["recording"]
    again = Trace(watcher)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert len(again.read()) == 1 and again.last["recording"]


def test_what_was_told_is_not_told_again(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    trace = Trace(watcher)
    for n in range(1, 4):
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        assert len(trace.read()) == 1, n
    short = [{**vectors.tensor(i), "shape": [10]} for i in range(2)]
    connection.run("square", short[:1], short[1:])
    (other,) = trace.read()
    assert other.kind["shapes"] == [[10], [10]] and len(trace.clients) == 1


def test_the_beginning_tells_nothing(connection: raw.Connection, vectors: Vectors) -> None:
    """Runs that end before the reply to `begin` is written are told to who reads."""
    run = {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]}
    begin = connection.next_msgid
    connection.next_msgid += 51
    together = [raw.pack_request(begin, "trace", {"begin": True})]
    together += [raw.pack_request(begin + i, "run", run) for i in range(1, 51)]
    connection.send(b"".join(together))
    reply = connection.reply(begin).get()
    assert reply["kinds"] == reply["clients"] == reply["events"] == [] and reply["recording"]
    for i in range(1, 51):
        connection.reply(begin + i).get()
    reply = connection.call("trace", {"end": True})
    assert [event[2] for event in reply["events"]] == [begin + i for i in range(1, 51)]
    assert {event[0] for event in reply["events"]} <= {kind["kind"] for kind in reply["kinds"]} and len(reply["clients"]) == 1


def test_sequences_and_programs(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    ops = [{"op": "square", "in": [0], "out": [1]}, {"op": "add", "in": [0, 1], "out": [2]}]
    tensors = [vectors.tensor(i) for i in range(3)]
    program = connection.call("program", {"tensors": tensors, "ops": ops})["program"]
    trace = Trace(watcher)
    connection.call("sequence", {"tensors": tensors, "ops": ops})
    connection.call("run_program", {"program": program})
    events = trace.read()
    assert [(e.kind["what"], e.kind["op"], e.kind["ops"], e.kind["variant"]) for e in events] == [
        ("sequence", "square", 2, ""),
        ("run_program", "square", 2, ""),
    ]


def test_failed_and_cancelled_runs(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    trace = Trace(watcher)
    first = LongRun(connection).msgid
    second = connection.request("run", {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]})
    for msgid in (second, first):
        connection.call("cancel", {"msgid": msgid})
    assert connection.reply_error(first).code == connection.reply_error(second).code == "cancelled"
    events = {event.call: event for event in trace.read()}
    assert events[first].failed and events[second].failed
    assert events[first].started > 0 == events[second].started


def test_without_room_later_events_are_dropped_and_counted(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    trace = Trace(watcher, events=5)
    for _ in range(8):
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert len(trace.read()) == 5 and trace.last["dropped"] == 3
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert len(trace.read()) == 1 and trace.last["dropped"] == 3


def test_many_events_in_one_reply(connection: raw.Connection, watcher: raw.Connection, vectors: Vectors) -> None:
    trace = Trace(watcher, events=ROOM_MAX)
    n = 5000
    for begin in range(0, n, 500):
        msgids = [connection.request("run", {"op": "square", "in": [vectors.tensor(0)], "out": [vectors.tensor(1)]}) for _ in range(500)]
        assert all(connection.reply(msgid).error is None for msgid in msgids), begin
    events = trace.read()
    assert len(events) == n and trace.last["dropped"] == 0
    ends = [event.ended for event in events]
    assert ends == sorted(ends)


def test_a_user_records_few_traces(connect: Callable[..., raw.Connection]) -> None:
    traces = [Trace(connect()) for _ in range(TRACES_OF_USER)]
    other = connect()
    error = other.error("trace", {"begin": True})
    assert error.code == "quota_exceeded" and str(TRACES_OF_USER) in error.message
    Trace(traces[0].connection)  # takes the place of its own
    traces[1].read(end=True)
    Trace(other)
    traces[2].connection.close()
    last = connect()
    proc.eventually(lambda: last.reply(last.request("trace", {"begin": True})).error is None, "the closed one makes room")


@as_root
def test_others_work_is_for_administrators() -> None:
    with Daemon(config=CONFIG + users.OPEN) as daemon, users.connect(daemon, STRANGER) as stranger, daemon.connect() as root:
        error = stranger.error("trace", {"begin": True, "everybody": True})
        assert error.code == "permission_denied"
        own, theirs, all_of_them = Trace(root), Trace(stranger), Trace(daemon.connect(), everybody=True)
        for connection in (root, stranger):
            vectors = Vectors(connection, 2, 10)
            connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        assert [event.client["uid"] for event in own.read()] == [0]
        assert [event.client["uid"] for event in theirs.read()] == [STRANGER]
        assert [event.client["uid"] for event in all_of_them.read()] == [0, STRANGER]


def test_a_trace_without_room_leaves_the_one_before() -> None:
    with Daemon(config=CONFIG + "[quota]\ndaemon_mib = 3\n") as daemon, daemon.connect() as connection:
        trace = Trace(connection, events=1000)
        vectors = Vectors(connection, 2, 10)
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        begin, read = (connection.request("trace", params) for params in ({"begin": True, "events": ROOM_MAX}, {}))
        assert connection.reply_error(begin).code == "quota_exceeded"
        assert len(trace.take(connection.reply(read).get())) == 1 and trace.last["recording"]


@as_root
def test_an_administrator_no_longer() -> None:
    """The lists in the configuration may change while a trace records."""
    config = CONFIG + users.OPEN
    with Daemon(config=config + f"[access]\nadminister = owner, {STRANGER}\n") as daemon, daemon.connect() as root:
        with users.connect(daemon, STRANGER) as stranger:
            trace = Trace(stranger, everybody=True)
            vectors = Vectors(root, 2, 10)
            root.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
            assert [event.client["uid"] for event in trace.read()] == [0]
            users.reload(daemon, config)
            root.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
            for _ in range(2):
                assert stranger.error("trace").code == "permission_denied"
            own = Trace(stranger)
            root.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
            assert own.read() == []
