"""hello, stats, clients, metrics and trace: what the daemon says of itself and of the work that it does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus
import pytest
from arrays import LongRun, Vectors
from prometheus import Family
from support import backends, memfd, proc, raw, users
from support.daemon import Daemon
from support.users import STRANGER, as_root

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


def named(watcher: raw.Connection, name: str) -> dict[str, Any]:
    """The one client of that name."""
    (row,) = [c for c in watcher.call("clients")["clients"] if c["client"] == name]
    return row


@pytest.fixture
def watcher(connect: Callable[..., raw.Connection]) -> raw.Connection:
    return connect()


def test_who_it_is(connection: raw.Connection, watcher: raw.Connection) -> None:
    connection.call("hello", {"client": "shape 1.0"})
    reply = watcher.call("clients")
    assert reply["state"] == "serving" and reply["uptime_s"] > 0
    row = named(watcher, "shape 1.0")
    assert (row["pid"], row["uid"], row["gid"]) == (os.getpid(), os.getuid(), os.getgid())
    assert row["comm"] == Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    assert 0 <= row["connected_s"] <= reply["uptime_s"] + 60
    assert row["latency"] == {part: {"count": 0} for part in ("queue", "device", "total")}
    assert (row["requests"], row["errors"], row["inflight"], row["shm"], row["paused"]) == (1, 0, 0, False, False)


def test_in_flight_and_queued(connection: raw.Connection, watcher: raw.Connection) -> None:
    connection.call("hello", {"client": "busy"})
    long = LongRun(connection)
    square = {"op": "square", "in": [long.vectors.tensor(0)], "out": [long.vectors.tensor(1)]}
    behind = [connection.request("run", square) for _ in range(3)]
    assert connection.alive()
    row = named(watcher, "busy")
    assert (row["inflight"], row["queued"]) == (4, 3)
    assert watcher.call("clients")["devices"][0]["running"] >= 1
    connection.call("cancel", {"msgid": behind[0]})
    assert connection.reply_error(behind.pop(0)).code == "cancelled"
    row = named(watcher, "busy")
    assert (row["inflight"], row["queued"]) == (3, 2)
    connection.call("cancel", {"msgid": long.msgid})
    assert connection.reply_error(long.msgid).code == "cancelled"
    for msgid in behind:
        connection.reply(msgid).get()
    row = named(watcher, "busy")
    assert (row["inflight"], row["queued"]) == (0, 0)
    assert row["latency"]["total"]["count"] == 2, "what was cancelled has no latency"
    assert row["device_us"] > 0, "but device time"
    assert watcher.call("clients")["devices"][0]["running"] == 0


@as_root
def test_users_and_their_limits() -> None:
    config = CONFIG + users.OPEN + "[quota]\nbuffers = 3\nfds = 0\nmapped_mib = 5\n"
    with Daemon(config=config) as daemon, daemon.connect() as root:
        with users.connect(daemon, STRANGER) as one, users.connect(daemon, STRANGER) as two:
            shared = memfd.Shared(1 << 20)
            for connection in (one, two, one):
                connection.register(shared)
            error = two.error("register", {"kind": "memfd", "size": 1 << 20, "fd": 0}, [shared.fd])
            assert (error.code, error.detail["quota"]) == ("quota_exceeded", "buffers")
            vectors = Vectors(root, 2, 100_000)
            root.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
            asked = root.call("clients")
            owner, stranger = sorted(asked["users"], key=lambda u: u["uid"])
            assert (stranger["uid"], stranger["connections"], stranger["buffers"]) == (STRANGER, 2, 3)
            assert stranger["mapped_bytes"] == 3 << 20
            assert (stranger["requests"], stranger["refused"], stranger["device_us"]) == (4, 1, 0)
            assert stranger["fds"] >= 4 and stranger["inflight"] == 0
            assert stranger["limits"]["buffers"] == 3 and stranger["limits"]["mapped_bytes"] == 5 << 20
            assert "fds" not in stranger["limits"] and "device_share" not in stranger["limits"]
            assert owner["uid"] == 0 and owner["device_us"] > 0 and owner["inflight"] == 1
            (row,) = [c for c in asked["clients"] if c["uid"] == 0]
            assert row["device_us"] == owner["device_us"]
            text = root.call("metrics")["text"]
            assert 'kopsd_refusals_total{what="buffers"} 1\n' in text
            assert f'kopsd_user_refused_total{{uid="{STRANGER}",identity=""}} 1\n' in text
            # Others see only their own.
            mine = one.call("clients")
            assert [c["uid"] for c in mine["clients"]] == [STRANGER] * 2 and [u["uid"] for u in mine["users"]] == [STRANGER]
            assert {d["uuid"] for d in mine["devices"]} == {d["uuid"] for d in asked["devices"]}


def test_connects_do_not_flood_the_log() -> None:
    """At debug level they are in the log, but not more than so many a second; above it not at all."""
    for level in ("info", "debug"):
        with Daemon(config=CONFIG + f"[server]\nlog_level = {level}\n") as daemon:
            with daemon.connect() as watcher:
                for _ in range(500):
                    socket.socket(socket.AF_UNIX).connect(daemon.socket_path)
                proc.eventually(lambda w=watcher: len(w.call("clients")["clients"]) == 1, "they are gone")
                held = re.search(r"^kopsd_log_lines_held_back_total (\d+)$", watcher.call("metrics")["text"], re.M)
                uptime = watcher.call("clients")["uptime_s"]
            lines = re.findall(r"event=(?:dis)?connect ", daemon.log())
            assert held
            if level == "info":
                assert not lines and held[1] == "0"
            else:
                assert 2 <= len(lines) <= 2 * 20 * (uptime + 2)
                assert int(held[1]) + len(lines) >= 1001  # the watcher's own end may not be in it yet


CONFIG = backends.config(backends.HOST)
DECLARED = json.loads((Path(__file__).resolve().parents[2] / "proto/metrics.json").read_text(encoding="utf-8"))
OP = {"op": "square", "dtype": "f32", "device": "0"}


def read(connection: raw.Connection) -> dict[str, Family]:
    return prometheus.parse(connection.call("metrics")["text"])


TOLD = tuple(f"kopsd_device_{name}_" for name in ("clock", "temperature", "power", "slowed"))  # where a device tells them
REMOTE = "kopsd_remote_cache_"  # where machines share a cache: test_shared_cache.py


def test_as_declared(connection: raw.Connection) -> None:
    """All that is declared is there and nothing else, with the declared help, type and labels, and a name as Prometheus wants it."""
    vectors = Vectors(connection, 2, 100)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    families = read(connection)
    assert list(families) == [m["name"] for m in DECLARED["metrics"]]
    for m in DECLARED["metrics"]:
        family = families[m["name"]]
        assert (family.type, family.help) == (m["type"], m["help"])
        assert (m["type"] == "counter") == m["name"].endswith("_total"), m["name"]
        assert not re.search("_(us|ms|mib|kib)(?!er)", m["name"]), m["name"]
        labels = {tuple(sorted(m["labels"]))}
        if m["type"] == "histogram":
            labels.add(tuple(sorted([*m["labels"], "le"])))
        if m["name"].startswith((*TOLD, REMOTE)):  # test_watch_gpu.py has a device that tells
            assert family.labels() <= labels, m["name"]
        else:
            assert family.labels() == labels, m["name"]


def test_counters_count(connection: raw.Connection) -> None:
    vectors = Vectors(connection, 2, 100_000)
    connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
    before = read(connection)
    timings = [connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)])["timings"] for _ in range(20)]
    connection.error("no_such_method")
    connection.error("release", {"buffer": 12345})
    after = read(connection)
    prometheus.never_fell(before, after)

    def change(name: str, suffix: str = "", **labels: str) -> float:
        return after[name].value(suffix, **labels) - before[name].value(suffix, **labels)

    assert change("kopsd_requests_total", method="run") == 20
    assert change("kopsd_requests_total", method="unknown") == 1
    assert change("kopsd_requests_total", method="metrics") == 1
    assert change("kopsd_requests_total", method="launch") == 0
    assert change("kopsd_errors_total", code="unknown_method") == 1
    assert change("kopsd_errors_total", code="unknown_buffer") == 1
    assert change("kopsd_jobs_total") == 20
    assert change("kopsd_replies_total") == 23
    assert change("kopsd_received_bytes_total") > 20 * 50 and change("kopsd_sent_bytes_total") > 20 * 50
    device = sum(t["host_us"] for t in timings) * 1e-6
    assert change("kopsd_device_busy_seconds_total", device="0") == pytest.approx(device)
    for part, key in (("queue", "queue_us"), ("device", "host_us"), ("total", "total_us")):
        name = f"kopsd_op_{part}_seconds"
        assert change(name, "_count", **OP) == 20
        assert change(name, "_sum", **OP) == pytest.approx(sum(t[key] for t in timings) * 1e-6)
        for le in ("1e-06", "0.0001", "0.01", "1", "+Inf"):
            expected = sum(t[key] * 1e-6 <= float(le) for t in timings)
            assert change(name, "_bucket", **OP, le=le) == expected, (name, le)


def test_counters_stay(daemon: Daemon, connection: raw.Connection) -> None:
    """Those of closed connections, and when stats are reset."""
    with daemon.connect() as other:
        vectors = Vectors(other, 2, 100)
        other.run("square", [vectors.tensor(0)], [vectors.tensor(1)])
        before = read(connection)
    proc.eventually(lambda: len(connection.call("clients")["clients"]) == 2, "it is gone")
    connection.call("stats", {"reset": True})
    after = read(connection)
    prometheus.never_fell(before, after)
    assert after["kopsd_jobs_total"].value() == before["kopsd_jobs_total"].value() > 0


def test_kinds_of_runs(connection: raw.Connection) -> None:
    """Sequences and programs are counted as such; runs that fail are no latency."""
    vectors = Vectors(connection, 2, 100)
    body = {
        "tensors": [vectors.tensor(0), vectors.tensor(1)],
        "ops": [{"op": "square", "in": [0], "out": [1]}, {"op": "square", "in": [0], "out": [1]}],
    }
    program = connection.call("program", body)["program"]
    connection.call("sequence", body)
    connection.call("run_program", {"program": program})
    before = read(connection)["kopsd_op_total_seconds"]
    connection.call("sequence", body)
    for _ in range(2):
        connection.call("run_program", {"program": program})
    long = LongRun(connection)
    connection.call("cancel", {"msgid": long.msgid})
    connection.reply_error(long.msgid)
    after = read(connection)["kopsd_op_total_seconds"]
    for op, n in (("sequence", 1), ("program", 2)):
        labels = {"op": op, "dtype": "", "device": "0"}
        assert after.value("_count", **labels) - before.value("_count", **labels) == n
    assert {v for k, v in before.samples.items() if dict(k[1])["op"] == "square"} == {
        v for k, v in after.samples.items() if dict(k[1])["op"] == "square"
    }


def test_gauges(connection: raw.Connection, connect: Callable[..., raw.Connection], daemon: Daemon) -> None:
    watcher = connect()
    shared = memfd.Shared(10_000)
    before = read(watcher)
    connection.register(shared)
    long = LongRun(connection)
    behind = connection.request("run", {"op": "square", "in": [long.vectors.tensor(0)],
                                        "out": [long.vectors.tensor(1)]})  # fmt: skip
    assert connection.alive()
    now = read(watcher)
    uid = str(os.getuid())
    assert now["kopsd_jobs_running"].value(device="0") == 1 and now["kopsd_jobs_queued"].value() == 1
    assert now["kopsd_requests_in_flight"].value() == 3, "with metrics itself"
    assert now["kopsd_work_in_flight"].value() == 2
    assert now["kopsd_user_requests_in_flight"].value(uid=uid, identity="") == 3
    grown = now["kopsd_user_mapped_bytes"].value(uid=uid, identity="") - before["kopsd_user_mapped_bytes"].value(uid=uid, identity="")
    assert grown == 10_000 + long.vectors.shared.size
    assert now["kopsd_user_connections"].value(uid=uid, identity="") == now["kopsd_connections"].value() == 3
    assert now["kopsd_mappings"].value(state="open") == before["kopsd_mappings"].value(state="open") + 2
    connection.call("cancel", {"msgid": long.msgid})
    connection.reply(long.msgid)
    connection.reply(behind)
    now = read(watcher)
    assert now["kopsd_jobs_running"].value(device="0") == now["kopsd_jobs_queued"].value() == 0
    assert now["kopsd_work_in_flight"].value() == 0


def test_the_process(connection: raw.Connection, daemon: Daemon) -> None:
    def agrees() -> bool:
        """What earlier tests left is still being given back."""
        told = read(connection)
        resident, fds = proc.status(daemon.pid, "VmRSS") << 10, sum(proc.fds(daemon.pid).values())
        return told["kopsd_resident_memory_bytes"].value() == pytest.approx(resident, rel=0.1) and told[
            "kopsd_open_fds"
        ].value() == pytest.approx(fds, abs=2)

    proc.eventually(agrees, "the system says the same")
    families = read(connection)
    start, up = families["kopsd_start_time_seconds"].value(), families["kopsd_uptime_seconds"].value()
    assert start + up == pytest.approx(time.time(), abs=raw.PATIENCE)
    assert read(connection)["kopsd_start_time_seconds"].value() == start
    assert 0 < families["kopsd_cpu_seconds_total"].value()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = families["kopsd_device_memory_free_bytes"].value(device="0")
    assert 0 < free <= families["kopsd_device_memory_bytes"].value(device="0") <= pages


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ('"} 1\nkopsd_evil{a="', '"} 1\nkopsd_evil{a="'),
        ("\\\\\"\n\\n", "\\\\\"\n\\n"),
        ("\r\x0b\x00\x1b[31m", "??"),
        ("x" + "ä" * 40, "x" + "ä" * 31 + "?"),
        ("{le=\"+Inf\"}", "{le=\"+Inf\"}"),
    ],
)  # fmt: skip
def test_hostile_names(connection: raw.Connection, name: str, shown: str) -> None:
    """What a client calls itself comes out as it was, and changes nothing else."""
    before = read(connection)
    connection.call("hello", {"client": name})
    after = read(connection)
    assert list(after) == list(before)
    assert after["kopsd_client_connections"].value(client=shown) == 1


@pytest.mark.parametrize(("names", "shown"), [((b"a\x01", b"a\x02", b"a?"), "a?"), ((b"\xff", b"\xfe", b"?"), "?")])
def test_names_that_come_out_alike(names: tuple[bytes, ...], shown: str, daemon: Daemon) -> None:
    """They are one series: a scraper takes nothing of a text that has one twice."""
    hello = raw.pack([0, 1, "hello", [{"client": ""}]])
    made = [daemon.connect() for _ in names]
    for connection, name in zip(made, names, strict=True):
        connection.send(hello[:-1] + bytes([0xA0 + len(name)]) + name)
        connection.reply(1).get()
    assert read(made[0])["kopsd_client_connections"].value(client=shown) == len(names)
    for connection in made:
        connection.close()


@pytest.mark.parametrize("first", ["name 0", "(other)"])
def test_many_names_are_bounded(daemon: Daemon, first: str) -> None:
    """Also where one is like that of the others."""
    made = [daemon.connect() for _ in range(50)]
    for i, connection in enumerate(made):
        connection.call("hello", {"client": f"name {i}" if i else first})
    family = read(made[0])["kopsd_client_connections"]
    assert len(family.samples) in (32, 33) and sum(family.samples.values()) == 51
    assert family.value(client="(other)") > 0
    for connection in made:
        connection.close()


@as_root
def test_others_see_no_series_of_users() -> None:
    with Daemon(config=CONFIG + users.OPEN) as daemon:
        with daemon.connect() as root, users.connect(daemon, STRANGER) as stranger:
            root.call("hello", {"client": "of root"})
            stranger.call("hello", {"client": "of the stranger"})
            mine, everything = read(stranger), read(root)
            assert len(everything["kopsd_user_connections"].samples) == 2
            assert {dict(k[1])["uid"] for k in mine["kopsd_user_connections"].samples} == {str(STRANGER)}
            assert {dict(k[1])["client"] for k in mine["kopsd_client_connections"].samples} == {"of the stranger"}
            assert {dict(k[1])["client"] for k in everything["kopsd_client_connections"].samples} == {
                "of root",
                "of the stranger",
            }
            assert mine["kopsd_connections"].value() == 2


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
    assert trace.read(end=True) == [] and not trace.last["recording"]
    connection.run("add", operands["in"], operands["out"])
    assert trace.read() == [] and not trace.last["recording"]


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
