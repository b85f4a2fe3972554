"""A supervised daemon that is killed: who goes on, and what is still there."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

import kops
import pytest
from support import proc
from support.daemon import Daemon
from support.kernels import ADD
from support.raw import RpcError, tensor


@pytest.fixture
def supervised(torch: Any) -> Iterator[Daemon]:
    with Daemon("--supervise") as daemon:
        yield daemon


def serving(daemon: Daemon) -> int:
    """The process behind the socket."""
    with daemon.connect() as connection:
        return int(connection.call("hello")["pid"])


def test_a_users_kernel_comes_back(torch: Any, supervised: Daemon) -> None:
    a, c = torch.randn(1000, device="cuda"), torch.empty(1000, device="cuda")
    with kops.connect(supervised.socket_path) as client:
        add = client.kernel(ADD, "add2_kernel", "float* c, const float* a, const float* b, int n", grid=8, block=128)
        add(c, a, a, 1000, blocking=True)
        first = serving(supervised)
        os.kill(first, signal.SIGKILL)
        proc.eventually(lambda: "supervise_restart" in supervised.log(), "a new daemon")
        try:
            add(c, a, a, 1000, blocking=True)
        except kops.ConnectionLost:
            pass  # sent to the old one: it may have run, so it is not repeated
        c.fill_(0)
        add(c, a, a, 1000, blocking=True)
        assert torch.equal(c, a + a)


def test_memory_of_the_daemon_comes_back_by_its_descriptor(torch: Any, supervised: Daemon, driver: Any) -> None:
    """What the daemon allocated is as long as somebody has its descriptor, also when its maker was killed."""
    with supervised.connect() as connection:
        reply = connection.reply(connection.request("alloc", {"size": 1 << 21, "device": driver.uuid()}))
        size = reply.get()["size"]
        kept = os.dup(reply.fds[0])
        pointer = driver.map_fd(reply.fds[0], size)
        driver.write(pointer, struct.pack("<4f", 1.5, -2.0, 3.0, 0.25))
        first = serving(supervised)
        os.kill(first, signal.SIGKILL)
        connection.wait_closed()
    with supervised.connect() as connection:
        params = {"kind": "cuda_vmm", "size": size, "fd": 0, "device": driver.uuid()}
        buffer = connection.call("register", params, [kept])["buffer"]
        connection.run("square", [tensor(buffer, [4])], [tensor(buffer, [4], offset=4096)])
        assert struct.unpack("<4f", driver.read(pointer + 4096, 16)) == (2.25, 4.0, 9.0, 0.0625)
    driver.unmap(pointer, size)
    os.close(kept)


def test_too_little_memory_is_an_error_and_no_end(torch: Any, supervised: Daemon, driver: Any) -> None:
    free, total = torch.cuda.mem_get_info()
    first = serving(supervised)
    held = 0
    with supervised.connect() as connection:
        with pytest.raises(RpcError) as refused:
            connection.call("alloc", {"size": 2 * total, "device": driver.uuid()})
        assert refused.value.code == "out_of_memory"
        with pytest.raises(RpcError) as refused:  # as much as there is, and then some
            for _ in range(64):
                reply = connection.reply(connection.request("alloc", {"size": free // 16, "device": driver.uuid()}))
                reply.get()
                held += 1
                for fd in reply.fds:
                    os.close(fd)  # which would keep the memory
        assert refused.value.code == "out_of_memory" and held >= 8
        assert connection.alive()
    assert serving(supervised) == first
    # Executors may have come meanwhile.
    proc.eventually(lambda: torch.cuda.mem_get_info()[0] > free - (2 << 30), "the memory's return")
