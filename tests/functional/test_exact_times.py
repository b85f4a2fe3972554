"""Times by the driver's records: calls that wait for them, and statistics that get them later, on stand-ins of the driver and CUPTI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from domains import FIXTURES, Client, Domains, Plain
from gpu_machine import N, only_with_the_standin
from support import backends, proc, raw
from support.memfd import Shared
from user_kernels import hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES

RECORDS = {"KOPSD_EXECUTORS_CUPTI": str(backends.standin_cupti())}


def launch(own: Client, **how: Any) -> dict[str, Any]:
    request = {"kernel": own.custom, "args": [own.tensors[1], own.tensors[0], N], **how}
    result: dict[str, Any] = own.connection.call("launch", request)
    return result


def test_a_call_waits_for_its_record(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start(env=RECORDS))
    own.own()
    result = launch(own, exact=True)
    times = result["timings"]
    assert result["timer"] == "cupti" and times["gpu_us"] > 0
    parts = times["recv_to_start_us"] + times["wait_us"] + times["gpu_us"] + times["end_us"]
    assert abs(parts - times["total_us"]) < 1, times
    assert launch(own)["timer"] == "events"
    repeated = launch(own, exact=True, repeat=300)
    assert repeated["timer"] == "cupti" and len(repeated["timings"]["samples"]) == 300


def test_a_backlog_of_long_kernels_has_its_times(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """The stand-in's records come when the stream pauses, as CUPTI's do."""
    own = client(start(env=RECORDS))
    gpu = own.connection.call("hello")["devices"][0]["uuid"]
    runs = Plain(own.connection, gpu, 1, "u32")
    request = {"kernel": hostile_kernel(own.connection, "run_for"), "args": [runs.tensor(), 50_000], "exact": True}
    sent = [own.connection.request("launch", request) for _ in range(6)]
    results = [own.connection.reply(each).get() for each in sent]
    assert [result["timer"] for result in results] == ["cupti"] * 6
    assert all(result["timings"].get("gpu_us", 0) >= 50_000 for result in results), results


def share(own: Client) -> None:
    """Its tensors are host memory from now on, which the daemon copies to the GPU and back."""
    own.tensors = [raw.tensor(own.connection.register(Shared(4 * N)), [N]) for _ in own.tensors]


def test_the_first_exact_call_may_be_of_host_memory(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """It is prepared for its copies as well as for CUPTI's start."""
    own = client(start(env=RECORDS))
    own.own()
    share(own)
    assert launch(own, exact=True)["timer"] == "cupti"


def test_a_call_of_host_memory_whose_record_is_lost_ends(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """It waits for the record when the copies back have ended, so nothing on the GPU wakes the executor."""
    own = client(start(env={**RECORDS, "KOPS_STANDIN_CUPTI": "lose"}))
    own.own()
    share(own)
    for _ in range(3):
        assert "gpu_us" not in launch(own, exact=True)["timings"]


def test_without_records_events_tell(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    own = client(start(env={"KOPSD_EXECUTORS_CUPTI": "off"}))
    own.own()
    for _ in range(100):
        result = launch(own, exact=True)
        times = result["timings"]
        assert result["timer"] == "events"
        if "wait_us" in times:  # not where the host was interrupted for longer than the gate waits
            break
    parts = times["recv_to_start_us"] + times["wait_us"] + times["gpu_us"] + times["end_us"]
    assert abs(parts - times["total_us"]) < 1, times


def test_statistics_get_their_times_later(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """One launch in 61 is timed, by a record that comes after the reply."""
    machine = start(env=RECORDS)
    own = client(machine)
    own.own()
    own.connection.call("stats", {"reset": True})
    for _ in range(130):
        launch(own, timing=False)

    def row() -> dict[str, Any]:
        rows: list[dict[str, Any]] = own.connection.call("stats")["ops"]
        return next(r for r in rows if r["op"] == "custom_kernel")

    proc.eventually(lambda: "exec_us" in row(), "the statistics have no times")
    assert row()["count"] == 130 and row()["exec_us"]["min"] > 0


@pytest.mark.parametrize("shared", [False, True])
def test_events_of_a_trace_have_the_drivers_times(start: Callable[..., Domains], client: Callable[..., Client], shared: bool) -> None:
    """Runs that did not ask for times: their events wait for the records, which come after the replies; also where copies back
    follow the kernels."""
    machine = start(env=RECORDS)
    own = client(machine)
    own.own()
    if shared:
        share(own)
    watcher = machine.daemon.connect()
    watcher.call("trace", {"begin": True})
    for _ in range(200):
        launch(own, timing=False)
    events: list[list[int]] = []

    def whole(**how: bool) -> bool:
        reply = watcher.call("trace", how)
        events.extend(reply["events"])
        return reply["pending"] == 0 and reply["dropped"] == 0

    if not whole(end=True):
        proc.eventually(whole, "the trace waits for records for ever")
    assert len(events) == 200
    for row in events:
        started, ended, busy, began, finished = (row[column] for column in (6, 7, 8, 11, 12))
        assert 0 < started <= began < finished <= ended, row
        assert 0 < busy <= finished - began + 1000, row


def test_a_record_may_come_when_there_is_nothing_else_to_do(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """The executor looks for it again, though nothing else wakes it."""
    machine = start(env={**RECORDS, "KOPS_STANDIN_CUPTI": "late"})
    own = client(machine)
    own.own()
    watcher = machine.daemon.connect()
    watcher.call("trace", {"begin": True})
    launch(own, timing=False)
    told: list[list[int]] = []
    proc.eventually(lambda: told.extend(watcher.call("trace")["events"]) or len(told) == 1, "the trace waits for ever")
    assert told[0][11] > 0 and told[0][12] > told[0][11], told


def test_events_whose_record_is_lost_come_all_the_same(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    machine = start(env={**RECORDS, "KOPS_STANDIN_CUPTI": "lose"})
    own = client(machine)
    own.own()
    watcher = machine.daemon.connect()
    watcher.call("trace", {"begin": True})
    launch(own, timing=False)
    told: list[list[int]] = []
    proc.eventually(lambda: told.extend(watcher.call("trace")["events"]) or len(told) == 1, "an event is held back for ever")
    assert told[0][11] == told[0][12] == 0


def test_ended_traces_make_room(start: Callable[..., Domains], client: Callable[..., Client]) -> None:
    """Also those whose clients do not read the events that were pending: a user may have four that record."""
    machine = start(env={**RECORDS, "KOPS_STANDIN_CUPTI": "lose"})
    own = client(machine)
    own.own()
    watchers = [machine.daemon.connect() for _ in range(5)]
    for watcher in watchers[:4]:
        watcher.call("trace", {"begin": True})
    assert watchers[4].error("trace", {"begin": True}).code == "quota_exceeded"
    launch(own, timing=False)
    for watcher in watchers[:4]:
        assert watcher.call("trace", {"end": True})["pending"] == 1

    def begins() -> bool:
        try:
            return bool(watchers[4].call("trace", {"begin": True})["recording"])
        except raw.RpcError as error:
            assert error.code == "quota_exceeded"
            return False

    proc.eventually(begins, "ended traces count for ever")
