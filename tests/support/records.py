"""What a long run of a test came to, as a record beside those of bench/run: KOPS_RECORDS names the folder."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("KOPS_FAULTS", "KOPS_MODEL", "KOPS_TEST_BACKEND", "KOPS_TRACE")  # what a run's extent depends on


def _command() -> str:
    settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(os.environ.items()) if key.startswith(SETTINGS)]
    test = os.environ["PYTEST_CURRENT_TEST"].split("::")[0]
    path = next(folder / test for folder in (ROOT, ROOT / "client_py") if (folder / test).exists())  # pytest's roots
    return " ".join([*settings, "python3 -m pytest", str(path.relative_to(ROOT))])


def keep(measure: str, unit: str, amount: int, on_gpu: bool = False, **detail: Any) -> None:
    """Appends to DIR/tests.json; does nothing where no folder was named. `amount` of `unit`: how much was tried."""
    if "KOPS_RECORDS" not in os.environ:
        return
    sys.path.insert(0, str(ROOT / "bench"))
    from kopsbench.context import Context
    from kopsbench.record import Record, Summary, write

    path = Path(os.environ["KOPS_RECORDS"]) / "tests.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    context = Context(Path(os.environ["KOPS_BUILD"]), 1, 1, None)
    record = Record(measure, unit, "higher", Summary(float(amount), float(amount), 1), None, {**detail, "peer": "none"})
    records.append({**record.as_json(context.record_context(on_gpu)), "command": _command()})
    write(path, records)
