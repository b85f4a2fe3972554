"""stats, clients and metrics of a daemon whose GPU work is done by executors, on the stand-in driver."""

from __future__ import annotations

import prometheus
import pytest
from gpu_machine import Machine, N, only_with_the_standin, square, vector
from support import proc

pytestmark = only_with_the_standin


@pytest.mark.parametrize("isolation", ["none", "user"])
def test_the_common_executor(isolation: str) -> None:
    """It runs the ops of all users; kernels of a user that has launched none are nowhere yet."""
    machine = Machine(f"[executors]\nisolate = {isolation}\nspares = 0\n")
    with machine.daemon, machine.daemon.connect() as connection:
        exporter = machine.exporter()
        a, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        connection.call("run", square(a, out))
        (pid,) = proc.executors(machine.daemon.pid)

        stats = connection.call("stats")
        (row,) = stats["executors"]
        assert (row["pid"], row["state"], row["domain"], row["jobs"]) == (pid, "serving", "common", 0)
        assert 0 < row["device_us"] < 1e6 * row["uptime_s"]
        assert stats["executor_counts"] == {"started": 1, "replaced": 0, "faults": 0, "jobs_ended": 0}

        (client,) = connection.call("clients")["clients"]
        assert client["isolation"] == isolation
        assert client.get("executor") == (pid if isolation == "none" else None)

        metrics = prometheus.parse(connection.call("metrics")["text"])
        states = {s: metrics["kopsd_executors"].value(state=s) for s in ("starting", "spare", "serving", "ending")}
        assert states == {"starting": 0, "spare": 0, "serving": 1, "ending": 0}
        assert metrics["kopsd_executors_started_total"].value() == 1
        device = metrics["kopsd_device_busy_seconds_total"].value(device="0")
        seconds = {d: metrics["kopsd_executor_device_seconds_total"].value(domain=d) for d in ("common", "user", "connection")}
        assert seconds == {"common": device, "user": 0, "connection": 0} and device > 0

        with machine.control.gate("kernel"):
            msgid = connection.request("run", square(a, out))
            machine.wait(lambda: machine.row.waiting("kernel") >= 1)
            with machine.daemon.connect() as watcher:
                assert [x["jobs"] for x in watcher.call("stats")["executors"]] == [1]
        connection.reply(msgid).get()
        exporter.close()
