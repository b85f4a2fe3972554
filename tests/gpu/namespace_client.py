"""A client that shares memory of one kind with the daemon and says in a line of JSON whether it got the right numbers.

    namespace_client.py SOCKET KIND

test_namespaces.py runs it in namespaces of its own. It shares nothing with the client libraries, but for torch's tensors.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "client_py"), str(Path(__file__).parent)]

from cuda_driver import Driver  # noqa: E402
from support import raw  # noqa: E402
from support.memfd import Shared  # noqa: E402

N = 1024  # elements
CHUNK = 2 << 20
NUMBERS = (ctypes.c_float * N)(*range(N))
SQUARES = [float(i * i) for i in range(N)]


def floats(data: bytes) -> list[float]:
    return list((ctypes.c_float * N).from_buffer_copy(data))


def square(connection: raw.Connection, buffer: int, **more: Any) -> None:
    connection.run("square", [raw.tensor(buffer, [N])], [raw.tensor(buffer, [N], offset=4 * N)], **more)


def memfd(connection: raw.Connection) -> list[float]:
    """The GPU computes on it."""
    shared = Shared(8 * N)
    view = shared.view("f4", 2 * N)
    view[:N] = range(N)
    square(connection, connection.register(shared), device=gpu(connection))
    return [float(x) for x in view[N:]]


def gpu(connection: raw.Connection) -> str:
    return next(device["uuid"] for device in connection.call("hello")["devices"] if device["backend"] == "cuda")


def on_memory(connection: raw.Connection, driver: Any, address: int, params: dict[str, Any], fds: list[int]) -> list[float]:
    driver.write(address, bytes(NUMBERS))
    driver.write(address + 4 * N, bytes(4 * N))
    square(connection, connection.call("register", params, fds)["buffer"])
    return floats(driver.read(address + 4 * N, 4 * N))


def cuda_ipc(connection: raw.Connection) -> list[float]:
    """Memory of cuMemAlloc, as cudaMalloc's and torch's by default."""
    driver = Driver()
    address = driver.alloc(CHUNK)
    return on_memory(connection, driver, address, driver.export(address), [])


def cuda_vmm(connection: raw.Connection) -> list[float]:
    """Virtual memory, as torch's with expandable segments."""
    driver = Driver()
    address = driver.vmm_reserve(CHUNK)
    driver.map_new(address, CHUNK)
    fd = driver.export_fd(address)
    params = {"kind": "cuda_vmm", "size": CHUNK, "fds": [0], "chunk_bytes": [CHUNK], "device": driver.uuid()}
    return on_memory(connection, driver, address, params, [fd])


def cuda_pool(connection: raw.Connection) -> list[float]:
    """Memory of an exportable pool of cudaMallocAsync."""
    driver = Driver()
    pool = driver.pool_create()
    address = driver.alloc_from(pool, CHUNK)
    return on_memory(connection, driver, address, *driver.export_pooled(pool, address, CHUNK))


def alloc(connection: raw.Connection) -> list[float]:
    """Memory of the daemon's, whose descriptor comes with the reply."""
    driver = Driver()
    reply = connection.reply(connection.request("alloc", {"size": CHUNK, "device": driver.uuid()}))
    buffer, fds = reply.get(), reply.fds
    address = driver.map_fd(fds[0], buffer["size"])
    driver.write(address, bytes(NUMBERS))
    square(connection, buffer["buffer"])
    return floats(driver.read(address + 4 * N, 4 * N))


def torch(connection: raw.Connection) -> list[float]:
    """With the client library; the environment says which of torch's allocators it is."""
    import kops
    import torch as library

    with kops.connect(sys.argv[1]) as k:
        result = k.square(library.arange(N, device="cuda", dtype=library.float32))
        k.synchronize()
        return [float(x) for x in result.tolist()]


KINDS: dict[str, Callable[[raw.Connection], list[float]]] = {
    "memfd": memfd, "alloc": alloc, "cuda_vmm": cuda_vmm, "cuda_pool": cuda_pool, "cuda_ipc": cuda_ipc,
    "torch": torch, "torch_expandable": torch,
}  # fmt: skip


def main() -> None:
    if sys.argv[2] == "torch_expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    try:
        with raw.Connection(sys.argv[1]) as connection:
            right = KINDS[sys.argv[2]](connection) == SQUARES
            said = {"result": "right" if right else "wrong"}
            assert connection.alive()
    except raw.RpcError as error:
        said = {"result": "refused", "code": error.code, "why": str(error)}
    except Exception as error:  # whatever it is, the table shall have it
        said = {"result": "failed", "code": type(error).__name__, "why": str(error)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
