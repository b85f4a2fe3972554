"""A kernel server as one would write it with gRPC over a Unix socket: it opens the callers' CUDA IPC handles, keeps them
open, launches torch.add and synchronizes.

    python -m kopsbench.grpc_peer SOCKET        ends with its stdin

Messages are MessagePack; there is no .proto file, so that nothing has to be compiled.
"""

from __future__ import annotations

import sys
from concurrent import futures
from functools import cache
from types import SimpleNamespace
from typing import Any

METHOD = "/bench.Adder/Add"


def describe(driver: Any, tensor: Any) -> list[Any]:
    """What the server needs to find a contiguous f32 tensor: handle of its allocation, offset, length."""
    described = tensor.__cuda_array_interface__
    pointer = described["data"][0]
    base, _ = driver.address_range(pointer)
    return [driver.ipc_handle(base), pointer - base, described["shape"][0]]


def main() -> None:
    import grpc
    import msgpack
    from standin_cuda import Driver

    from .context import torch_of_a_child

    torch = torch_of_a_child()
    torch.full((1,), 1.0, device="cuda")
    driver = Driver()

    @cache
    def base_of(handle: bytes) -> int:
        return int(driver.ipc_open(handle))

    @cache
    def tensor(handle: bytes, offset: int, length: int) -> Any:
        driver.make_current()
        described = {"shape": (length,), "typestr": "<f4", "data": (base_of(handle) + offset, False), "strides": None, "version": 2}
        return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=described), device="cuda")

    def add(request: bytes, _: Any) -> bytes:
        a, b, out = (tensor(*one) for one in msgpack.unpackb(request))
        torch.add(a, b, out=out)
        torch.cuda.synchronize()
        return b"ok"

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(add) if details.method == METHOD else None

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1), handlers=[Handler()])
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
