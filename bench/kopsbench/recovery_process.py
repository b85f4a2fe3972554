"""A client of a daemon that loses its device: `python -m kopsbench.recovery_process ROLE SOCKET`.

bystander_torch, bystander_numpy: small blocking adds, one after the other, each checked, until a line comes on stdin.
culprit: a kernel that writes where no memory is. Each prints a line when it is ready, waits for one, and ends with a
line of JSON."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

BAD = 'extern "C" __global__ void bad(float *p) { p[1ull << 40] = 1; }'


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def adder(kops: Any, client: Any, role: str) -> Callable[[], bool]:
    """A call that is right, or not."""
    if role == "bystander_torch":
        import torch

        a, b, out = (torch.full((1024,), value, device="cuda") for value in (1.0, 2.0, 0.0))

        def add() -> bool:
            out.zero_()
            client.add(a, b, out=out)
            return bool((out == 3).all())

        return add
    memory = client.empty((3, 1024), "f32")
    memory[0], memory[1] = 1, 2

    def add_shared() -> bool:
        memory[2] = 0
        client.add(memory[0], memory[1], out=memory[2])
        return bool((memory[2] == 3).all())

    return add_shared


def stand_by(kops: Any, client: Any, role: str) -> dict[str, Any]:
    add = adder(kops, client, role)
    add()
    say("ready")
    errors: list[str] = []
    good = wrong = 0
    longest, last = 0.0, time.monotonic()
    while not told():
        try:
            right = add()
        except kops.KopsError as error:
            errors.append(type(error).__name__)
            continue
        except RuntimeError as error:  # torch's, of its own context
            return {"good": good, "wrong": wrong, "errors": errors, "own_context": str(error).splitlines()[0][:100]}
        now = time.monotonic()
        good, wrong = good + right, wrong + (not right)
        longest, last = max(longest, now - last), now
        time.sleep(0.0005)
    return {"good": good, "wrong": wrong, "errors": errors, "longest_s": longest}


def fault(kops: Any, client: Any) -> dict[str, Any]:
    kernel = client.kernel(BAD, "bad", "inout float* p", grid=1, block=1)
    memory = client.empty((64,), "f32")
    say("ready")
    sys.stdin.readline()
    start = time.monotonic()
    try:
        kernel(memory)
        return {"error": None}
    except kops.KopsError as error:
        return {"error": type(error).__name__, "after_s": time.monotonic() - start}


def main() -> int:
    import kops

    role, socket = sys.argv[1:3]
    client = kops.connect(socket, timeout=60, blocking=True)
    say(fault(kops, client) if role == "culprit" else stand_by(kops, client, role))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
