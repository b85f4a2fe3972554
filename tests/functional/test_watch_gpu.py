"""What clients, metrics and the log say of a GPU: memory, time, faults, and a driver that does not answer."""

from __future__ import annotations

import os
from typing import Any

import prometheus
import pytest
from gpu_machine import ILLEGAL_ADDRESS, Machine, N, only_with_the_standin, square, vector
from support import proc, raw
from user_kernels import add_args, add_kernel, only_with_nvrtc

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
