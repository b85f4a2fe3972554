"""hello, stats and ping: what the daemon says of itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arrays import Vectors
from support import memfd, proc, raw
from support.daemon import Daemon

PROTO = Path(__file__).resolve().parents[2] / "proto"
OPS = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in (PROTO / "ops").glob("*.json")}
SPREAD = {"min", "mean", "p50", "p90", "p99", "max"}


@pytest.fixture
def hello(connection: raw.Connection) -> dict[str, Any]:
    return connection.call("hello", {"client": "test", "protocol": 1})


def test_hello(hello: dict[str, Any], daemon: Daemon, connection: raw.Connection) -> None:
    assert hello["server"].startswith("kopsd ")
    assert hello["protocol"] == 1 and hello["protocol_min"] == 1
    assert hello["pid"] == daemon.pid
    assert "memfd" in hello["features"] and "cuda_ipc" not in hello["features"]
    (device,) = hello["devices"]
    assert device["index"] == 0 and device["uuid"] == "host" and device["backend"] == "host"
    assert device["default"] is True
    assert device["name"] and device["arch"]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < device["memory_bytes"] <= pages
    assert 1 <= device["compute_units"] <= os.cpu_count()
    assert connection.call("hello", {"client": "x" * 1000}) == hello


def test_hello_ops_are_the_declared_ones(hello: dict[str, Any]) -> None:
    """Every op, with every declared word of it."""
    assert {op["name"] for op in hello["ops"]} == set(OPS)
    for op in hello["ops"]:
        declared = OPS[op["name"]]
        for key in ("summary", "doc", "inputs", "outputs", "dtypes"):
            assert op[key] == declared[key], key
        assert [a["name"] for a in op["attrs"]] == [a["name"] for a in declared["attrs"]]
        for attr, expected in zip(op["attrs"], declared["attrs"], strict=True):
            for key in ("type", "default", "doc"):
                assert attr[key] == expected[key] and type(attr[key]) is type(expected[key]), key
            assert attr.get("choices") == expected.get("choices")
        assert op["variants"]["host"] and all(isinstance(v, str) for v in op["variants"]["host"])


def test_hello_limits(hello: dict[str, Any]) -> None:
    keys = "message_bytes depth nfds inflight buffers streams rank repeat warmup inline_mappings".split()
    assert set(hello["limits"]) >= set(keys)
    limits = hello["limits"]
    assert all(type(limits[k]) is int and limits[k] > 0 for k in keys)
    assert (limits["depth"], limits["nfds"], limits["rank"]) == (16, 16, 8)
    assert (limits["repeat"], limits["warmup"], limits["streams"]) == (10000, 10000, 256)


def test_hello_mismatch(connection: raw.Connection) -> None:
    error = connection.error("hello", {"protocol": 2})
    assert error.code == "protocol_mismatch"
    assert (error.detail["protocol_min"], error.detail["protocol"]) == (1, 1)
    version = connection.call("hello")["server"]
    assert f"this daemon, {version} (pid " in error.message and error.message.endswith(": install a newer kopsd, and end this one")
    assert connection.error("hello", {"protocol": 0}).message.endswith(": install a newer client")


def test_stats(connection: raw.Connection) -> None:
    """What comes after a reset counts from nothing, but for open connections."""
    vectors = Vectors(connection, 2, 10)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    before = connection.call("stats", {"reset": True})
    keys = "connections connections_total requests replies errors jobs jobs_cancelled bytes_in bytes_out"
    assert set(before["counters"]) >= {*keys.split(), "protocol_errors", "rows_dropped"}
    assert type(before["uptime_s"]) is float and before["uptime_s"] > 0
    assert before["ops"] and before["counters"]["jobs"] >= 1
    assert before["executors"] == [], "a host's kernels run in the daemon"
    assert before["executor_counts"] == {"started": 0, "replaced": 0, "faults": 0, "jobs_ended": 0}
    for _ in range(7):
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    for _ in range(3):
        connection.error("no_such_method")
    now = connection.call("stats")["counters"]
    assert (now["jobs"], now["errors"], now["jobs_cancelled"], now["connections_total"]) == (7, 3, 0, 0)
    assert (now["requests"], now["replies"]) == (11, 11)
    assert now["bytes_in"] > 0 and now["bytes_out"] > 0
    assert now["connections"] >= 2


def test_stats_rows(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 3, 12)
    connection.call("stats", {"reset": True})
    view = [raw.tensor(vectors.buffer, [3, 4], offset=48 * i) for i in range(3)]
    for _ in range(4):
        connection.run("add", view[:2], view[2:])
    connection.run("add", view[:2], view[2:], warmup=2, repeat=10)
    connection.run("square", view[:1], view[2:])
    (row,) = connection.call("stats", {"op": "add", "dtype": "f32", "device": "host"})["ops"]
    assert row["op"] == "add" and row["dtype"] == "f32" and row["device"] == "host" and row["variant"]
    assert row["shapes"] == [[3, 4]] * 3
    assert row["count"] == 14 and row["errors"] == 0
    assert row["bytes"] == 3 * 48 and row["operations"] == 12
    for key in ("exec_us", "total_us"):
        spread = row[key]
        assert set(spread) >= SPREAD
        assert 0 < spread["min"] <= spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["max"] * 1.0001
        assert spread["min"] <= spread["mean"] <= spread["max"]


def test_stats_rows_without_a_number_for_the_bytes(connection: raw.Connection) -> None:
    """An input that repeats one element has as many as its shape says."""
    vectors = Vectors(connection, 1, 4)
    connection.call("stats", {"reset": True})
    wide = raw.tensor(vectors.buffer, [1, 2**61], strides=[0, 0])
    none = raw.tensor(vectors.buffer, [2**61, 0])
    connection.call("run", {"op": "gemm", "in": [wide, none], "out": [raw.tensor(vectors.buffer, [1, 0])]})
    (row,) = connection.call("stats")["ops"]
    assert "bytes" not in row and row["operations"] == 0


def test_stats_filters(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 12)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert connection.call("stats", {"op": "square"})["ops"]
    assert all(row["op"] == "square" for row in connection.call("stats", {"op": "square"})["ops"])
    assert not connection.call("stats", {"op": "square", "dtype": "bf16", "device": 0})["ops"]
    assert connection.error("stats", {"op": "cube"}).code == "unknown_op"
    assert connection.error("stats", {"dtype": "f8"}).code == "unknown_dtype"
    assert connection.error("stats", {"device": "GPU-none"}).code == "unknown_device"


def test_stats_tell_who_refers_to_what(daemon: Daemon, connection: raw.Connection, spawn: Callable[..., int]) -> None:
    """Each of many mappings by itself, of two processes."""
    size, ready, done = 54321, *os.pipe()

    def child() -> None:
        with daemon.connect() as its_own:
            for i in range(200):
                its_own.register(memfd.Shared(size + 2 * i))
            os.write(done, b"x")
            signal.pause()

    pid = spawn(child)
    os.close(done)
    for i in range(200):
        connection.register(memfd.Shared(size + 2 * i + 1))
    assert os.read(ready, 1) == b"x", "the child failed"
    os.close(ready)
    rows = {m["size"]: m for m in connection.call("stats")["mappings"]}
    for i in range(400):
        row = rows[size + i]
        assert (row["users"], row["pids"]) == (1, [os.getpid() if i % 2 else pid])
        assert row["kind"] == "memfd" and "device" not in row
        assert type(row["open"]) is bool and row["idle_s"] >= 0


def test_stats_rows_are_bounded(connection: raw.Connection, daemon: Daemon) -> None:
    """As many shapes as one likes: the oldest rows go, and are counted."""
    vectors = Vectors(connection, 2, 5000)
    connection.call("stats", {"reset": True})
    before = proc.status(daemon.pid, "VmRSS")
    for n in range(1, 3001):
        t = raw.tensor(vectors.buffer, [n])
        connection.request("run", {"op": "square", "in": [t], "out": [raw.tensor(vectors.buffer, [n], offset=20000)]})
        if n % 50 == 0:
            connection.reply(connection.next_msgid - 1).get()
    stats = connection.call("stats")
    rows = stats["ops"]
    assert len(rows) + stats["counters"]["rows_dropped"] == 3000
    assert any(row["shapes"][0] == [3000] for row in rows)
    assert proc.status(daemon.pid, "VmRSS") - before < 64 << 10
    connection.call("stats", {"reset": True})
