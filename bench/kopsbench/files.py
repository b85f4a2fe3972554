"""Records out of files: of each measure the latest that has a number."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def load(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """By name, in the order of the files."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for record in json.loads(path.read_text(encoding="utf-8")):
            before = found.get(record["measure"])
            better = before is None or (not record.get("error"), record["date"]) >= (not before.get("error"), before["date"])
            if better:
                found[record["measure"]] = record
    return found


def newest(folder: Path) -> list[Path]:
    """Every list of records in a folder."""
    return sorted(folder.glob("*.json"))
