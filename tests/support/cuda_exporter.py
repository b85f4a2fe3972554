"""A process that owns GPU memory and hands its references to tests, on whatever driver KOPS_CUDA_DRIVER names.

Run by `Exporter` below with lines of JSON on stdin, [function, arguments…]; each is answered by a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


class Memory:
    """An allocation of the exporter, as `register` and tensors want it."""

    def __init__(self, exporter: Exporter, address: int, size: int, handle: bytes, alloc_id: int, device: str) -> None:
        self.exporter, self.address, self.size = exporter, address, size
        self.handle, self.alloc_id, self.device = handle, alloc_id, device

    def register_params(self, **more: Any) -> dict[str, Any]:
        return {"kind": "cuda_ipc", "size": self.size, "handle": self.handle, "alloc_id": self.alloc_id,
                "device": self.device, **more}  # fmt: skip

    def inline(self, shape: list[int], dtype: str = "f32", **more: Any) -> dict[str, Any]:
        """A tensor that carries the reference itself."""
        return {"ipc": self.handle, "size": self.size, "alloc_id": self.alloc_id, "device": self.device,
                "shape": shape, "dtype": dtype, **more}  # fmt: skip

    def write(self, data: bytes, offset: int = 0) -> None:
        self.exporter.ask("write", self.address + offset, data.hex())

    def read(self, size: int, offset: int = 0) -> bytes:
        return bytes.fromhex(self.exporter.ask("read", self.address + offset, size))

    def free(self) -> None:
        self.exporter.ask("free", self.address)


class Exporter:
    """The process."""

    def __init__(self, env: dict[str, str], ordinal: int = 0) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), str(ordinal)]
        self.process = subprocess.Popen(
            command, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.device: str = self.ask("uuid")

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, function: str, *arguments: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([function, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the exporter has ended"
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def alloc(self, size: int) -> Memory:
        address = self.ask("alloc", size)
        return Memory(
            self,
            address,
            size,
            bytes.fromhex(self.ask("ipc_handle", address)),
            self.ask("buffer_id", address),
            self.device,
        )

    def vmm_read(self, fd: int, size: int) -> bytes:
        """What lies in memory of the daemon's `alloc`."""
        return bytes.fromhex(self.ask("vmm_read", f"/proc/{os.getpid()}/fd/{fd}", size))

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def main() -> int:
    sys.path.insert(0, str(TESTS))
    from standin_cuda.device import Driver

    driver = Driver(int(sys.argv[1]))
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        try:
            if function == "write":
                driver.write(arguments[0], bytes.fromhex(arguments[1]))
                driver.synchronize()
                value: Any = None
            elif function == "vmm_read":
                fd = os.open(arguments[0], os.O_RDWR)
                handle = driver.vmm_import(fd)
                os.close(fd)
                address = driver.vmm_reserve(arguments[1])
                driver.vmm_map(address, arguments[1], handle)
                value = driver.read(address, arguments[1])
                driver.vmm_unmap(address, arguments[1])
                driver.vmm_address_free(address, arguments[1])
                driver.vmm_release(handle)
            else:
                value = getattr(driver, function)(*arguments)
            answer = {"value": value.hex() if isinstance(value, bytes) else value}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
