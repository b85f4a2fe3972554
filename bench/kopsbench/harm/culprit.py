"""A client that does harm, on request: `python -m kopsbench.harm.culprit SOCKET UID`.

It becomes that user (0: it stays who it is), makes its kernels known, and says so. Then each line on stdin is an order,
answered with a line of JSON:

    fault, hang     a kernel that faults, or does not end before its deadline, then launches until one has a right result
    gemms           products of memory of its own, which go on when the answer comes
    freed           the same, and the memory is freed while they run
    no_memory       allocates until nothing of the GPU's memory is left

It speaks the protocol itself, without a client library; only `gemms` and `freed` make a context of its own on a GPU."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
from support import raw
from support.kernels import custom_kernel, hostile_kernel
from support.memfd import Shared
from support.raw import tensor

from ..neighbour.users import become

N = 1024
DEADLINE_MS = 100
GIVE_UP_S = 30.0
SIDE = 64 if os.environ.get("KOPS_BENCH_SMOKE") else 4096  # of a gemm of f32 that takes milliseconds on a GPU
GEMMS = {"gemms": 10_000, "freed": 300}
CHUNKS = 32  # in which all of the GPU's memory is asked for


class Culprit:
    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0
        self.connect()

    def connect(self) -> None:
        """Also when the daemon has ended and a new one has taken over."""
        self.connection = raw.Connection(self.path)
        hello = self.connection.call("hello")
        self.gpu = next(device for device in hello["devices"] if device["backend"] == "cuda")
        self.shared = Shared(2 * 4 * N)
        self.values = self.shared.view(np.float32, 2 * N).reshape(2, N)
        buffer = self.connection.register(self.shared)
        self.input, self.output = (tensor(buffer, [N], offset=4 * N * i) for i in range(2))
        reply = self.connection.reply(self.connection.request("alloc", {"size": 4096, "device": self.gpu["uuid"]}))
        self.words = tensor(reply.get()["buffer"], [16])
        self.custom = custom_kernel(self.connection)
        self.kernels = {entry: hostile_kernel(self.connection, entry) for entry in ("fault_kernel", "spin_forever")}

    def launch(self, kernel: int, arguments: list[Any], **more: Any) -> raw.Reply:
        return self.connection.reply(self.connection.request("launch", {"kernel": kernel, "args": arguments, **more}))

    def good(self) -> tuple[bool, str | None]:
        """Whether the result is right; the error's code."""
        self.number = self.number % 1000 + 1
        self.values[0], self.values[1] = self.number, np.nan
        error = self.launch(self.custom, [self.output, self.input, N]).error
        return bool((self.values[1] == 2 * self.number).all()), error["code"] if error else None

    def harm(self, what: str) -> dict[str, Any]:
        """The error of a kernel that faults, or never ends; `closed` when the daemon has gone with it."""
        try:
            if what == "fault":
                error = self.launch(self.kernels["fault_kernel"], [self.words]).error
            else:
                error = self.launch(self.kernels["spin_forever"], [self.words], deadline_ms=DEADLINE_MS).error
        except (raw.Closed, OSError) as closed:
            return {"code": "closed", "detail": {}, "message": str(closed)}
        return error or {"code": None, "detail": {}, "message": ""}

    def do_harm(self, what: str) -> dict[str, Any]:
        start = time.perf_counter()
        error = self.harm(what)
        said: dict[str, Any] = {"reply_us": (time.perf_counter() - start) * 1e6}
        said |= {"code": error["code"], "detail": error["detail"], "message": error["message"]}
        codes = []
        while time.perf_counter() < start + GIVE_UP_S:
            try:
                right, code = self.good()
            except (raw.Closed, raw.RpcError, OSError):
                right, code = False, "closed"
                try:
                    self.connect()
                except (raw.Closed, raw.RpcError, OSError):  # the old daemon's last moments
                    time.sleep(0.01)
            if right and not code:
                said["good_us"] = (time.perf_counter() - start) * 1e6
                break
            codes.append(code or "wrong")
        return {**said, "failed_before_good": codes}

    def do_gemms(self, what: str) -> dict[str, Any]:
        from standin_cuda import Driver

        driver, size = Driver(), SIDE * SIDE * 4
        pointer = driver.alloc(3 * size)
        base, whole = driver.address_range(pointer)
        params = {"kind": "cuda_ipc", "handle": driver.ipc_handle(base), "size": whole, "alloc_id": driver.buffer_id(base)}
        buffer = self.connection.call("register", {**params, "device": driver.uuid()})["buffer"]
        a, b, out = (tensor(buffer, [SIDE, SIDE], offset=pointer - base + i * size) for i in range(3))
        run = {"op": "gemm", "in": [a, b], "out": [out]}
        self.connection.call("run", run)
        msgid = self.connection.request("run", {**run, "repeat": GEMMS[what]})
        self.connection.call("ping")  # answered once the run was taken
        if what == "gemms":
            return {"code": None}
        start = time.perf_counter()
        driver.free(pointer)
        error = self.connection.reply(msgid).error
        return {"code": error and error["code"], "reply_us": (time.perf_counter() - start) * 1e6}

    def do_no_memory(self) -> dict[str, Any]:
        start = time.perf_counter()
        kept: list[int] = []
        for taken in range(2 * CHUNKS):
            chunk = self.gpu["memory_bytes"] // CHUNKS
            reply = self.connection.reply(self.connection.request("alloc", {"size": chunk, "device": self.gpu["uuid"]}))
            if reply.error is not None:
                us = (time.perf_counter() - start) * 1e6
                for buffer in kept:
                    self.connection.call("release", {"buffer": buffer})
                return {"code": reply.error["code"], "taken_bytes": taken * chunk, "reply_us": us}
            kept.append(reply.get()["buffer"])
            for fd in reply.fds:
                os.close(fd)
            reply.fds.clear()
        return {"code": None}

    def obey(self, order: str) -> dict[str, Any]:
        if order in GEMMS:
            return self.do_gemms(order)
        return self.do_no_memory() if order == "no_memory" else self.do_harm(order)


def main() -> int:
    path, uid = sys.argv[1], int(sys.argv[2])
    if uid:
        become(uid)
    culprit = Culprit(path)
    right, code = culprit.good()
    print(json.dumps({"right": right, "code": code}), flush=True)
    for line in sys.stdin:
        print(json.dumps(culprit.obey(line.strip())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
