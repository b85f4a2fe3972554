"""Daemons whose users' kernels have executors of their own, and clients of them that speak the protocol themselves."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from support import backends, memfd, proc, raw
from support.daemon import Daemon
from support.kernels import custom_kernel, hostile_kernel
from support.raw import tensor

N = 1024  # elements of a vector
BYTES = 4 * N
CONFIG = "[executors]\nfaults = 0\n{more}[kernels]\nuser_kernels = all\n"


def start(backend: str, isolate: str = "user", spares: int = 1, more: str = "", **environment: str) -> Daemon:
    """`more`: lines of the section executors. Users may make as many faults as they like."""
    own = {"KOPSD_EXECUTORS_ISOLATE": isolate, "KOPSD_EXECUTORS_SPARES": str(spares)}
    daemon = Daemon(config=backends.config(backend) + CONFIG.format(more=more), env={**own, **environment})
    with daemon.connect() as connection:
        if "kernels" not in connection.call("hello")["features"]:
            daemon.stop()
            daemon.cleanup()
            pytest.skip("this daemon runs no kernels of users: there is no NVRTC, or no sandbox for it")
    return daemon


def rows(connection: raw.Connection) -> list[dict[str, Any]]:
    """Of the executors; the pid is 0 while the daemon waits for one to start."""
    found: list[dict[str, Any]] = connection.call("stats")["executors"]
    return found


def pid_of(connection: raw.Connection, domain: str) -> int:
    """Of the executor that serves the domain of that kind, of which there is one."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [row["pid"] for row in rows(connection) if row["pid"] and row["state"] == "serving" and row.get("domain") == domain]
        return bool(found)

    proc.eventually(look, f"an executor of the domain {domain}")
    (pid,) = found
    return pid


def wait_for_spares(connection: raw.Connection, spares: int = 1) -> None:
    """Nobody starts or ends any more."""

    def look() -> bool:
        states = [row["state"] if row["pid"] else "starting" for row in rows(connection)]
        return states.count("spare") >= spares and not {"starting", "ending"} & set(states)

    proc.eventually(look, lambda: f"{spares} spares: {rows(connection)}")


class HostClient:
    """A connection with shared memory, and memory of the daemon's."""

    def __init__(self, daemon: Daemon, **hello: Any) -> None:
        self.connection = daemon.connect()
        self.gpu = next(d["uuid"] for d in self.connection.call("hello", hello)["devices"] if d["backend"] == "cuda")
        self.shared = memfd.Shared(2 * BYTES)
        self.values = self.shared.view(np.float32, 2 * N).reshape(2, N)
        buffer = self.connection.register(self.shared)
        self.host = [tensor(buffer, [N], offset=i * BYTES) for i in range(2)]
        self.scratch = tensor(self.connection.call("alloc", {"size": BYTES, "device": self.gpu})["buffer"], [N])
        self.custom = 0

    def launch(self, kernel: int, *arguments: Any, **more: Any) -> Any:
        return self.connection.call("launch", {"kernel": kernel, "args": list(arguments), **more})

    def launch_error(self, kernel: int, *arguments: Any, **more: Any) -> raw.RpcError:
        return self.connection.error("launch", {"kernel": kernel, "args": list(arguments), **more})

    def launch_shared(self, number: float) -> None:
        """A kernel of its own in shared memory: out = 2 · a. The result is checked."""
        self.custom = self.custom or custom_kernel(self.connection)
        self.values[0], self.values[1] = number, np.nan
        self.launch(self.custom, self.host[1], self.host[0], N)
        assert (self.values[1] == 2 * number).all()

    def square_shared(self, number: float) -> None:
        """An op in shared memory on the GPU, whose result is checked."""
        self.values[0], self.values[1] = number, np.nan
        self.connection.run("square", [self.host[0]], [self.host[1]], device=self.gpu)
        assert (self.values[1] == number * number).all()

    def kernel(self, entry: str) -> int:
        return hostile_kernel(self.connection, entry)

    def fault(self, kernel: int | None = None) -> raw.RpcError:
        error = self.launch_error(kernel or self.kernel("fault_kernel"), self.scratch)
        assert error.code == "device_fault", error
        return error

    def close(self) -> None:
        self.connection.close()


class Client(HostClient):
    """With CUDA memory of this process: a, out (of its kernels) and other (of ops)."""

    def __init__(self, daemon: Daemon, driver: Any, **hello: Any) -> None:
        super().__init__(daemon, **hello)
        self.driver = driver
        self.pointer = driver.alloc(3 * BYTES)
        driver.write(self.pointer, np.full(3 * N, 3, np.float32).tobytes())
        buffer, offset = self.connection.call("register", driver.export(self.pointer))["buffer"], driver.offset(self.pointer)
        self.a, self.out, self.other = (tensor(buffer, [N], offset=offset + i * BYTES) for i in range(3))

    def read(self, which: int, count: int = N) -> Any:
        return np.frombuffer(self.driver.read(self.pointer + which * BYTES, 4 * count), np.float32)

    def clear(self, which: int) -> None:
        self.driver.write(self.pointer + which * BYTES, bytes(BYTES))

    def counter(self) -> dict[str, Any]:
        """A word where its kernels' output lies, which is 0 now."""
        self.clear(1)
        return tensor(self.out["buffer"], [1], "u32", offset=self.out["offset"])

    def square(self) -> None:
        """An op, whose result is checked."""
        self.clear(2)
        self.connection.run("square", [self.a], [self.other])
        assert (self.read(2) == self.read(0) ** 2).all()

    def launch_own(self) -> None:
        """A kernel of its own: out = 2 · a. The result is checked."""
        self.custom = self.custom or custom_kernel(self.connection)
        self.clear(1)
        self.launch(self.custom, self.out, self.a, N)
        assert (self.read(1) == 2 * self.read(0)).all()

    def close(self) -> None:
        super().close()
        self.driver.free(self.pointer)


def word(driver: Any, pointer: int) -> int:
    return int(struct.unpack("<I", driver.read(pointer, 4))[0])
