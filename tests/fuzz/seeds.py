#!/usr/bin/env python3
"""Writes the golden vectors as inputs of the fuzz targets: `seeds.py FOLDER` makes FOLDER/receive, …/ring and …/scan."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proto" / "golden"))

import golden


def ring_steps(data: bytes) -> bytes:
    """Put, receive and flush (ring.c's steps 0, 5 and 6), a piece at a time; then the replies are taken."""
    pieces = [data[i : i + 255] for i in range(0, len(data), 255)]
    return b"".join(bytes([0, len(piece)]) + piece + bytes([5, 6]) for piece in pieces) + bytes([7])


def main() -> int:
    folder = Path(sys.argv[1])
    for name in ("receive", "ring", "scan"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file in golden.FILES:
        for vector in golden.load(file):
            data = vector["bytes"]
            chunk = bytes([1, *min(len(data), 0xFFFF).to_bytes(2, "big"), len(vector.get("fds", []))])
            (folder / "receive" / vector["name"]).write_bytes(chunk + data)
            (folder / "ring" / vector["name"]).write_bytes(ring_steps(data))
            (folder / "scan" / vector["name"]).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
