"""What the Python client's users notice of a daemon that is killed, replaced or loses its device: nothing, or an error
that says what to do. With the real daemon, on a socket that the test keeps, as a supervisor does.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_machine import (
    DEVICE_LOST_STATUS,
    ILLEGAL_ADDRESS,
    UNKNOWN,
    Machine,
    N,
    only_with_the_standin,
    vector,
)
from support import backends, proc, raw
from support.daemon import ROOT, Daemon, thread_sanitized
from support.raw import tensor

sys.path.insert(0, str(ROOT / "client_py"))
import kops

HOST = backends.config(backends.HOST)
pytestmark = pytest.mark.skipif(not kops.compiled, reason="KOPS_NATIVE names no compiled part, which recovers")


class Service:
    """A daemon on a listening socket that outlives it."""

    def __init__(self, folder: Path, config: str = HOST, env: dict[str, str] | None = None) -> None:
        self.path = str(folder / "kopsd.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.config, self.env = config, env
        self.daemon = self.start()

    def start(self, config: str | None = None) -> Daemon:
        self.daemon = Daemon(config=config or self.config, env=self.env, listen=self.listener, socket_path=self.path)
        return self.daemon

    def kill(self) -> None:
        self.daemon.process.kill()  # type: ignore[union-attr]
        self.daemon.process.wait()  # type: ignore[union-attr]
        self.daemon.cleanup()

    def replace(self) -> Daemon:
        self.kill()
        return self.start()

    def end(self) -> None:
        self.daemon.cleanup()
        self.listener.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.end()


@pytest.fixture
def k(service: Service) -> Iterator[kops.Client]:
    with kops.connect(service.path, timeout=raw.PATIENCE, reconnect_timeout=raw.PATIENCE) as client:
        yield client


def under_way(service: Service, call: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that is in a call which the daemon has taken in, and its outcome."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(call())
        except kops.KopsError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with service.daemon.connect() as watch:
        proc.eventually(lambda: any(row["inflight"] for row in watch.call("clients")["clients"] if "python" in row["client"]))
    return thread, outcome


# Between calls


def test_killed_between_calls(service: Service, k: kops.Client) -> None:
    a, b = k.array(np.arange(100, dtype="f4")), k.array(np.ones(100, "f4"))
    with k.program() as p:
        c = k.add(a, b)
    instance = k.info.instance
    for _ in range(3):
        service.replace()
        k.add(a, b, out=a)  # not even one that must not run twice: it was never written
        p.run()
        assert np.array_equal(c, a + b)
    assert np.array_equal(a, np.arange(100) + 3) and k.info.instance != instance


# During a call


def test_killed_during_a_call_that_may_run_twice(service: Service, k: kops.Client) -> None:
    n = 5000 if thread_sanitized() else 300_000  # so many times as long as it needs to be
    a, out = k.array(np.full(n, 3, "f4")), k.zeros(n)
    thread, outcome = under_way(service, lambda: k.profile("square", a, out=out, warmup=0, repeat=10000))
    service.replace()
    thread.join()
    assert isinstance(outcome[0], kops.Profile) and len(outcome[0].samples) == 10000, outcome
    assert np.array_equal(out, a * a)
    with service.daemon.connect() as watch:
        assert watch.call("stats")["counters"]["jobs"] == 1, "once more, and no more"


def test_killed_during_a_call_that_must_not_run_twice(service: Service, k: kops.Client) -> None:
    a, c = k.array(np.ones((3000, 3000), "f4")), k.zeros((3000, 3000))
    thread, outcome = under_way(service, lambda: k.gemm(a, a, out=c, beta=1.0))
    service.replace()
    thread.join()
    assert isinstance(outcome[0], kops.ConnectionLost) and "may or may not have run" in str(outcome[0]), outcome
    with service.daemon.connect() as watch:
        assert watch.call("stats")["counters"]["jobs"] == 0
    c[:] = 1
    small = k.array(np.ones((4, 4), "f4"))
    assert np.array_equal(k.gemm(small, small, out=c[:4, :4], beta=1.0), np.full((4, 4), 5))


# Draining


def test_a_daemon_that_drains_is_waited_for(service: Service, k: kops.Client) -> None:
    a = k.array(np.arange(100, dtype="f4"))
    k.square(a)
    with service.daemon.connect() as control:
        assert control.call("drain")["drained"]
        with kops.connect(service.path, reconnect_timeout=0.05) as hasty, pytest.raises(kops.ShuttingDown, match="Nothing ran"):
            hasty.square(a)
        before = control.call("stats")["counters"]["errors"]
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(k.add(a, 1, out=a)))
        thread.start()
        proc.eventually(lambda: control.call("stats")["counters"]["errors"] > before + 1, "it asks again")
        assert not answers
        control.call("drain", {"resume": True})
        thread.join()
    assert np.array_equal(a, np.arange(100) + 1), "added once"


# Memory that the daemon made


def test_daemon_made_memory_outlives_the_daemon(service: Service) -> None:
    """Whoever kept the descriptor registers it with the next daemon, contents and all."""
    with service.daemon.connect() as connection:
        reply = connection.reply(connection.request("alloc", {"size": 4096}))
        (fd,) = reply.fds
        reply.fds.clear()
        assert reply.get()["kind"] == "memfd"
        view = mmap.mmap(fd, 4096)
        data = np.frombuffer(view, "f4")
        data[:512] = np.arange(512)
        buffer = reply.get()["buffer"]
        connection.run("square", [tensor(buffer, [512])], [tensor(buffer, [512], offset=2048)])
        service.replace()
        connection.wait_closed()
    with service.daemon.connect() as connection:
        buffer = connection.call("register", {"kind": "memfd", "size": 4096, "fd": 0}, [fd])["buffer"]
        assert np.array_equal(data[512:], data[:512] ** 2)
        connection.run("add", [tensor(buffer, [512]), tensor(buffer, [512])], [tensor(buffer, [512], offset=2048)])
        assert np.array_equal(data[512:], 2 * data[:512])
    del data
    view.close()
    os.close(fd)


# A lost device


def gpu_of(k: kops.Client) -> kops.Device:
    return next(device for device in k.devices if device.backend == "cuda")


@only_with_the_standin
class TestLostDevice:
    @pytest.fixture
    def gpu(self, tmp_path: Path) -> Iterator[tuple[Service, Any]]:
        """A service on a GPU that is none. Shared memory is staged there."""
        from standin_cuda.control import Control

        control = Control()
        env = {**control.env, "KOPS_CUDA_DRIVER": str(backends.standin_driver())}
        made = Service(tmp_path, backends.config(backends.STANDIN), env)
        yield made, control
        made.end()

    @pytest.fixture
    def k(self, gpu: tuple[Service, Any]) -> Iterator[kops.Client]:
        with kops.connect(gpu[0].path, timeout=raw.PATIENCE) as client:
            yield client

    def successor(self, service: Service, gone: Any) -> threading.Thread:
        """Starts the next daemon when this one has given the GPU up, as a supervisor does; the GPU is there again."""

        def follow() -> None:
            ended = service.daemon
            assert ended.wait() == DEVICE_LOST_STATUS
            gone.disarm()
            ended.cleanup()
            service.start()

        thread = threading.Thread(target=follow)
        thread.start()
        return thread

    @pytest.mark.parametrize("where", ["kernel", "cuLaunchKernel"])
    def test_a_safe_call_does_not_notice(self, where: str, gpu: tuple[Service, Any], k: kops.Client) -> None:
        """Nor do others, whatever they do next."""
        service, control = gpu
        on = gpu_of(k)
        a = k.array(np.arange(100, dtype="f4"))
        assert np.array_equal(k.square(a, device=on), a * a)
        with kops.connect(service.path, timeout=raw.PATIENCE) as other:
            b = other.array(np.arange(50, dtype="f4"))
            other.square(b, device=on)
            gone = control.fail("cuDeviceGetCount", UNKNOWN, times=100)
            control.fail(where, ILLEGAL_ADDRESS, sticky=True, pid=service.daemon.gpu_pid)
            follower = self.successor(service, gone)
            assert np.array_equal(k.add(a, a, device=on), 2 * a)
            assert np.array_equal(other.square(b, out=b, device=on), np.arange(50, dtype="f4") ** 2)
            follower.join()

    def test_a_device_that_does_not_come_back(self, gpu: tuple[Service, Any], k: kops.Client) -> None:
        """Its successor has no GPU: a call that names one is told, others go on."""
        service, _ = gpu
        on = gpu_of(k)
        a = k.array(np.arange(100, dtype="f4"))
        k.square(a, device=on)
        service.kill()
        service.start(config=HOST)
        with pytest.raises(kops.UnknownDevice):
            k.square(a, device=on)
        assert np.array_equal(k.square(a), a * a)


@only_with_the_standin
def test_device_memory_is_registered_anew() -> None:
    """Also memory that the daemon made: whoever kept its descriptor imports it again, contents and all."""
    machine = Machine()
    with machine.daemon as daemon:
        exporter = machine.exporter()
        memory, out = vector(exporter.alloc(4 * N)), exporter.alloc(4 * N)
        with daemon.connect() as connection:
            made = connection.reply(connection.request("alloc", {"size": 4 * N, "device": machine.gpu}))
            (fd,) = made.fds
            made.fds.clear()
            size, buffer = made.get()["size"], made.get()["buffer"]
            connection.run("square", [memory.inline([N])], [tensor(buffer, [N])])
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.process.wait()  # type: ignore[union-attr]
        daemon.start()
        with daemon.connect() as connection:
            params = {"kind": "cuda_vmm", "size": size, "fds": [0], "chunk_bytes": [size], "device": machine.gpu}
            buffer = connection.call("register", params, [fd])["buffer"]
            connection.run("add", [memory.inline([N]), tensor(buffer, [N])], [out.inline([N])])
            assert np.array_equal(np.frombuffer(out.read(4 * N), np.float32), np.full(N, 12)), "3 + the square of 3"
        os.close(fd)
        exporter.close()
