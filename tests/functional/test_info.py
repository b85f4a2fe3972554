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
from support import memfd, proc, raw, results
from support.daemon import Daemon

PROTO = Path(__file__).resolve().parents[2] / "proto"
OPS = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in (PROTO / "ops").glob("*.json")}
SPREAD = {"min", "mean", "p50", "p90", "p99", "max"}


@pytest.mark.parametrize(
    ("method", "params", "result"),
    [
        ("register", {}, {"buffer": 1}),  # a key is missing
        ("register", {}, {"buffer": 1, "size": -1}),  # of another type
        ("trim", {}, {"unpinned": 1, "mappings": 1, "more": 1}),  # not declared
        ("cache", {"action": "clear"}, {}),  # only with that action
        ("cache", {"action": "clear"}, {"removed": 1, "fd": 0}),
        ("run", {}, {"timings": {"total_us": 1}, "device": "host", "variant": ""}),  # in a map inside
        ("stats", {}, {"uptime_s": 1.0, "counters": [], "ops": [], "mappings": [], "mappings_all": 0, "kernels": {}}),
    ],
)
def test_a_result_that_is_not_declared_so_is_found(method: str, params: dict[str, Any], result: dict[str, Any]) -> None:
    """Every connection of these tests checks the results that it receives."""
    with pytest.raises(results.Undeclared):
        results.check(method, params, result)


@pytest.fixture
def hello(connection: raw.Connection) -> dict[str, Any]:
    return connection.call("hello", {"client": "test", "protocol": 1})


def test_hello(hello: dict[str, Any], daemon: Daemon) -> None:
    assert hello["server"].startswith("kopsd ")
    assert hello["protocol"] == 1 and hello["protocol_min"] == 1
    assert hello["pid"] == daemon.pid
    assert "memfd" in hello["features"] and "cuda_ipc" not in hello["features"]


def test_hello_devices(hello: dict[str, Any]) -> None:
    (device,) = hello["devices"]
    assert device["index"] == 0 and device["uuid"] == "host" and device["backend"] == "host"
    assert device["default"] is True
    assert device["name"] and device["arch"]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < device["memory_bytes"] <= pages
    assert 1 <= device["compute_units"] <= os.cpu_count()


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


def test_hello_again(connection: raw.Connection) -> None:
    first = connection.call("hello")
    assert connection.call("hello", {"client": "x" * 1000}) == first


def test_hello_mismatch(connection: raw.Connection) -> None:
    error = connection.error("hello", {"protocol": 2})
    assert error.code == "protocol_mismatch"
    assert (error.detail["protocol_min"], error.detail["protocol"]) == (1, 1)
    version = connection.call("hello")["server"]
    assert f"this daemon, {version} (pid " in error.message and error.message.endswith(": install a newer kopsd, and end this one")
    assert connection.error("hello", {"protocol": 0}).message.endswith(": install a newer client")


def test_ping_of_every_type(connection: raw.Connection) -> None:
    params = {
        "a": None,
        "b": [True, False],
        "c": -(2**63),
        "d": 2**64 - 1,
        "e": 1.5,
        "f": "ü",
        "g": b"\x00\xff",
        "h": {"i": {}},
    }
    assert connection.call("ping", params) == params


def test_stats(connection: raw.Connection) -> None:
    stats = connection.call("stats")
    keys = "connections connections_total requests replies errors jobs jobs_cancelled bytes_in bytes_out"
    assert set(stats["counters"]) >= {*keys.split(), "protocol_errors", "rows_dropped"}
    assert all(type(v) is int and v >= 0 for v in stats["counters"].values())
    assert type(stats["uptime_s"]) is float and stats["uptime_s"] > 0
    assert stats["counters"]["connections"] >= 2


def test_stats_counters_count(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 10)
    before = connection.call("stats")["counters"]
    for _ in range(7):
        connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    for _ in range(3):
        connection.error("no_such_method")
    after = connection.call("stats")["counters"]
    change = {k: after[k] - before[k] for k in before}
    assert change["jobs"] == 7 and change["errors"] == 3
    assert change["requests"] == 11 and change["replies"] == 11
    assert change["bytes_in"] > 0 and change["bytes_out"] > 0
    assert change["connections_total"] == 0 and change["jobs_cancelled"] == 0


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


def test_stats_rows_of_gemm(connection: raw.Connection) -> None:
    """The inner size is that of the transposed matrix; a broadcast batch is counted for each of its products. What only
    failed or has no elements has the amounts, too."""
    vectors = Vectors(connection, 1, 200)
    connection.call("stats", {"reset": True})

    def gemm(a: list[int], b: list[int], out: list[int], **attrs: Any) -> dict[str, Any]:
        views = [raw.tensor(vectors.buffer, shape, offset=offset) for shape, offset in ((a, 0), (b, 200), (out, 400))]
        return {"op": "gemm", "in": views[:2], "out": views[2:], "attrs": attrs}

    connection.call("run", gemm([3, 2], [3, 4], [2, 4], trans_a=True))
    connection.call("run", gemm([2, 2, 3], [3, 4], [2, 2, 4]))
    connection.call("run", gemm([2, 0], [0, 4], [2, 4]))
    rows = {str(row["shapes"]): (row["bytes"], row["operations"]) for row in connection.call("stats")["ops"]}
    assert rows == {
        "[[3, 2], [3, 4], [2, 4]]": (4 * 26, 2 * 2 * 3 * 4),
        "[[2, 2, 3], [3, 4], [2, 2, 4]]": (4 * 40, 2 * 2 * 2 * 3 * 4),
        "[[2, 0], [0, 4], [2, 4]]": (4 * 8, 0),
    }


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


def test_stats_reset(connection: raw.Connection) -> None:
    """reset answers what was, and what comes after counts from nothing."""
    vectors = Vectors(connection, 2, 12)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    assert connection.call("stats", {"reset": True})["ops"]
    after = connection.call("stats")
    assert not after["ops"] and after["counters"]["jobs"] == 0
    assert after["counters"]["connections"] >= 2, "open connections are no count of events"


def test_stats_without_executors(connection: raw.Connection) -> None:
    """A host's kernels run in the daemon."""
    stats = connection.call("stats")
    assert stats["executors"] == []
    assert stats["executor_counts"] == {"started": 0, "replaced": 0, "faults": 0, "jobs_ended": 0}


def test_stats_mappings(connection: raw.Connection) -> None:
    shared = memfd.Shared(12345)
    connection.register(shared)
    found = [m for m in connection.call("stats")["mappings"] if m["size"] == 12345]
    assert len(found) == 1
    assert found[0]["kind"] == "memfd" and "device" not in found[0]
    assert found[0]["users"] == 1 and found[0]["pids"] == [os.getpid()]
    assert type(found[0]["open"]) is bool and found[0]["idle_s"] >= 0


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
        assert (rows[size + i]["users"], rows[size + i]["pids"]) == (1, [os.getpid() if i % 2 else pid])


def test_stats_while_mappings_come_and_go(connect: Callable[..., raw.Connection]) -> None:
    """Mappings are closed on other threads; listing them meanwhile reads nothing that is gone (ask a sanitizer)."""
    busy, watcher = connect(), connect()
    shared = memfd.Shared(1 << 20)
    for _ in range(30):
        register = [
            busy.request("register", {"kind": "memfd", "size": 1 << 20, "fd": 0}, [shared.fd]) for _ in range(20)
        ]
        buffers = [busy.reply(msgid).get()["buffer"] for msgid in register]
        releases = [raw.pack_request(10_000_000 + b, "release", {"buffer": b}) for b in buffers]
        watcher.send(b"".join(raw.pack_request(20_000_000 + i, "stats", {}) for i in range(5)))
        busy.send(b"".join(releases))
        for i in range(5):
            assert all(m["size"] > 0 for m in watcher.reply(20_000_000 + i).get()["mappings"])
        for buffer in buffers:
            busy.reply(10_000_000 + buffer).get()


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
