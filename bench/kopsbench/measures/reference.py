"""What one more reference to memory that the daemon knows costs it: decoding, lookup, checks, keeping it in use.

A request with a sequence of adds on three tensors is compared with one whose adds have tensors of their own, all
on the same memory: the same work on the device, more references. Both are packed once and sent as they are, so that nearly
all of the difference is the daemon's. A sample is the difference of two neighbouring blocks, by the number of references.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter_ns
from typing import Any

from support import raw

from ..context import Context, Skipped
from ..record import Record, summarise
from . import add

OPS = 64
BLOCKS, CALLS = 60, 40
ELEMENTS = 4
BYTES = ELEMENTS * 4
TARGET_US = 0.3


def sequence(tensors: list[dict[str, Any]]) -> bytes:
    """OPS adds in turn on as many triples as `tensors` has."""
    ops = []
    for i in range(OPS):
        first = 3 * i % len(tensors)
        ops.append({"op": "add", "in": [first, first + 1], "out": [first + 2]})
    return raw.pack([0, 7, "sequence", [{"tensors": tensors, "ops": ops, "timing": False}]])


def call_times(connection: raw.Connection, packed: bytes, n: int) -> Iterator[float]:
    for _ in range(n):
        start = perf_counter_ns()
        connection.send(packed)
        reply = connection.reply(7)
        yield (perf_counter_ns() - start) * 1e-3
        reply.get()


def differences(connection: raw.Connection, three: list[dict[str, Any]], blocks: int, calls: int) -> list[float]:
    few, many = sequence(three), sequence(three * OPS)
    for packed in (few, many):
        list(call_times(connection, packed, calls))
    found = []
    for _ in range(blocks):
        base = median(call_times(connection, few, calls))
        found.append((median(call_times(connection, many, calls)) - base) / (3 * OPS - 3))
    return found


def registered(connection: raw.Connection) -> list[dict[str, Any]]:
    """References by id to memory that the daemon made on its default device."""
    made = [connection.call("alloc", {"size": BYTES})["buffer"] for _ in range(3)]
    return [raw.tensor(buffer, [ELEMENTS]) for buffer in made]


def carried(tensors: list[Any]) -> list[dict[str, Any]]:
    """References that carry the IPC handle of this process's memory themselves."""
    from standin_cuda import Driver

    driver = Driver()
    found = []
    for tensor in tensors:
        pointer = tensor.__cuda_array_interface__["data"][0]
        base, size = driver.address_range(pointer)
        found.append(
            {
                "ipc": driver.ipc_handle(base),
                "size": size,
                "alloc_id": driver.buffer_id(base),
                "device": driver.uuid(),
                "offset": pointer - base,
                "shape": [ELEMENTS],
                "dtype": "f32",
            }  # fmt: skip
        )
    return found


def run(context: Context, name: str, socket: str, *, inline: bool) -> Record:
    blocks, calls = (2, 3) if context.smoke else (BLOCKS, CALLS)
    own = [context.torch.full((ELEMENTS,), 1.0, device="cuda") for _ in range(3)] if inline else []
    connection = raw.Connection(socket)
    try:
        if "sequence" not in connection.call("hello", {"protocol": 1})["features"]:
            raise Skipped("the daemon has no sequences")
        three = carried(own) if inline else registered(connection)
        samples = differences(connection, three, blocks, calls)
    finally:
        connection.close()
    return Record(
        name,
        "us",
        "lower",
        summarise(samples),
        None,
        {
            "measured": f"a sequence of {OPS} adds of {ELEMENTS} f32 on {3 * OPS} tensors against the same on 3, packed once;"
            f" a sample is the difference of the medians of {calls} calls, by {3 * OPS - 3}",
            "reference": "CUDA IPC handle in the tensor, mapped before" if inline else "id of a registered buffer",
            "transport": "AF_UNIX stream socket",
            "peer": "none: what a process does with its own pointers costs nothing",
        },
        target=TARGET_US,
        absolute=True,
    )


def run_gpu(context: Context) -> list[Record]:
    socket = context.gpu_daemon.socket_path
    return [
        run(context, "cached_reference_id", socket, inline=False),
        run(context, "cached_reference_ipc", socket, inline=True),
    ]


def run_host(context: Context) -> Record:
    with context.daemon(cuda=False) as daemon:
        return run(context, "cached_reference_host", daemon.socket_path, inline=False)


add("cached_reference", run_gpu, on_gpu=True, table=True)
add("cached_reference_host", run_host, on_gpu=False)
