"""Times by the driver's records: calls that wait for them, and statistics that get them later, on stand-ins of the driver and CUPTI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from domains import FIXTURES, Client, NewClient, Start
from gpu_machine import N, only_with_nvrtc, only_with_the_standin
from support import backends, proc, raw
from support.daemon import Daemon
from support.memfd import Shared

pytestmark = [only_with_the_standin, only_with_nvrtc]
start, client = FIXTURES

RECORDS = {"KOPSD_EXECUTORS_CUPTI": str(backends.standin_cupti())}
LOST, LATE = ({**RECORDS, "KOPS_STANDIN_CUPTI": how} for how in ("lose", "late"))


def launch(own: Client, **how: Any) -> dict[str, Any]:
    result: dict[str, Any] = own.connection.reply(own.ask(**how)).get()
    return result


def check_sum(times: dict[str, float]) -> None:
    parts = times["recv_to_start_us"] + times["wait_us"] + times["gpu_us"] + times["end_us"]
    assert abs(parts - times["total_us"]) < 1, times


def test_a_call_waits_for_its_record(start: Start, client: NewClient) -> None:
    own = client(start(env=RECORDS), own=True)
    result = launch(own, exact=True)
    assert result["timer"] == "cupti" and result["timings"]["gpu_us"] > 0
    check_sum(result["timings"])
    assert launch(own)["timer"] == "events"
    repeated = launch(own, exact=True, repeat=300)
    assert repeated["timer"] == "cupti" and len(repeated["timings"]["samples"]) == 300


def share(own: Client) -> None:
    """Its tensors are host memory from now on, which the daemon copies to the GPU and back."""
    own.tensors = [raw.tensor(own.connection.register(Shared(4 * N)), [N]) for _ in own.tensors]


@pytest.mark.parametrize("env", [RECORDS, LOST], ids=["recorded", "lost"])
def test_exact_calls_of_host_memory(start: Start, client: NewClient, env: dict[str, str]) -> None:
    """The first one is prepared for its copies as well as for CUPTI's start. Where the record is lost the call waits for it when
    the copies back have ended, so nothing on the GPU wakes the executor."""
    own = client(start(env=env), own=True)
    share(own)
    for _ in range(3):
        result = launch(own, exact=True)
        assert result["timer"] == "cupti" if env is RECORDS else "gpu_us" not in result["timings"], result


@pytest.mark.parametrize("shared", [False, True])
def test_events_of_a_trace_have_the_drivers_times(start: Start, client: NewClient, shared: bool) -> None:
    """Runs that did not ask for times: their events wait for the records, which come after the replies; also where copies
    back follow the kernels."""
    machine = start(env=RECORDS)
    own = client(machine, own=True)
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


@pytest.mark.parametrize("env", [LATE, LOST], ids=["late", "lost"])
def test_an_event_whose_record_does_not_come_at_once(start: Start, client: NewClient, env: dict[str, str]) -> None:
    """The executor looks for it again, though nothing else wakes it, and gives up if it is lost."""
    machine = start(env=env)
    own = client(machine, own=True)
    watcher = machine.daemon.connect()
    watcher.call("trace", {"begin": True})
    launch(own, timing=False)
    told: list[list[int]] = []
    proc.eventually(lambda: told.extend(watcher.call("trace")["events"]) or len(told) == 1, "the event is held back for ever")
    began, finished = told[0][11:13]
    assert 0 < began < finished if env is LATE else began == finished == 0, told


def test_ended_traces_make_room(start: Start, client: NewClient) -> None:
    """Also those whose clients do not read the events that were pending: a user may have four that record."""
    machine = start(env=LOST)
    own = client(machine, own=True)
    watchers = [machine.daemon.connect() for _ in range(5)]
    for watcher in watchers[:4]:
        watcher.call("trace", {"begin": True})
    assert watchers[4].error("trace", {"begin": True}).code == "quota_exceeded"
    launch(own, timing=False)
    for watcher in watchers[:4]:
        assert watcher.call("trace", {"end": True})["pending"] == 1

    def begins() -> bool:
        reply = watchers[4].reply(watchers[4].request("trace", {"begin": True}))
        assert reply.error is None or reply.error["code"] == "quota_exceeded"
        return reply.error is None

    proc.eventually(begins, "ended traces count for ever")


# ---- `wall_us`: what the daemon's own clock says, beside what the process that ran it claims ----


def check(times: dict[str, Any]) -> None:
    """All executions are within the wall time, which is within the request."""
    claimed = sum(times.get("samples", [times.get("gpu_us", times.get("host_us"))]))
    assert claimed <= times["wall_us"] <= times["total_us"], times


def test_a_kernel_takes_as_long_as_the_daemon_waits(start: Start, client: NewClient) -> None:
    own = client(start())
    own.memory[1].write(bytes(4 * N))
    for us in (20_000, 100_000):
        times = own.connection.reply(own.ask_for(us)).get()["timings"]
        assert times["wall_us"] >= us
        check(times)
    own.own()
    assert "wall_us" not in launch(own, timing=False)["timings"]
    times = launch(own, repeat=200, warmup=3)["timings"]
    assert len(times["samples"]) == 200
    check(times)
    step = {"kernel": own.custom, "args": [1, 0, N]}
    steps = {"tensors": own.tensors[:2], "ops": [step, step]}
    check(own.connection.call("sequence", {**steps, "repeat": 50})["timings"])
    program = own.connection.call("program", steps)["program"]
    check(own.connection.call("run_program", {"program": program, "timing": True})["timings"])


def test_wall_time_on_the_host() -> None:
    with Daemon() as daemon, daemon.connect() as connection:
        shared = Shared(8 * N)
        buffer = connection.register(shared)
        np.frombuffer(shared.map, np.float32)[:] = 3
        run = {"op": "square", "in": [raw.tensor(buffer, [N])], "out": [raw.tensor(buffer, [N], offset=4 * N)], "repeat": 20}
        check(connection.call("run", run)["timings"])
