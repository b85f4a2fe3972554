"""The executors that kopsctl info, stats and top show."""

from __future__ import annotations

import json
from typing import Any

from conftest import Ctl
from fake import EXECUTORS, HELLO, FakeDaemon, clients, executor, stats

GPU = {"index": 0, "name": "fake GPU", "uuid": "GPU-1", "backend": "cuda", "memory_bytes": 1, "compute_units": 1, "arch": "sm_90",
       "default": True}  # fmt: skip
COUNTS = "executors: started 6, replaced 2, faults 1, jobs_ended 3"


def rows(text: str) -> list[list[str]]:
    """The cells of the table of executors, which are two spaces apart."""
    lines = iter(text.splitlines())
    assert next(line for line in lines if line.startswith("executor  ")).split("  ")[-1] == "device"
    found = []
    for line in lines:
        if not line.strip():
            break
        found.append([cell.strip() for cell in line.split("  ") if cell.strip()])
    return found


ROWS = [
    ["500", "serving", "common", "1", "1 min 0 s", "25 %"],
    ["501", "spare", "-", "0", "1 min 0 s", "0 %"],
    ["502", "serving", "user root", "1", "1 h 1 min", "0.4 %"],
    ["503", "serving", "connection 17 (pid 4711, user root)", "1", "1 min 0 s", "0.5 %"],
    ["504", "ending", "connection 18 (closed)", "1", "1 min 0 s", "25 %"],
]


def test_info(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["hello"] = {**HELLO, "devices": [GPU]}
    fake.answers["stats"] = {**stats(), **EXECUTORS}
    out = ctl("info").stdout
    assert COUNTS in out and rows(out) == ROWS
    answer = json.loads(ctl("info", "--json").stdout)
    assert {key: answer[key] for key in EXECUTORS} == EXECUTORS


def test_info_of_a_daemon_without_executors(fake: FakeDaemon, ctl: Ctl) -> None:
    """Of one without a GPU nothing more is asked, and an older one says nothing of executors."""
    assert "executor" not in ctl("info").stdout
    assert not [method for method, _ in fake.requests if method == "stats"]
    fake.answers["hello"] = {**HELLO, "devices": [GPU]}
    none = {"executors": [], "executor_counts": dict.fromkeys(EXECUTORS["executor_counts"], 0)}
    fake.answers["stats"] = {**stats(), **none}
    assert "executor" not in ctl("info").stdout
    fake.answers["stats"] = {**stats(), **EXECUTORS, "executors": []}
    assert COUNTS in ctl("info").stdout, "all that there were have ended"
    fake.answers["stats"] = stats()
    assert "executor" not in ctl("info").stdout
    assert json.loads(ctl("info", "--json").stdout)["executors"] == []
    del fake.answers["stats"]
    assert "unknown_method" in ctl("info", status=1).stderr


def test_stats(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["stats"] = {**stats(requests=1), **EXECUTORS}
    out = ctl("stats").stdout
    assert COUNTS in out and rows(out) == ROWS
    answer = json.loads(ctl("stats", "--json").stdout)
    assert {key: answer[key] for key in EXECUTORS} == EXECUTORS


def test_top(fake: FakeDaemon, ctl: Ctl) -> None:
    """The share of the time between two looks: of one that was started in between, and of one that got the pid of one that
    has ended, all that it has had."""
    looks = 0

    def look(_: Any) -> Any:
        nonlocal looks
        looks += 1
        return clients(uptime_s=100.0 + looks)

    def executors(_: Any) -> Any:
        found = [executor(1, domain="common", uptime_s=50.0 + looks, device_us=1e6 + 5e5 * looks)]
        if looks == 1:
            found.append(executor(2, domain="user", uid=0, device_us=5e4))
        else:
            found += [executor(2, domain="user", uid=0, uptime_s=0.5, device_us=1e5), executor(3, uptime_s=0.9, device_us=9e5)]
        return {**stats(100.0 + looks), "executors": found, "executor_counts": {"started": looks}}

    fake.answers["clients"], fake.answers["stats"] = look, executors
    (answer,) = [json.loads(line) for line in ctl("top", "--batch", "--json", "-n", "1", "-d", "0.1").stdout.splitlines()]
    assert [(x["pid"], x["device_share"]) for x in answer["executors"]] == [(1, 0.5), (2, 0.1), (3, 0.9)]
    assert answer["executor_counts"] == {"started": 2}
    looks = 0
    assert [row[-1] for row in rows(ctl("top", "--batch", "-n", "1", "-d", "0.1").stdout)] == ["50 %", "10 %", "90 %"]
