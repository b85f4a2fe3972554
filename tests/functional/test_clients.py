"""clients: who is connected, what each holds, how long its requests take; and what the log says of them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arrays import LongRun, Vectors
from support import backends, memfd, proc, raw, users
from support.daemon import Daemon
from support.ring import Ring
from support.users import STRANGER, as_root

CONFIG = backends.config(backends.HOST)


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


def test_what_it_holds(connection: raw.Connection, watcher: raw.Connection) -> None:
    connection.call("hello", {"client": "holder"})
    shared = memfd.Shared(10_000)
    buffer = connection.register(shared)
    reply = connection.reply(connection.request("alloc", {"size": 4096 * 3}))
    allocated = reply.get()
    os.close(reply.fds[0])
    vectors = [raw.tensor(buffer, [100], offset=400 * i) for i in range(2)]
    program = connection.call("program", {"tensors": vectors, "ops": [{"op": "square", "in": [0], "out": [1]}]})
    row = named(watcher, "holder")
    assert (row["buffers"], row["mapped_bytes"], row["allocated_bytes"]) == (2, 10_000, allocated["size"])
    assert (row["programs"], row["kernels"]) == (1, 0)
    (user,) = [u for u in watcher.call("clients")["users"] if u["uid"] == os.getuid()]
    assert user["mapped_bytes"] >= 10_000 and user["allocated_bytes"] >= allocated["size"] and user["buffers"] >= 2
    connection.call("release", {"buffer": buffer})
    connection.call("release", {"buffer": allocated["buffer"]})
    connection.call("release", {"program": program["program"]})
    row = named(watcher, "holder")
    assert (row["buffers"], row["mapped_bytes"], row["allocated_bytes"], row["programs"]) == (0, 0, 0, 0)


def test_counts_and_latencies(connection: raw.Connection, watcher: raw.Connection) -> None:
    connection.call("hello", {"client": "runner"})
    vectors = Vectors(connection, 2, 100_000)
    busy_before = watcher.call("clients")["devices"][0]["busy_us"]
    replies = [connection.run("square", [vectors.tensor(0)], [vectors.tensor(1)], repeat=3) for _ in range(50)]
    connection.error("no_such_method")
    row = named(watcher, "runner")
    assert row["requests"] == 53 and row["errors"] == 1  # with hello and register
    times = [{**r["timings"], "device": sum(r["timings"]["samples"])} for r in replies]
    for part, key in (("queue", "queue_us"), ("total", "total_us"), ("device", "device")):
        seen = sorted(t[key] for t in times)
        spread = row["latency"][part]
        assert spread["count"] == 50
        assert spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["p999"] <= spread["max"]
        assert spread["max"] == pytest.approx(seen[-1], rel=1e-6)
        assert spread["p50"] == pytest.approx(seen[24], rel=0.07, abs=0.002)
        assert spread["p90"] == pytest.approx(seen[44], rel=0.07, abs=0.002)
    device = sum(t["device"] for t in times)
    assert row["device_us"] == pytest.approx(device, rel=1e-6)
    busy = watcher.call("clients")["devices"][0]["busy_us"] - busy_before
    assert busy == pytest.approx(device, rel=1e-6)


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


def test_bytes_and_shared_memory(connection: raw.Connection, watcher: raw.Connection) -> None:
    connection.call("hello", {"client": "ring"})
    before = named(watcher, "ring")
    ring = Ring(connection)
    for _ in range(10):
        ring.call("ping", {"x": "y" * 1000})
    after = named(watcher, "ring")
    assert after["shm"] and not before["shm"]
    assert after["bytes_in"] - before["bytes_in"] > 10_000
    assert after["bytes_out"] - before["bytes_out"] > 10_000
    ring.close()


@pytest.mark.parametrize(("name", "kept"), [("ä" * 100, "ä" * 32), ("x" + "ä" * 100, "x" + "ä" * 31 + "?")])
def test_hostile_names(connection: raw.Connection, watcher: raw.Connection, name: str, kept: str) -> None:
    """A name that is cut within a character is valid text all the same."""
    connection.call("hello", {"client": name})
    assert named(watcher, kept)


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


def test_disconnect_says_who() -> None:
    with Daemon(config=CONFIG + "[server]\nlog_level = debug\n") as daemon:
        with daemon.connect() as connection, daemon.connect() as watcher:
            connection.call("hello", {"client": 'a "name"'})
            connection.close()
            proc.eventually(lambda: len(watcher.call("clients")["clients"]) == 1, "it is gone")
        (line,) = [x for x in daemon.log().splitlines() if "event=disconnect" in x and "name" in x]
        assert rf'pid={os.getpid()} uid={os.getuid()} client="a \"name\"" why="end of file" inflight=0 requests=1' in line
