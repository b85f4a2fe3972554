"""kopsctl trace: the timeline that it writes of what a daemon told, and of work that a real one did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Ctl
from fake import HELLO, FakeDaemon, Refused
from support import chrome_trace

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("functional", "vectors")]

import vectors  # noqa: E402

VECTORS = vectors.load("trace_chrome.json")
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
