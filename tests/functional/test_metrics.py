"""metrics: every line read strictly, every metric as declared, and the numbers those that happened."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import prometheus
import pytest
from arrays import LongRun, Vectors
from prometheus import Family
from support import backends, memfd, proc, raw, users
from support.daemon import Daemon
from support.users import STRANGER, as_root

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
        if m["name"].startswith((*TOLD, REMOTE)):  # test_conditions.py has a device that tells
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
