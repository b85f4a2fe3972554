"""`python3 -m kops.profiler -o report.html`, which `kopsctl report` runs: a report of what a daemon ran."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import BadArgument, Client, ConnectFailed, KopsError
from ._report import Peaks, report

DONE, FAILED, NO_DAEMON = 0, 1, 3  # exit statuses, as kopsctl's


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m kops.profiler", description="Writes a report of what a daemon ran.")
    parser.add_argument("-o", "--output", metavar="FILE", default="kops-report.html", help="a page, .html, or a picture, .png")
    parser.add_argument("--op", metavar="NAME", help="what ran of this op or kernel alone")
    parser.add_argument("--device", metavar="UUID", help="what ran on this device alone; an index will do")
    parser.add_argument("--peaks", metavar="FILE", type=Path, help="the devices' peaks; those that it lacks are measured and added")
    parser.add_argument("--socket", metavar="PATH", help="the daemon's")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=60.0, help="for each request")
    parser.add_argument("--json", action="store_true", help="say as JSON what was written, and errors")
    return parser.parse_args(arguments)


def read_peaks(path: Path) -> dict[str, Peaks]:
    """The peaks of a file; none where there is no file yet."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {uuid: Peaks(uuid, str(row["name"]), float(row["gb_s"]), dict(row["gflop_s"])) for uuid, row in rows.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadArgument(f"{path} has no peaks of devices: name another file, or remove it to measure anew") from None


def write_peaks(path: Path, peaks: Mapping[str, Peaks]) -> None:
    rows = {uuid: {**dataclasses.asdict(one), "gflop_s": dict(one.gflop_s)} for uuid, one in peaks.items()}
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _complain(wanted: argparse.Namespace, code: str, message: str) -> None:
    error = {"error": {"code": code, "message": message, "what": "report"}}
    print(json.dumps(error) if wanted.json else f"kopsctl: report: {message} [{code}]", file=sys.stderr)


def _write(wanted: argparse.Namespace) -> None:
    known = read_peaks(wanted.peaks) if wanted.peaks else {}
    device: Any = int(wanted.device) if wanted.device and wanted.device.isdecimal() else wanted.device
    with Client(wanted.socket, timeout=wanted.timeout) as client:
        found = report(client, wanted.output, peaks=known, op=wanted.op, device=device)
    if wanted.peaks and found.keys() != known.keys():
        write_peaks(wanted.peaks, found)
    measured = sorted(found.keys() - known.keys())
    if wanted.json:
        print(json.dumps({"file": wanted.output, "measured": measured}))
    else:
        print(f"{wanted.output} is written" + (f"; the peaks of {', '.join(measured)} were measured" if measured else ""))


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _arguments(arguments)
    try:
        _write(wanted)
    except KopsError as error:
        _complain(wanted, error.code, str(error))
        return NO_DAEMON if isinstance(error, ConnectFailed) else FAILED
    except OSError as error:
        _complain(wanted, "os_error", str(error))
        return FAILED
    except ModuleNotFoundError as error:
        _complain(wanted, "unsupported", str(error))
        return FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main())
