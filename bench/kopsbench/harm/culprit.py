"""A client that does harm, on request: `python -m kopsbench.harm.culprit SOCKET UID`.

It becomes that user (0: it stays who it is), makes its kernels known, and says so. Then each line on stdin is an order,
answered with a line of JSON:

    fault, hang     a kernel that faults, or does not end before its deadline, then launches until one has a right result

It speaks the protocol itself, without a client library."""

from __future__ import annotations

import json
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


def main() -> int:
    path, uid = sys.argv[1], int(sys.argv[2])
    if uid:
        become(uid)
    culprit = Culprit(path)
    right, code = culprit.good()
    print(json.dumps({"right": right, "code": code}), flush=True)
    for line in sys.stdin:
        print(json.dumps(culprit.do_harm(line.strip())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
