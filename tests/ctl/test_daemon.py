"""kopsctl's commands for administrators with a daemon that is one: under load, drained, stopped, started anew."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ctl
from support import backends, proc, raw
from support.daemon import Daemon
from support.users import OPEN

sys.path.append(str(Path(__file__).resolve().parents[1] / "functional"))

from arrays import LongRun, Vectors  # noqa: E402

CONFIG = backends.config(backends.HOST) + OPEN


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(config=CONFIG) as made:
        yield made


@pytest.fixture
def ctl(daemon: Daemon) -> Ctl:
    return Ctl(daemon.socket_path)


@pytest.fixture
def load(daemon: Daemon) -> Iterator[int]:
    """A process that works all the time; its pid."""
    pid = os.fork()
    if not pid:
        try:
            with raw.Connection(daemon.socket_path) as connection:
                connection.call("hello", {"client": "load 1.0"})
                vectors = Vectors(connection, 3, 1000)
                while True:
                    connection.run("add", [vectors.tensor(0), vectors.tensor(1)], [vectors.tensor(2)])
                    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        finally:
            os._exit(1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def of_pid(rows: list[dict[str, Any]], pid: int) -> dict[str, Any]:
    (row,) = [row for row in rows if row["pid"] == pid]
    return row


def wait_for_load(ctl: Ctl, pid: int) -> None:
    def works() -> bool:
        rows = json.loads(ctl("clients", "--json").stdout)["clients"]
        return any(row["pid"] == pid and row["latency"]["total"]["count"] > 10 for row in rows)

    proc.eventually(works, "the load works")


def test_top_under_load(ctl: Ctl, load: int, daemon: Daemon) -> None:
    wait_for_load(ctl, load)
    looks = [json.loads(line) for line in ctl("top", "-b", "-n", "2", "-d", "0.3", "--json").stdout.splitlines()]
    assert len(looks) == 2
    for look in looks:
        assert look["interval_s"] > 0.25 and look["state"] == "serving"
        busy = of_pid(look["clients"], load)
        assert busy["client"] == "load 1.0" and busy["requests_s"] > 0 and busy["errors_s"] == 0
        # Everybody's requests together; kopsctl's own are few, and the counts are taken one after the other.
        assert look["requests_s"] == pytest.approx(busy["requests_s"], rel=0.5)
        assert 0 < busy["device_share"] < 1.5 and 0 < look["devices"][0]["busy_share"] < 1.5
        assert busy["latency"]["total"]["p50"] <= busy["latency"]["total"]["p99"]
        assert {op["op"] for op in look["ops"]} == {"add", "square"}
        assert sum(op["runs_s"] for op in look["ops"]) == pytest.approx(look["runs_s"], rel=0.5)
        for op in look["ops"]:
            assert op["queue_us"]["p999"] >= op["queue_us"]["p50"] > 0 and op["shapes"][0] == [1000]
    text = ctl("top", "-b", "-n", "1", "-d", "0.1", "--sort", "device").stdout
    assert "load 1.0" in text.splitlines()[5] and f"pid {daemon.pid}" in text


def test_drain_and_resume(ctl: Ctl, daemon: Daemon) -> None:
    with daemon.connect() as worker:
        run = LongRun(worker)
        assert "1 jobs" in ctl("drain", "--timeout", "0.05", status=4).stdout
        assert ctl("clients").stdout.endswith("the daemon is draining\n")
        refused = worker.error("alloc", {"size": 4096})
        assert refused.code == "shutting_down" and refused.detail["draining"] is True
        # What waits for the work to end is told when it has.
        waiting = ctl.start("drain", "--json")
        worker.call("cancel", {"msgid": run.msgid})
        out, _ = waiting.communicate()
        assert waiting.returncode == 0 and json.loads(out)["drained"] is True
        ctl("drain", "--resume")
        assert worker.call("alloc", {"size": 4096})["buffer"]


def test_drain_and_stop_of_an_idle_one(ctl: Ctl, daemon: Daemon) -> None:
    assert "ends" in ctl("drain", "--stop").stdout
    assert daemon.wait() == 0
    ctl("drain", status=3)


KERNELS = """
#if 0
__global__ void old() {}
#endif
namespace a::b { namespace { __global__ void k(float* y) { y[0] = 1; } } inline namespace c { __global__ void m(int* x) { x[0] = 1; } } }
template <auto F = [](int x) { return x; }> __global__ void t(int* y) { y[0] = F(1); }
extern "C" { __global__ void z(int* y) { y[0] = 2; } }
struct S { __device__ int f() { return 1; } };
namespace d { void host() {} template <class T> __global__ void u(T* y) { y[0] = 1; }
__global__ __launch_bounds__(128) void w(int* y) { y[0] = 3; } }
"""


@pytest.mark.skipif(backends.nvrtc() is None, reason="no NVRTC")
def test_compile_finds_the_kernels(ctl: Ctl, tmp_path: Path) -> None:
    """Those that are no templates, with their namespaces."""
    source = tmp_path / "kernels.cu"
    source.write_text(KERNELS)
    made = json.loads(ctl("compile", str(source), "--arch", "sm_90", "--json").stdout)
    assert [entry["name"] for entry in made["entries"]] == ["a::b::k", "a::b::c::m", "z", "d::w"]
