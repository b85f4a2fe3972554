"""kops.profiler, with the real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import kops
import numpy
import pytest
from built import Daemon, backends, k, real
from kops._calls.calls import Calls
from kops._calls.ops import OpMethods
from kops._kernels.kernels import Bound
from kops.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler
from kops.profiler._chrome import Trace
from kops.profiler._recorder import Decoder, Span

from support import chrome_trace  # isort: skip
from which import compiled_only

__all__ = ["k", "real"]

A = numpy.ones(1000, "float32")
DEVICE_PIDS = (1 << 31) - 1
NONE, WARMUP, RECORD, SAVE = ProfilerAction


def test_calls_and_what_the_daemon_made_of_them(k: kops.Client, real: Daemon) -> None:
    with profile(socket=real.socket_path) as p:
        for _ in range(20):
            k.add(A, A)
        with pytest.raises(kops.ShapeMismatch):
            k.add(A, A[:10])
        k.square(A.reshape(10, 100))
    events, calls = p.events(), [span for span in p.spans() if span.kind == "call"]
    assert [call.name for call in calls] == ["add"] * 21 + ["square"]
    del calls[20]  # the refused one
    assert [event.op for event in events] == [call.name for call in calls]
    for event, call in zip(events, calls, strict=True):
        assert event.call == call.call and event.pid == os.getpid() and call.thread == threading.get_native_id()
        assert event.ready and event.started and event.busy_us is not None
        assert call.begin <= event.received <= event.ready <= event.started <= event.ended <= call.end
        assert event.client.startswith("kops") and not event.failed
    assert events[-1].shapes == ((10, 100), (10, 100)) and events[-1].label == "square f32 10x100" and p.dropped == 0


def test_short_ways_are_not_taken_while_calls_are_noted(k: kops.Client, real: Daemon) -> None:
    """Neither that of torch's ops nor that of kernels with a geometry: the calls that they pass by are those that are noted."""

    class Kernel:
        _count = 1
        _client = SimpleNamespace(_scopes=(), where="daemon", _live=lambda: None)

        def _fast(self, *_: Any) -> str:
            return "short"

        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            return arguments, keywords

    client: Any = object.__new__(Calls)
    client._connection = SimpleNamespace(
        offers_ordered=True, failure=None, doomed=False, garbage=(), run=lambda *_: "short", lost=lambda error: error
    )
    client.blocking, client._scopes, client._submitted, client._timeout = False, {}, {}, 1.0
    bound, method = Bound(Kernel(), {"grid": 2}, b""), vars(OpMethods)["add"]
    for _ in range(2):
        assert bound(1) == "short" and client._at_once("add", (), 1) == "short" and vars(OpMethods)["add"] is method
        with pytest.raises(ZeroDivisionError), profile(socket=real.socket_path):
            assert bound(1) == ((1,), {"grid": 2}) and bound(1, grid=3) == ((1,), {"grid": 3})
            assert client._at_once("add", (), 1) is NotImplemented
            assert isinstance(OpMethods.add, FunctionType)  # not the compiled part's, which launches by itself
            with pytest.raises(kops.BadArgument, match="another profile"):
                profile(socket=real.socket_path).start()
            raise ZeroDivisionError


def test_other_processes(k: kops.Client, real: Daemon) -> None:
    code = "import kops, numpy, sys; k = kops.connect(sys.argv[1]); k.square(numpy.ones(3, 'float32'))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for processes, seen in (("own", ["add"]), ("user", ["square", "add"]), ("all", ["square", "add"])):
        with profile(socket=real.socket_path, processes=processes) as p:
            subprocess.run([sys.executable, "-c", code, real.socket_path], check=True, env=environment)
            k.add(A, A)
        assert [event.op for event in p.events()] == seen and len({event.connection for event in p.events()}) == len(seen)
    with pytest.raises(kops.BadArgument, match="processes"):
        profile(processes="others")
    with pytest.raises(kops.ConnectFailed):
        profile(socket="/nowhere/kopsd.sock").start()


@pytest.mark.parametrize(
    ("how", "want"),
    [
        ({"wait": 1, "warmup": 1, "active": 2}, [NONE, WARMUP, RECORD, SAVE, NONE, WARMUP, RECORD, SAVE, NONE]),
        ({"wait": 0, "warmup": 0, "active": 1, "repeat": 2}, [SAVE, SAVE, NONE, NONE]),
        ({"wait": 0, "warmup": 1, "active": 1, "repeat": 1, "skip_first": 2}, [NONE, NONE, WARMUP, SAVE, NONE]),
    ],
)
def test_schedules(how: dict[str, int], want: list[ProfilerAction]) -> None:
    action = schedule(**how)
    assert [action(step) for step in range(len(want))] == want
    for wrong in ({"wait": -1, "warmup": 0, "active": 1}, {"wait": 0, "warmup": 0, "active": 0}):
        with pytest.raises(kops.BadArgument):
            schedule(**wrong)


def test_torchs_arguments(k: kops.Client, real: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kops.profiler._profile._said", set())
    both = [ProfilerActivity.CPU, SimpleNamespace(name="CUDA")]  # torch's own has a name, too
    asked = {"profile_memory": True, "with_flops": True, "with_modules": True, "experimental_config": object()}
    with pytest.warns(UserWarning, match="is ignored: ") as warned:
        for _ in range(2):
            p = profile(socket=real.socket_path, activities=both, record_shapes=True, execution_trace_observer=print, **asked)
    assert sorted(str(one.message).split()[0] for one in warned) == sorted([*asked, "execution_trace_observer"]), "once each"
    assert all(one.filename == __file__ for one in warned), "where the program named them"
    profile(use_cuda=True, custom_trace_id_callback=None, profile_memory=False)
    with p:
        k.add(A, A)
    assert len(p.events()) == 1
    with pytest.raises(TypeError, match=r"'with_colour'.*activities.*profile_memory"):
        profile(with_colour=True)
    wrong: list[dict[str, Any]] = [
        {"activities": "CPU"}, {"activities": [ProfilerActivity.CPU, SimpleNamespace(name="XPU")]}, {"activities": 3},
        {"activities": [ProfilerActivity.CUDA], "use_cuda": False}, {"record_shapes": "yes"}, {"with_stack": 1}, {"acc_events": None},
        {"schedule": 3}, {"on_trace_ready": "log"}, {"use_cuda": "cuda"},
    ]  # fmt: skip
    for how in wrong:
        with pytest.raises(kops.BadArgument):
            profile(**how)
    with pytest.raises(kops.BadArgument, match="schedule has said"):
        profile(socket=real.socket_path, schedule=lambda _: True).start()


def test_activities_choose(k: kops.Client, real: Daemon) -> None:
    with profile(socket=real.socket_path, activities=[ProfilerActivity.CPU]) as p:
        k.add(A, A)
    assert len(p.events()) == 1 and [span.name for span in p.spans()] == ["add", "ProfilerStep#0"]
    with pytest.warns(UserWarning, match="no GPU"), profile(socket=real.socket_path, activities=[ProfilerActivity.CUDA]) as p:
        k.add(A, A)
    assert p.events() == [] and [span.kind for span in p.spans()] == ["step"]


@pytest.mark.parametrize("adds, want", [(False, [1, 1]), (True, [1, 2])])
def test_torchs_schedules_and_cycles_that_add_up(k: kops.Client, real: Daemon, adds: bool, want: list[int]) -> None:
    theirs, seen = schedule(wait=1, warmup=0, active=1, repeat=2), list[int]()
    how = {"schedule": lambda step: SimpleNamespace(name=theirs(step).name), "on_trace_ready": lambda p: seen.append(len(p.events()))}
    with profile(socket=real.socket_path, acc_events=adds, **how) as p:
        for _ in range(4):
            k.add(A, A)
            p.step()
    assert seen == want


def test_tables_by_torchs_names_and_stacks(k: kops.Client, real: Daemon, tmp_path: Path) -> None:
    def one() -> None:
        k.add(A, A)

    def other() -> None:
        k.add(A, A)

    with profile(socket=real.socket_path, with_stack=True) as p:
        one()
        one()
        other()
        k.square(A)
    rows = p.key_averages(group_by_stack_n=1)
    assert sorted((row.count, row.key[-1].split(": ")[-1]) for row in rows if row.key[0] == "add") == [(1, "other"), (2, "one")]
    for name in ("cuda_time_total", "self_cuda_time_total", "device_time_total", "cpu_time_total", "self_cpu_time_total", "count"):
        values = [getattr(row, name) for row in rows]
        table = rows.table(sort_by=name, row_limit=-1, header="mine", max_src_column_width=500).splitlines()
        first = max(rows, key=lambda row: getattr(row, name))
        assert min(values) > 0 and table[0] == "mine" and len(table) == 2 + len(rows) and table[2].startswith(first.key[0] + " ")
    assert sum(row.cpu_time_total for row in rows) == pytest.approx(sum(s.end - s.begin for s in p.spans() if s.kind == "call") / 1e3)
    with pytest.raises(kops.BadArgument, match="is not measured"):
        rows.table(sort_by="self_cuda_memory_usage")
    with pytest.raises(AttributeError):
        rows[0].flops  # noqa: B018
    for metric in ("self_cpu_time_total", "self_cuda_time_total"):
        p.export_stacks(tmp_path / metric, metric)
        for line in (tmp_path / metric).read_text(encoding="utf-8").splitlines():
            frames, us = line.rsplit(" ", 1)
            assert int(us) > 0 and " " not in frames
    lines = (tmp_path / "self_cpu_time_total").read_text(encoding="utf-8").splitlines()
    assert {line.rsplit(" ", 1)[0].rsplit("_", 1)[-1] for line in lines} == {"one", "other", "stacks"}, "the innermost frame is the last"
    with pytest.raises(kops.BadArgument, match="metric"):
        p.export_stacks(tmp_path / "x", "time")
    with profile(socket=real.socket_path) as p:
        k.add(A, A)
    for ask in (lambda: p.key_averages(group_by_stack_n=5), lambda: p.export_stacks(tmp_path / "x")):
        with pytest.raises(kops.BadArgument, match="with_stack=True"):
            ask()


def test_the_trace_as_tensorboard_reads_it(k: kops.Client, real: Daemon) -> None:
    """Its plug-in finds steps by their names, an operator's launches, to it "runtime", by the external id, kernels by the correlation."""
    with profile(socket=real.socket_path, schedule=schedule(wait=1, warmup=0, active=2, repeat=1), with_stack=True) as p:
        for _ in range(3):
            with record_function("range", "its args"):
                k.add(A, A)
                k.square(A.reshape(10, 100))
            p.step()
    p.add_metadata("run", "mine")
    p.add_metadata_json("sizes", "[1, 2]")
    for name, value in (("traceEvents", "[]"), ("deviceProperties", "[]"), ("x", "{")):
        with pytest.raises(kops.BadArgument):
            p.add_metadata_json(name, value)
    trace = p.chrome_trace()
    assert trace["schemaVersion"] == 1 and trace["run"] == "mine" and trace["sizes"] == [1, 2]
    assert trace["deviceProperties"] == [{"id": 0, "name": d.name, "totalGlobalMem": d.memory_bytes} for d in k.info.devices]
    slices = check_trace(trace)
    ranges = slices["user_annotation"]
    steps = [s for s in ranges if s["name"].startswith("ProfilerStep#")]
    assert [s["name"] for s in steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert [s["args"]["args"] for s in ranges if s["name"] == "range"] == ["its args"] * 2
    operators = {s["args"]["External id"]: s for s in (*ranges, *slices["cpu_op"])}
    assert len(operators) == len(ranges) + len(slices["cpu_op"]) == 8
    launches = {s["args"]["correlation"]: s for s in slices["runtime"]}
    assert len(launches) == len(slices["kernel"]) == 4
    for kernel in slices["kernel"]:
        args = kernel["args"]
        launch = launches[args["correlation"]]
        operator = operators[args["External id"]]
        assert launch["args"]["External id"] == args["External id"] and args["device"] == 0 and args["stream"] == 0
        assert operator["cat"] == "cpu_op" and kernel["name"].split()[0] == operator["name"] and not args.keys() & {"grid", "block"}
        assert (operator["pid"], operator["tid"]) == (launch["pid"], launch["tid"]) and operator["ts"] <= launch["ts"]
        assert launch["ts"] + launch["dur"] <= operator["ts"] + operator["dur"] + 0.002
        assert any(s["ts"] <= launch["ts"] <= s["ts"] + s["dur"] for s in steps)
        assert operator["args"]["Input Dims"][0] == ([1000] if operator["name"] == "add" else [10, 100])
        assert set(operator["args"]["Input type"]) == {"f32"} and "test_profiler.py(" in operator["args"]["Call stack"]


def test_each_cycle_has_its_active_steps_alone(k: kops.Client, real: Daemon) -> None:
    ready: list[tuple[list[int], list[str]]] = []

    def handler(p: profile) -> None:
        ready.append(([event.shapes[0][0] for event in p.events()], [span.name for span in p.spans() if span.kind == "step"]))

    with profile(socket=real.socket_path, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=handler) as p:
        for step in range(10):
            k.square(A[: step + 1])
            p.step()
    assert ready == [([3, 4], ["ProfilerStep#2", "ProfilerStep#3"]), ([7, 8], ["ProfilerStep#6", "ProfilerStep#7"])]
    ready.clear()
    with profile(socket=real.socket_path, schedule=schedule(wait=0, warmup=0, active=5), on_trace_ready=handler) as p:
        k.square(A)
        p.step()
        k.square(A)
    assert [len(shapes) for shapes, _ in ready] == [2], "a cycle that is cut short is handed over, too"


def test_key_averages(k: kops.Client, real: Daemon) -> None:
    with profile(socket=real.socket_path) as p:
        for _ in range(3):
            k.add(A, A)
        k.add(A[:10], A[:10])
        k.profile("square", A, warmup=2, repeat=7)
    rows = {row.key[0]: row for row in p.key_averages()}
    assert {name: (row.count, row.executions) for name, row in rows.items()} == {"add": (4, 4), "square": (1, 7)}
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    for name, row in rows.items():
        assert row.total == pytest.approx(sum(event.busy_us or 0 for event in p.events() if event.op == name))
        if name == "add":
            assert row.send and row.reply and row.send > 0 < row.reply
        assert row.mean and row.p50 and row.p99 and row.p50 <= row.p99 and row.latency >= row.queue
    assert len(p.key_averages(group_by_input_shape=True)) == 3
    assert [row.key for row in p.key_averages(group_by=["client"])] == [(f"{p.events()[0].client} ({os.getpid()})",)]
    lines = p.key_averages().table(sort_by="count", row_limit=1).splitlines()
    assert lines[0].split()[:3] == ["op", "dtype", "variant"] and lines[1].startswith("add ") and lines[-1] == "... and 1 more"
    assert p.key_averages().table(sort_by="op").splitlines()[2].startswith("square")
    for wrong in (
        lambda: p.key_averages().table(sort_by="cost"), lambda: p.key_averages().table(sort_by="shapes"),
        lambda: p.key_averages(group_by=["colour"]),
    ):  # fmt: skip
        with pytest.raises(kops.BadArgument):
            wrong()


VECTORS = json.loads((Path(__file__).resolve().parents[2] / "tests" / "vectors" / "trace_chrome.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_the_same_trace_as_kopsctl_writes(vector: dict[str, Any]) -> None:
    reply = {**{key: vector[key] for key in ("kinds", "clients", "events")}, "origin_ns": 10**15}
    trace = Trace({device["uuid"]: device["name"] for device in vector["devices"]}, lambda ns: (ns - 10**15) / 1e3)
    trace.add_events(Decoder().events(reply))

    def order(events: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(event, sort_keys=True) for event in events)

    assert order(trace.done()) == order(vector["traceEvents"])


def check_trace(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """A viewer shows all of it, and arrows end in work; TensorBoard's appends its own at the last bracket. The slices by cat."""
    made = chrome_trace.check(json.loads(json.dumps(trace, allow_nan=False))["traceEvents"])
    by_cat: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            by_cat[event["cat"]].append(event)
    for steps in made.arrows.values():
        _, (process, _), _ = steps[-1]
        assert process > DEVICE_PIDS - 64
    assert len(made.arrows) == len(by_cat["kernel"] or by_cat["device"]) and list(trace)[-1] == "traceEvents"
    return by_cat


def test_the_trace(k: kops.Client, real: Daemon, tmp_path: Path) -> None:
    @record_function("decorated")
    def once() -> None:
        k.add(A, A)

    with profile(socket=real.socket_path) as p:
        with record_function("Größe …\udc80"):
            for _ in range(5):
                once()
        pending = [k.submit("square", A, stream=i % 3) for i in range(30)]
        for one in pending:
            one.result()
    p.export_chrome_trace(tmp_path / "t.json")
    p.export_chrome_trace(tmp_path / "t.json.gz")
    text = (tmp_path / "t.json").read_text(encoding="utf-8")
    trace = json.loads(text)
    with gzip.open(tmp_path / "t.json.gz", "rt", encoding="utf-8") as file:
        assert file.read() == text and r"Größe …\udc80" in text, "Perfetto shows escapes as they are written"
    slices = check_trace(trace)
    assert len(slices["call"]) == len(slices["kernel"]) == 35
    assert sorted(s["name"] for s in slices["user_annotation"]) == sorted(["ProfilerStep#0", *["decorated"] * 5, "Größe …\udc80"])
    assert len(slices["cpu_op"]) == 5, "a submitted call is no call that waits"
    for s in slices["call"]:
        parts = s["args"]
        assert s["dur"] == pytest.approx(sum(parts[f"{part}_us"] for part in ("open", "queue", "wait", "device", "end")), abs=0.01)
        assert parts["busy_us"] <= parts["device_us"] + 0.01
    for call in slices["cpu_op"]:
        own = [s for s in (*slices["part"], *slices["runtime"]) if s["tid"] == call["tid"]]
        inside = [s for s in own if call["ts"] - 0.002 <= s["ts"] <= call["ts"] + call["dur"]]
        (asked,) = [s for s in slices["call"] if call["ts"] <= s["ts"] <= call["ts"] + call["dur"]]
        assert sorted(s["name"] for s in inside) == ["reply", "send"]
        assert sum(s["dur"] for s in inside) + asked["dur"] == pytest.approx(call["dur"], abs=0.01), "the parts are the whole"
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {"stream 0", "stream 1", "stream 2", "kernels"} <= names
    assert trace["otherData"]["kops"] == {"events": 35, "dropped": 0}


def test_what_overlaps_without_nesting_has_rows_of_its_own(k: kops.Client, real: Daemon) -> None:
    """Tasks of one thread, and a range that goes on when the step ends in which it began."""

    async def tasks() -> None:
        turns = asyncio.Event(), asyncio.Event()

        async def task(i: int) -> None:
            with record_function(("one", "two")[i]):
                turns[1 - i].set()
                await turns[i].wait()
                k.add(A, A)

        await asyncio.gather(task(0), task(1))

    with profile(socket=real.socket_path, schedule=schedule(wait=0, warmup=0, active=3, repeat=1)) as p:
        with record_function("all steps"):
            for _ in range(2):
                asyncio.run(tasks())
                p.step()
    trace = p.chrome_trace()
    slices = check_trace(trace)
    names = [s["name"] for s in slices["user_annotation"]]
    assert sorted(names) == [*(f"ProfilerStep#{step}" for step in range(3)), "all steps", *["one"] * 2, *["two"] * 2]
    assert len(slices["cpu_op"]) == 4
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {f"thread {os.getpid()}{lane}" for lane in ("", " (2)")} <= names


def test_threads_with_small_numbers_keep_their_rows() -> None:
    """As in a container, where processes have small numbers, too."""
    vector = next(vector for vector in VECTORS if vector["name"] == "lanes")
    (pid,) = {client["pid"] for client in vector["clients"]}
    reply = {**{key: vector[key] for key in ("kinds", "clients", "events")}, "origin_ns": 0}
    trace = Trace({}, lambda ns: ns / 1e3)
    trace.add_spans([Span("range", "mine", thread, 0, 10**6) for thread in (1, 3)], pid)
    trace.add_events(Decoder().events(reply), [], pid)
    check_trace({"traceEvents": trace.done()})


class TorchProfile:
    """As much of `torch.profiler.profile` as is asked of it."""

    def export_chrome_trace(self, path: str) -> None:
        own = {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": os.getpid(), "tid": 1, "ts": 10.5, "dur": 1.0}
        trace = {"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": [own], "deviceProperties": ["x"]}
        Path(path).write_text(json.dumps(trace), encoding="utf-8")


def test_one_trace_with_torchs(k: kops.Client, real: Daemon, tmp_path: Path) -> None:
    handler = tensorboard_trace_handler(tmp_path / "log", worker_name="worker")
    with profile(socket=real.socket_path, torch_profiler=TorchProfile(), on_trace_ready=handler) as p:
        k.add(A, A)
    (path,) = (tmp_path / "log").iterdir()
    assert path.name.startswith("worker.") and path.name.endswith(".pt.trace.json")
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["schemaVersion"] == 1 and trace["deviceProperties"] == ["x"] and trace["traceEvents"][0]["name"] == "aten::add"
    (call,) = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "call"]
    by_now = time.time_ns() - (time.monotonic_ns() - p.events()[0].received)
    assert 1_700_000_000_000_000_000 + call["ts"] * 1e3 == pytest.approx(by_now, abs=1e6)


@compiled_only
def test_the_daemon_is_replaced(tmp_path: Path) -> None:
    with Daemon(config=backends.config(backends.HOST)) as first, contextlib.ExitStack() as later:
        path = first.socket_path
        with kops.connect(path, timeout=60) as k, pytest.warns(RuntimeWarning, match="nothing of what kopsd does"):
            with profile(socket=path) as p:
                k.add(A, A)
                first.stop()
                later.enter_context(Daemon(config=backends.config(backends.HOST), socket_path=path))
                k.add(A, A)
            assert len(p.events()) <= 1
