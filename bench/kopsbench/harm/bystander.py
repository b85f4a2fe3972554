"""A client that works beside others that do harm: `python -m kopsbench.harm.bystander ROLE SOCKET DEVICE STALL_US`.

Small blocking calls, each of other numbers and each checked, until stdin ends. `torch`: adds of tensors in CUDA memory of
its own; `shared`: adds in shared memory; `kernel`: launches of a kernel of its own in shared memory. Orders come as lines on
stdin, and each is answered with a line of JSON: `mark` forgets all calls until now, `report` tells of those since."""

from __future__ import annotations

import json
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..context import torch_of_a_child

ELEMENTS = 1024
SAMPLES = 4096  # the latest ones are told
PAUSE_S = 0.0005

Round = Callable[[int], tuple[float, float, bool]]  # when a call began and ended, in seconds, and whether its answer is right


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    start = time.perf_counter()
    call()
    return start, time.perf_counter()


def of_torch(client: Any, device: str) -> Round:
    torch = torch_of_a_child()

    def run(number: int) -> tuple[float, float, bool]:
        a, b, out = (torch.full((ELEMENTS,), value, device="cuda") for value in (float(number), 3.0, float("nan")))
        torch.cuda.synchronize()
        times = timed(lambda: client.add(a, b, out=out))
        return *times, bool(torch.equal(out, torch.full((ELEMENTS,), number + 3.0, device="cuda")))

    return run


def of_shared(client: Any, device: str) -> Round:
    memory = client.empty((3, ELEMENTS), "f32")
    memory[1] = 3

    def run(number: int) -> tuple[float, float, bool]:
        memory[0], memory[2] = number, float("nan")
        times = timed(lambda: client.add(memory[0], memory[1], out=memory[2], device=device))
        return *times, bool((memory[2] == number + 3).all())

    return run


def of_kernel(client: Any, device: str) -> Round:
    from support.kernels import OTHERS

    kernel = client.kernel(OTHERS, "custom_kernel", "out float* out[n], const float* in[n], int n", "ceil_div(n, 256)", 256)
    memory = client.empty((2, ELEMENTS), "f32")

    def run(number: int) -> tuple[float, float, bool]:
        memory[0], memory[1] = number, float("nan")
        times = timed(lambda: kernel(memory[1], memory[0], ELEMENTS))
        return *times, bool((memory[1] == 2 * number).all())

    return run


ROLES = {"torch": of_torch, "shared": of_shared, "kernel": of_kernel}


class Tally:
    """The calls since the latest mark."""

    def __init__(self, stall_us: float) -> None:
        self.stall_us = stall_us
        self.start = time.perf_counter()
        self.waiting: float | None = None  # since when for a right answer
        self.calls = self.wrong = 0
        self.errors: list[str] = []
        self.longest_us = self.stalled_us = 0.0
        self.us: deque[float] = deque(maxlen=SAMPLES)

    def note(self, start: float, end: float, right: bool) -> None:
        self.us.append(round((end - start) * 1e6, 1))
        if not right:
            self.wrong += 1
            self.waiting = self.waiting or start
            return
        waited_us = (end - (self.waiting or start)) * 1e6
        self.waiting = None
        self.longest_us = max(self.longest_us, waited_us)
        if waited_us >= self.stall_us:
            self.stalled_us += waited_us

    def note_error(self, start: float, error: str) -> None:
        self.errors.append(error)
        self.waiting = self.waiting or start

    def report(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "errors": len(self.errors),
            "wrong": self.wrong,
            "first_error": self.errors[0] if self.errors else "",
            "longest_us": self.longest_us,
            "stalled_us": self.stalled_us,
            "elapsed_us": (time.perf_counter() - self.start) * 1e6,
            "us": list(self.us),
        }


def main() -> int:
    import kops

    role, socket, device, stall_us = sys.argv[1:5]
    with kops.connect(socket, timeout=60, blocking=True) as client:
        run = ROLES[role](client, device)
        if not run(1)[2]:
            sys.exit("the first answer is wrong")
        print('"ready"', flush=True)
        tally, number = Tally(float(stall_us)), 0
        while True:
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                order = sys.stdin.readline()
                if not order:
                    return 0
                if order.strip() == "mark":
                    tally = Tally(float(stall_us))
                print(json.dumps(tally.report() if order.strip() == "report" else {}), flush=True)
            number = number % 1000 + 1
            tally.calls += 1
            start = time.perf_counter()
            try:
                tally.note(*run(number))
            except kops.KopsError as error:
                tally.note_error(start, f"{error.code}: {error}"[:200])


if __name__ == "__main__":
    sys.exit(main())
