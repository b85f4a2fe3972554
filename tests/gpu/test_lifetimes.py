"""Memory and processes that go away while the daemon uses them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import kops
import pytest
from support import proc
from support.raw import Connection, Reply, tensor
from workers import Worker

SIDE = 4096  # a gemm of f32 that takes milliseconds
BYTES = SIDE * SIDE * 4


def register(raw: Connection, said: dict[str, Any]) -> int:
    params = {**said, "handle": bytes.fromhex(said["handle"])}
    params.pop("offset")
    return int(raw.call("register", params)["buffer"])


def assert_daemon_is_well(daemon: Any, torch: Any) -> None:
    """A new client gets right results on the GPU, and nothing was reported lost."""
    a = torch.arange(10_000, device="cuda", dtype=torch.float32)
    with kops.connect(daemon.socket_path) as client:
        assert torch.equal(client.add(a, a), a * 2)
    assert daemon.running()
    assert "device_lost" not in daemon.log()


@pytest.fixture
def own_output(raw: Connection, driver: Any) -> Iterator[int]:
    """Device memory of this process as an output: what happens to the exporter's does not concern it."""
    pointer = driver.alloc(BYTES)
    yield int(raw.call("register", driver.export(pointer))["buffer"])
    driver.free(pointer)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("end", ["free", "kill"])
def test_exporter_goes(daemon: Any, raw: Connection, torch: Any, own_output: int, end: str, busy: bool) -> None:
    """Before a run, or during one. The open mapping keeps the old memory; a driver that did not would have to answer with an error."""
    with Worker("exporter", daemon.socket_path, str(BYTES)) as worker:
        buffer = register(raw, worker.hear())
        operand, out = tensor(buffer, [SIDE, SIDE]), tensor(own_output, [SIDE, SIDE])
        raw.run("gemm", [operand, operand], [out])
        long = {"op": "gemm", "in": [operand, operand], "out": [out], "repeat": 300}
        msgid = raw.request("run", long) if busy else 0
        if end == "free":
            worker.tell("free")
            worker.hear()
        else:
            worker.kill()
        reply: Reply = raw.reply(msgid or raw.request("run", {"op": "square", "in": [operand], "out": [out]}))
        if reply.error is not None:
            assert reply.error["code"] in ("stale_buffer", "invalid_handle", "device_error", "cancelled")
        assert not busy or raw.call("release", {"buffer": buffer}) == {}
    assert raw.alive()
    assert_daemon_is_well(daemon, torch)


def mapping_pids(raw: Connection) -> set[int]:
    return {pid for row in raw.call("stats")["mappings"] for pid in row["pids"]}


def kill_a_client(daemon: Any, raw: Connection) -> None:
    connections = raw.call("stats")["counters"]["connections"]
    with Worker("victim", daemon.socket_path, "8192") as worker:
        pid = worker.hear()["pid"]
        assert pid in mapping_pids(raw)
        worker.kill()
        proc.eventually(lambda: pid not in mapping_pids(raw), "an end of the victim's mappings")
        proc.eventually(lambda: raw.call("stats")["counters"]["connections"] == connections, "its connection's end")


def test_client_killed_during_a_run(daemon: Any, raw: Connection, torch: Any) -> None:
    """Repeats stop and mappings go, long before the work would have ended by itself."""
    kill_a_client(daemon, raw)  # what the driver opens once and keeps is no leak
    assert_daemon_is_well(daemon, torch)
    before = daemon.holdings()
    kill_a_client(daemon, raw)
    assert_daemon_is_well(daemon, torch)
    daemon.wait_holdings(before)


def test_stale_and_bogus_references(raw: Connection, driver: Any) -> None:
    """The same handle bytes with another id replace the old reference; bogus bytes are refused; nothing leaks."""
    pointer = driver.alloc(1 << 22)
    exported = driver.export(pointer)
    for wrong, code in (
        ({"handle": bytes(64)}, "invalid_handle"),
        ({"size": exported["size"] * 1024}, "invalid_argument"),
        ({"device": "GPU-00000000-0000-0000-0000-000000000000"}, "unknown_device"),
    ):
        error = raw.error("register", {**exported, **wrong})
        assert error.code in (code, "invalid_handle", "out_of_bounds"), f"{wrong}: {error}"
    buffer = raw.call("register", exported)["buffer"]
    out = raw.call("alloc", {"size": 4096, "device": driver.uuid()})["buffer"]
    raw.run("square", [tensor(buffer, [16])], [tensor(out, [16])])
    driver.free(pointer)
    raw.call("release", {"buffer": buffer})
    raw.call("release", {"buffer": out})
    assert raw.alive()


def test_alloc_is_mapped_by_its_client(raw: Connection, driver: Any) -> None:
    """Device memory that the daemon made: zeroed, and the same bytes on both sides."""
    msgid = raw.request("alloc", {"size": 3 << 20, "device": driver.uuid()})
    reply = raw.reply(msgid)
    result = reply.get()
    assert result["kind"] == "cuda_vmm" and result["size"] >= 3 << 20 and len(reply.fds) == 1
    pointer = driver.map_fd(reply.fds[0], result["size"])
    try:
        assert driver.read(pointer, 1 << 20) == bytes(1 << 20), "memory of someone else is visible"
        driver.write(pointer, struct.pack("<4f", 1.5, -2.0, 3.0, 0.25))
        raw.run("square", [tensor(result["buffer"], [4])], [tensor(result["buffer"], [4], offset=4096)])
        assert struct.unpack("<4f", driver.read(pointer + 4096, 16)) == (2.25, 4.0, 9.0, 0.0625)
        raw.call("release", {"buffer": result["buffer"]})
        # The client's own mapping is its own: it outlives the daemon's.
        assert struct.unpack("<4f", driver.read(pointer + 4096, 16)) == (2.25, 4.0, 9.0, 0.0625)
    finally:
        driver.unmap(pointer, result["size"])
    assert raw.alive()
