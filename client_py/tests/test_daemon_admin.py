"""clients, metrics and drain with the real daemon, where one is built."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import kops
import numpy
import pytest
from test_daemon import Daemon, backends


@pytest.fixture
def real() -> Iterator[Daemon]:
    with Daemon(config=backends.config(backends.HOST)) as running:
        yield running


@pytest.fixture
def k(real: Daemon) -> Iterator[kops.Client]:
    with kops.connect(real.socket_path, timeout=120, reconnect_timeout=0) as client:
        yield client


def test_who_uses_it(real: Daemon, k: kops.Client) -> None:
    a = k.array(numpy.ones(1 << 18, "float32"))
    for _ in range(5):
        k.add(a, a, timing=True)
    found = k.clients()
    (me,) = found.clients
    assert me.pid == os.getpid() and me.uid == os.getuid() and me.client.startswith("kops-python") and me.comm
    assert me.requests >= 6 and me.errors == 0 and me.buffers >= 1 and me.mapped_bytes >= 1 << 20 and me.bytes_in > 0
    assert me.latency.total.count == 5 and me.latency.queue.count == 5
    total, device = me.latency.total, me.latency.device
    assert total.p50 is not None and total.p999 is not None and total.max is not None and device.p50 is not None
    assert 0 < device.p50 <= total.max and total.p50 <= total.p999 <= total.max * 1.07
    (user,) = found.users
    assert user.uid == os.getuid() and user.connections == 1 and user.limits["connections"] == 1024
    assert found.devices[0].uuid == "host" and 0 < found.devices[0].busy_us == pytest.approx(me.device_us, rel=0.01)
    assert found.state == "serving" and found.uptime_s > 0


def test_metrics(k: kops.Client) -> None:
    k.add([1.0], [2.0])
    metrics = dict(re.findall(r"^(kopsd_\S+) (\S+)$", k.metrics(), re.M))
    assert metrics["kopsd_jobs_total"] == "1" and metrics["kopsd_connections"] == "1"


def test_drain(k: kops.Client) -> None:
    assert k.drain() == kops.Drained(True, 0, 1)
    assert k.clients().state == "draining"
    with pytest.raises(kops.ShuttingDown):
        k.add([1.0], [2.0])
    k.drain(resume=True)
    assert k.add([1.0], [2.0]).tolist() == [3.0]


def test_drain_and_stop(real: Daemon, k: kops.Client) -> None:
    assert k.drain(stop=True, wait=10).drained
    assert real.wait() == 0
