"""The golden vectors as inputs of the fuzz targets, and for `server` sessions that work on the two buffers which server.c
registers. corpus.py writes them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proto" / "golden"))

import golden
import msgpack

# Ids of the first two buffers of a connection (daemon/util/idtable.c), 4096 bytes each.
FIRST, SECOND = 1, 2


def tensor(buffer: int, *shape: int, dtype: str = "f32", offset: int = 0) -> dict:
    return {"buffer": buffer, "shape": list(shape), "dtype": dtype, "offset": offset}


A, B, C = tensor(FIRST, 16), tensor(FIRST, 16, offset=64), tensor(SECOND, 16)
SQUARE = [tensor(FIRST, 8, 8), tensor(FIRST, 8, 8, offset=256), tensor(SECOND, 8, 8)]
BODY = {
    "tensors": [A, B, C],
    "ops": [{"op": "add", "in": [0, 1], "out": [2]}, {"op": "square", "in": [2], "out": [2]}],
}
SESSIONS: dict[str, list[tuple[str, dict]]] = {
    "hello": [("hello", {"client": "fuzz", "protocol": 1}), ("hello", {"shm": True}), ("ping", {"a": [1, {"b": 2}]})],
    "run": [
        ("run", {"op": "add", "in": [A, B], "out": [C]}),
        ("run", {"op": "square", "in": [A], "out": [A], "stream": 3, "priority": "low"}),
        ("run", {"op": "add", "in": [A, B], "out": [C], "warmup": 2, "repeat": 5, "deadline_ms": 1000}),
        ("run", {"op": "gemm", "in": SQUARE[:2], "out": SQUARE[2:], "attrs": {"alpha": 2.0, "trans_a": True}}),
        ("cancel", {"msgid": 1}),
    ],
    "sequence": [("sequence", BODY), ("sequence", {**BODY, "repeat": 3, "timing": False})],
    "program": [
        ("program", BODY),
        ("run_program", {"program": FIRST}),
        ("run_program", {"program": FIRST, "bind": [{"index": 2, "buffer": SECOND, "offset": 128}]}),
        ("release", {"program": FIRST}),
    ],
    "memory": [
        ("alloc", {"size": 5000}),
        ("run", {"op": "square", "in": [A], "out": [tensor(SECOND + 1, 16)]}),
        ("release", {"buffer": FIRST}),
        ("trim", {}),
        ("run", {"op": "square", "in": [A], "out": [C]}),
    ],
    "bfloat": [("run", {"op": "add", "in": [{**t, "dtype": "bf16"} for t in (A, B)], "out": [{**C, "dtype": "bf16"}]})],
    "strides": [
        (
            "run",
            {
                "op": "add",
                "in": [{**A, "shape": [4, 4], "strides": [1, 4]}, {**B, "shape": [4, 1]}],
                "out": [{**C, "shape": [4, 4]}],
            },
        )
    ],
    "stats": [("stats", {"op": "add", "dtype": "f32", "device": 0}), ("stats", {"reset": True})],
    "timelines": [("timelines", {}), ("run", {"op": "add", "in": [A, B], "out": [C], "ready": 1, "done": 1})],
    "clients": [("clients", {}), ("metrics", {}), ("drain", {"timeout_ms": 1}), ("drain", {"resume": True})],
    "kernels": [
        ("compile", {"source": "__global__ void k() {}", "entries": ["k"], "arch": "sm_90a"}),
        ("kernel", {"module": FIRST, "entry": "k", "params": []}),
        ("launch", {"kernel": FIRST, "args": [], "grid": [1], "block": [1]}),
        ("cache", {"action": "list"}),
    ],
}


def session(calls: list[tuple[str, dict]]) -> bytes:
    data = b"".join(msgpack.packb([0, i, method, [params]]) for i, (method, params) in enumerate(calls, 1))
    return bytes([0]) + data


def ring_steps(data: bytes) -> bytes:
    """Put, receive and flush (ring.c's steps 0, 5 and 6), a piece at a time; then the replies are taken."""
    pieces = [data[i : i + 255] for i in range(0, len(data), 255)]
    return b"".join(bytes([0, len(piece)]) + piece + bytes([5, 6]) for piece in pieces) + bytes([7])


def write(folder: Path) -> None:
    for name in ("codec", "ring", "server"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file in golden.FILES:
        for vector in golden.load(file):
            data = vector["bytes"]
            chunk = bytes([1, *min(len(data), 0xFFFF).to_bytes(2, "big"), len(vector.get("fds", []))])
            (folder / "server" / vector["name"]).write_bytes(chunk + data)
            (folder / "ring" / vector["name"]).write_bytes(ring_steps(data))
            (folder / "codec" / vector["name"]).write_bytes(data)
    for name, calls in SESSIONS.items():
        (folder / "server" / f"session_{name}").write_bytes(session(calls))
