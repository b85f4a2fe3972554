"""kopsctl trace: the timeline that it writes of what a daemon told, and of work that a real one did."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ctl
from fake import HELLO, FakeDaemon, Refused
from support import backends, chrome_trace, proc, raw
from support.daemon import Daemon
from support.users import OPEN

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("functional", "vectors")]

import vectors  # noqa: E402
from arrays import LongRun, Vectors  # noqa: E402

VECTORS = vectors.load("trace_chrome.json")
DEVICE_PID = 2**31 - 1
ONE = next(v for v in VECTORS if v["name"] == "one_call")


def part(recording: bool = True, dropped: int = 0, **rows: Any) -> dict[str, Any]:
    """A reply of the daemon."""
    head = {"recording": recording, "origin_ns": 12345, "now_ns": 10**9, "dropped": dropped}
    return {**head, **{key: rows.get(key, []) for key in ("kinds", "clients", "events")}}


def tell(fake: FakeDaemon, *parts: dict[str, Any]) -> None:
    """The reads are answered with these, then with nothing until the last one; the last has what is left."""
    left = list(parts)

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        if params.get("begin"):
            return part()
        if not params.get("end"):
            return left.pop(0) if left else part()
        rows = {key: [row for told in left for row in told[key]] for key in ("kinds", "clients", "events")}
        return part(recording=False, dropped=parts[-1]["dropped"], **rows)

    fake.answers["trace"] = answer


def of(vector: dict[str, Any], **more: Any) -> dict[str, Any]:
    """All of a vector."""
    return part(**{key: vector[key] for key in ("kinds", "clients", "events")}, **more)


def give_devices(fake: FakeDaemon, vector: dict[str, Any]) -> None:
    known = HELLO["devices"][0]
    fake.answers["hello"] = {**HELLO, "devices": [{**known, **device} for device in vector["devices"]]}


@pytest.fixture(autouse=True)
def devices(fake: FakeDaemon) -> None:
    give_devices(fake, ONE)


# ---- the writer ----


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vector(fake: FakeDaemon, ctl: Ctl, vector: dict[str, Any]) -> None:
    give_devices(fake, vector)
    tell(fake, of(vector, dropped=3))
    ended = ctl("trace", "--seconds", "0.001", "-o", "-")
    written = json.loads(ended.stdout)
    assert written["traceEvents"] == vector["traceEvents"]
    chrome_trace.check(written["traceEvents"])
    assert {key: value for key, value in written.items() if key != "traceEvents"} == {
        "displayTimeUnit": "ns",
        "otherData": {"kops": {"origin_ns": 12345, "dropped": 3, "events": len(vector["events"])}},
    }
    assert f"{len(vector['events'])} events" in ended.stderr and "3 more were dropped" in ended.stderr


def test_each_event_has_its_line_and_metadata_is_first(fake: FakeDaemon, ctl: Ctl) -> None:
    tell(fake, of(VECTORS[2]))
    lines = ctl("trace", "--seconds", "0.001", "-o", "-").stdout.splitlines()
    events = [json.loads(line.rstrip(",").removesuffix("]")) for line in lines[1:-1]]
    assert len(events) == len(VECTORS[2]["traceEvents"])
    metadata = [event["ph"] == "M" for event in events]
    assert metadata == sorted(metadata, reverse=True) and any(metadata)


def test_what_was_told_in_an_earlier_part(fake: FakeDaemon, ctl: Ctl) -> None:
    first, second = of(ONE), part(events=ONE["events"])
    tell(fake, first, second)
    written = json.loads(ctl("trace", "--seconds", "0.2", "-o", "-").stdout)
    assert len([e for e in written["traceEvents"] if e.get("cat") == "call" and e["ph"] == "X"]) == 2


# ---- the command ----


def test_what_is_asked(fake: FakeDaemon, ctl: Ctl, tmp_path: Path) -> None:
    tell(fake, of(ONE))
    file = tmp_path / "here.json"
    ctl("trace", "--seconds", "1", "--output", str(file), "--everybody", "--events", "99")
    asked = [params for method, params in fake.requests if method == "trace"]
    assert asked[0] == {"begin": True, "everybody": True, "events": 99}
    assert asked[1:-1] and all(params == {} for params in asked[1:-1]) and asked[-1] == {"end": True}
    assert json.loads(file.read_text(encoding="utf-8"))["traceEvents"] == ONE["traceEvents"]
    ctl("trace", "--seconds", "0.01", "-o", str(file))
    assert {"begin": True} in [params for _, params in fake.requests]


def test_the_summary(fake: FakeDaemon, ctl: Ctl, tmp_path: Path) -> None:
    tell(fake, of(ONE))
    (line,) = ctl("trace", "-s", "0.01", "-o", str(tmp_path / "t")).stdout.splitlines()
    assert "1 events of 1 clients" in line and "ui.perfetto.dev" in line and "chrome://tracing" in line
    assert "dropped" not in line
    tell(fake, of(ONE, dropped=7))
    (line,) = ctl("trace", "-s", "0.01", "-o", str(tmp_path / "t")).stdout.splitlines()
    assert "7 more were dropped" in line and "--events" in line
    summary = json.loads(ctl("trace", "-s", "0.01", "-o", str(tmp_path / "t"), "--json").stdout)
    assert summary.pop("seconds") > 0
    assert summary == {"file": str(tmp_path / "t"), "events": 1, "clients": 1, "dropped": 7}


def test_an_end_that_the_daemon_makes(fake: FakeDaemon, ctl: Ctl) -> None:
    """It is the end, too, long before the time is over."""
    tell(fake, {**of(ONE), "recording": False})
    assert json.loads(ctl("trace", "--seconds", "86400", "-o", "-").stdout)["otherData"]["kops"]["events"] == 1


def test_a_lost_daemon_leaves_what_was_read(fake: FakeDaemon, ctl: Ctl) -> None:
    reads = 0

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        nonlocal reads
        reads += not params.get("begin")
        if reads == 2:
            fake.close()
        return of(ONE) if reads == 1 else part()

    fake.answers["trace"] = answer
    ended = ctl("trace", "--seconds", "86400", "-o", "-", status=1)
    assert json.loads(ended.stdout)["traceEvents"] == ONE["traceEvents"]
    assert "the trace has ended with its connection" in ended.stderr and "1 events" in ended.stderr


def test_wrong_replies(fake: FakeDaemon, ctl: Ctl) -> None:
    tell(fake, part(events=ONE["events"]))
    ended = ctl("trace", "--seconds", "86400", "-o", "-", status=1)
    assert "name a kind of work that it did not tell" in ended.stderr
    tell(fake, part(events=[ONE["events"][0][:10]]))
    assert "bad_reply" in ctl("trace", "--seconds", "86400", "-o", "-", status=1).stderr


def test_refused(fake: FakeDaemon, ctl: Ctl, tmp_path: Path) -> None:
    """Nothing is written where nothing was recorded."""

    def refuse(_: Any) -> Any:
        raise Refused("permission_denied", "`trace` is for administrators here")

    fake.answers["trace"] = refuse
    old = tmp_path / "old.json"
    old.write_text("as it was", encoding="utf-8")
    ended = ctl("trace", "--everybody", "-o", str(old), status=1)
    assert "permission_denied" in ended.stderr and old.read_text(encoding="utf-8") == "as it was"
    del fake.answers["trace"]
    assert "older than the method `trace`" in ctl("trace", status=1).stderr


def test_a_file_that_cannot_be_written(fake: FakeDaemon, ctl: Ctl, tmp_path: Path) -> None:
    """Known at once, not when the time is over; or at the end, when the disk is full."""
    tell(fake, of(ONE))
    assert "No such file" in ctl("trace", "--seconds", "86400", "-o", str(tmp_path / "no" / "t"), status=1).stderr
    assert "No space left" in ctl("trace", "--seconds", "0.01", "-o", "/dev/full", status=1).stderr


# ---- with a daemon ----

Events = list[dict[str, Any]]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(config=backends.config(backends.HOST) + OPEN) as made:
        yield made


class Recording:
    """A kopsctl that records until it is interrupted, and what it wrote then."""

    def __init__(self, ctl: Ctl, file: Path, *args: str) -> None:
        self.file = file
        self.process = ctl.start("trace", "--seconds", "86400", "-o", str(file), *args)
        # The file is made when the recording has begun.
        proc.eventually(file.exists, "the recording begins")

    def end(self) -> dict[str, Any]:
        os.kill(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=raw.PATIENCE)
        assert self.process.returncode == 0, err
        self.summary = out
        return json.loads(self.file.read_text(encoding="utf-8"))


def slices(events: Events, *categories: str) -> Events:
    return [event for event in events if event["ph"] == "X" and event["cat"] in categories]


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return ns(inner["ts"]) >= ns(outer["ts"]) and ns(inner["ts"]) + ns(inner["dur"]) <= ns(outer["ts"]) + ns(outer["dur"])


def ns(us: float) -> int:
    return round(us * 1000)


def check(events: Events) -> None:
    """What is true of every timeline."""
    chrome_trace.check(events)
    lanes: dict[tuple[int, int], Events] = defaultdict(list)
    for event in slices(events, "call", "compile", "device"):
        lanes[event["pid"], event["tid"]].append(event)
    for lane in lanes.values():
        lane.sort(key=lambda e: ns(e["ts"]))
        for one, next_one in zip(lane, lane[1:], strict=False):
            assert ns(one["ts"]) + ns(one["dur"]) <= ns(next_one["ts"]), "two at a time"
    for event in slices(events, "part"):
        (_,) = [call for call in lanes[event["pid"], event["tid"]] if inside(event, call)]
    flows: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    on_devices = slices(events, "device")
    assert len(flows) == len(on_devices)
    for start, finish in flows.values():
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e") and start["ts"] <= finish["ts"]
        (work,) = [d for d in on_devices if (d["pid"], d["tid"], d["ts"]) == (finish["pid"], finish["tid"], finish["ts"])]
        assert any(
            (c["pid"], c["tid"], c["name"]) == (start["pid"], start["tid"], work["name"]) and ns(c["ts"]) <= ns(start["ts"])
            for c in slices(events, "call")
        )


def test_calls_of_two_connections_and_two_streams(daemon: Daemon, tmp_path: Path) -> None:
    with daemon.connect() as one, daemon.connect() as other:
        for connection in (one, other):
            connection.call("hello", {"client": "traced 1.0"})
        vectors_of = {c: Vectors(c, 3, 1 << 16) for c in (one, other)}
        recording = Recording(Ctl(daemon.socket_path), tmp_path / "trace.json")
        calls = 0
        for connection in (one, other):
            v = vectors_of[connection]
            add = {"op": "add", "in": [v.tensor(0), v.tensor(1)], "out": [v.tensor(2)]}
            sent = [connection.request("run", {**add, "stream": stream, "repeat": 5}) for stream in (0, 4) for _ in range(8)]
            for msgid in sent:
                connection.reply(msgid).get()
            calls += len(sent)
        written = recording.end()
    events = written["traceEvents"]
    check(events)
    done = slices(events, "call")
    assert written["otherData"]["kops"]["events"] == len(done) == calls and f"{calls} events of 2 clients" in recording.summary
    assert {call["pid"] for call in done} == {os.getpid()}
    for call in done:
        args = call["args"]
        assert "failed" not in args and "cname" not in call
        assert call["name"] == "add f32 65536" and args["executions"] == 5 and args["shapes"] == "65536, 65536, 65536"
        assert sum(ns(args[f"{part}_us"]) for part in ("open", "queue", "wait", "device", "end")) == ns(call["dur"])
        assert 0 < args["busy_us"] <= args["device_us"]
    assert len(slices(events, "device")) == calls and {e["pid"] for e in slices(events, "device")} == {DEVICE_PID}
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == os.getpid()]
    assert {name.split(", ")[1].split(" (")[0] for name in names} == {"stream 0", "stream 4"}
    assert len({name.split(", ")[0] for name in names}) == 2
    (process,) = [e["args"]["name"] for e in events if e["name"] == "process_name" and e["pid"] == os.getpid()]
    assert process == f"traced 1.0 (pid {os.getpid()})"


def test_a_call_behind_one_that_is_cancelled(daemon: Daemon, tmp_path: Path) -> None:
    with daemon.connect() as connection:
        v = Vectors(connection, 2, 16)
        recording = Recording(Ctl(daemon.socket_path), tmp_path / "trace.json")
        long = LongRun(connection, stream=4)
        behind = connection.request("run", {"op": "square", "in": [v.tensor(0)], "out": [v.tensor(1)], "stream": 4})
        assert connection.alive(), "both were received"
        connection.call("cancel", {"msgid": long.msgid})
        assert connection.reply_error(long.msgid).code == "cancelled"
        connection.reply(behind).get()
        events = recording.end()["traceEvents"]
    check(events)
    first, second = sorted(slices(events, "call"), key=lambda call: call["ts"])
    assert first["args"]["failed"] is True and first["cname"] == "terrible"
    assert "failed" not in second["args"] and "cname" not in second and second["name"] == "square f32 16"
    assert second["args"]["queue_us"] > 0 and first["ts"] + first["dur"] > second["ts"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == os.getpid()}
    assert (names[first["tid"]], names[second["tid"]]) == ("stream 4", "stream 4 (2)")


def test_the_time_ends_it(daemon: Daemon, tmp_path: Path) -> None:
    out = Ctl(daemon.socket_path)("trace", "--seconds", "0.1", "-o", str(tmp_path / "t.json"), "--json").stdout
    summary = json.loads(out)
    assert summary["seconds"] >= 0.1 and summary["events"] == 0
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"] == []
