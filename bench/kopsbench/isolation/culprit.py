"""A client whose kernels do harm, on request: `python -m kopsbench.isolation.culprit SOCKET UID`.

It becomes that user (0: it stays who it is), makes its kernels known, and says so. Then each line of JSON on stdin is an
order, answered with a line:

    {"do": "good"}                               a launch with a right result
    {"do": "fault"}, {"do": "hang"}              harm, and then launches until one has a right result
    {"do": "storm", "faults", "hangs", "seconds"} as many of each, or for that long; both None: only for that long
    {"do": "share", "us", "depth", "seconds"}    kernels of that length, so many at a time

It speaks the protocol itself, without a client library, and has no context of its own on a GPU."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
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
REFUSED_PAUSE_S = 0.001
LOST = ("device_fault", "device_lost", "deadline_exceeded")


class Culprit:
    def __init__(self, path: str) -> None:
        self.connection = raw.Connection(path)
        hello = self.connection.call("hello")
        gpu = next(device["uuid"] for device in hello["devices"] if device["backend"] == "cuda")
        self.shared = Shared(2 * 4 * N)
        self.values = self.shared.view(np.float32, 2 * N).reshape(2, N)
        buffer = self.connection.register(self.shared)
        self.input, self.output = (tensor(buffer, [N], offset=4 * N * i) for i in range(2))
        reply = self.connection.reply(self.connection.request("alloc", {"size": 4096, "device": gpu}))
        own = reply.get()["buffer"]
        self.words, self.counter = tensor(own, [16]), tensor(own, [1], "u32", offset=1024)
        self.custom = custom_kernel(self.connection)
        self.kernels = {entry: hostile_kernel(self.connection, entry) for entry in ("fault_kernel", "spin_forever", "run_for")}
        self.number = 0

    def launch(self, kernel: int, arguments: list[Any], **more: Any) -> raw.Reply:
        return self.connection.reply(self.connection.request("launch", {"kernel": kernel, "args": arguments, **more}))

    def good(self) -> tuple[bool, str | None]:
        """Whether the result is right; the error's code."""
        self.number = self.number % 1000 + 1
        self.values[0], self.values[1] = self.number, np.nan
        error = self.launch(self.custom, [self.output, self.input, N]).error
        return bool((self.values[1] == 2 * self.number).all()), error["code"] if error else None

    def harm(self, what: str) -> raw.Reply:
        if what == "fault":
            return self.launch(self.kernels["fault_kernel"], [self.words])
        return self.launch(self.kernels["spin_forever"], [self.words], deadline_ms=DEADLINE_MS)

    # ---- orders ----

    def do_good(self) -> dict[str, Any]:
        start = time.perf_counter()
        right, code = self.good()
        return {"right": right, "code": code, "us": (time.perf_counter() - start) * 1e6}

    def do_harm(self, what: str) -> dict[str, Any]:
        start = time.perf_counter()
        error = self.harm(what).error or {"code": None, "detail": {}, "message": ""}
        said: dict[str, Any] = {"reply_us": (time.perf_counter() - start) * 1e6}
        said |= {"code": error["code"], "detail": error["detail"], "message": error["message"]}
        codes = []
        while time.perf_counter() < start + GIVE_UP_S:
            right, code = self.good()
            if right and not code:
                said["good_us"] = (time.perf_counter() - start) * 1e6
                break
            codes.append(code or "wrong")
        return {**said, "failed_before_good": codes}

    def do_storm(self, faults: int | None, hangs: int | None, seconds: float) -> dict[str, Any]:
        """Where the daemon refuses a kernel, the client asks again soon."""
        start = time.perf_counter()
        codes: Counter[str] = Counter()
        for what in schedule(faults, hangs):
            if time.perf_counter() >= start + seconds:
                break
            error = self.harm(what).error
            codes[f"{what}: {error['code'] if error else 'ok'}"] += 1
            if error and error["code"] not in LOST:
                time.sleep(REFUSED_PAUSE_S)
        return {"codes": dict(codes), "seconds": time.perf_counter() - start}

    def do_share(self, us: int, depth: int, seconds: float) -> dict[str, Any]:
        params = {"kernel": self.kernels["run_for"], "args": [self.counter, us]}
        start = time.perf_counter()
        under_way = [self.connection.request("launch", params) for _ in range(depth)]
        gpu_us, runs = 0.0, 0
        while under_way:
            gpu_us += self.connection.reply(under_way.pop(0)).get()["timings"]["gpu_us"]
            runs += 1
            if time.perf_counter() < start + seconds:
                under_way.append(self.connection.request("launch", params))
        return {"runs": runs, "gpu_us": gpu_us, "seconds": time.perf_counter() - start}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        do = order.pop("do")
        if do in ("fault", "hang"):
            return self.do_harm(do)
        return dict({"good": self.do_good, "storm": self.do_storm, "share": self.do_share}[do](**order))


def schedule(faults: int | None, hangs: int | None) -> Iterator[str]:
    """The hangs evenly among the faults; a hang after four faults where there is no bound."""
    if faults is None or hangs is None:
        yield from ("hang" if i % 5 == 4 else "fault" for i in count())
        return
    done = 0
    for i in range(faults + hangs):
        due = (i + 1) * hangs // (faults + hangs)
        yield "hang" if due > done else "fault"
        done = due


def main() -> int:
    path, uid = sys.argv[1], int(sys.argv[2])
    if uid:
        become(uid)
    culprit = Culprit(path)
    print(json.dumps(culprit.do_good()), flush=True)
    for line in sys.stdin:
        print(json.dumps(culprit.obey(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
