#!/usr/bin/env python3
"""Writes the golden vectors as inputs of the fuzz targets: `seeds.py FOLDER` makes FOLDER/receive and FOLDER/scan."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proto" / "golden"))

import golden


def main() -> int:
    folder = Path(sys.argv[1])
    for name in ("receive", "scan"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file in golden.FILES:
        for vector in golden.load(file):
            data = vector["bytes"]
            chunk = bytes([1, *min(len(data), 0xFFFF).to_bytes(2, "big"), len(vector.get("fds", []))])
            (folder / "receive" / vector["name"]).write_bytes(chunk + data)
            (folder / "scan" / vector["name"]).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
