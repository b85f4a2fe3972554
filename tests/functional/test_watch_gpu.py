"""What clients, metrics and the log say of a GPU: memory, time, faults, and a driver that does not answer; and of
clocks, temperature and power (`conditions`)."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import prometheus
import pytest
from gpu_machine import ILLEGAL_ADDRESS, Machine, N, add_args, only_with_nvrtc, only_with_the_standin, square, vector
from support import proc, raw
from support.daemon import ROOT
from support.kernels import add_kernel
from support.nvml import GPU, Nvml

pytestmark = only_with_the_standin

INVALID_VALUE = 1  # refused, and the context goes on


def device(connection: raw.Connection, machine: Machine) -> dict[str, Any]:
    (row,) = [d for d in connection.call("clients")["devices"] if d["uuid"] == machine.gpu]
    return row


def metric(connection: raw.Connection, name: str, **labels: str) -> float:
    return prometheus.parse(connection.call("metrics")["text"])[name].value(**labels)


@pytest.fixture
def machine() -> Any:
    made = Machine()
    with made.daemon:
        yield made


def test_free_memory(machine: Machine) -> None:
    """Who asks waits a moment for the driver, and is answered with what was known before: nothing at first."""
    with machine.daemon.connect() as connection:
        proc.eventually(lambda: "memory_free" in device(connection, machine), "the driver answers")
        before = device(connection, machine)
        assert 0 < before["memory_free"] <= before["memory_total"]
        reply = connection.reply(connection.request("alloc", {"size": 16 << 20, "device": machine.gpu}))
        buffer = reply.get()
        os.close(reply.fds[0])
        reply.fds.clear()
        proc.eventually(lambda: device(connection, machine)["memory_free"] != before["memory_free"], "the driver answers again")
        after = device(connection, machine)
        assert before["memory_free"] - after["memory_free"] == buffer["size"]
        index = str(after["index"])
        assert metric(connection, "kopsd_device_memory_free_bytes", device=index) == after["memory_free"]
        assert metric(connection, "kopsd_user_allocated_bytes", uid=str(os.getuid()), identity="") == buffer["size"]


def test_a_driver_that_hangs_holds_up_nobody(machine: Machine) -> None:
    """Those who watch are answered with what was known, and who works is served meanwhile."""
    exporter = machine.exporter()
    a, b = vector(exporter.alloc(4 * N)), vector(exporter.alloc(4 * N))
    with machine.daemon.connect() as watcher, machine.daemon.connect() as worker:
        worker.call("run", square(a, b))
        proc.eventually(lambda: "memory_free" in device(watcher, machine), "the driver answers")
        known = device(watcher, machine)["memory_free"]
        with machine.control.gate("memory_info"):
            asked = [watcher.request(method) for method in ("clients", "metrics", "clients")]
            machine.wait(lambda: machine.row.waiting("memory_info") == 1)
            worker.call("run", square(a, b))
            for msgid in asked:
                reply = watcher.reply(msgid).get()
                for row in reply.get("devices", []):
                    assert row["uuid"] != machine.gpu or row["memory_free"] == known
            assert device(watcher, machine)["memory_free"] == known
            assert machine.row.waiting("memory_info") == 1, "asked once, however many wait"
            worker.call("run", square(a, b))
        assert device(watcher, machine)["memory_free"] == known
    exporter.close()


@only_with_nvrtc
def test_kernels_of_users_are_one_kind(machine: Machine) -> None:
    """However many there are, and whatever they are called."""
    exporter = machine.exporter()
    memory = [vector(exporter.alloc(4 * N)) for _ in range(3)]
    with machine.daemon.connect() as connection:
        kernel = add_kernel(connection)
        index = str(device(connection, machine)["index"])
        for _ in range(3):
            connection.call("launch", {"kernel": kernel, "args": add_args(memory)})
        labels = {"op": "user_kernel", "dtype": "f32", "device": index}
        family = prometheus.parse(connection.call("metrics")["text"])["kopsd_op_total_seconds"]
        assert family.value("_count", **labels) == 3
        assert metric(connection, "kopsd_launches_total") == 3
        (row,) = connection.call("clients")["clients"]
        assert row["kernels"] == 1 and row["device_us"] > 0
        assert metric(connection, "kopsd_user_kernel_bytes", uid=str(os.getuid()), identity="") > 0
    exporter.close()


def test_a_context_that_is_lost_is_in_the_log() -> None:
    machine = Machine()
    exporter = machine.exporter()
    a = vector(exporter.alloc(4 * N))
    with machine.daemon.connect() as connection:
        connection.call("hello", {"client": "culprit"})
        connection.call("run", square(a, a))
        machine.control.fail("kernel", ILLEGAL_ADDRESS, sticky=True, pid=machine.daemon.gpu_pid)
        assert connection.error("run", square(a, a)).code == "device_lost"
    (line,) = [x for x in machine.daemon.log().splitlines() if "event=fault" in x]
    for part in ("code=device_lost", f"uuid={machine.gpu}", "op=square", f"pid={os.getpid()}", 'client="culprit"'):
        assert part in line, line
    exporter.close()
    machine.daemon.stop()


def test_errors_of_a_device_are_counted_and_logged_within_bounds(machine: Machine) -> None:
    exporter = machine.exporter()
    a, b = vector(exporter.alloc(4 * N)), vector(exporter.alloc(4 * N))
    with machine.daemon.connect() as connection:
        connection.call("run", square(a, b))
        for _ in range(100):
            machine.control.fail("cuLaunchKernel", INVALID_VALUE, pid=machine.daemon.gpu_pid)
            assert connection.error("run", square(a, b)).code == "device_error"
        assert metric(connection, "kopsd_faults_total") == 100
        assert metric(connection, "kopsd_errors_total", code="device_error") == 100
        held = metric(connection, "kopsd_log_lines_held_back_total")
        uptime = connection.call("clients")["uptime_s"]
        connection.call("run", square(a, b))
    lines = [x for x in machine.daemon.log().splitlines() if "event=fault code=device_error" in x]
    assert len(lines) + held == 100 and 20 <= len(lines) <= 20 * (uptime + 2)
    exporter.close()


DECLARED = [
    metric for metric in json.loads((ROOT / "proto" / "metrics.json").read_text(encoding="utf-8"))["metrics"]
    if metric["name"].startswith(tuple(f"kopsd_device_{name}_" for name in ("clock", "temperature", "power", "slowed")))
]  # fmt: skip


@pytest.fixture
def nvml(tmp_path: Path) -> Nvml:
    return Nvml(tmp_path)


def gpu(connection: raw.Connection) -> dict[str, Any]:
    reply = connection.call("conditions", {"device": GPU})
    assert reply["device"] == GPU
    conditions: dict[str, Any] = reply["conditions"]
    return conditions


def test_what_nvml_says(nvml: Nvml) -> None:
    """Each reading is newer than its request."""
    with nvml.daemon() as daemon, daemon.connect() as connection:
        assert gpu(connection) == {
            "clock_mhz": 1980, "clock_max_mhz": 1980, "memory_clock_mhz": 3201, "memory_clock_max_mhz": 3201, "temperature_c": 36,
            "power_w": 79.2, "power_limit_w": 700, "power_slowed_us": 0, "thermal_slowed_us": 0, "reasons": [],
        }  # fmt: skip
        nvml.answer(clock=1590, reasons=0x4 | 0x20 | 0x1000, power_slowed_ns=2500)
        now = gpu(connection)
        assert (now["clock_mhz"], now["power_slowed_us"], now["reasons"]) == (1590, 2.5, ["power_cap", "thermal", "other"])
        assert connection.error("conditions", {"device": 7}).code == "unknown_device"


def test_what_a_gpu_does_not_tell_is_absent(nvml: Nvml) -> None:
    nvml.answer(power_mw=None, thermal_slowed_ns=None, memory_clock_max=None)
    with nvml.daemon() as daemon, daemon.connect() as connection:
        assert not {"power_w", "thermal_slowed_us", "memory_clock_max_mhz", "missing"} & gpu(connection).keys()


MISSING = {  # what lies in the place of the library, what it answers, and what is said
    "library": (os.devnull, {}, "no libnvidia-ml.so.1"),
    "other": ("libc.so.6", {}, "libnvidia-ml.so.1 is no NVML"),
    "begin": (None, {"init": 9}, "NVML: Stand-in Error"),
    "unknown": (None, {"gpu": "GPU-another"}, "NVML does not know this GPU: Not Found"),
    "instance": (None, {"gpu": "GPU-another", "instance": GPU.replace("GPU", "MIG")}, "not of a MIG instance"),
    "mute": (None, {"clock": None, "temperature": None, "power_mw": None}, "NVML tells nothing of this GPU"),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_said(nvml: Nvml, case: str, tmp_path: Path) -> None:
    other, answers, why = MISSING[case]
    nvml.answer(**answers)
    if other:
        loaded = re.search(rf"/\S+/{other}$", Path("/proc/self/maps").read_text(encoding="utf-8"), re.MULTILINE)
        (tmp_path / "libnvidia-ml.so.1").symlink_to(loaded[0] if loaded else other)
        nvml.env["LD_LIBRARY_PATH"] = str(tmp_path)
    with nvml.daemon() as daemon, daemon.connect() as connection:
        conditions = gpu(connection)
        assert conditions.keys() == {"missing"}
        assert why in conditions["missing"]
        if case == "begin":  # the driver is tried again
            nvml.answer()
            assert gpu(connection)["clock_mhz"] == 1980


def test_the_host_says_what_its_system_tells(nvml: Nvml) -> None:
    with nvml.daemon() as daemon, daemon.connect() as connection:
        host = connection.call("conditions", {"device": "host"})["conditions"]
        assert ("missing" in host) != ("clock_mhz" in host)
        told = list(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        assert ("clock_mhz" in host) == bool(told)


def test_a_driver_that_hangs_while_conditions_are_read(nvml: Nvml) -> None:
    """Who asks is told so, and the driver is asked once however many ask: the next reading is all of theirs."""
    with nvml.daemon() as daemon, daemon.connect() as one, daemon.connect() as other:
        nvml.answer(block=1)
        assert gpu(one) == {"missing": "the driver does not answer"}
        assert other.call("ping", {"a": 1}) == {"a": 1}
        assert gpu(other) == {"missing": "the driver does not answer"}
        assert nvml.readings == 1
        asked = [one.request("conditions", {"device": GPU}) for _ in range(20)]
        nvml.answer(clock=1000)
        answers = [one.reply(request).get()["conditions"] for request in asked]
        assert all(answer == answers[0] for answer in answers)
        assert nvml.readings <= 2
        proc.eventually(lambda: gpu(one).get("clock_mhz") == 1000, "the driver answers again")


def test_who_asks_and_goes(nvml: Nvml) -> None:
    with nvml.daemon() as daemon, daemon.connect() as watcher:
        nvml.answer(block=1)
        with daemon.connect() as connection:
            connection.request("conditions", {"device": GPU})
            proc.eventually(lambda: nvml.readings == 1, "the driver is asked")
        nvml.answer()
        assert watcher.call("ping", {}) == {}
        proc.eventually(lambda: "clock_mhz" in gpu(watcher), "the driver answers again")


def test_clients_and_metrics(nvml: Nvml) -> None:
    nvml.answer(clock=1590, power_slowed_ns=2_500_000_000)
    with nvml.daemon() as daemon, daemon.connect() as connection:

        def seen() -> dict[str, Any]:
            (row,) = [d for d in connection.call("clients")["devices"] if d["uuid"] == GPU]
            conditions: dict[str, Any] = row["conditions"]
            return conditions

        proc.eventually(lambda: seen().get("clock_mhz") == 1590, "the GPU was read")
        metrics = prometheus.parse(connection.call("metrics")["text"])
        for declared in DECLARED:
            assert metrics[declared["name"]].labels() == {tuple(sorted(declared["labels"]))}
        assert metrics["kopsd_device_clock_hertz"].value(device="0", domain="compute") == 1.59e9
        assert metrics["kopsd_device_clock_max_hertz"].value(device="0", domain="memory") == 3.201e9
        assert metrics["kopsd_device_temperature_celsius"].value(device="0") == 36
        assert metrics["kopsd_device_power_watts"].value(device="0") == 79.2
        assert metrics["kopsd_device_power_limit_watts"].value(device="0") == 700
        assert metrics["kopsd_device_slowed_seconds_total"].value(device="0", why="power") == 2.5
        read, began = nvml.readings, time.monotonic()
        for _ in range(50):
            connection.call("clients")
        assert nvml.readings <= read + 2 + (time.monotonic() - began)  # at most once a second
