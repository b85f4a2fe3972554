"""A client beside others of which one makes trouble: `python -m kopsbench.recovery_process ROLE SOCKET`.

bystander_torch, bystander_numpy: small blocking adds, one after the other, each checked, until a line comes on stdin.
fault: a kernel that writes where no memory is. killed: gemms of its own memory until it is killed. freed: frees that
memory while they run. no_memory: allocates until nothing is left. Each prints a line when it is ready, waits for one,
and ends with a line of JSON."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

SIDE = 4096  # a gemm of f32 that takes milliseconds
MANY, SOME = 10_000, 300  # of them
CHUNKS = 32  # in which all of the GPU's memory is asked for
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


def fault(kops: Any, socket: str) -> dict[str, Any]:
    client = kops.connect(socket, timeout=60, blocking=True)
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


def gemms_under_way(connection: Any, count: int) -> tuple[Any, int, int]:
    """The driver, the pointer to the memory that the gemms work on, and the request's id."""
    from cuda_driver import Driver
    from support.raw import tensor

    driver = Driver()
    size = SIDE * SIDE * 4
    pointer = driver.alloc(3 * size)
    buffer = connection.call("register", driver.export(pointer))["buffer"]
    a, b, out = (tensor(buffer, [SIDE, SIDE], offset=i * size) for i in range(3))
    connection.call("run", {"op": "gemm", "in": [a, b], "out": [out]})
    say("ready")
    sys.stdin.readline()
    msgid = connection.request("run", {"op": "gemm", "in": [a, b], "out": [out], "repeat": count})
    connection.call("ping")  # answered once the run was taken
    return driver, pointer, msgid


def killed(kops: Any, socket: str) -> dict[str, Any]:
    from support.raw import Connection

    with Connection(socket) as connection:
        gemms_under_way(connection, MANY)
        say("running")
        sys.stdin.readline()
    return {"error": "nobody killed it"}


def freed(kops: Any, socket: str) -> dict[str, Any]:
    from support.raw import Connection

    with Connection(socket) as connection:
        driver, pointer, msgid = gemms_under_way(connection, SOME)
        start = time.monotonic()
        driver.free(pointer)
        free_s = time.monotonic() - start
        reply = connection.reply(msgid)
        error = reply.error and reply.error["code"]
        return {"error": error, "free_s": free_s, "after_s": time.monotonic() - start}


def no_memory(kops: Any, socket: str) -> dict[str, Any]:
    from support.raw import Connection

    with Connection(socket) as connection:
        device = next(row for row in connection.call("hello")["devices"] if row["backend"] == "cuda")
        chunk = device["memory_bytes"] // CHUNKS
        say("ready")
        sys.stdin.readline()
        start = time.monotonic()
        for taken in range(2 * CHUNKS):
            reply = connection.reply(connection.request("alloc", {"size": chunk, "device": device["index"]}))
            if reply.error is not None:
                return {"error": reply.error["code"], "taken_bytes": taken * chunk, "after_s": time.monotonic() - start}
            for fd in reply.fds:
                os.close(fd)
            reply.fds.clear()
    return {"error": None}


TROUBLES = {"fault": fault, "killed": killed, "freed": freed, "no_memory": no_memory}


def main() -> int:
    import kops

    role, socket = sys.argv[1:3]
    if role in TROUBLES:
        say(TROUBLES[role](kops, socket))
    else:
        say(stand_by(kops, kops.connect(socket, timeout=60, blocking=True), role))
    return 0


if __name__ == "__main__":
    sys.exit(main())
