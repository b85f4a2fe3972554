"""A kernel server as one would write it with gRPC over a Unix socket: it opens the callers' CUDA IPC handles, keeps them
open, launches torch.add and synchronizes.

    python -m kopsbench.grpc_peer SOCKET        ends with its stdin

Messages are MessagePack; there is no .proto file, so that nothing has to be compiled.
"""

from __future__ import annotations

import sys
from concurrent import futures
from typing import Any

METHOD = "/bench.Adder/Add"


def describe(driver: Any, tensor: Any) -> list[Any]:
    """What the server needs to find a contiguous f32 tensor: handle of its allocation, offset, length."""
    described = tensor.__cuda_array_interface__
    pointer = described["data"][0]
    base, _ = driver.address_range(pointer)
    return [driver.ipc_handle(base), pointer - base, described["shape"][0]]


class Vector:
    """Memory that torch is to see as a tensor."""

    def __init__(self, pointer: int, length: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": "<f4",
            "data": (pointer, False),
            "strides": None,
            "version": 2,
        }


class Adder:
    def __init__(self, torch: Any, driver: Any) -> None:
        self.torch, self.driver = torch, driver
        self.opened: dict[bytes, int] = {}
        self.tensors: dict[tuple[bytes, int, int], Any] = {}

    def _tensor(self, handle: bytes, offset: int, length: int) -> Any:
        key = (handle, offset, length)
        found = self.tensors.get(key)
        if found is None:
            self.driver.make_current()
            base = self.opened.get(handle)
            if base is None:
                base = self.opened[handle] = self.driver.ipc_open(handle)
            found = self.tensors[key] = self.torch.as_tensor(Vector(base + offset, length), device="cuda")
        return found

    def add(self, request: bytes, _: Any) -> bytes:
        import msgpack

        a, b, out = (self._tensor(*one) for one in msgpack.unpackb(request))
        self.torch.add(a, b, out=out)
        self.torch.cuda.synchronize()
        return b"ok"


def main() -> None:
    import grpc
    from standin_cuda import Driver

    from .context import torch_of_a_child

    torch = torch_of_a_child()
    torch.full((1,), 1.0, device="cuda")
    adder = Adder(torch, Driver())

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(adder.add) if details.method == METHOD else None

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1), handlers=[Handler()])
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
